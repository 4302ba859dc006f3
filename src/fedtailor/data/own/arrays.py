"""Own data as arrays: ``SITE/train.npz`` and, if it exists, ``SITE/test.npz``; or ``.h5``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.text import counted, escaped, listed, quoted
from fedtailor.data.dataset import AS_THEY_ARE, Dataset, EncoderRecord, Normalization
from fedtailor.data.files import read_bytes
from fedtailor.data.options import ArrayKind, DataOptions
from fedtailor.data.own.archives import read_arrays
from fedtailor.data.own.examples import Examples, one_source
from fedtailor.data.own.findings import (
    MAX_TOTAL_BYTES,
    Finding,
    FindingPlace,
    Findings,
    Site,
    Unusable,
)
from fedtailor.data.own.kinds import NO_REGRESSION, SEVERAL_LABELS
from fedtailor.data.own.labels import find_regression
from fedtailor.data.own.patterns import MAX_CLASSES, option_text

_LARGEST_GROUP = np.iinfo(np.int64).max
_ARRAYS = ("x", "y", "class_names", "groups", "encoder")

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")

_SHAPES: Mapping[str, str] = {
    "pictures": "(rows, height, width) or (rows, height, width, channels)",
    "series": "(rows, times) or (rows, times, channels)",
    "features": "(rows, features)",
}
"""Of ``x``, by ``data.kind``."""
_AXES: Mapping[str, tuple[int, ...]] = {
    "auto": (2, 3, 4),
    "pictures": (3, 4),
    "series": (2, 3),
    "features": (2, 3, 4),
}
"""Numbers of axes of ``x``, by ``data.kind``; those of features are put into one row."""


class SiteArrays(NamedTuple):
    """One part of a site's examples."""

    place: FindingPlace
    """The site and its file."""
    part: Part
    x: np.ndarray
    """Pictures, series or features, numbers; :func:`read_npz_sites` says which shapes."""
    y: np.ndarray  # (rows,), numbers
    groups: np.ndarray | None = None  # (rows,), the group of each row, such as its patient

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an example."""
        return self.x.shape[1:]

    @property
    def has_floats(self) -> bool:
        """Whether the examples are floats."""
        return self.x.dtype.kind == "f"


class _Scale(NamedTuple):
    """The type in which all examples are stored, and their normalization."""

    kind: type[np.uint8] | type[np.float32]
    white: float
    normalize: Normalization


def read_npz_sites(
    folder: Path, sites: list[tuple[str, dict[str, Path]]], options: DataOptions, findings: Findings
) -> Dataset | None:
    """Read the arrays ``x``, ``y`` and perhaps ``class_names`` and others of every site.

    ``x`` holds numbers: pictures (rows, height, width) or (rows, height, width, channels), features
    (rows, features), or, with ``data.kind = "series"``, series (rows, times, channels). ``y`` is
    (rows,), whole numbers from 0. ``groups`` (rows,) are whole numbers too, and the same number at
    two sites is the same group. ``encoder`` is the record of the encoder that made features; all
    files must have the same one.

    Args:
        folder: the data's folder; problems name files relative to it.
        sites: name of each site and its files: ``train``, ``test``, or both.
        options: ``kind`` says what ``x`` holds; options for image files give a warning.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None after an error.
    """
    digests: dict[str, str] = {}
    parts = []
    names: dict[str, tuple[str, ...]] = {}  # class names by the file that has them
    encoders: dict[str, EncoderRecord | None] = {}  # by file
    left = MAX_TOTAL_BYTES
    for site, by_part in sites:
        for part in PARTS:
            if part not in by_part:
                continue

            path = by_part[part]
            place = FindingPlace(findings, site, escaped(path.relative_to(folder).as_posix()))
            arrays = _read_file(path, folder, place, digests, left)
            if arrays is None:
                continue

            # The limit is for all files together, so that the memory holds them.
            left -= sum(array.nbytes for array in arrays.values())
            groups = arrays.get("groups")
            parts.append(SiteArrays(place, part, arrays["x"], arrays["y"], groups))
            encoders[place.path] = _read_encoder(arrays.get("encoder"), place)
            class_names = _read_names(arrays.get("class_names"), place)
            if class_names:
                names[place.path] = class_names

    site_names = [site for site, _ in sites]
    sources = one_source(folder.name, digests)
    encoded = {path: [record.digest if record else ""] for path, record in encoders.items()}
    _agree(encoded, "encoders_differ", "Digests of encoders", findings)
    encoder = next(iter(encoders.values()), None)
    agree = _agree(names, "class_names_differ", "class_names", findings)
    common = next(iter(names.values()), ()) if agree else ()
    dataset = combine_arrays(
        folder.name, site_names, parts, common, options, findings, sources=sources
    )
    return dataset and replace(dataset, encoder=encoder)


def _read_file(
    path: Path, folder: Path, place: FindingPlace, digests: dict[str, str], limit: int
) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file; None, with the problem added, without ``x`` or ``y``."""
    try:
        raw = read_bytes(path, digests, folder=folder)
        arrays, present = read_arrays(path, raw, _ARRAYS, limit=limit)
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
        message = f"Only {listed(_ARRAYS)} are used; the arrays are: {names}."
        place.add("unused_array", message)

    return arrays


