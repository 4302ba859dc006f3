"""Own data as tables: one CSV or Parquet file per site, named after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.files import read_bytes
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
from fedtailor.data.own.groups import check_groups, number_groups
from fedtailor.data.own.join import join_tables
from fedtailor.data.own.label import count_like_labels, guess_label
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.parquet_table import read_parquet
from fedtailor.data.own.scale import AS_THEY_ARE
from fedtailor.data.own.table import Table, Wanted, find_roles
from fedtailor.data.own.text_columns import SEVERAL_LABELS, several_labels
from fedtailor.data.preparing import Report, to_nobody

PARQUET = (".parquet", ".pq")
"""Endings of the names of Parquet files, in upper or lower case; all other files are CSV."""


def read_tables(
    files: list[tuple[str, Path]],
    options: DataOptions,
    findings: Findings,
    report: Report = to_nobody,
) -> Dataset | None:
    """Read one table per site: a label in the column ``options.label_column``, and features or
    images.

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
    label = safe_name(options.label_column) or guess_label(
        [path for _, path in files], group, findings
    )

    if label is None:
        findings.sites.extend(Site(site) for site, _ in files)
        return None

    wanted = Wanted(
        find_roles=lambda header, place: find_roles(header, place, label, group),
        expected=(lambda names: label in names) if options.label_column else count_like_labels,
    )
    tables = _read_files(files, wanted, findings, digests)
    filled = [table for table in tables if table.cells.labels]

    for table in tables:
        if not table.cells.labels:
            skip_empty(findings, table.place.site, table.place.path)

    classes = None
    if filled:
        classes = name_classes(filled, label, findings)
    elif not has_errors(findings):
        no_examples(findings)

    _count_labels([site for site, _ in files], filled, classes, findings)
    if classes is None or not check_columns_alike(filled) or has_errors(findings):
        return None

    groups = number_groups(filled, findings)
    folder = files[0][1].parent
    if filled[0].roles.image is not None:
        return _images(folder, filled, classes, groups, options, findings, digests, report)

    return _features(folder.name, filled, classes, groups, options, findings, digests)


def _read_files(
    files: Sequence[tuple[str, Path]], wanted: Wanted, findings: Findings, digests: dict[str, str]
) -> list[Table]:
    """Return the usable tables; a feature that holds text in one of them is read as text in all."""
    tables: list[tuple[Path, Table]] = []
    left = MAX_TOTAL_BYTES
    sites: set[str] = set()
    for site, path in files:
        place = Place(findings, site, safe_name(path.name))
        if site in sites:
            place.error("duplicate_site", "Another table belongs to the same site.")

        sites.add(site)
        table = _read_file(path, place, wanted, digests, left)
        if table is not None:
            left -= table.cells.values.nbytes
            tables.append((path, table))

    as_text = frozenset(name for _, table in tables for name in table.cells.texts)
    return [_as_text(path, table, as_text, wanted, digests) for path, table in tables]


def _read_file(
    path: Path, place: Place, wanted: Wanted, digests: dict[str, str], limit: int
) -> Table | None:
    """Return the table in a file; None, with the problems added, if it cannot be used."""
    read = read_parquet if path.suffix.lower() in PARQUET else read_csv
    try:
        raw = read_bytes(path, digests, folder=path.parent)
        return read(raw, place, wanted, limit=limit)
    except DataError as error:
        place.error("unreadable_file", error.message)
    except Unusable as error:
        place.error(error.kind, error.message)

    return None


def _as_text(
    path: Path, table: Table, as_text: frozenset[str], wanted: Wanted, digests: Mapping[str, str]
) -> Table:
    """Return a table whose features in ``as_text`` are read as text; it is read again if they were
    read as numbers.

    Then numbers are categories, and so is ``none``, which is an empty cell among numbers.
    """
    if table.cells.texts.keys() >= as_text.intersection(table.roles.feature_names):
        return table

    again: dict[str, str] = {}
    aside = dataclasses.replace(table.place, findings=Findings())  # its problems are known
    second = _read_file(path, aside, wanted._replace(as_text=as_text), again, MAX_TOTAL_BYTES)
    if second is None or again.items() - digests.items():
        table.place.error("unreadable_file", "The file changed while it was read.")
        return table

    return second._replace(place=table.place)


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


def _divide(
    table: Table,
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray | None = None,
    kept: np.ndarray | None = None,
) -> SitePart:
    """Return the training and test rows of a table; ``kept`` (rows,) are the rows of the arrays in
    the table.
    """
    if table.is_test is None:
        return SitePart(table.place.site, x, y, groups_train=groups)
    is_test = table.is_test if kept is None else table.is_test[kept]
    part = SitePart(table.place.site, x[~is_test], y[~is_test], x[is_test], y[is_test])
    if groups is None:
        return part
    return part._replace(groups_train=groups[~is_test], groups_test=groups[is_test])


def _features(
    name: str,
    tables: Sequence[Table],
    classes: tuple[tuple[str, ...], list[np.ndarray]],
    groups: Sequence[np.ndarray | None],
    options: DataOptions,
    findings: Findings,
    digests: dict[str, str],
) -> Dataset | None:
    """Return the data set of tables with features; None, with the problems added, if they cannot be
    used.
    """
    joined = join_tables(tables, options, findings)
    if joined is None:
        return None

    class_names, labels = classes
    rows = []
    for site, (table, x, y) in enumerate(zip(tables, joined.x, labels, strict=True)):
        is_test = np.zeros(len(y), dtype=bool) if table.is_test is None else table.is_test
        rows.append(Rows(table.place.path, table.cells.lines, x, y, np.full(len(y), site), is_test))

    report_duplicate_rows(rows, findings)
    parts = [_divide(*each) for each in zip(tables, joined.x, labels, groups, strict=True)]
    sources = one_source(name, digests)
    dataset = assemble(
        name,
        parts,
        class_names,
        sources=sources,
        notes=findings.notes,
        white=1.0,
        normalize=AS_THEY_ARE,
        raw=joined.raw,
    )

    return dataset if check_groups(dataset, findings) else None


