"""The images that tables name in their column ``image``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedtailor.data.options import DataOptions
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.findings import Findings, Place, show
from fedtailor.data.own.images import Picture, Pictures, read_pictures
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.table import Table
from fedtailor.data.preparing import Report


def read_table_images(
    folder: Path, tables: Sequence[Table], options: DataOptions, findings: Findings, report: Report
) -> Pictures | None:
    """Read the images of all tables, in order; None after an error.

    Paths are relative to ``folder``, that of the tables, and may not lead out of it, not even by a
    link. ``rows`` of the result counts the rows of all tables together.
    """
    root = folder.resolve()
    pictures: list[Picture] = []
    complete = True
    for table in tables:
        for row, (name, label) in enumerate(
            zip(table.cells.images or [], table.cells.labels, strict=True)
        ):
            path = _find(root, name, table.place, table.cells.lines[row])
            if path is None:
                complete = False
                continue

            part = "test" if table.is_test is not None and table.is_test[row] else "train"
            pictures.append(
                Picture(path, Occurrence(table.place.site, part, safe_name(label), safe_name(name)))
            )

    return read_pictures(pictures, options, findings, report) if complete else None


def _find(root: Path, name: str, place: Place, line: int) -> Path | None:
    """Return the file of an image's path; None, with the problem added, if the folder has no such
    file.
    """
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            place.error(
                "image_outside", f"Image {show(name)} is not in the folder of the table.", line
            )
            return None

        if path.is_file():
            return path
    except (
        OSError,
        RuntimeError,
        ValueError,
    ):  # a link that leads to itself, or a name that no file can have
        pass

    place.error(
        "missing_image", f"Image {show(name)} does not exist in the folder of the table.", line
    )
    return None