def _read_names(array: np.ndarray | None, place: FindingPlace) -> tuple[str, ...]:
    """Return the class names; none, with the problem added, if they cannot be used."""
    if array is None:
        return ()

    names = tuple(escaped(str(name)) for name in array.ravel()[: MAX_CLASSES + 1])
    # Arrays of objects are refused by the reader of archives.
    is_list = array.ndim == 1 and array.dtype.kind == "U" and 0 < len(names) <= MAX_CLASSES
    if is_list and len(set(names)) == len(names) and "" not in names:
        return names

    message = (
        f"class_names must be 1 to {MAX_CLASSES} different texts, got {array.dtype} {array.shape}."
    )
    place.add("wrong_class_names", message)
    return ()


def _read_encoder(array: np.ndarray | None, place: FindingPlace) -> EncoderRecord | None:
    """Return the record of an encoder; None, with the problem added, if it is damaged."""
    if array is None:
        return None

    try:
        encoder = EncoderRecord(**json.loads(str(array)))
        texts = (encoder.target, encoder.digest, encoder.license)
        is_one = all(isinstance(text, str) for text in texts) and isinstance(encoder.inputs, dict)
    except (TypeError, ValueError, RecursionError):
        is_one = False

    if is_one:
        return encoder

    place.add("wrong_encoder", "The array encoder is not the record of one.")
    return None


def _agree(values: Mapping[str, Sequence[str]], kind: str, what: str, findings: Findings) -> bool:
    """Return whether all files have the same texts; add the first file that has others."""
    first = next(iter(values), "")
    for path, texts in values.items():
        pairs = zip_longest(values[first], texts, fillvalue="")
        for index, (one, other) in enumerate(pairs):
            if one != other:
                both = f"{quoted(first)} has {_shown(one)}, and this file has {_shown(other)}"
                place = f" at index {index}" if len(texts) > 1 else ""
                findings.add(kind, f"{what} differ{place}: {both}.", path=path)
                return False

    return True


def _shown(text: str) -> str:
    return quoted(text) if text else "none"


