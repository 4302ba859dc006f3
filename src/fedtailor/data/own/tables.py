"""Own data as tables: one CSV or Parquet file per site, named after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import SitePart, assemble, describe_sites, one_source
from fedtailor.data.own.csv_table import read_csv
from fedtailor.data.own.duplicates import Rows, report_duplicate_rows
from fedtailor.data.own.findings import (
    MAX_CLASSES,
    MAX_TOTAL_BYTES,
    Findings,
    Place,
    Site,
    Unusable,
    counted,
    has_errors,
    looks_like_regression,
    no_examples,
    regression_message,
    show,
    skip_empty,
)
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.parquet_table import read_parquet
from fedtailor.data.own.scale import AS_THEY_ARE
from fedtailor.data.own.table import Table
from fedtailor.data.readers.files import read_bytes

PARQUET = (".parquet", ".pq")
"""Endings of the names of Parquet files, in upper or lower case; all other files are CSV."""


def read_tables(files: list[tuple[str, Path]], options: DataOptions, findings: Findings) -> Dataset | None:
    """Read one table per site: a label in the column ``options.label_column``, and features or images.

    All other columns are features: numbers (true and false are 1 and 0), the same at every site in any order. Or the
    column ``image`` has paths of images relative to the table's folder, and the other columns are not used. A column
    ``split`` with train or test in every row divides the examples. Classes are the labels of all sites, sorted.

    Args:
        files: name of each site and its table; all tables are in one folder.
        options: only ``label_column``, and for images ``image_size`` and ``color``, are used.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None after an error. Features are float32 as stored; the caller standardizes them by the
        training examples.
    """
    digests: dict[str, str] = {}
    tables = _read_files(files, options, findings, digests)
    filled = [table for table in tables if table.cells.labels]
    for table in tables:
        if not table.cells.labels:
            skip_empty(findings, table.place.site, table.place.path)
    classes = None
    if filled:
        classes = name_classes(filled, options.label_column, findings)
    elif not has_errors(findings):
        no_examples(findings)
    _count_labels([site for site, _ in files], filled, classes, findings)
    if classes is None or not check_columns_alike(filled) or has_errors(findings):
        return None
    folder = files[0][1].parent
    if filled[0].columns.image is None:
        return _features(folder.name, filled, classes, findings, digests)
    return _images(folder, filled, classes, options, findings, digests)


def _read_files(
    files: Sequence[tuple[str, Path]], options: DataOptions, findings: Findings, digests: dict[str, str]
) -> list[Table]:
    """Return the usable tables."""
    tables: list[Table] = []
    left = MAX_TOTAL_BYTES
    sites: set[str] = set()
    for site, path in files:
        place = Place(findings, site, safe_name(path.name))
        if site in sites:
            place.error("duplicate_site", "Another table belongs to the same site.")
        sites.add(site)
        read = read_parquet if path.suffix.lower() in PARQUET else read_csv
        try:
            raw = read_bytes(path, digests, folder=path.parent)
            table = read(raw, place, options.label_column, limit=left)
        except DataError as error:
            place.error("unreadable_file", error.message)
        except Unusable as error:
            place.error(error.kind, error.message)
        else:
            if table is not None:
                left -= table.cells.values.nbytes
                tables.append(table)
    return tables


def _count_labels(
    sites: Sequence[str],
    tables: Sequence[Table],
    classes: tuple[tuple[str, ...], list[np.ndarray]] | None,
    findings: Findings,
) -> None:
    """Add the number of examples of every site; a site with an unusable table has none."""
    counted = {}
    if classes is not None:
        parts = [_divide(table, y[:, None], y) for table, y in zip(tables, classes[1], strict=True)]
        counted = {site.name: site for site in describe_sites(parts, classes[0])}
    findings.sites.extend(counted.get(site, Site(site)) for site in sites)


def _divide(table: Table, x: np.ndarray, y: np.ndarray, kept: np.ndarray | None = None) -> SitePart:
    """Return the training and test rows of a table; ``kept`` (rows,) are the rows of x and y in the table."""
    if table.is_test is None:
        return SitePart(table.place.site, x, y)
    is_test = table.is_test if kept is None else table.is_test[kept]
    return SitePart(table.place.site, x[~is_test], y[~is_test], x[is_test], y[is_test])


def _features(
    name: str,
    tables: Sequence[Table],
    classes: tuple[tuple[str, ...], list[np.ndarray]],
    findings: Findings,
    digests: dict[str, str],
) -> Dataset:
    """Return the data set of tables with features."""
    names = tables[0].columns.feature_names
    findings.notes.append(f"{counted(len(names), 'feature')}, in the order of {tables[0].place.path}.")
    class_names, labels = classes
    features = [ordered_features(table, names) for table in tables]
    rows = []
    for site, (table, x, y) in enumerate(zip(tables, features, labels, strict=True)):
        is_test = np.zeros(len(y), dtype=bool) if table.is_test is None else table.is_test
        rows.append(Rows(table.place.path, table.cells.lines, x, y, np.full(len(y), site), is_test))
    report_duplicate_rows(rows, findings)
    parts = [_divide(table, x, y) for table, x, y in zip(tables, features, labels, strict=True)]
    sources = one_source(name, digests)
    return assemble(name, parts, class_names, sources=sources, notes=findings.notes, white=1.0, normalize=AS_THEY_ARE)


def _images(
    folder: Path,
    tables: Sequence[Table],
    classes: tuple[tuple[str, ...], list[np.ndarray]],
    options: DataOptions,
    findings: Findings,
    digests: dict[str, str],
) -> Dataset | None:
    """Return the data set of the readable images that tables name; None if there is none."""
    from fedtailor.data.own.table_images import read_table_images  # imports pillow

    pictures = read_table_images(folder, tables, options, findings)
    if pictures is None:
        if not has_errors(findings):
            no_examples(findings)
        return None
    class_names, labels = classes
    ends = np.cumsum([len(y) for y in labels])
    cuts = np.searchsorted(pictures.rows, [0, *ends])
    parts = []
    for table, y, end, first, last in zip(tables, labels, ends, cuts[:-1], cuts[1:], strict=True):
        kept = np.array(pictures.rows[first:last], dtype=np.int64) - (end - len(y))
        parts.append(_divide(table, pictures.x[first:last], y[kept], kept))
        if not len(kept):
            skip_empty(findings, table.place.site, table.place.path)
    counted = {site.name: site for site in describe_sites(parts, class_names)}
    findings.sites[:] = [counted.get(site.name, site) for site in findings.sites]
    sources = one_source(folder.name, {**digests, **pictures.digests})
    return assemble(folder.name, parts, class_names, sources=sources, notes=findings.notes)


def check_columns_alike(tables: Sequence[Table]) -> bool:
    """Return whether all tables have the same columns; add differences at the smaller group of tables."""
    columns = [dict.fromkeys(table.columns.used) for table in tables]
    names = {name: None for own in columns for name in own}  # in the order of appearance
    alike = True
    for name in names:
        having = [table for table, own in zip(tables, columns, strict=True) if name in own]
        if len(having) == len(tables):
            continue
        alike = False
        if 2 * len(having) < len(tables):
            message = f"Column {show(name)} is only in {len(having)} of {len(tables)} tables."
            for table in having:
                table.place.error("extra_column", message)
            continue
        for table, own in zip(tables, columns, strict=True):
            if name not in own:
                table.place.error("missing_column", f"Column {show(name)} is missing; {len(having)} tables have it.")
    return alike


def ordered_features(table: Table, names: Sequence[str]) -> np.ndarray:
    """Return the features (rows, features) in the order of ``names``."""
    own = table.columns.feature_names
    if own == tuple(names):
        return table.cells.values
    position = {name: index for index, name in enumerate(own)}
    return table.cells.values[:, [position[name] for name in names]]


def name_classes(
    tables: Sequence[Table], label_column: str, findings: Findings
) -> tuple[tuple[str, ...], list[np.ndarray]] | None:
    """Return the names of the classes and the labels of each table (rows,), int64; None if they cannot be classes.

    If every label of every table is a whole number, however it is written (``3``, ``3.0``), the classes are those
    numbers in their order. Otherwise the classes are the labels as text, sorted, with a warning if some are numbers.
    Names are made safe to print.
    """
    texts = list(dict.fromkeys(label for table in tables for label in table.cells.labels))  # in the order of reading
    numbers = {text: _number(text) for text in texts}
    if None not in numbers.values():
        fraction = next((text for text in texts if not isinstance(numbers[text], int)), None)
        if fraction is not None:
            _refuse_fraction(tables, label_column, fraction)
            return None
        whole = sorted({int(number) for number in numbers.values() if number is not None})
        examples = sum(len(table.cells.labels) for table in tables)
        if looks_like_regression(len(whole), examples):
            _refuse_regression(tables, label_column, len(whole), examples)
            return None
        names = [str(number) for number in whole]
        position = {name: place for place, name in enumerate(names)}
        codes = {text: position[str(number)] for text, number in numbers.items()}
    else:
        names = sorted({safe_name(text) for text in texts})
        position = {name: place for place, name in enumerate(names)}
        codes = {text: position[safe_name(text)] for text in texts}
        _warn_of_numbers(numbers, label_column, findings)
    if len(names) > MAX_CLASSES:
        shown = show(label_column)
        message = f"Column {shown} holds {len(names)} different labels; at most {MAX_CLASSES} classes are read."
        findings.add("error", "too_many_classes", "", "", message)
        return None
    labels = []
    for table in tables:
        labels.append(np.array([codes[label] for label in table.cells.labels], dtype=np.int64))
    return tuple(names), labels


def _number(text: str) -> int | float | None:
    """Return a whole number as int, another number as float, None for text."""
    if "_" in text:  # Python reads 1_2 as 12
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _warn_of_numbers(numbers: Mapping[str, int | float | None], label_column: str, findings: Findings) -> None:
    """Warn if some labels are numbers and others are text: sites may write the same classes differently."""
    number = next((text for text, value in numbers.items() if value is not None), None)
    if number is not None:
        other = next(text for text, value in numbers.items() if value is None)
        message = f"Column {show(label_column)} holds numbers such as {show(number)} and text such as {show(other)}."
        findings.add("warning", "mixed_labels", "", "", f"{message} Each is a separate class.")


def _refuse_regression(tables: Sequence[Table], label_column: str, values: int, examples: int) -> None:
    """Add the problem of labels that look like a regression target."""
    message = regression_message(f"column {show(label_column)}", values, examples)
    remedy = 'write them as text, such as "class 7"'
    tables[0].place.error("likely_regression", f"{message} If the numbers are classes, {remedy}.")


def _refuse_fraction(tables: Sequence[Table], label_column: str, fraction: str) -> None:
    """Add the problem of labels that are not whole numbers, at the first one."""
    table = next(table for table in tables if fraction in table.cells.labels)
    line = table.cells.lines[table.cells.labels.index(fraction)]
    message = (
        f"Labels must be text or whole numbers: column {show(label_column)} holds {show(fraction)}. "
        "Only classification is supported, not regression."
    )
    table.place.error("float_label", message, line)
