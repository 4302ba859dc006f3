"""Flower's program for one task, but it runs fedtailor's app only.

Flower starts ``flwr-clientapp`` at a site for every message, and installs and runs the app that the
server sends: any code. The site's own program of this name comes first in its path, and calls this.
An app is accepted only if it holds nothing but the file that names fedtailor's own parts. So the
server decides what is asked, and never what code answers.
"""

from __future__ import annotations

import io
import tomllib
import zipfile
from typing import Any

from flwr.cli.install import install_from_fab
from flwr.supernode.cli import flwr_clientapp
from flwr.supernode.runtime import run_clientapp

COMPONENTS = {
    "serverapp": "fedtailor.deployment.flower.server_app:server_app",
    "clientapp": "fedtailor.deployment.flower.client_app:client_app",
}
_FILES = frozenset({"pyproject.toml", ".info/CONTENT"})
_LARGEST = 2**16
"""Bytes of an app: ours has less than one kilobyte."""


def refuse_other_app(content: bytes) -> None:
    """Check that an app is fedtailor's.

    Raises:
        PermissionError: it holds code, or names other parts.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
            is_small = len(content) <= _LARGEST
            if not is_small or not set(names) <= _FILES or names.count("pyproject.toml") != 1:
                message = "the server has sent an app with other files than fedtailor's"
                raise PermissionError(f"{message}: {names[:5]}")

            # Few compressed bytes can become many.
            size = archive.getinfo("pyproject.toml").file_size
            text = archive.read("pyproject.toml").decode() if size <= _LARGEST else ""

        components = tomllib.loads(text)["tool"]["flwr"]["app"]["components"]
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, NotImplementedError) as reason:
        raise PermissionError("the server has sent an app that cannot be read") from reason

    if components != COMPONENTS:
        message = "the server has sent an app with other parts than fedtailor's"
        raise PermissionError(f"{message}: {components!s:.200}")


def install_ours(fab_file: bytes, *arguments: Any, **options: Any) -> Any:
    """Install an app as Flower does, if it is ours."""
    refuse_other_app(fab_file)
    return install_from_fab(fab_file, *arguments, **options)


def main() -> None:
    """Do one task."""
    # Flower has no option for this; a version that installs in another way must not pass.
    is_known = run_clientapp.install_from_fab is install_from_fab
    assert is_known, "this version of Flower installs apps in another way"
    run_clientapp.install_from_fab = install_ours
    flwr_clientapp()


if __name__ == "__main__":
    main()
