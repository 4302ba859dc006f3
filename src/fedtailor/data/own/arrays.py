"""Own data as arrays: ``SITE/train.npz`` and, if it exists, ``SITE/test.npz``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.files import read_bytes
from fedtailor.data.options import DataOptions
from fedtailor.data.own.examples import AS_THEY_ARE, Examples, one_source
from fedtailor.data.own.facts import Block, Labels, ValueRange
from fedtailor.data.own.findings import (
    MAX_TOTAL_BYTES,
    Findings,
    Place,
    Site,
    Unusable,
    no_examples,
)
from fedtailor.data.own.names import listed, safe_name, show
from fedtailor.data.own.npz import read_archive
from fedtailor.data.own.patterns import MAX_CLASSES
from fedtailor.data.own.rules import (
    ARRAYS,
    ARRAYS_ALIKE,
    FINITE_ARRAYS,
    IMAGE_VALUES,
    LABELS,
    check,
)

_ARRAYS = ("x", "y", "class_names")


class Scale(NamedTuple):
    """The type in which all examples are stored, and their normalization."""

    kind: type[np.uint8] | type[np.float32]
    white: float
    normalize: Normalization


def read_npz_sites(
    folder: Path, sites: list[tuple[str, dict[str, Path]]], options: DataOptions, findings: Findings
) -> Dataset | None:
    """Read the arrays ``x``, ``y`` and perhaps ``class_names`` of every site.

    ``x`` is (rows, height, width), (rows, height, width, channels) or (rows, features), numbers;
    ``y`` is (rows,), whole numbers from 0. ``rules.ARRAYS`` says what is not accepted.

    Args:
        folder: the data's folder; problems name files relative to it.
        sites: name of each site and its files: ``train``, ``test``, or both.
        options: none changes the result; options for image files give a warning.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None after an error.
    """
    digests: dict[str, str] = {}
    blocks = []
    names: dict[str, tuple[str, ...]] = {}  # class names by the file that has them
    left = MAX_TOTAL_BYTES
    for site, files in sites:
        for part in ("train", "test"):
            if part not in files:
                continue

            path = files[part]
            place = Place(findings, site, safe_name(path.relative_to(folder).as_posix()))
            arrays = _read_file(path, folder, place, digests, left)
            if arrays is None:
                continue

            left -= sum(array.nbytes for array in arrays.values())
            which: Literal["train", "test"] = "train" if part == "train" else "test"
            blocks.append(Block(place, which, arrays["x"], arrays["y"]))
            if "class_names" in arrays:
                class_names = _read_names(arrays["class_names"], place)
                names.update({place.path: class_names} if class_names else {})

    site_names = [site for site, _ in sites]
    sources = one_source(folder.name, digests)
    common = _common_names(names, findings)
    return combine_blocks(
        folder.name, site_names, blocks, common, options, findings, sources=sources
    )


def _read_file(
    path: Path, folder: Path, place: Place, digests: dict[str, str], limit: int
) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file; None, with the problem added, without ``x`` or ``y``."""
    try:
        raw = read_bytes(path, digests, folder=folder)
        arrays, present = read_archive(raw, _ARRAYS, limit=limit)
    except DataError as error:
        place.add("unreadable_file", error.message, severity="error")
        return None
    except Unusable as error:
        place.add(error.kind, error.message)
        return None

    names = listed(present, 20) or "none"
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        message = f"Array {' and '.join(missing)} is missing; the arrays are: {names}."
        place.add("missing_array", message)
        return None

    if len(present) > len(arrays):
        message = f"Only x, y and class_names are used; the arrays are: {names}."
        place.add("unused_array", message)

    return arrays


def _read_names(array: np.ndarray, place: Place) -> tuple[str, ...] | None:
    """Return the class names, or None with the problem added."""
    names = tuple(safe_name(str(name)) for name in array.ravel()[: MAX_CLASSES + 1])
    is_list = array.ndim == 1 and array.dtype.kind == "U" and 0 < len(names) <= MAX_CLASSES
    if is_list and len(set(names)) == len(names) and "" not in names:
        return names

    message = (
        f"class_names must be an array of 1 to {MAX_CLASSES} names, all different and none empty; "
        f"got type {array.dtype} of shape {array.shape}."
    )
    place.add("wrong_class_names", message)
    return None


def _common_names(names: Mapping[str, tuple[str, ...]], findings: Findings) -> tuple[str, ...]:
    """Return the class names of all files that have any; the first that differs is an error."""
    first = next(iter(names), "")
    for path, others in names.items():
        if others != names[first]:
            message = f"class_names differ from those of {show(first)}."
            findings.add("class_names_differ", message, path=path)
            return ()

    return names[first] if names else ()


