"""Own data as tables: one CSV or Parquet file per site, named after it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import SitePart, assemble, describe_sites, one_source
from fedtailor.data.own.classes import name_classes
from fedtailor.data.own.csv_table import read_csv
from fedtailor.data.own.duplicate_rows import Rows, report_duplicate_rows
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.parquet_table import read_parquet
from fedtailor.data.own.place import MAX_TOTAL_BYTES, Place, Unusable, has_errors, no_examples, skip_empty
from fedtailor.data.own.report import Findings, Site
from fedtailor.data.own.scale import AS_THEY_ARE
from fedtailor.data.own.table import Table
from fedtailor.data.own.table_columns import check_columns_alike, ordered_features
from fedtailor.data.readers.files import read_bytes

PARQUET = (".parquet", ".pq")
"""Files whose names end so are Parquet, in upper or lower case; all others are CSV."""


def read_tables(files: list[tuple[str, Path]], options: DataOptions, findings: Findings) -> Dataset | None:
    """Read one table per site: a label in the column ``options.label_column``, and features or images.

    All other columns are features, numbers (true and false are 1 and 0), the same at every site in any order;
    or the column ``image`` has paths of images relative to the table's folder, and the others are not used. A column
    ``split`` with train or test in every row divides the examples. Classes are the labels of all sites, sorted.

    Args:
        files: name of each site and its table; all tables are in one folder.
        options: of which ``label_column``, and for images ``image_size`` and ``color``, say how tables are read.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None where an error left nothing to use. Features are float32 as they are stored:
        they are to be standardized by those of the training examples.
    """
    digests: dict[str, str] = {}
    tables = _read_files(files, options, findings, digests)
    filled = [table for table in tables if table.cells.labels]
    for table in tables:
        if not table.cells.labels:
            skip_empty(findings, table.place.site, table.place.path)
    classes = name_classes(filled, options.label_column, findings) if filled else None
    if not filled and not has_errors(findings):
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
    """Return the tables that can be used."""
    tables: list[Table] = []
    left, sites = MAX_TOTAL_BYTES, set[str]()
    for site, path in files:
        place = Place(findings, site, safe_name(path.name))
        if site in sites:
            place.error("duplicate_site", "There is another table of the same site.")
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
    """Add the number of examples of every site; of those whose table cannot be used there are none."""
    counted = {}
    if classes is not None:
        parts = [_divide(table, y[:, None], y) for table, y in zip(tables, classes[1], strict=True)]
        counted = {site.name: site for site in describe_sites(parts, classes[0])}
    findings.sites.extend(counted.get(site, Site(site)) for site in sites)


def _divide(table: Table, x: np.ndarray, y: np.ndarray, kept: np.ndarray | None = None) -> SitePart:
    """Return the rows of a table for training and for testing; ``kept`` (rows,) are those that x and y are of."""
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
    findings.notes.append(f"{len(names)} features, in the order of {tables[0].place.path}.")
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
    """Return the data set of tables that name images, of those that can be read; None where it cannot be made."""
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
