"""One data set made of the examples of several sites: checked, brought to one scale, put in
order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.columns import RawTable
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.options import DataOptions
from fedtailor.data.own.blocks import Block, check_alike, check_block
from fedtailor.data.own.duplicates import Rows, report_duplicate_rows
from fedtailor.data.own.findings import (
    Findings,
    Site,
    has_errors,
    looks_like_regression,
    no_examples,
    regression_message,
    show,
    skip_empty,
)
from fedtailor.data.own.scale import check_finite, find_scale


def combine_blocks(
    name: str,
    sites: Sequence[str],
    blocks: Sequence[Block],
    class_names: Sequence[str],
    options: DataOptions,
    findings: Findings,
    *,
    sources: Mapping[str, str],
) -> Dataset | None:
    """Put the examples of all ``sites`` into one data set; None if there is an error, found here or
    before.

    Without ``class_names`` the classes are named by their numbers, from 0 to the largest label. The
    counts of all labels that could be read are added to ``findings`` in any case.
    """
    refuse_groups(options, findings)
    filled = [block for block in blocks if block.x.size or block.y.size]
    _skip_empty_sites(blocks, filled, findings)
    checked = []
    for block in filled:
        good = check_block(block, class_names)
        if good is not None:
            checked.append(good)

    if not checked:
        findings.sites.extend(Site(site) for site in sites)
        if not has_errors(findings):
            no_examples(findings)
        return None

    names = tuple(class_names) or _number_names(checked, findings)
    findings.sites.extend(describe_sites(_parts(sites, checked), names))
    finite = [check_finite(block) for block in checked]
    if not check_alike(checked) or not all(finite):
        return None

    scale = find_scale(checked)
    if scale is None or has_errors(findings):
        return None

    _check_options(checked[0], options, findings)
    scaled = [block._replace(x=block.x.astype(scale.kind, copy=False)) for block in checked]
    report_duplicate_rows(_rows(scaled), findings)
    return assemble(
        name,
        _parts(sites, scaled),
        names,
        sources=sources,
        notes=findings.notes,
        white=scale.white,
        normalize=scale.normalize,
    )


def _rows(blocks: Sequence[Block]) -> list[Rows]:
    """Return the examples of all blocks, named by site, part and index."""
    numbers = {
        site: number for number, site in enumerate(dict.fromkeys(block.site for block in blocks))
    }
    return [
        Rows(
            f"{block.site}/{block.part}",
            range(len(block.y)),
            block.x,
            block.y,
            np.full(len(block.y), numbers[block.site]),
            np.full(len(block.y), block.part == "test"),
        )
        for block in blocks
    ]


def _skip_empty_sites(blocks: Sequence[Block], filled: Sequence[Block], findings: Findings) -> None:
    """Add the problem of every site that has no example in any of its blocks."""
    with_examples = {block.site for block in filled}
    places = {block.site: block.place for block in blocks if block.site not in with_examples}
    for site, place in places.items():
        skip_empty(findings, site, place.path)


def _number_names(blocks: Sequence[Block], findings: Findings) -> tuple[str, ...]:
    """Return the numbers of the classes as names; warn of numbers without examples, refuse a likely
    regression.
    """
    present = np.unique(np.concatenate([np.unique(block.y) for block in blocks]))
    examples = sum(len(block.y) for block in blocks)
    if looks_like_regression(len(present), examples):
        message = regression_message("y", len(present), examples)
        remedy = "name them in class_names of a .npz file, or return a Dataset with class_names"
        findings.add(
            "error", "likely_regression", "", "", f"{message} If the numbers are classes, {remedy}."
        )

    absent = np.setdiff1d(np.arange(present[-1] + 1), present)
    if len(absent):
        message = f"{len(absent)} of the classes 0 to {present[-1]} have no examples, the first is {absent[0]}."
        findings.add("warning", "unused_label", "", "", message)

    return tuple(str(label) for label in range(int(present[-1]) + 1))


def _parts(sites: Sequence[str], blocks: Sequence[Block]) -> list[SitePart]:
    """Return the parts of every site in the order of ``sites``, including sites without blocks."""
    train = {block.site: block for block in blocks if block.part == "train"}
    test = {block.site: block for block in blocks if block.part == "test"}
    empty = blocks[0]._replace(x=blocks[0].x[:0], y=blocks[0].y[:0])
    parts = []
    for site in sites:
        known = train.get(site, empty)
        part = SitePart(site, known.x, known.y)
        if site in test:
            part = part._replace(x_test=test[site].x, y_test=test[site].y)

        parts.append(part)

    return parts


def refuse_groups(options: DataOptions, findings: Findings) -> None:
    """Add an error if there is an option for groups, which arrays do not have."""
    if options.group:
        message = (
            f"data.group = {show(options.group)} is for tables and folders of images. For arrays, let a function "
            "return a Dataset with groups."
        )
        findings.add("error", "option_unused", "", "", message)


def _check_options(block: Block, options: DataOptions, findings: Findings) -> None:
    """Warn of options for image files, which have no effect on arrays."""
    if options.image_size and block.x.shape[1:3] != (options.image_size, options.image_size):
        message = f"data.image_size = {options.image_size} is for image files; arrays keep shape {block.x.shape[1:]}."
        findings.add("warning", "option_unused", "", "", message)
    if options.color != "auto":
        message = f"data.color = {options.color!r} is for image files; arrays keep their {block.x.shape[-1]} channels."
        findings.add("warning", "option_unused", "", "", message)


class SitePart(NamedTuple):
    """The examples of one site; the test arrays are None if the site does not come divided."""

    site: str
    """Name of the site; empty if the data has no sites, in which case this is the only part."""
    x_train: (
        np.ndarray
    )  # (rows, height, width, channels), uint8 or float32; or (rows, features), float32
    y_train: np.ndarray  # (rows,), whole numbers from 0
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    groups_train: np.ndarray | None = None  # (rows,), number of each example's group
    groups_test: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """Number of examples, for training and for testing."""
        if self.y_test is None:
            return len(self.y_train)
        return len(self.y_train) + len(self.y_test)


def assemble(
    name: str,
    parts: Sequence[SitePart],
    class_names: Sequence[str],
    *,
    sources: Mapping[str, str],
    notes: Sequence[str] = (),
    white: float = 255.0,
    normalize: Normalization = Normalization(),  # noqa: B008  # immutable
    raw: RawTable | None = None,
) -> Dataset:
    """Put the examples of all sites into one data set: the training rows of all sites in order,
    then their test rows.

    Sites without examples are left out of ``domain_names``.

    Raises:
        DataError: there are no examples, shapes or types differ between sites, or labels are out of
            range.
    """
    kept = [part for part in parts if part.rows]
    _check(name, kept)
    tests = [
        (part.x_test, part.y_test)
        for part in kept
        if part.x_test is not None and part.y_test is not None
    ]
    x = np.concatenate([part.x_train for part in kept] + [x for x, _ in tests])
    y = np.concatenate([part.y_train for part in kept] + [y for _, y in tests])
    groups = [part.groups_train for part in kept] + [part.groups_test for part in kept]
    known_groups = [each for each in groups if each is not None]
    named = [part.site for part in kept] != [""]

    return Dataset(
        name=name,
        x=x,
        y=y,
        num_classes=len(class_names),
        class_names=tuple(class_names),
        domains=_domains(kept) if named else None,
        domain_names=tuple(part.site for part in kept) if named else (),
        groups=renumber(np.concatenate(known_groups)) if known_groups else None,
        raw=raw,
        normalize=normalize,
        white=white,
        num_official_train=sum(len(part.y_train) for part in kept),
        sources=sources,
        notes=tuple(notes),
    )


def renumber(groups: np.ndarray) -> np.ndarray:
    """Return the numbers of groups (rows,) without gaps, which groups without examples leave."""
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def describe_sites(parts: Sequence[SitePart], class_names: Sequence[str]) -> list[Site]:
    """Return the number of examples of every site by class, without classes of which a site has
    none.
    """
    return [
        Site(
            part.site,
            train=_counts(part.y_train, class_names),
            test=_counts(part.y_test, class_names),
        )
        for part in parts
    ]


def one_source(name: str, digests: Mapping[str, str]) -> dict[str, str]:
    """Return ``{name: digest}`` with one SHA-256 over the sorted names and SHA-256 of all files."""
    listed = json.dumps(sorted(digests.items()))
    return {name: hashlib.sha256(listed.encode("ascii")).hexdigest()}


def _check(name: str, parts: Sequence[SitePart]) -> None:
    """Check that there are examples, and that all have one shape and type."""
    if not parts:
        raise DataError(
            f"{name}: no site has any examples.",
            key="data.path",
            allowed="at least one example",
            got=0,
        )

    shape = parts[0].x_train.shape[1:]
    kind = parts[0].x_train.dtype
    for part in parts:
        for x in (part.x_train, part.x_test):
            if x is not None and (x.shape[1:] != shape or x.dtype != kind):
                allowed = f"of shape {shape} and type {kind}, like those of site '{parts[0].site}'"
                got = f"shape {x.shape[1:]} and type {x.dtype}"
                message = f"{name}: examples of site '{part.site}' must be {allowed}, got {got}."
                raise DataError(message, key="data.path", allowed=allowed, got=got)


def _domains(parts: Sequence[SitePart]) -> np.ndarray:
    """Return the number of the site of every row (rows,): training rows first, then test rows."""
    train = [len(part.y_train) for part in parts]
    test = [part.rows - len(part.y_train) for part in parts]
    return np.tile(np.arange(len(parts)), 2).repeat(train + test)


def _counts(y: np.ndarray | None, class_names: Sequence[str]) -> dict[str, int]:
    """Return the number of examples by class name."""
    if y is None:
        return {}
    labels, counts = np.unique(y, return_counts=True)
    return {
        class_names[int(label)]: int(count) for label, count in zip(labels, counts, strict=True)
    }
