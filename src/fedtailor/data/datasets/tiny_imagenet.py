"""Tiny ImageNet: 200 classes of color photographs of 64x64 pixels, as JPEG files.

In tiny-imagenet-200, ``wnids.txt`` has the names of the classes, ``words.txt`` their meanings;
``train/WNID/images/*.JPEG`` are the training part; ``val/images/*.JPEG`` with
``val/val_annotations.txt`` (file, class and box of an object in each line) serve as test part,
because the labels of the folder ``test`` are not published. Le and Yang 2015, "Tiny ImageNet visual
recognition challenge", Stanford CS 231N.
"""

from __future__ import annotations

import re

import numpy as np

from fedtailor.data.dataset import Dataset
from fedtailor.data.files import Files, wrong_content
from fedtailor.data.pictures import read_pictures

_FOLDER = "tiny-imagenet-200"
_WNID = re.compile("n[0-9]{8}")


def load(files: Files) -> Dataset:
    """Load Tiny ImageNet: 1.4 GB of pixels.

    Labels follow the order of ``wnids.txt``; rows within a class, and test rows, follow the sorted
    names of files. Gray images become RGB. With fewer images than published the data set is marked
    as a subset.

    Raises:
        DataError: a file is missing or damaged, a picture has another size, or a test picture has
            no annotation.
    """
    path = files.find(f"{_FOLDER}/wnids.txt")
    wnids = files.read_text(path).split()
    if not wnids or len(set(wnids)) < len(wnids) or not all(map(_WNID.fullmatch, wnids)):
        raise wrong_content(path, "different classes such as n01443537", f"{len(wnids)} names")

    # The meanings of many more classes are in the file.
    words = _read_columns(files, "words.txt")
    class_names = tuple(words[wnid] for wnid in wnids)
    labels = {wnid: label for label, wnid in enumerate(wnids)}
    pictures = []
    for wnid, label in labels.items():
        paths = (files.folder / _FOLDER / "train" / wnid / "images").glob("[!.]*.JPEG")
        pictures += [(path, label) for path in sorted(paths)]

    # The validation part has the labels that are published.
    num_train = len(pictures)
    if not num_train:
        raise files.missing(f"{_FOLDER}/train/{wnids[0]}/images/{wnids[0]}_0.JPEG")

    annotations = _read_columns(files, "val/val_annotations.txt")
    for path in sorted((files.folder / _FOLDER / "val" / "images").glob("[!.]*.JPEG")):
        pictures.append((path, labels[annotations[path.name]]))

    x, files.sources[f"{_FOLDER}/**/*.JPEG"] = read_pictures(
        files, [path for path, _ in pictures], side=64, formats=("JPEG",)
    )
    return Dataset(
        name="tiny_imagenet",
        x=x,
        y=np.array([label for _, label in pictures], np.int64),
        num_classes=len(wnids),
        class_names=class_names,
        num_official_train=num_train,
        sources=files.sources,
    )


def _read_columns(files: Files, name: str) -> dict[str, str]:
    """Return the second column of a table, which tabs divide, by the first."""
    path = files.find(f"{_FOLDER}/{name}")
    columns = {}
    for number, line in enumerate(files.read_text(path).splitlines(), 1):
        first, tab, rest = line.partition("\t")
        second = rest.split("\t")[0]
        if not tab or not second.isprintable():
            raise wrong_content(path, f"columns divided by tabs in line {number}", repr(line[:80]))
        columns[first] = second

    return columns
