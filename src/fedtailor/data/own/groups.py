"""Groups of files that must stay together, such as those of a patient."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.names import counted, show


def groups_of_paths(
    where: Sequence[Occurrence], pattern: str, findings: Findings
) -> np.ndarray | None:
    """Return the group of every file (rows,); None, with the problems added, if one has none.

    Args:
        where: the files.
        pattern: a regular expression with one group, which is searched for in the path of a file.
        findings: the problems are added to it.
    """
    compiled = _compile(pattern, findings)
    if compiled is None:
        return None

    numbers: dict[str, int] = {}
    groups = []
    for file in where:
        match = compiled.search(file.path)
        group = match.group(1) if match else None
        if group:
            groups.append(numbers.setdefault(group, len(numbers)))
        else:
            message = f"data.group = {show(pattern)} finds no group in this path."
            findings.add("missing_group", message, site=file.site, path=file.path)

    # Every file without a group is told, not only the first.
    if len(groups) < len(where):
        return None

    note_groups(len(numbers), findings)
    return np.array(groups, dtype=np.int64)


def _compile(pattern: str, findings: Findings) -> re.Pattern[str] | None:
    """Compile an expression with one group; None, with the problem added, if it is not one."""
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        what = f"is not a regular expression ({error})"
    else:
        if compiled.groups == 1:
            return compiled

        what = f"has {counted(compiled.groups, 'group')} in parentheses, not 1"

    message = (
        f"data.group = {show(pattern)} {what}. For images it is a regular expression with one "
        "group, which is searched for in the path of a file, such as 'patient(\\d+)'."
    )
    findings.add("wrong_group", message)
    return None


def note_groups(number: int, findings: Findings) -> None:
    """Add a note on the number of groups."""
    findings.note(f"{counted(number, 'group')} of examples that stay together.")
