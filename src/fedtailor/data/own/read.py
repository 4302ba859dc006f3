"""A user's own data: whatever its layout, one data set and what was found."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.cache import cached
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import one_source
from fedtailor.data.own.crosscheck import cross_check
from fedtailor.data.own.images import SUFFIXES, Pictures, read_pictures
from fedtailor.data.own.layout import Layout, recognize
from fedtailor.data.own.names import listed, safe_name
from fedtailor.data.own.place import has_errors, no_examples, skip_empty
from fedtailor.data.own.report import Findings, OwnData, Problem, Site

_SHOWN = 3
"""Errors that are told in full when data cannot be loaded."""

_NO_LIST_OF_IMAGES = ("missing_label_column", "unnamed_column", "not_a_number")
"""Errors of a table that lies in a folder of images and was not meant to be read."""


def read_own(path: str, options: DataOptions) -> OwnData:
    """Read a user's data: a folder, a table, or a function that returns arrays.

    Args:
        path: ``data.path``; see :data:`fedtailor.data.own.layout.LAYOUTS`.
        options: of which label_column, image_size and color matter here.

    Returns:
        The data set, None if there is any error, and all that was found.
    """
    findings = Findings()
    return _read(recognize(path, findings), options, findings)


def load_own(path: str, options: DataOptions) -> Dataset:
    """Return a user's data as :func:`read_own` does, images and arrays from the cache of decoded data if unchanged.

    Raises:
        DataError: the data cannot be used; the message has the first errors.
    """
    findings = Findings()
    layout = recognize(path, findings)

    def build() -> Dataset:
        dataset, found = _read(layout, options, findings)
        if dataset is None:
            raise _as_error(path, found)
        return dataset

    if layout is None:
        return build()
    return cached(layout.signature(options), build, name=layout.name)


def _read(layout: Layout | None, options: DataOptions, findings: Findings) -> OwnData:
    """Read what was recognized."""
    if layout is None:
        return OwnData(None, findings)
    try:
        dataset = _dispatch(layout, options, findings)
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
    """Escape what names and values from the data may have brought into the findings, whichever reader added them."""
    findings.sites[:] = [
        Site(safe_name(site.name), _safe_counts(site.train), _safe_counts(site.test)) for site in findings.sites
    ]
    findings.problems[:] = [
        Problem(problem.severity, problem.kind, *map(safe_name, problem[2:])) for problem in findings.problems
    ]
    findings.notes[:] = map(safe_name, findings.notes)


def _safe_counts(counts: dict[str, int]) -> dict[str, int]:
    return {safe_name(name): count for name, count in counts.items()}


def _dispatch(layout: Layout, options: DataOptions, findings: Findings) -> Dataset | None:
    """Read what was recognized with the reader of its kind."""
    if layout.kind == "images":
        return _read_images(layout, options, findings)
    if layout.kind == "arrays":
        from fedtailor.data.own.arrays import read_npz_sites

        _skip_empty_sites(layout, {site for site, _ in layout.arrays}, findings)
        return read_npz_sites(layout.folder, list(layout.arrays), options, findings)
    if layout.kind == "tables":
        from fedtailor.data.own.tables import read_tables  # pyarrow is imported only where there is a table

        dataset = read_tables(list(layout.tables), options, findings)
        _explain_tables(layout, findings)
        return dataset
    from fedtailor.data.own.target import read_target

    return read_target(layout.target, options, findings)


def _explain_tables(layout: Layout, findings: Findings) -> None:
    """Add to the first error of a table that names no images, in a folder of images, why it is read as a table."""
    if not any(file.suffix in SUFFIXES for file in layout.files):
        return
    for number, problem in enumerate(findings.problems):
        if problem.severity == "error" and problem.kind in _NO_LIST_OF_IMAGES:
            names = listed(safe_name(path.name) for _, path in layout.tables)
            message = (
                f"{problem.message} The folder is read as tables because {names} is at its top, and "
                f"{len(layout.files) - len(layout.tables)} other files are passed over; "
                "if the images are the data, move it out of the folder."
            )
            findings.problems[number] = problem._replace(message=message)
            return


def _read_images(layout: Layout, options: DataOptions, findings: Findings) -> Dataset | None:
    """Return the images of a folder, those for training first."""
    before = len(findings.errors)
    read = read_pictures(layout.pictures, options, findings)
    if read is None:
        if len(findings.errors) == before:
            no_examples(findings)
        return None
    where = [layout.pictures[row].where for row in read.rows]
    names = sorted({one.label for one in where})
    for name in sorted(set(layout.classes).difference(names)):
        message = "No folder of this class has an image that can be read; the class is left out."
        findings.add("skipped", "empty_class", "", name, message)
    _skip_empty_sites(layout, {one.site for one in where}, findings)
    findings.sites.extend(_count(layout, read))
    domains = sorted({one.site for one in where}) if layout.sites else []
    return Dataset(
        name=layout.name,
        x=read.x,
        y=np.array([names.index(one.label) for one in where], dtype=np.int64),
        num_classes=len(names),
        class_names=tuple(names),
        domains=np.array([domains.index(one.site) for one in where], dtype=np.int64) if domains else None,
        domain_names=tuple(domains),
        num_official_train=sum(one.part == "train" for one in where),
        sources=one_source(f"{layout.name} ({len(read.digests)} files)", read.digests),
    )


def _count(layout: Layout, read: Pictures) -> list[Site]:
    """Return the examples of every site by class, in the order of names."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in read.rows:
        where = layout.pictures[row].where
        counts.setdefault((where.site, where.part), Counter())[where.label] += 1
    names = sorted(layout.sites) or [""]
    return [Site(name, dict(counts.get((name, "train"), {})), dict(counts.get((name, "test"), {}))) for name in names]


def _skip_empty_sites(layout: Layout, filled: set[str], findings: Findings) -> None:
    for site in sorted(set(layout.sites).difference(filled)):
        skip_empty(findings, site, site)


def _summary(findings: Findings) -> list[str]:
    """Return a sentence on what was left out and what was pointed out, by kind."""
    told = {"skipped": "Left out", "warning": "Warnings"}
    sentences = []
    for severity, word in told.items():
        kinds = [f"{count} {kind}" for (each, kind), count in sorted(findings.counts.items()) if each == severity]
        if kinds:
            sentences.append(f"{word}: {', '.join(kinds)}.")
    return sentences


def _as_error(path: str, findings: Findings) -> DataError:
    """Return the first errors as one exception."""
    kinds = {kind: number for (severity, kind), number in findings.counts.items() if severity == "error"}
    told = list(findings.errors)[:_SHOWN]
    sentences = [_sentence(problem) for problem in told]
    if sum(kinds.values()) > len(told):
        every = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        sentences.append(f"All errors: {every}.")
    return DataError(
        f"{safe_name(path)}: {' '.join(sentences)}",
        key="data.path",
        path=safe_name(path),
        got=next(iter(kinds)),
    )


def _sentence(problem: Problem) -> str:
    where = problem.path or problem.site
    return f"{where}: {problem.message}" if where else problem.message