def combine_blocks(
    name: str,
    site_names: Sequence[str],
    blocks: Sequence[Block],
    class_names: Sequence[str],
    options: DataOptions,
    findings: Findings,
    *,
    sources: Mapping[str, str],
) -> Dataset | None:
    """Put the examples of all sites into one data set; None if there is an error.

    Without ``class_names`` the classes are named by their numbers, from 0 to the largest label. The
    counts of all labels that could be read are added to ``findings`` in any case.
    """
    refuse_groups(options, findings)
    checked = _check_blocks(blocks, len(class_names))
    if not checked:
        findings.sites.extend(Site(site) for site in site_names)
        no_examples(findings)
        return None

    # Counts first: they help to find a problem of the values.
    names = tuple(class_names) or _number_classes(checked, findings)
    numbers = {site: number for number, site in enumerate(site_names)}
    lengths = [len(block.y) for block in checked]
    examples = Examples(
        x=checked[0].x[:0],
        y=np.concatenate([block.y for block in checked]),
        site=np.repeat([numbers[block.place.site] for block in checked], lengths),
        is_test=np.repeat([block.part == "test" for block in checked], lengths),
    )
    findings.sites.extend(examples.count_sites(site_names, names))

    scale = _find_scale(checked) if _check_values(checked) else None
    if scale is None or findings.has_errors:
        return None

    _warn_of_options(checked[0], options, findings)
    x = np.concatenate([block.x.astype(scale.kind, copy=False) for block in checked])
    examples = replace(examples, x=x)
    ends = np.cumsum(lengths)

    def name_of(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        block = checked[number]
        return f"{block.place.site}/{block.part}:{row - int(ends[number]) + lengths[number]}"

    examples.report_duplicates(name_of, findings)
    return examples.to_dataset(
        name,
        site_names,
        names,
        findings,
        sources=sources,
        white=scale.white,
        normalize=scale.normalize,
    )


def _check_blocks(blocks: Sequence[Block], num_classes: int) -> list[Block]:
    """Return the blocks that have examples and can be used; add the problems of the others."""
    filled = [block for block in blocks if block.x.size or block.y.size]
    with_examples = {block.place.site for block in filled}
    empty = {block.place.site: block.place for block in blocks}
    for site, place in empty.items():
        if site not in with_examples:
            place.skip_empty()

    checked = []
    for block in filled:
        block.num_classes = num_classes
        if check(ARRAYS, block, block.place):
            checked.append(block.converted())

    return checked


def _check_values(blocks: Sequence[Block]) -> bool:
    """Return whether all examples are finite, of one shape, and all whole numbers or all floats."""
    usable = [check(FINITE_ARRAYS, block, block.place) for block in blocks]
    usable += [check(ARRAYS_ALIKE, (blocks[0], block), block.place) for block in blocks[1:]]
    return all(usable)


def _number_classes(blocks: Sequence[Block], findings: Findings) -> tuple[str, ...]:
    """Name the classes by their numbers; warn of gaps, and refuse a likely regression."""
    present = np.unique(np.concatenate([np.unique(block.y) for block in blocks]))
    examples = sum(len(block.y) for block in blocks)
    labels = Labels("y", [str(label) for label in present], examples)
    check(LABELS, labels, findings.place)

    absent = np.setdiff1d(np.arange(present[-1] + 1), present)
    if len(absent):
        message = (
            f"{len(absent)} of the classes 0 to {present[-1]} have no examples, the first is "
            f"{absent[0]}."
        )
        findings.add("unused_label", message)

    return tuple(str(label) for label in range(int(present[-1]) + 1))


def _find_scale(blocks: Sequence[Block]) -> Scale | None:
    """Return the scale of all examples; None, with the problem added, if none fits.

    * Tables: float32, as they are.
    * Images of whole numbers, none above 255: uint8, and 255 is white. None above 65,535: float32,
      and 65,535 is white. A warning is added if the largest value is far from white.
    * Images of floats within [0, 1]: float32, and 1 is white. Other floats are used as they are,
      with a warning.
    """
    if blocks[0].x.ndim == 2:
        return Scale(np.float32, 1.0, AS_THEY_ARE)

    lowest = min(blocks, key=lambda block: float(block.x.min()))
    highest = max(blocks, key=lambda block: float(block.x.max()))
    values = ValueRange(float(lowest.x.min()), float(highest.x.max()), lowest.has_floats)
    offender = lowest if values.low < 0 else highest
    if not check(IMAGE_VALUES, values, offender.place):
        return None

    if values.are_floats:
        is_scaled = 0 <= values.low <= values.high <= 1
        return Scale(np.float32, 1.0, Normalization() if is_scaled else AS_THEY_ARE)

    findings = highest.place.findings
    white = 255.0 if values.high <= 255 else 65535.0
    warn_if_dark(values.high, white, findings)
    if white == 255:
        return Scale(np.uint8, white, Normalization())

    findings.note(f"Images hold whole numbers up to {values.high:g}: 65535 is white (16 bits).")
    return Scale(np.float32, white, Normalization())


def warn_if_dark(peak: float, white: float, findings: Findings) -> None:
    """Warn if the largest value of all images, whole numbers, is below a quarter of white."""
    if 4 * (peak + 1) > white + 1:
        return

    bits = 8 if white == 255 else 16
    message = (
        f"The largest value of all {bits}-bit images is {peak:g}, and {white:g} is white: all "
        "images are nearly black, and most of their contrast is lost. Scale the values so that "
        f'white is {white:g}, or set data.normalize = "training".'
    )
    findings.add(f"dark_{bits}_bit", message)


def refuse_groups(options: DataOptions, findings: Findings) -> None:
    """Add an error if there is an option for groups, which arrays do not have."""
    if options.group:
        message = (
            f"data.group = {show(options.group)} is for tables and folders of images. For arrays, "
            "let a function return a Dataset with groups."
        )
        findings.add("option_unused", message, severity="error")


def _warn_of_options(block: Block, options: DataOptions, findings: Findings) -> None:
    """Warn of options for image files, which have no effect on arrays."""
    size = options.image_size
    if size and block.shape[:2] != (size, size):
        message = f"data.image_size = {size} is for image files; arrays keep shape {block.shape}."
        findings.add("option_unused", message)

    if options.color != "auto":
        channels = block.shape[-1]
        message = (
            f"data.color = {options.color!r} is for image files; arrays keep {channels} channels."
        )
        findings.add("option_unused", message)