def _images(
    folder: Path,
    tables: Sequence[Table],
    classes: tuple[tuple[str, ...], list[np.ndarray]],
    groups: Sequence[np.ndarray | None],
    options: DataOptions,
    findings: Findings,
    digests: dict[str, str],
    report: Report,
) -> Dataset | None:
    """Return the data set of the readable images that tables name; None if there is none."""
    from fedtailor.data.own.table_images import read_table_images  # imports pillow

    pictures = read_table_images(folder, tables, options, findings, report)
    if pictures is None:
        if not has_errors(findings):
            no_examples(findings)
        return None

    class_names, labels = classes
    ends = np.cumsum([len(y) for y in labels])
    cuts = np.searchsorted(pictures.rows, [0, *ends])
    parts = []
    for table, y, own, end, first, last in zip(
        tables, labels, groups, ends, cuts[:-1], cuts[1:], strict=True
    ):
        kept = np.array(pictures.rows[first:last], dtype=np.int64) - (end - len(y))
        own_kept = None if own is None else own[kept]
        parts.append(_divide(table, pictures.x[first:last], y[kept], own_kept, kept))
        if not len(kept):
            skip_empty(findings, table.place.site, table.place.path)

    counted = {site.name: site for site in describe_sites(parts, class_names)}
    findings.sites[:] = [counted.get(site.name, site) for site in findings.sites]
    sources = one_source(folder.name, {**digests, **pictures.digests})
    dataset = assemble(folder.name, parts, class_names, sources=sources, notes=findings.notes)

    return dataset if check_groups(dataset, findings) else None


def check_columns_alike(tables: Sequence[Table]) -> bool:
    """Return whether all tables have the same columns; add differences at the smaller group of
    tables.
    """
    columns = [dict.fromkeys(table.roles.used) for table in tables]
    names = {name: None for own in columns for name in own}  # in the order of appearance
    alike = True
    for name in names:
        having = [table for table, own in zip(tables, columns, strict=True) if name in own]
        if len(having) == len(tables):
            continue

        alike = False
        have = counted(len(having), "table has it", "tables have it")
        if 2 * len(having) < len(tables):
            message = f"Column {show(name)} is only in {len(having)} of {len(tables)} tables."
            for table in having:
                table.place.error("extra_column", message)

            continue

        for table, own in zip(tables, columns, strict=True):
            if name not in own:
                table.place.error("missing_column", f"Column {show(name)} is missing; {have}.")

    return alike


def name_classes(
    tables: Sequence[Table], label_column: str, findings: Findings
) -> tuple[tuple[str, ...], list[np.ndarray]] | None:
    """Return the names of the classes and the labels of each table (rows,), int64; None if they
    cannot be classes.

    If every label of every table is a whole number, however it is written (``3``, ``3.0``), the
    classes are those numbers in their order. Otherwise the classes are the labels as text, sorted,
    with a warning if some are numbers. Names are made safe to print.
    """
    texts = list(
        dict.fromkeys(label for table in tables for label in table.cells.labels)
    )  # in the order of reading
    several = several_labels(texts)
    if several:
        message = f"Column {show(label_column)} holds several labels in one cell, such as {show(several)}."
        _place_of(tables, several).error(
            "several_labels", f"{message} {SEVERAL_LABELS}", _line_of(tables, several)
        )

        return None

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


def _warn_of_numbers(
    numbers: Mapping[str, int | float | None], label_column: str, findings: Findings
) -> None:
    """Warn if some labels are numbers and others are text: sites may write the same classes
    differently.
    """
    number = next((text for text, value in numbers.items() if value is not None), None)
    if number is not None:
        other = next(text for text, value in numbers.items() if value is None)
        message = f"Column {show(label_column)} holds numbers such as {show(number)} and text such as {show(other)}."
        findings.add("warning", "mixed_labels", "", "", f"{message} Each is a separate class.")


def _refuse_regression(
    tables: Sequence[Table], label_column: str, values: int, examples: int
) -> None:
    """Add the problem of labels that look like a regression target."""
    message = regression_message(f"column {show(label_column)}", values, examples)
    remedy = 'write them as text, such as "class 7"'
    tables[0].place.error("likely_regression", f"{message} If the numbers are classes, {remedy}.")


def _refuse_fraction(tables: Sequence[Table], label_column: str, fraction: str) -> None:
    """Add the problem of labels that are not whole numbers, at the first one."""
    message = (
        f"Labels must be text or whole numbers: column {show(label_column)} holds {show(fraction)}. "
        "Only classification is supported, not regression."
    )
    _place_of(tables, fraction).error("float_label", message, _line_of(tables, fraction))


def _place_of(tables: Sequence[Table], label: str) -> Place:
    """Return the first table with a label."""
    return next(table.place for table in tables if label in table.cells.labels)


def _line_of(tables: Sequence[Table], label: str) -> int:
    """Return the line of a label in the first table that has it."""
    cells = next(table.cells for table in tables if label in table.cells.labels)
    return cells.lines[cells.labels.index(label)]
