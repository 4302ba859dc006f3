"""A data set from the arrays of the sites: checked, brought to one scale, put in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import SitePart, assemble, describe_sites
from fedtailor.data.own.blocks import Block, check_alike, check_block
from fedtailor.data.own.duplicate_rows import Rows, report_duplicate_rows
from fedtailor.data.own.place import has_errors, no_examples, skip_empty
from fedtailor.data.own.report import Findings, Site
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
    """Put the examples of all ``sites`` into one data set; None where a problem, found here or before, forbids it.

    Without ``class_names`` the classes are named by their numbers, from 0 to the largest label. The counts of all
    labels that could be read are added to ``findings`` either way.
    """
    filled = [block for block in blocks if block.x.size or block.y.size]
    _skip_empty_sites(blocks, filled, findings)
    checked = [good for block in filled if (good := check_block(block, class_names)) is not None]
    if not checked:
        findings.sites.extend(Site(site) for site in sites)
        if not has_errors(findings):
            no_examples(findings)
        return None
    names = tuple(class_names) or _numbered(checked, findings)
    findings.sites.extend(describe_sites(_parts(sites, checked), names))
    finite = [check_finite(block) for block in checked]
    scale = find_scale(checked) if check_alike(checked) and all(finite) else None
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
    numbers = {site: number for number, site in enumerate(dict.fromkeys(block.site for block in blocks))}
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


def _numbered(blocks: Sequence[Block], findings: Findings) -> tuple[str, ...]:
    """Return the numbers of the classes as names; warn of numbers that no example has."""
    present = np.unique(np.concatenate([np.unique(block.y) for block in blocks]))
    absent = np.setdiff1d(np.arange(present[-1] + 1), present)
    if len(absent):
        message = f"{len(absent)} of the classes 0 to {present[-1]} have no example, the first is {absent[0]}."
        findings.add("warning", "unused_label", "", "", message)
    return tuple(str(label) for label in range(int(present[-1]) + 1))


def _parts(sites: Sequence[str], blocks: Sequence[Block]) -> list[SitePart]:
    """Return the parts of every site in the order of ``sites``, those without blocks included."""
    nothing, no_labels = blocks[0].x[:0], blocks[0].y[:0]
    train = {block.site: block for block in blocks if block.part == "train"}
    test = {block.site: block for block in blocks if block.part == "test"}
    parts = []
    for site in sites:
        x, y = (train[site].x, train[site].y) if site in train else (nothing, no_labels)
        parts.append(SitePart(site, x, y, *((test[site].x, test[site].y) if site in test else ())))
    return parts


def _check_options(block: Block, options: DataOptions, findings: Findings) -> None:
    """Warn of options for image files, which arrays are not brought to."""
    if options.image_size and block.x.shape[1:3] != (options.image_size, options.image_size):
        message = f"data.image_size = {options.image_size} is for image files; arrays keep shape {block.x.shape[1:]}."
        findings.add("warning", "option_unused", "", "", message)
    if options.color != "auto":
        message = f"data.color = {options.color!r} is for image files; arrays keep their {block.x.shape[-1]} channels."
        findings.add("warning", "option_unused", "", "", message)
