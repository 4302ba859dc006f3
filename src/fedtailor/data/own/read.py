"""The reader of a user's own data: one data set and the findings, for every layout."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedtailor.core.errors import WARNING, DataError
from fedtailor.core.options import show
from fedtailor.core.text import escaped, listed, sorted_classes
from fedtailor.data.cache import cached
from fedtailor.data.dataset import Dataset
from fedtailor.data.files import Report, to_nobody
from fedtailor.data.options import KIND_OF, DataOptions
from fedtailor.data.own.arrays import read_npz_sites
from fedtailor.data.own.duplicates import DUPLICATE_KINDS
from fedtailor.data.own.examples import Examples, groups_of_paths, one_source
from fedtailor.data.own.findings import FindingPlace, Findings, OwnData
from fedtailor.data.own.images import SUFFIXES, read_pictures
from fedtailor.data.own.layout import FolderLayout, recognize
from fedtailor.data.own.like import TrainingTables
from fedtailor.data.own.sites import cross_check
from fedtailor.data.own.tables import read_tables
from fedtailor.data.own.target import read_target

Purpose = Literal["federation", "site", "scores"]
"""What data are for: all of a federation; one site, which may have a single class because others
have more; or scores alone, where one example will do."""

_SHOWN = 3
"""Errors that are shown in full when data cannot be loaded."""


_TOLD_BY_RUNS = (
    *("unit_differs", "value_means_missing", "empty_at_site", "many_numbers", "few_examples"),
    *("one_class_site", "empty_site", "unknown_left_out", *DUPLICATE_KINDS),
)
"""Problems that a run repeats in full."""
_OF_TABLES = ("label_column", "missing", "missing_values", "leave_out", "decimal", "numbers")
_OF_PICTURES = ("image_size", "color")
"""Options for one kind of data."""
_MOST_TOLD = 10
_MOST_OF_A_KIND = 5
_NO_LIST_OF_IMAGES = ("missing_label_column", "unnamed_column", "image_paths")
"""Errors of a table in a folder of images that was not meant to be read."""


def read_own(path: str, options: DataOptions, report: Report = to_nobody) -> OwnData:
    """Read a user's data: a folder, a table, or a function that returns arrays.

    The cache is not used. :func:`load_own` accepts exactly the data without an error in the
    findings; see :mod:`fedtailor.data.own.kinds` for every kind of problem.

    Args:
        path: ``data.path``; see :data:`fedtailor.data.own.layout.LAYOUTS`.
        options: only those of your own data are used here.
        report: is told how many pictures have been read.

    Returns:
        The data set, which is None if there is an error, and the findings.

    Example:
        >>> read_own("missing", DataOptions()).findings.errors[0].kind
        'not_found'
    """
    findings = Findings()
    return _read(recognize(path, findings), options, findings, report)


def load_own(
    path: str,
    options: DataOptions,
    report: Report = to_nobody,
    *,
    like: TrainingTables | None = None,
    purpose: Purpose = "federation",
) -> Dataset:
    """Return a user's data, from the cache of decoded data if nothing has changed.

    Args:
        path: ``data.path``.
        options: as of :func:`read_own`.
        report: is told how many pictures have been read.
        like: tables are read as those of a model that exists, and not kept in the cache.
        purpose: see :data:`Purpose`; data that are only scored are not kept in the cache.

    Raises:
        DataError: the data cannot be used; the message has the first errors.
    """
    findings = Findings()
    layout = recognize(path, findings)

    def build() -> Dataset:
        dataset = _read(layout, options, findings, report, like, purpose).dataset
        if dataset is None:
            raise _as_error(path, findings)

        return dataset

    if layout is None or like is not None or purpose == "scores":
        return build()

    return cached(layout.signature(options, purpose), build, name=layout.name)


def _read(
    layout: FolderLayout | None,
    options: DataOptions,
    findings: Findings,
    report: Report,
    like: TrainingTables | None = None,
    purpose: Purpose = "federation",
) -> OwnData:
    """Read data with a recognized layout, and check all sites together."""
    if layout is None:
        return OwnData(None, findings)

    try:
        dataset = _dispatch(layout, options, findings, report, like)
    except DataError as error:
        findings.add("unusable", error.message, path=error.path or "")
        dataset = None

    if dataset is not None and options.kind != "auto" and dataset.kind != KIND_OF[options.kind]:
        _refuse_kind(dataset, options, findings)

    # Also after an error: users mend all problems of a folder at once.
    if purpose != "scores":
        is_federation = purpose == "federation"
        cross_check(findings, layout.classes, needs_two_classes=is_federation)
    if dataset is None or findings.has_errors:
        return OwnData(None, findings)

    # Names are of the user's files, and end in terminals, pages and spreadsheets.
    safe = dataclasses.replace(
        dataset,
        name=layout.name,
        class_names=tuple(escaped(name) for name in dataset.class_names),
        domain_names=tuple(escaped(name) for name in dataset.domain_names),
        sources={escaped(name): digest for name, digest in dataset.sources.items()},
        notes=(*findings.notes, *_summary(findings)),
    )

    return OwnData(safe, findings)


def _refuse_kind(dataset: Dataset, options: DataOptions, findings: Findings) -> None:
    """Add that the data are of another kind than the options say."""
    there = next(name for name, kind in KIND_OF.items() if kind == dataset.kind)
    message = f"data.kind is {options.kind}, but the data are {there} {dataset.x.shape[1:]}."
    if options.kind == "series":
        message += " Series come as arrays (rows, times, channels)."

    findings.add("wrong_kind", message)


def _dispatch(
    layout: FolderLayout,
    options: DataOptions,
    findings: Findings,
    report: Report,
    like: TrainingTables | None,
) -> Dataset | None:
    """Read the data with the reader for their layout."""
    if layout.pictures:
        _warn_of_unused(_OF_TABLES, options, "tables", findings)
        return _read_images(layout, options, findings, report)

    if layout.arrays:
        _skip_empty_sites(layout, {site for site, _ in layout.arrays}, findings)
        return read_npz_sites(layout.folder, list(layout.arrays), options, findings)

    if layout.tables:
        dataset = read_tables(list(layout.tables), options, findings, report, like=like)
        if dataset is not None and dataset.kind == "table":
            _warn_of_unused(_OF_PICTURES, options, "pictures", findings)

        _explain_tables(layout, findings)
        return dataset

    return read_target(layout.target, options, findings)


def _warn_of_unused(
    names: Sequence[str], options: DataOptions, what: str, findings: Findings
) -> None:
    """Warn of options that are for another kind of data."""
    defaults = DataOptions(path=options.path)
    for name in names:
        value = getattr(options, name)
        if value != getattr(defaults, name):
            message = f"data.{name} = {show(value)} is for {what}; it has no effect here."
            findings.add("option_unused", message)


def _explain_tables(layout: FolderLayout, findings: Findings) -> None:
    """Say to the first error of a table why a folder of images is read as tables."""
    if not any(file.suffix in SUFFIXES for file in layout.files):
        return

    for number, problem in enumerate(findings.problems):
        if problem.severity == "error" and problem.kind in _NO_LIST_OF_IMAGES:
            names = listed(escaped(path.name) for _, path in layout.tables)
            message = f"{problem.message} If images are the data, move {names} out of the folder."
            findings.problems[number] = problem._replace(message=message)
            return


def _read_images(
    layout: FolderLayout, options: DataOptions, findings: Findings, report: Report
) -> Dataset | None:
    """Return the images of a folder, training images first."""
    read = read_pictures(layout.pictures, options, findings, report)
    if read is None:
        findings.add_empty()
        return None

    where = [layout.pictures[row].where for row in read.rows]
    class_names = sorted_classes(file.label for file in where)
    for name in sorted(set(layout.classes).difference(class_names)):
        message = "No image of this class can be read; the class is left out."
        findings.add("empty_class", message, path=name)

    _skip_empty_sites(layout, {file.site for file in where}, findings)
    site_names = sorted(layout.sites) or [""]
    labels = {name: number for number, name in enumerate(class_names)}
    # Classes and sites are numbered in the order of their names, on every file system.
    numbers = {name: number for number, name in enumerate(site_names)}
    examples = Examples(
        x=read.x,
        y=np.array([labels[file.label] for file in where], dtype=np.int64),
        site=np.array([numbers[file.site] for file in where], dtype=np.int64),
        is_test=np.array([file.part == "test" for file in where], dtype=bool),
        group=groups_of_paths(where, options.group, findings) if options.group else None,
    )

    findings.sites.extend(examples.count_sites(site_names, class_names))
    sources = one_source(f"{layout.name} ({len(read.digests)} files)", read.digests)
    return examples.to_dataset(layout.name, site_names, class_names, findings, sources=sources)


def _skip_empty_sites(layout: FolderLayout, filled: set[str], findings: Findings) -> None:
    """Add the problem of every site whose folder has no examples."""
    for site in sorted(set(layout.sites).difference(filled)):
        FindingPlace(findings, site, site).skip_empty()


def _summary(findings: Findings) -> list[str]:
    """Return the warnings that decide what results mean, and sentences that count the others."""
    told: Counter[str] = Counter()
    sentences: list[str] = []
    for problem in findings.problems:
        is_few = told[problem.kind] < _MOST_OF_A_KIND and len(sentences) < _MOST_TOLD
        if problem.kind in _TOLD_BY_RUNS and is_few:
            told[problem.kind] += 1
            sentences.append(f"{WARNING}{problem.message}")

    counts = {
        "left out: ": findings.summarize("skipped"),
        "": findings.summarize("warning", told),
    }
    others = [f"{WARNING}{what}{kinds}." for what, kinds in counts.items() if kinds]
    return [*sentences, *others]


def _as_error(path: str, findings: Findings) -> DataError:
    """Return the first errors as one exception."""
    kinds = [kind for severity, kind in findings.counts if severity == "error"]
    number = sum(findings.counts["error", kind] for kind in kinds)
    sentences: list[str] = []
    before = ""
    for problem in findings.errors[:_SHOWN]:
        where = problem.path or problem.site
        named = f"{where}: " if where not in ("", before) else ""
        sentences.append(f"{named}{problem.message}")
        before = where

    if number > len(sentences):
        sentences.append(f"All errors: {findings.summarize('error')}.")

    # The path stands before the message, unless the message names it.
    message = " ".join(sentences)
    expanded = os.path.expanduser(path)
    quotes_the_path = "not_found" in kinds or "unknown_layout" in kinds
    names_the_file = escaped(os.path.basename(expanded)) in message
    if os.path.isdir(expanded) or not (quotes_the_path or names_the_file):
        message = f"{escaped(path)}: {message}"

    return DataError(message, key="data.path", path=escaped(path), got=kinds[0])
