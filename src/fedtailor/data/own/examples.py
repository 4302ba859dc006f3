"""The examples of all sites in the order of reading, their groups, and their data set."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.core.text import counted, escaped, quoted
from fedtailor.data.columns import RawTable
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.own.duplicates import (
    DUPLICATE_KINDS,
    MEANINGS,
    Occurrence,
    digest_rows,
    find_duplicates,
)
from fedtailor.data.own.findings import Findings, Site

MAX_ROWS = 2_000_000
"""Most rows of arrays and tables among which duplicates are searched for."""

_FEW = 3
"""Most duplicates named in a message; all are counted."""


@dataclass(frozen=True)
class Examples:
    """The examples of all sites, in the order of reading: site by site."""

    x: np.ndarray  # (rows, height, width, channels), uint8 or float32; or (rows, features), float32
    y: np.ndarray  # (rows,), int64, whole numbers from 0
    site: np.ndarray  # (rows,), number of the site
    is_test: np.ndarray  # (rows,), bool
    group: np.ndarray | None = None  # (rows,), number of the group

    def count_sites(self, names: Sequence[str], class_names: Sequence[str]) -> list[Site]:
        """Return the number of examples of every site by class, without those that it lacks."""
        sites = [Site(escaped(name)) for name in names]
        keys = np.stack([self.is_test, self.site, self.y])
        cells, counts = np.unique(keys, axis=1, return_counts=True)
        for (is_test, number, label), count in zip(cells.T, counts.tolist(), strict=True):
            part = sites[number].test if is_test else sites[number].train
            part[escaped(class_names[label])] = count

        return sites

    def take(self, x: np.ndarray, rows: np.ndarray) -> Examples:
        """Return some rows, whose examples are ``x``."""
        group = None if self.group is None else self.group[rows]
        return Examples(x, self.y[rows], self.site[rows], self.is_test[rows], group)

    def report_duplicates(
        self, files: Sequence[tuple[str, Sequence[int]]], findings: Findings
    ) -> None:
        """Add a warning for every kind of duplicates, with their number and the first.

        Args:
            files: of the rows, in their order: name, and the number of every row in it.
            findings: the problems are added to it.
        """

        def name_of(row: int) -> str:
            for name, numbers in files:
                if row < len(numbers):
                    return quoted(f"{name}:{numbers[row]}")
                row -= len(numbers)

            raise IndexError(row)

        if len(self.x) > MAX_ROWS:
            findings.note(f"Duplicates were not searched for: there are more than {MAX_ROWS} rows.")
            return

        duplicates = find_duplicates(digest_rows(self.x), self.site, self.is_test, self.y)
        for number in np.unique(duplicates.kinds):
            alike = np.flatnonzero(duplicates.kinds == number)
            pairs = []
            for row in alike[:_FEW]:
                other = name_of(int(duplicates.rows[row]))
                pairs.append(f"{other} as {name_of(int(duplicates.firsts[row]))}")

            kind = DUPLICATE_KINDS[number]
            message = (
                f"The same content as another example, {MEANINGS[kind]}. {len(alike)} found: "
                f"{', '.join(pairs)}"
            )
            message += f" and {len(alike) - _FEW} more." if len(alike) > _FEW else "."
            if self.x.ndim == 2:
                message += " Rows with few distinct values can be equal by chance."

            findings.add(kind, message)

    def to_dataset(
        self,
        name: str,
        site_names: Sequence[str],
        class_names: Sequence[str],
        findings: Findings,
        *,
        sources: Mapping[str, str],
        white: float = 255.0,
        normalize: Normalization = Normalization(),  # noqa: B008  # immutable
        raw: RawTable | None = None,
    ) -> Dataset | None:
        """Put the examples into one data set: the training rows in order, then the test rows.

        Sites without examples are left out of ``domain_names``.

        Args:
            name: of the data set.
            site_names: by number; only an empty name if the data has no sites.
            class_names: by number.
            findings: has the notes; gets problems of groups.
            sources: digests of the files.
            white: see :class:`fedtailor.data.dataset.Dataset`, as for all below.
            normalize: how values are normalized.
            raw: the columns of a table.

        Returns:
            None, with the problem added, if a group is in both parts of data that come divided.
        """
        # Nothing is copied if the rows are in order already.
        order: slice | np.ndarray = slice(None)
        if (self.is_test[:-1] & ~self.is_test[1:]).any():
            order = np.argsort(self.is_test, kind="stable")

        # Sites are numbered without gaps: those without examples have no client.
        present, domains = np.unique(self.site[order], return_inverse=True)
        has_sites = list(site_names) != [""]
        groups = None
        if self.group is not None:  # without gaps, which groups without examples leave
            groups = np.unique(self.group[order], return_inverse=True)[1].astype(np.int64)

        dataset = Dataset(
            name=name,
            x=self.x[order],
            y=self.y[order],
            num_classes=len(class_names),
            class_names=tuple(class_names),
            domains=domains.astype(np.int64) if has_sites else None,
            domain_names=tuple(site_names[number] for number in present) if has_sites else (),
            groups=groups,
            raw=raw,
            normalize=normalize,
            white=white,
            num_official_train=int((~self.is_test).sum()),
            sources=sources,
            notes=tuple(findings.notes),
        )

        return dataset if check_groups(dataset, findings) else None


def check_groups(dataset: Dataset, findings: Findings) -> bool:
    """Return whether no group is in both parts; add the problem if one is.

    Groups at several sites are a warning.
    """
    if dataset.groups is None:
        return True

    is_test = np.arange(len(dataset.y)) >= dataset.num_official_train
    # A patient of two sites may be two patients with one number.
    if dataset.domains is not None:
        pairs = np.unique(np.stack([dataset.groups, dataset.domains]), axis=1)
        shared = int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
        if shared:
            message = (
                f"{counted(shared, 'group is', 'groups are')} at several sites, on the same side. "
                "If these are different patients, put the name of the site before the number."
            )
            findings.add("group_at_several_sites", message)

    both = np.intersect1d(dataset.groups[is_test], dataset.groups[~is_test])
    if len(both):
        message = (
            f"{counted(len(both), 'group has', 'groups have')} examples in training and in test: "
            "move each to one side, or leave the division to the options."
        )
        findings.add("group_in_train_and_test", message)

    return not len(both)


def one_source(name: str, digests: Mapping[str, str]) -> dict[str, str]:
    """Return ``{name: digest}`` with one SHA-256 over the sorted names and SHA-256 of all files."""
    files = json.dumps(sorted(digests.items()))
    return {name: hashlib.sha256(files.encode("ascii")).hexdigest()}


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
            message = f"data.group = {quoted(pattern)} finds no group in this path."
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
        f"data.group = {quoted(pattern)} {what}. For images it is a regular expression with one "
        "group, which is searched for in the path of a file, such as 'patient(\\d+)'."
    )
    findings.add("wrong_group", message)
    return None


def note_groups(number: int, findings: Findings) -> None:
    """Add a note on the number of groups."""
    findings.note(f"{counted(number, 'group')} of examples that stay together.")