def combine_arrays(
    name: str,
    site_names: Sequence[str],
    parts: Sequence[SiteArrays],
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
    check_options(options, findings)
    usable = _keep_usable(parts, len(class_names) or MAX_CLASSES, options.kind)
    if not usable:
        findings.sites.extend(Site(site) for site in site_names)
        findings.add_empty()
        return None

    # All examples have a group, or none has.
    with_groups = [part for part in usable if part.groups is not None]
    for part in usable:
        if with_groups and part.groups is None:
            message = f"The groups are missing, which {quoted(with_groups[0].place.path)} has."
            part.place.add("missing_group", message)

    # Counts first: they help to find a problem of the values.
    names = tuple(class_names) or _number_classes(usable, findings)
    numbers = {site: number for number, site in enumerate(site_names)}
    lengths = [len(part.y) for part in usable]
    examples = Examples(
        x=usable[0].x[:0],
        y=np.concatenate([part.y for part in usable]),
        site=np.repeat([numbers[part.place.site] for part in usable], lengths),
        is_test=np.repeat([part.part == "test" for part in usable], lengths),
        group=_groups_of(usable),
    )
    findings.sites.extend(examples.count_sites(site_names, names))

    first = usable[0]
    if options.kind == "auto":
        _ask_for_kind(parts)

    # Every part gets its own problem, so that one look tells all files to mend.
    for part in usable:
        _check_finite(part)
    for part in usable:
        part.place.check(_find_difference(part, first))

    scale = None if findings.has_errors else _find_scale(usable)
    if scale is None:
        return None

    x = np.concatenate([part.x.astype(scale.kind, copy=False) for part in usable])
    examples = replace(examples, x=x)
    files = [(f"{part.place.site}/{part.part}", range(len(part.y))) for part in usable]
    examples.report_duplicates(files, findings)
    return examples.to_dataset(
        name,
        site_names,
        names,
        findings,
        sources=sources,
        white=scale.white,
        normalize=scale.normalize,
    )


def _groups_of(parts: Sequence[SiteArrays]) -> np.ndarray | None:
    """Return the groups of all rows, if every part has some."""
    # Types of different parts have no common one without loss, such as uint64 and int64.
    groups = [part.groups.astype(np.int64) for part in parts if part.groups is not None]
    return np.concatenate(groups) if len(groups) == len(parts) else None


def _keep_usable(
    parts: Sequence[SiteArrays], most_classes: int, kind: ArrayKind
) -> list[SiteArrays]:
    """Return the arrays with examples that can be used, converted; add what is wrong with others.

    Images have four axes then, series three, features two: channels come last. Labels are int64.
    """
    filled = [part for part in parts if part.x.size or part.y.size]
    with_examples = {part.place.site for part in filled}
    empty = {part.place.site: part.place for part in parts}
    for site, place in empty.items():
        if site not in with_examples:
            place.skip_empty()

    usable = []
    for part in filled:
        if not part.place.check(_find_wrong_arrays(part, most_classes, kind)):
            continue

        x = part.x
        if kind == "features":
            x = x.reshape(len(x), -1)
        elif kind == "series":
            x = x.reshape(len(x), x.shape[1], -1)
        elif x.ndim == 3:
            x = x[..., None]
        elif x.ndim == 4 and _find_channels(x.shape) == 1:
            x = np.moveaxis(x, 1, 3)
            part.place.findings.note("Images were stored channels first, and are converted.")

        usable.append(part._replace(x=x, y=part.y.astype(np.int64)))

    return usable


def _find_wrong_arrays(part: SiteArrays, most_classes: int, kind: ArrayKind) -> Iterator[Finding]:
    """Yield what is wrong with the shapes, types and labels of a part."""
    x = part.x
    y = part.y
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "buif":
        is_binary = bool(((y == 0) | (y == 1)).all())
        if is_binary and (y.sum(axis=1) == 1).all():
            message = f"The labels y are one-hot, of shape {y.shape}: store y.argmax(axis=1)."
            yield Finding("wrong_shape", message)

        message = f"The labels y have the shape {y.shape}. {SEVERAL_LABELS}"
        yield Finding("several_labels", message)

    if y.ndim != 1 or x.ndim == 0 or len(x) != len(y):
        message = f"Expected x and y with as many rows, got x of shape {x.shape}, y of {y.shape}."
        yield Finding("wrong_shape", message)

    groups = part.groups
    if groups is not None and (groups.shape != y.shape or groups.dtype.kind not in "iu"):
        got = f"type {groups.dtype} of shape {groups.shape}"
        yield Finding("wrong_type", f"Expected groups of whole numbers as y, got {got}.")
    elif groups is not None and len(groups) and groups.max() > _LARGEST_GROUP:
        message = f"The largest number of a group is {groups.max()}; at most {_LARGEST_GROUP}."
        yield Finding("wrong_type", message)

    # True and false are numbers in a table, but no pixels.
    are_features = kind == "features" or x.ndim == 2
    if x.dtype.kind not in ("buif" if are_features else "uif"):
        message = f"Expected x of whole numbers or floats, got type {x.dtype}."
        yield Finding("wrong_type", message)

    if 0 in x.shape[1:] or x.ndim not in _AXES[kind]:
        shapes = _SHAPES if kind == "auto" else {kind: _SHAPES[kind]}
        allowed = [f"{shape} for {name}" for name, shape in shapes.items()]
        yield Finding("wrong_shape", f"Expected x of shape {', '.join(allowed)}; got {x.shape}.")

    if y.dtype.kind not in "buif":
        message = f"Expected labels y of whole numbers, got type {y.dtype}; names go into"
        yield Finding("wrong_type", f"{message} class_names.")

    fractions = np.flatnonzero(y != np.floor(y))
    if len(fractions):
        row = int(fractions[0])
        message = (
            f"Labels must be whole numbers: not so in {counted(len(fractions), 'row')}, the first "
            f"is {y[row]} at index {row}. {NO_REGRESSION}"
        )
        yield Finding("float_label", message, row)

    for problem, is_wrong in (("negative_label", y < 0), ("label_out_of_range", y >= most_classes)):
        if is_wrong.any():
            row = int(is_wrong.argmax())
            message = f"Labels must be from 0 to {most_classes - 1}, got {y[row]} at index {row}."
            yield Finding(problem, message, row)

    if not are_features and x.ndim == 4 and _find_channels(x.shape) is None:
        message = f"The channels of images of shape {x.shape} are unclear: store them in the last"
        yield Finding("wrong_shape", f"{message} axis.")

    if kind == "series" and x.ndim == 3 and x.shape[1] < x.shape[2]:
        message = (
            f"Series of {x.shape[1]} times and {x.shape[2]} channels: if channels come first, "
            "store x.transpose(0, 2, 1)."
        )
        yield Finding("axes_unusual", message)


def _ask_for_kind(parts: Sequence[SiteArrays]) -> None:
    """Add an error to the first arrays that can be pictures or series.

    Bytes are pictures, and so is what is about square; else only the user knows.
    """
    for part in parts:
        if part.x.ndim != 3 or part.x.dtype == np.uint8:
            continue

        times, channels = part.shape
        if max(part.shape) < 2 * min(part.shape):
            continue

        message = (
            f"x of shape {part.x.shape} can be series of {times} times with "
            f"{counted(channels, 'channel')}, or pictures of {times} x {channels} pixels: say "
            f"{option_text('kind', 'series')} or {option_text('kind', 'pictures')}."
        )
        part.place.add("unclear_kind", message)
        return


def _find_channels(shape: tuple[int, ...]) -> int | None:
    """Return which axis of images has the channels; None if it is not clear.

    It is the last one, or, as in PyTorch, the second one if that has 1 or 3 entries and the last
    has neither 1 nor 3.
    """
    _, second, third, last = shape
    if last in (1, 3) or last <= min(second, third):
        return 3

    return 1 if second in (1, 3) and third > 3 else None


def _check_finite(part: SiteArrays) -> None:
    """Add the first row that is not finite as 32-bit floats."""
    if not part.has_floats:
        return

    with np.errstate(over="ignore"):
        is_finite = np.isfinite(part.x.astype(np.float32, copy=False))

    rows = np.flatnonzero(~is_finite.reshape(len(part.x), -1).all(axis=1))
    if len(rows):
        where = f"{counted(len(rows), 'row')}; the first at index {rows[0]}"
        message = f"Values are not finite as 32-bit floats in {where}."
        part.place.add("not_finite", message, int(rows[0]))


def _find_difference(part: SiteArrays, first: SiteArrays) -> Iterator[Finding]:
    """Yield how the examples of a part differ from the first one."""
    if part.shape != first.shape:
        message = f"Expected examples of shape {first.shape} as in {quoted(first.place.path)}, got"
        yield Finding("shape_differs", f"{message} shape {part.shape}.")

    if first.x.ndim == 4 and part.has_floats != first.has_floats:
        message = f"Expected examples of type {first.x.dtype} as in {quoted(first.place.path)}, got"
        yield Finding("type_differs", f"{message} type {part.x.dtype}.")


def _number_classes(parts: Sequence[SiteArrays], findings: Findings) -> tuple[str, ...]:
    """Name the classes by their numbers; warn of gaps, and refuse a likely regression."""
    present = np.unique(np.concatenate([np.unique(part.y) for part in parts]))
    examples = sum(len(part.y) for part in parts)
    for kind, message, _ in find_regression("y", len(present), examples):
        findings.add(kind, message)

    # A gap is often a class that was removed, and costs a useless output.
    absent = np.setdiff1d(np.arange(present[-1] + 1), present)
    if len(absent):
        message = f"{len(absent)} classes have no examples; the first is {absent[0]}."
        findings.add("unused_label", message)

    return tuple(str(label) for label in range(int(present[-1]) + 1))


def _find_scale(parts: Sequence[SiteArrays]) -> _Scale | None:
    """Return the scale of all examples; None, with the problem added, if none fits.

    * Features and series: float32, as they are.
    * Images of whole numbers, none above 255: uint8, and 255 is white. None above 65,535: float32,
      and 65,535 is white. A warning is added if the largest value is far from white.
    * Images of floats within [0, 1]: float32, and 1 is white. Other floats are used as they are,
      with a warning.
    """
    if parts[0].x.ndim < 4:
        return _Scale(np.float32, 1.0, AS_THEY_ARE)

    # All sites have one scale; the file with the extreme value gets the problem.
    lowest = min(parts, key=lambda part: float(part.x.min()))
    highest = max(parts, key=lambda part: float(part.x.max()))
    low = float(lowest.x.min())
    high = float(highest.x.max())
    place = (lowest if low < 0 else highest).place
    if lowest.has_floats:
        if low >= 0 and high <= 1:
            return _Scale(np.float32, 1.0, Normalization())

        message = (
            f"Images hold floats from {low:g} to {high:g}, used as they are: not within [0, 1]."
        )
        if parts[0].shape[-1] == 1:
            message += f" If they are series, say {option_text('kind', 'series')}."

        place.add("values_unscaled", message)
        return _Scale(np.float32, 1.0, AS_THEY_ARE)

    if low < 0 or high > 65535:
        message = (
            f"Images of whole numbers must be from 0 to 255 or 65535, got {low:g} to {high:g}."
        )
        place.add("value_out_of_range", message)
        return None

    # Bytes stay bytes: they take a quarter of the memory of floats.
    white = 255.0 if high <= 255 else 65535.0
    warn_if_dark(high, white, place.findings)
    if white == 255:
        return _Scale(np.uint8, white, Normalization())

    place.findings.note(f"Images hold whole numbers up to {high:g}: 65535 is white (16 bits).")
    return _Scale(np.float32, white, Normalization())


def warn_if_dark(peak: float, white: float, findings: Findings) -> None:
    """Warn if the largest value of all images, whole numbers, is below a quarter of white."""
    if 4 * (peak + 1) > white + 1:
        return

    message = (
        f"All images are nearly black: the largest value is {peak:g}, and {white:g} is white. "
        'Scale the values, or set data.normalize = "training".'
    )
    findings.add("dark_images", message)


def check_options(options: DataOptions, findings: Findings) -> None:
    """Add an error if there is an option for groups, and warn of options for image files."""
    for name, default in (("image_size", 0), ("color", "auto")):
        value = getattr(options, name)
        if value != default:
            message = f"data.{name} = {value!r} is for image files; arrays stay as they are."
            findings.add("option_unused", message)

    if options.group:
        message = "data.group is not for arrays: let a function return a Dataset with groups."
        findings.add("option_unused", message, severity="error")
