"""Groups of examples that must stay together, such as those of a patient."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedtailor.data.dataset import Dataset
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.findings import Findings, counted, show
from fedtailor.data.own.table import Table


def number_groups(tables: Sequence[Table], findings: Findings) -> list[np.ndarray | None]:
    """Return the number of the group of every row (rows,) of each table; None if tables have no
    column of groups.
    """
    numbers: dict[str, int] = {}
    result: list[np.ndarray | None] = []
    for table in tables:
        if table.cells.groups is None:
            result.append(None)
        else:
            own = [numbers.setdefault(group, len(numbers)) for group in table.cells.groups]
            result.append(np.array(own, dtype=np.int64))

    if numbers:
        findings.notes.append(f"{counted(len(numbers), 'group')} of examples that stay together.")

    return result


def groups_of_paths(
    where: Sequence[Occurrence], pattern: str, findings: Findings
) -> np.ndarray | None:
    """Return the number of the group of every file (rows,); None, with the problems added, if one
    has none.

    Args:
        where: the files.
        pattern: a regular expression with one group, which is searched for in the path of a file.
        findings: the problems are added to it.
    """
    try:
        compiled = re.compile(pattern)
        groups = compiled.groups
    except (re.error, RecursionError, OverflowError) as error:
        _refuse(f"is not a regular expression ({error})", pattern, findings)
        return None

    if groups != 1:
        _refuse(f"has {counted(groups, 'group')} in parentheses, not 1", pattern, findings)
        return None

    numbers: dict[str, int] = {}
    result = []
    for one in where:
        found = compiled.search(one.path)
        group = found.group(1) if found else None
        if not group:
            message = f"data.group = {show(pattern)} finds no group in this path."
            findings.add("error", "missing_group", one.site, one.path, message)
        else:
            result.append(numbers.setdefault(group, len(numbers)))

    if len(result) < len(where):
        return None

    findings.notes.append(f"{counted(len(numbers), 'group')} of examples that stay together.")
    return np.array(result, dtype=np.int64)


def _refuse(what: str, pattern: str, findings: Findings) -> None:
    message = (
        f"data.group = {show(pattern)} {what}. For images it is a regular expression with one group, which is searched "
        "for in the path of a file, such as 'patient(\\d+)'."
    )
    findings.add("error", "wrong_group", "", "", message)


def check_groups(dataset: Dataset, findings: Findings) -> bool:
    """Return whether no group is in both parts; add the problem if not, and a warning if sites
    share groups.
    """
    if dataset.groups is None:
        return True

    is_test = np.arange(len(dataset.y)) >= dataset.num_official_train
    if dataset.domains is not None:
        pairs = np.unique(np.stack([dataset.groups, dataset.domains]), axis=1)
        shared = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
        if shared:
            message = (
                f"{counted(shared, 'group is', 'groups are')} at several sites. Each is for training, or for testing, "
                "at all its sites. If these are different patients with the same number, put the name of the site "
                "before it."
            )
            findings.add("warning", "group_at_several_sites", "", "", message)

    both = np.intersect1d(dataset.groups[is_test], dataset.groups[~is_test])
    if len(both):
        message = (
            f"{counted(len(both), 'group has', 'groups have')} examples in training and in test, so the test is not on "
            "unseen groups. Move each to one side, or leave the division to the options."
        )
        findings.add("error", "group_in_train_and_test", "", "", message)

    return not len(both)
