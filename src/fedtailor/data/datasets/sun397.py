"""SUN397 as in pFedVEM's experiments: scenes of 64x64 pixels, three superclasses as labels,
categories as subclasses.

Pictures are in SUN397/LETTER/CATEGORY/*.jpg. The superclasses are in the hierarchy that the authors
publish separately, the sheet SUN397 of three_levels.xlsx: its second row is ``category``,
``indoor``, ``outdoor, natural``, ``outdoor, man-made`` and more, followed by a row for every
category, such as ``/a/abbey``, with 0 or 1 in each column. It is read as CSV: save that sheet as
SUN397/hierarchy_three_levels/three_levels.csv. Xiao, Hays, Ehinger, Oliva and Torralba 2010, "SUN
database: large-scale scene recognition from abbey to zoo", CVPR; Zhu, Ma and Blaschko 2023,
"Confidence-aware personalized federated learning via variational expectation maximization", CVPR.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
from PIL import Image

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.preparing import Report, to_nobody
from fedtailor.data.readers import files
from fedtailor.data.readers.pictures_folder import list_pictures, read_pictures

_SUPERCLASSES = ("indoor", "outdoor, natural", "outdoor, man-made")
_COLUMNS = ("category", *_SUPERCLASSES)
_CATEGORIES = 50  # of each superclass
_PICTURES = 100  # of each category
_SIDE = 64
_FORMATS = ("JPEG", "PNG", "GIF", "BMP")  # some files named .jpg have another format
_MAX_ROWS = 2000
_CATEGORY = re.compile("[a-z](/[0-9A-Za-z_-]{1,80}){1,3}")


def load_sun397(folder: Path, report: Report = to_nobody) -> Dataset:
    """Load the 150 categories from ``folder``/SUN397.

    Among the categories with exactly one superclass, the first 50 of each superclass are taken, in
    the order of the hierarchy; of each category the first 100 pictures in the order of their file
    names: the first 80 % for training, the others for testing. A picture is cropped to its central
    square and resized by Pillow's bilinear filter, which averages when it shrinks (the paper does
    not name a filter). With fewer categories or pictures the data set is marked as a subset.

    Raises:
        DataError: the hierarchy or the folder of a category is missing, or a file is damaged.
    """
    sources: dict[str, str] = {}
    categories = _select(*_read_hierarchy(folder, sources))
    train: list[tuple[Path, int]] = []
    test: list[tuple[Path, int]] = []
    for subclass, category in enumerate(categories):
        pictures = [(path, subclass) for path in _pictures_of(category, folder)]
        cut = len(pictures) * 4 // 5
        train += pictures[:cut]
        test += pictures[cut:]

    x, sources["SUN397/**/*.jpg"] = read_pictures(
        [path for path, _ in train + test],
        folder=folder,
        side=_SIDE,
        formats=_FORMATS,
        fit=_crop_and_resize,
        report=report,
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
        sources=sources,
    )


def _read_hierarchy(folder: Path, sources: dict[str, str]) -> tuple[Path, list[dict[str, str]]]:
    """Return the path of the hierarchy and its rows by column."""
    place = folder / "SUN397"
    places = [place / "hierarchy_three_levels" / "three_levels.csv", place / "three_levels.csv"]
    path = next((found for found in places if found.is_file()), None)
    if path is None:
        raise _missing_hierarchy(folder, places)

    try:
        text = files.read_bytes(path, sources, folder=folder).decode("utf-8-sig")
        for delimiter in ",;\t":  # spreadsheets use different ones in different languages
            table = list(csv.reader(text.splitlines(), delimiter=delimiter))
            start = next(
                (index for index, row in enumerate(table[:5]) if set(_COLUMNS) <= set(row)), None
            )
            if start is not None and len(table) <= _MAX_ROWS:
                header = table[start]
                return path, [
                    dict(zip(header, row, strict=False)) for row in table[start + 1 :] if any(row)
                ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise files.damaged(
            path, "a table as CSV in UTF-8", f"{type(error).__name__}: {error!s:.200}"
        ) from error

    columns = ", ".join(map(repr, _COLUMNS))
    allowed = f"a table with the columns {columns} and at most {_MAX_ROWS} rows"
    raise files.damaged(path, allowed, f"a file that begins with {text[:80]!r}")


def _missing_hierarchy(folder: Path, places: list[Path]) -> DataError:
    """Return the error for a hierarchy that is missing, or exists only as a spreadsheet."""
    for place in places:
        sheet = place.with_suffix(".xlsx")
        if sheet.is_file():
            return files.damaged(
                sheet,
                f"its sheet 'SUN397', saved as CSV (UTF-8) in {place}",
                "only the spreadsheet",
            )

    return files.missing("sun397", folder, places)


def _select(path: Path, rows: list[dict[str, str]]) -> dict[str, int]:
    """Return the label of every category that is used, ordered by superclass."""
    belongs: dict[str, list[int]] = {}
    for row in rows:
        cell = row.get("category", "")
        category = cell.strip(" '/")
        if not _CATEGORY.fullmatch(category) or category in belongs:
            raise files.damaged(path, "different categories such as /a/abbey", repr(cell[:80]))

        answers = [row.get(name, "").strip() for name in _SUPERCLASSES]
        if not set(answers) <= {"0", "1", ""}:
            raise files.damaged(path, f"0 or 1 in every column of {category}", f"{answers!s:.80}")

        belongs[category] = [label for label, answer in enumerate(answers) if answer == "1"]

    selected: dict[str, int] = {}
    for label, name in enumerate(_SUPERCLASSES):
        only = [category for category, labels in belongs.items() if labels == [label]]
        if not only:
            raise files.damaged(path, f"a category whose only superclass is '{name}'", "none")

        selected |= dict.fromkeys(only[:_CATEGORIES], label)

    return selected


def _pictures_of(category: str, folder: Path) -> list[Path]:
    """Return the pictures of a category that are used."""
    place = folder / "SUN397" / category
    pictures = list_pictures(place, ".jpg")[:_PICTURES]
    if not pictures:
        raise files.missing("sun397", folder, [place / "*.jpg"])
    return pictures


def _crop_and_resize(image: Image.Image, path: Path) -> Image.Image:
    side = min(image.size)
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return square.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
