"""Own data as tables: one CSV or Parquet file per site, named after it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtailor.data.columns import RawTable
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.cells import Table
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.examples import AS_THEY_ARE, Examples, count_sites, one_source
from fedtailor.data.own.facts import ColumnNumbers, ColumnTexts, Header
from fedtailor.data.own.features import join_features
from fedtailor.data.own.findings import (
    MAX_TOTAL_BYTES,
    Findings,
    Place,
    Site,
    no_examples,
)
from fedtailor.data.own.groups import note_groups
from fedtailor.data.own.labels import guess_label, name_classes
from fedtailor.data.own.names import counted, safe_name, show
from fedtailor.data.own.patterns import is_like_label
from fedtailor.data.own.rules import (
    GROUP_CELLS,
    LABEL_CELLS,
    NUMBER_CELLS,
    ROLES,
    SPLIT_CELLS,
    check,
)
from fedtailor.data.own.table import Sought, read_table
from fedtailor.data.preparing import Report, to_nobody


@dataclass(frozen=True)
class _Rows:
    """The rows of all tables with examples, one table after the other."""

    tables: Sequence[Table]
    headers: Sequence[Header]
    site: np.ndarray  # (rows,), number of the site

    @property
    def names(self) -> Header:
        """The columns of the first table."""
        return self.headers[0]

    @property
    def starts(self) -> np.ndarray:
        """The first row of every table, and the number of all rows at the end."""
        return np.cumsum([0, *(len(table.lines) for table in self.tables)])

    def name_of(self, row: int) -> str:
        """Return file and line of a row."""
        starts = self.starts
        number = int(np.searchsorted(starts, row, side="right")) - 1
        table = self.tables[number]
        return f"{table.place.path}:{table.lines[row - int(starts[number])]}"

    def is_test(self) -> np.ndarray:
        """Return which rows are for testing (rows,)."""
        parts = []
        for table, header in zip(self.tables, self.headers, strict=True):
            if header.split:
                cells = table.columns[header.split]
                is_test = np.array([text.lower() == "test" for text in cells.texts])
                parts.append(is_test[cells.codes])
            else:
                parts.append(np.zeros(len(table.lines), dtype=bool))

        return np.concatenate(parts)

    def groups(self, findings: Findings) -> np.ndarray | None:
        """Return the number of the group of every row (rows,); None without a column of groups."""
        if not self.names.group:
            return None

        numbers: dict[str, int] = {}
        parts = []
        for table in self.tables:
            cells = table.columns[self.names.group]
            codes = [numbers.setdefault(text, len(numbers)) for text in cells.texts]
            parts.append(np.array(codes)[cells.codes])

        note_groups(len(numbers), findings)
        return np.concatenate(parts)


def read_tables(
    files: list[tuple[str, Path]],
    options: DataOptions,
    findings: Findings,
    report: Report = to_nobody,
) -> Dataset | None:
    """Read one table per site: labels, and features or the paths of images.

    The labels are in the column ``options.label_column``.

    All other columns are features, the same at every site in any order: numbers (true and false are
    1 and 0), or text, which is a category. Or the column ``image`` has paths of images relative to
    the table's folder, and the other columns are not used. A column ``split`` with train or test in
    every row divides the examples. The column ``options.group`` says which examples belong
    together. Classes are the labels of all sites, sorted.

    Args:
        files: name of each site and its table; all tables are in one folder.
        options: only ``label_column``, ``group``, ``missing``, and for images ``image_size`` and
            ``color``, are used.
        findings: problems, sites and notes are added to it.
        report: is told how many pictures have been read.

    Returns:
        The data set, or None after an error. Its features are the cells as read, see
        ``Dataset.raw``.
    """
    digests: dict[str, str] = {}
    group = safe_name(options.group)
    label = safe_name(options.label_column)
    tables = _read_files(files, label, group, findings, digests)
    label = label or guess_label(tables, group, findings) or ""
    findings.sites.extend(Site(site) for site, _ in files)
    if not label:
        return None

    rows = _filled_rows(tables, [site for site, _ in files], label, group)
    if not rows.tables:
        no_examples(findings)
        return None

    classes = name_classes(label, rows.tables, findings)
    if classes is None:
        return None

    class_names, y = classes
    site_names = [site.name for site in findings.sites]
    is_test = rows.is_test()
    findings.sites[:] = count_sites(site_names, class_names, y, rows.site, is_test)
    if not _check_columns_alike(rows) or findings.has_errors:
        return None

    folder = files[0][1].parent
    nothing = np.empty((len(y), 0), dtype=np.float32)
    examples = Examples(nothing, y, rows.site, is_test, rows.groups(findings))
    if rows.names.image:
        read = _read_images(folder, rows, examples, class_names, options, findings, report)
        if read is None:
            return None

        examples, digests_of_images = read
        findings.sites[:] = examples.count_sites(site_names, class_names)
        sources = one_source(folder.name, {**digests, **digests_of_images})
        return examples.to_dataset(folder.name, site_names, class_names, findings, sources=sources)

    features = rows.names.features
    refuses = options.missing == "refuse"
    joined = join_features(features, rows.tables, findings, refuses_missing=refuses)
    if joined is None:
        return None

    examples = dataclasses.replace(examples, x=joined.x)
    examples.report_duplicates(rows.name_of, findings)
    roles = rows.names.roles
    unused = tuple(name for name in rows.names.names if name in roles)
    return examples.to_dataset(
        folder.name,
        site_names,
        class_names,
        findings,
        sources=one_source(folder.name, digests),
        white=1.0,
        normalize=AS_THEY_ARE,
        raw=RawTable(joined.columns, unused),
    )


def _read_files(
    files: Sequence[tuple[str, Path]],
    label: str,
    group: str,
    findings: Findings,
    digests: dict[str, str],
) -> list[Table]:
    """Read the tables that can be read."""

    def is_special(name: str) -> bool:
        return name in ("split", "image", label, group) or (not label and is_like_label(name))

    sought = Sought(is_expected=is_special, keeps_texts=is_special)
    tables = []
    left = MAX_TOTAL_BYTES
    for site, path in files:
        place = Place(findings, site, safe_name(path.name))
        table = read_table(path, place, sought, digests, limit=left)
        if table is not None:
            left -= table.num_bytes
            tables.append(table)

    return tables


def _filled_rows(tables: Sequence[Table], sites: Sequence[str], label: str, group: str) -> _Rows:
    """Check every table, and return the rows of those that can be used and have any."""
    filled = []
    headers = []
    for table in tables:
        header = Header(table.names, label, group)
        if _check_table(table, header):
            if table.lines:
                filled.append(table)
                headers.append(header)
            else:
                table.place.skip_empty()

    numbers = [sites.index(table.place.site) for table in filled]
    lengths = [len(table.lines) for table in filled]
    return _Rows(filled, headers, np.repeat(np.array(numbers, dtype=np.int64), lengths))


def _check_table(table: Table, header: Header) -> bool:
    """Return whether every cell of a table can be used; add what is wrong, once for each column."""
    place = table.place
    used = [header.label, *header.used, *filter(None, [header.group])]
    if not check(ROLES, header, place) or not table.check_types(used, header.label):
        return False

    usable = table.check_rows()
    usable &= check_numbers(table, header.features)
    checks = ((header.label, LABEL_CELLS), (header.group, GROUP_CELLS), (header.split, SPLIT_CELLS))
    for name, rules in checks:
        if name:
            usable &= check(rules, ColumnTexts(table.columns[name], table.lines), place)

    return usable


def check_numbers(table: Table, names: Sequence[str]) -> bool:
    """Return whether all numbers of some columns are finite; add the problem of others."""
    usable = True
    for name in names:
        values = table.columns[name].numbers
        if np.isinf(values).any():
            cells = ColumnNumbers(name, values, table.lines)
            usable &= check(NUMBER_CELLS, cells, table.place)

    return usable


def _check_columns_alike(rows: _Rows) -> bool:
    """Return whether all tables have the same columns; the smaller group gets the problem."""
    columns = [dict.fromkeys(header.used) for header in rows.headers]
    having = Counter(name for names in columns for name in names)
    total = len(columns)
    for name, count in having.items():
        if count == total:
            continue

        is_extra = 2 * count < total
        kind = "extra_column" if is_extra else "missing_column"
        tables = counted(count, "table has", "tables have")
        message = f"Column {show(name)} differs: {tables} it, of {total}."
        for table, names in zip(rows.tables, columns, strict=True):
            if (name in names) == is_extra:
                table.place.add(kind, message)

    return all(count == total for count in having.values())


def _read_images(
    folder: Path,
    rows: _Rows,
    examples: Examples,
    class_names: Sequence[str],
    options: DataOptions,
    findings: Findings,
    report: Report,
) -> tuple[Examples, dict[str, str]] | None:
    """Read the images that tables name, relative to their folder; return them with their digests.

    Unreadable images are left out.

    Returns:
        None if an image is missing or outside of the folder, or none can be read.
    """
    from fedtailor.data.own.images import Picture, read_pictures  # imports pillow

    root = folder.resolve()
    pictures = []
    row = 0
    for table in rows.tables:
        cells = table.columns[rows.names.image]
        for line, code in zip(table.lines, cells.codes.tolist(), strict=True):
            name = cells.texts[code]
            path = _find_image(root, name, table.place, line)
            if path is not None:
                part = "test" if examples.is_test[row] else "train"
                label = class_names[examples.y[row]]
                where = Occurrence(table.place.site, part, label, safe_name(name))
                pictures.append(Picture(path, where))

            row += 1

    if len(pictures) < row:
        return None

    read = read_pictures(pictures, options, findings, report)
    if read is None:
        no_examples(findings)
        return None

    chosen = examples.take(read.x, np.array(read.rows))
    for number, table in enumerate(rows.tables):
        if not (np.searchsorted(rows.starts, read.rows, side="right") == number + 1).any():
            table.place.skip_empty()

    return chosen, read.digests


def _find_image(root: Path, name: str, place: Place, line: int) -> Path | None:
    """Return the file of an image; None, with the problem added, if the folder has no such file."""
    try:
        path = (root / name).resolve()
        if not path.is_relative_to(root):
            message = f"Image {show(name)} is not in the folder of the table."
            place.add("image_outside", message, line)
            return None

        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError):
        pass  # a link that leads to itself, or a name that no file can have

    place.add(
        "missing_image", f"Image {show(name)} does not exist in the folder of the table.", line
    )
    return None
