"""Tiny ImageNet: 200 classes of color photographs of 64x64 pixels, as JPEG files in
tiny-imagenet-200.

``wnids.txt`` has the names of the classes, ``words.txt`` their meanings;
``train/WNID/images/*.JPEG`` are the training part; ``val/images/*.JPEG`` with
``val/val_annotations.txt`` (file, class and box of an object in each line) serve as test part,
because the labels of the folder ``test`` are not published. Le and Yang 2015, "Tiny ImageNet visual
recognition challenge", Stanford CS 231N.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fedtailor.data.dataset import Dataset
from fedtailor.data.preparing import Report, to_nobody
from fedtailor.data.readers import files
from fedtailor.data.readers.pictures_folder import list_pictures, read_pictures

_SIDE = 64
_WNID = re.compile("n[0-9]{8}")
_WORDS = re.compile("(n[0-9]{8})\t(.{1,400})")
_ANNOTATION = re.compile(r"([0-9A-Za-z_-]{1,64}\.JPEG)\t(n[0-9]{8})(?:\t[0-9]{1,4}){4}")


def load_tiny_imagenet(folder: Path, report: Report = to_nobody) -> Dataset:
    """Load Tiny ImageNet from ``folder``/tiny-imagenet-200: 1.4 GB of pixels.

    Labels follow the order of ``wnids.txt``; rows within a class, and test rows, follow the sorted
    names of files. Gray images become RGB. With fewer images than published the data set is marked
    as a subset.

    Raises:
        DataError: a file is missing or damaged, a picture has another size, a folder is not in
            ``wnids.txt``, or a test picture has no annotation.
    """
    place = folder / "tiny-imagenet-200"
    sources: dict[str, str] = {}

    def lines(file: str) -> tuple[Path, list[str]]:
        return _lines(place / file, sources, folder)

    wnids = _read_wnids(*lines("wnids.txt"))
    names = _read_words(*lines("words.txt"), wnids)
    train = _training_pictures(place / "train", wnids, folder)
    test = _test_pictures(*lines("val/val_annotations.txt"), wnids)
    x, sources["tiny-imagenet-200/**/*.JPEG"] = read_pictures(
        [path for path, _ in train + test],
        folder=folder,
        side=_SIDE,
        formats=("JPEG",),
        fit=_check_size,
        report=report,
    )

    return Dataset(
        name="tiny_imagenet",
        x=x,
        y=np.array([label for _, label in train + test], np.int64),
        num_classes=len(wnids),
        class_names=tuple(names),
        num_official_train=len(train),
        sources=sources,
    )


def _lines(path: Path, sources: dict[str, str], folder: Path) -> tuple[Path, list[str]]:
    """Return a path and the lines of its text."""
    if not path.is_file():
        raise files.missing("tiny_imagenet", folder, [path])
    try:
        text = files.read_bytes(path, sources, folder=folder).decode("utf-8")
    except UnicodeDecodeError as error:
        raise files.damaged(path, "text in UTF-8", str(error)) from error
    return path, text.splitlines()


def _matches(
    path: Path, lines: list[str], fits: Callable[[str], re.Match[str] | None], what: str
) -> list[re.Match[str]]:
    """Return a match for every line."""
    found = []
    for number, line in enumerate(lines, 1):
        match = fits(line)
        if match is None:
            raise files.damaged(path, f"{what} in line {number}", repr(line[:80]))
        found.append(match)
    return found


def _read_wnids(path: Path, lines: list[str]) -> dict[str, int]:
    """Return the label of every class."""
    matches = _matches(path, lines, _WNID.fullmatch, "a class such as n01443537")
    wnids = {match[0]: label for label, match in enumerate(matches)}
    if not wnids or len(wnids) != len(matches):
        raise files.damaged(
            path,
            "different classes, one in each line",
            f"{len(matches)} lines, {len(wnids)} classes",
        )

    return wnids


def _read_words(path: Path, lines: list[str], wnids: dict[str, int]) -> list[str]:
    """Return the meaning of each class, by label."""
    names: dict[str, str] = {}
    for match in _matches(path, lines, _WORDS.fullmatch, "a class, a tab and its meaning"):
        wnid, name = match.groups()
        if wnid in wnids and (wnid in names or not name.isprintable()):
            raise files.damaged(path, "one printable meaning for each class", f"{match[0][:80]!r}")

        names[wnid] = name

    absent = next((wnid for wnid in wnids if wnid not in names), None)
    if absent is not None:
        raise files.damaged(path, "a meaning for each class of wnids.txt", f"none for {absent}")

    return [names[wnid] for wnid in wnids]


def _training_pictures(place: Path, wnids: dict[str, int], folder: Path) -> list[tuple[Path, int]]:
    """Return path and label of every training picture."""
    strange = sorted(
        path.name for path in place.glob("[!.]*") if path.is_dir() and path.name not in wnids
    )
    if strange:
        raise files.damaged(place, "folders of classes in wnids.txt", repr(strange[0][:80]))

    pictures = []
    for wnid, label in wnids.items():
        pictures += [(path, label) for path in list_pictures(place / wnid / "images", ".JPEG")]

    if not pictures:
        first = next(iter(wnids))
        raise files.missing("tiny_imagenet", folder, [place / first / "images" / f"{first}_0.JPEG"])

    return pictures


def _test_pictures(path: Path, lines: list[str], wnids: dict[str, int]) -> list[tuple[Path, int]]:
    """Return path and label of every picture of the folder beside the annotations."""
    what = "a file name without a folder, a class and four numbers, separated by tabs,"
    labels: dict[str, int] = {}
    for match in _matches(path, lines, _ANNOTATION.fullmatch, what):
        if match[2] not in wnids:
            raise files.damaged(path, "classes of wnids.txt", f"{match[2]} for {match[1]}")
        if labels.setdefault(match[1], wnids[match[2]]) != wnids[match[2]]:
            raise files.damaged(path, "one class for each file", f"two for {match[1]}")

    pictures = list_pictures(path.parent / "images", ".JPEG")
    unknown = next((picture.name for picture in pictures if picture.name not in labels), None)
    if unknown is not None:
        raise files.damaged(
            path, "a line for each picture of val/images", f"none for {unknown[:80]!r}"
        )

    return [(picture, labels[picture.name]) for picture in pictures]


def _check_size(image: Image.Image, path: Path) -> Image.Image:
    if image.size != (_SIDE, _SIDE):
        raise files.damaged(
            path, f"a picture of {_SIDE}x{_SIDE} pixels", f"{image.width}x{image.height}"
        )
    return image
