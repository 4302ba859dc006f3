"""The command ``fedtailor new``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from fedtailor.cli.options import Json, argument
from fedtailor.cli.shell import print_json

_NEXT_STEPS = """\
Next:
  cd {folder}
  fedtailor data check data
  fedtailor run config.toml
  pytest test_my_method.py      (needs pytest; some minutes)"""

Name = Annotated[str, argument("NAME", "Folder to make.")]


def new(name: Name, json: Json = False) -> None:
    """Make a small project that runs at once.

    It has a configuration, tables of four made-up sites, and a method of your own with its test.
    Replace each by yours.
    """
    from fedtailor.experiment.starter import write_project

    folder = Path(name)
    files = [path.relative_to(folder).as_posix() for path in write_project(folder)]
    if json:
        print_json({"folder": str(folder), "files": files})
        return

    print(f"{folder} has {', '.join(files)}.")  # noqa: T201
    print(_NEXT_STEPS.format(folder=shlex.quote(name)))  # noqa: T201
