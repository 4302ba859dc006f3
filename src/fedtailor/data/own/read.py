"""The reader of a user's own data: one data set and the findings, whatever the layout."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.cache import cached
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import one_source
from fedtailor.data.own.crosscheck import cross_check
from fedtailor.data.own.findings import (
    Findings,
    OwnData,
    Problem,
    Site,
    count_in_words,
    has_errors,
    no_examples,
    skip_empty,
)
from fedtailor.data.own.groups import check_groups, groups_of_paths
from fedtailor.data.own.images import SUFFIXES, Pictures, read_pictures
from fedtailor.data.own.layout import Layout, recognize
from fedtailor.data.own.names import listed, safe_name
from fedtailor.data.preparing import Report, to_nobody

_SHOWN = 3
"""Errors that are shown in full when data cannot be loaded."""

_NO_LIST_OF_IMAGES = ("missing_label_column", "unnamed_column", "image_paths")
"""Errors of a table in a folder of images that was not meant to be read."""


def read_own(path: str, options: DataOptions, report: Report = to_nobody) -> OwnData:
    """Read a user's data: a folder, a table, or a function that returns arrays.

    The cache is not used. :func:`load_own` accepts exactly the data without an error in the
    findings; see ``docs/own-data.md`` for every kind of problem.

    Args:
        path: ``data.path``; see :data:`fedtailor.data.own.layout.LAYOUTS`.
        options: only label_column, group, missing, image_size and color are used here.
        report: is told how many pictures have been read.

    Returns:
        The data set, which is None if there is an error, and the findings.

    Example:
        >>> read_own("missing", DataOptions()).findings.errors[0].kind
        'not_found'
    """
    findings = Findings()
    return _read(recognize(path, findings), options, findings, report)


def load_own(path: str, options: DataOptions, report: Report = to_nobody) -> Dataset:
    """Return a user's data like :func:`read_own`, but unchanged images and arrays from the cache of
    decoded data.

    Raises:
        DataError: the data cannot be used; the message has the first errors.
    """
    findings = Findings()
    layout = recognize(path, findings)

    def build() -> Dataset:
        dataset, found = _read(layout, options, findings, report)
        if dataset is None:
            raise _as_error(path, found)
        return dataset

    if layout is None:
        return build()

    return cached(layout.signature(options), build, name=layout.name)


def _read(
    layout: Layout | None, options: DataOptions, findings: Findings, report: Report
) -> OwnData:
    """Read data with a recognized layout, and check all sites together."""
    if layout is None:
        return OwnData(None, findings)

    try:
        dataset = _dispatch(layout, options, findings, report)
    except DataError as error:
        findings.add("error", "unusable", "", safe_name(error.path or ""), error.message)
        dataset = None

    _make_safe(findings)
    cross_check(findings, layout.classes)
    if dataset is None or has_errors(findings):
        return OwnData(None, findings)

    safe = dataclasses.replace(
        dataset,
        name=layout.name,
        class_names=tuple(safe_name(name) for name in dataset.class_names),
        domain_names=tuple(safe_name(name) for name in dataset.domain_names),
        sources={safe_name(name): digest for name, digest in dataset.sources.items()},
        notes=(*findings.notes, *_summary(findings)),
    )

    return OwnData(safe, findings)


def _make_safe(findings: Findings) -> None:
    """Escape unsafe characters in the findings, which may come from names and values in the
    data.
    """
    findings.sites[:] = [
        Site(safe_name(site.name), _safe_counts(site.train), _safe_counts(site.test))
        for site in findings.sites
    ]
    findings.problems[:] = [
        problem._replace(
            site=safe_name(problem.site),
            path=safe_name(problem.path),
            message=safe_name(problem.message),
        )
        for problem in findings.problems
    ]
    findings.notes[:] = [safe_name(note) for note in findings.notes]


def _safe_counts(counts: dict[str, int]) -> dict[str, int]:
    return {safe_name(name): count for name, count in counts.items()}


def _dispatch(
    layout: Layout, options: DataOptions, findings: Findings, report: Report
) -> Dataset | None:
    """Read the data with the reader for their layout."""
    if layout.kind == "images":
        return _read_images(layout, options, findings, report)

    if layout.kind == "arrays":
        from fedtailor.data.own.arrays import read_npz_sites

        _skip_empty_sites(layout, {site for site, _ in layout.arrays}, findings)
        return read_npz_sites(layout.folder, list(layout.arrays), options, findings)

    if layout.kind == "tables":
        from fedtailor.data.own.tables import read_tables

        dataset = read_tables(list(layout.tables), options, findings, report)
        _explain_tables(layout, findings)
        return dataset

    from fedtailor.data.own.target import read_target

    return read_target(layout.target, options, findings)


def _explain_tables(layout: Layout, findings: Findings) -> None:
    """In a folder of images, add the reason why it is read as tables to the first error of a table
    without images.
    """
    if not any(file.suffix in SUFFIXES for file in layout.files):
        return

    for number, problem in enumerate(findings.problems):
        if problem.severity == "error" and problem.kind in _NO_LIST_OF_IMAGES:
            names = listed(safe_name(path.name) for _, path in layout.tables)
            message = (
                f"{problem.message} The folder is read as tables because {names} is at its top, and "
                f"{len(layout.files) - len(layout.tables)} other files are ignored; "
                "if the images are the data, move it out of the folder."
            )
            findings.problems[number] = problem._replace(message=message)

            return


def _read_images(
    layout: Layout, options: DataOptions, findings: Findings, report: Report
) -> Dataset | None:
    """Return the images of a folder, training images first."""
    before = len(findings.errors)
    read = read_pictures(layout.pictures, options, findings, report)
    if read is None:
        if len(findings.errors) == before:
            no_examples(findings)
        return None

    where = [layout.pictures[row].where for row in read.rows]
    groups = groups_of_paths(where, options.group, findings) if options.group else None
    names = sorted({one.label for one in where})
    for name in sorted(set(layout.classes).difference(names)):
        message = "No image of this class can be read; the class is left out."
        findings.add("skipped", "empty_class", "", name, message)

    _skip_empty_sites(layout, {one.site for one in where}, findings)
    findings.sites.extend(_count(layout, read))
    domains = sorted({one.site for one in where}) if layout.sites else []
    dataset = Dataset(
        name=layout.name,
        x=read.x,
        y=np.array([names.index(one.label) for one in where], dtype=np.int64),
        num_classes=len(names),
        class_names=tuple(names),
        domains=np.array([domains.index(one.site) for one in where], dtype=np.int64)
        if domains
        else None,
        domain_names=tuple(domains),
        groups=groups,
        num_official_train=sum(one.part == "train" for one in where),
        sources=one_source(f"{layout.name} ({len(read.digests)} files)", read.digests),
    )

    return dataset if check_groups(dataset, findings) else None


def _count(layout: Layout, read: Pictures) -> list[Site]:
    """Return the number of examples of every site by class, in the order of names."""
    train: dict[str, Counter[str]] = {}
    test: dict[str, Counter[str]] = {}
    for row in read.rows:
        where = layout.pictures[row].where
        counts = train if where.part == "train" else test
        counts.setdefault(where.site, Counter())[where.label] += 1

    names = sorted(layout.sites) or [""]
    return [
        Site(name, train=dict(train.get(name, {})), test=dict(test.get(name, {}))) for name in names
    ]


def _skip_empty_sites(layout: Layout, filled: set[str], findings: Findings) -> None:
    for site in sorted(set(layout.sites).difference(filled)):
        skip_empty(findings, site, site)


def _summary(findings: Findings) -> list[str]:
    """Return a sentence that counts what was left out, and one that counts the warnings."""
    sentences = []
    skipped = _count_kinds(findings, "skipped")
    if skipped:
        sentences.append(f"Left out: {skipped}.")
    warnings = _count_kinds(findings, "warning")
    if warnings:
        sentences.append(f"Warnings: {warnings}.")
    return sentences


def _count_kinds(findings: Findings, severity: str) -> str:
    """Return the number of problems of each kind, such as ``1 unreadable image, 2 empty files``."""
    counts = sorted(
        (kind, count) for (each, kind), count in findings.counts.items() if each == severity
    )
    return ", ".join(count_in_words(kind, count) for kind, count in counts)


def _as_error(path: str, findings: Findings) -> DataError:
    """Return the first errors as one exception."""
    kinds = {
        kind: number for (severity, kind), number in findings.counts.items() if severity == "error"
    }
    shown = list(findings.errors)[:_SHOWN]
    sentences = [_sentence(problem) for problem in shown]
    if sum(kinds.values()) > len(shown):
        sentences.append(f"All errors: {_count_kinds(findings, 'error')}.")

    message = " ".join(sentences)
    place = os.path.expanduser(path)
    quotes_the_path = not kinds.keys().isdisjoint({"not_found", "unknown_layout"})
    names_the_path = not os.path.isdir(place) and (
        quotes_the_path or safe_name(os.path.basename(place)) in message
    )

    return DataError(
        message if names_the_path else f"{safe_name(path)}: {message}",
        key="data.path",
        path=safe_name(path),
        got=next(iter(kinds)),
    )


def _sentence(problem: Problem) -> str:
    where = problem.path or problem.site
    return f"{where}: {problem.message}" if where else problem.message
