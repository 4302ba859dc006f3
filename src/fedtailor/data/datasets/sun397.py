"""SUN397 as in pFedVEM's experiments: scenes of 64x64 pixels by superclass and category.

Three superclasses are the labels, their categories are subclasses. Pictures are in
SUN397/LETTER/CATEGORY/*.jpg. The superclasses are in the hierarchy that the authors publish
separately, the sheet SUN397 of three_levels.xlsx: its second row is ``category``, ``indoor``,
``outdoor, natural``, ``outdoor, man-made`` and more, followed by a row for every category, such as
``/a/abbey``, with 0 or 1 in each column. It is read as CSV: save that sheet as
SUN397/hierarchy_three_levels/three_levels.csv. Xiao, Hays, Ehinger, Oliva and Torralba 2010, "SUN
database: large-scale scene recognition from abbey to zoo", CVPR; Zhu, Ma and Blaschko 2023,
"Confidence-aware personalized federated learning via variational expectation maximization", CVPR.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from fedtailor.data.dataset import Dataset
from fedtailor.data.files import Files, wrong_content
from fedtailor.data.pictures import read_pictures

_SUPERCLASSES = ("indoor", "outdoor, natural", "outdoor, man-made")
_COLUMNS = {"category", *_SUPERCLASSES}
_CATEGORIES = 50  # of each superclass
_PICTURES = 100  # of each category
_SIDE = 64
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # some files named .jpg have another format
_CATEGORY = re.compile("[a-z](/[0-9A-Za-z_-]{1,80}){1,3}")


def load(files: Files) -> Dataset:
    """Load the 150 categories from SUN397.

    Among the categories with exactly one superclass, the first 50 of each superclass are taken, in
    the order of the hierarchy; of each category the first 100 pictures in the order of their file
    names: the first 80 % for training, the others for testing. A picture is cropped to its central
    square and resized by Pillow's bilinear filter, which averages when it shrinks (the paper does
    not name a filter). With fewer categories or pictures the data set is marked as a subset.

    Raises:
        DataError: the hierarchy or the folder of a category is missing, or a file is damaged.
    """
    relative_path = "SUN397/hierarchy_three_levels/three_levels.csv"
    path = files.find(relative_path, "SUN397/three_levels.csv")
    categories = _select(path, _read_table(files, path))
    # The first 80 % of every category, then the rest of every category.
    train: list[tuple[Path, int]] = []
    test: list[tuple[Path, int]] = []
    for subclass, category in enumerate(categories):
        folder = files.folder / "SUN397" / category
        paths = sorted(folder.glob("[!.]*.jpg"))[:_PICTURES]
        if not paths:
            raise files.missing(f"SUN397/{category}/*.jpg")

        cut = len(paths) * 4 // 5
        train += [(path, subclass) for path in paths[:cut]]
        test += [(path, subclass) for path in paths[cut:]]

    x, files.sources["SUN397/**/*.jpg"] = read_pictures(
        files,
        [path for path, _ in train + test],
        side=_SIDE,
        formats=_FORMATS,
        crops=True,
    )
    subclasses = np.array([subclass for _, subclass in train + test], np.int64)
    return Dataset(
        name="sun397",
        x=x,
        y=np.array(list(categories.values()), np.int64)[subclasses],
        num_classes=len(_SUPERCLASSES),
        class_names=_SUPERCLASSES,
        subclasses=subclasses,
        subclass_names=tuple(category[2:] for category in categories),
        num_official_train=len(train),
        sources=files.sources,
    )


def _read_table(files: Files, path: Path) -> list[dict[str, str]]:
    """Return the rows of the hierarchy by column."""
    lines = files.read_text(path).splitlines()
    for delimiter in ",;\t":  # spreadsheets use different ones in different languages
        table = list(csv.reader(lines, delimiter=delimiter))
        for start, header in enumerate(table[:5], 1):
            if set(header) >= _COLUMNS:
                rows = [row for row in table[start:] if any(row)]
                return [dict(zip(header, row, strict=False)) for row in rows]

    allowed = f"a table with the columns {', '.join(sorted(_COLUMNS))}"
    raise wrong_content(path, allowed, f"a file that begins with {lines[:1]}")


def _select(path: Path, rows: list[dict[str, str]]) -> dict[str, int]:
    """Return the label of every category that is used, ordered by superclass."""
    # A category may have several superclasses in the hierarchy.
    labels: dict[str, list[int]] = {}
    for row in rows:
        category = row.get("category", "").strip(" '/")
        if not _CATEGORY.fullmatch(category) or category in labels:
            raise wrong_content(path, "different categories such as /a/abbey", repr(category))

        answers = [row.get(name, "").strip() for name in _SUPERCLASSES]
        labels[category] = [label for label, answer in enumerate(answers) if answer == "1"]

    # Categories with several superclasses are left out.
    selection: dict[str, int] = {}
    for label, name in enumerate(_SUPERCLASSES):
        only = [category for category in labels if labels[category] == [label]]
        if not only:
            raise wrong_content(path, f"a category whose only superclass is '{name}'", "none")
        selection |= dict.fromkeys(only[:_CATEGORIES], label)

    return selection
