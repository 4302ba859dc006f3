"""The command ``fedtailor what-leaves``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fedtailor.cli.options import (
    NOTHING_NAMED,
    Assignments,
    Json,
    Named,
    argument,
    read_assignments,
    refuse_two_data_sets,
    switch,
    with_config_flags,
)
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import DataError, UsageError

Subject = Annotated[
    str,
    argument("RUN|ALGORITHM", "Folder of a run, or an algorithm (see: fedtailor list algorithms)."),
]
AsMarkdown = Annotated[bool, switch("--markdown", "Print the tables as Markdown.")]


@with_config_flags("data.dataset", "data.path", "data.dir", "model.name")
def what_leaves(
    subject: Subject,
    named: Named = NOTHING_NAMED,
    set_: Assignments = None,
    markdown: AsMarkdown = False,
    json: Json = False,
) -> None:
    """List every value that leaves a site: what it is, its bytes, and who can see it.

    For an algorithm, the model and the data are those of fedtailor demo, unless options name
    others.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from fedtailor.experiment.reader import holds_run, why_no_run
    from fedtailor.experiment.what_leaves import to_markdown, what_leaves_algorithm, what_leaves_run

    if json and markdown:
        raise UsageError("give --json or --markdown, not both.", key="--markdown")

    refuse_two_data_sets(named)
    changes: list[tuple[str, Any]] = [(key, value) for key, value in named.items() if value]
    changes += read_assignments(set_)

    # A run only needs to know where its data is now.
    if holds_run(Path(subject)):
        if any(key != "data.dir" for key, _ in changes):
            message = f"'{subject}' is a run, which has its own data, model and options."
            raise UsageError(message, key=changes[0][0])
        record = what_leaves_run(Path(subject), changes)
    elif len(Path(subject).parts) > 1:
        # No algorithm has the name of a folder within another one.
        raise DataError(why_no_run(Path(subject)), path=subject)
    else:
        record = what_leaves_algorithm(subject, changes)

    if json:
        print_json(record)
    elif markdown:
        print(to_markdown(record), end="")  # noqa: T201  # data on stdout
    else:
        Console(highlight=False).print(Markdown(to_markdown(record)))
