"""Optional packages: the command that installs those of an extra, for messages."""

from __future__ import annotations

import importlib.metadata
import re
import shlex

_REQUIREMENT = re.compile(r"(?P<package>[^;]+);.*extra == ['\"](?P<extra>[\w-]+)['\"]")


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra of fedtailor.

    It names the packages, because fedtailor itself may have been installed from a clone or a wheel,
    where ``pip install 'fedtailor[...]'`` finds nothing.

    Example:
        >>> install_command("data")
        "python -m pip install 'pyarrow>=17.0'"
    """
    try:
        requirements = importlib.metadata.requires("fedtailor") or []
    except importlib.metadata.PackageNotFoundError:  # its source alone is on the path
        requirements = []

    packages = []
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match["extra"] == extra:
            packages.append(shlex.quote(match["package"].strip()))

    return f"python -m pip install {' '.join(packages) or f'-e .[{extra}], in a clone'}"
