"""Own data as tables: one CSV or Parquet file per site, named after it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedtailor.core.errors import did_you_mean
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import RawTable
from fedtailor.data.dataset import Dataset
from fedtailor.data.files import Report, to_nobody
from fedtailor.data.options import DataOptions
from fedtailor.data.own.cells import Table
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.examples import AS_THEY_ARE, Examples, one_source
from fedtailor.data.own.features import join_features
from fedtailor.data.own.findings import (
    MAX_TOTAL_BYTES,
    Finding,
    FindingPlace,
    Findings,
    Site,
)
from fedtailor.data.own.groups import note_groups
from fedtailor.data.own.labels import guess_label, name_classes
from fedtailor.data.own.names import counted, listed, safe_name, show
from fedtailor.data.own.patterns import MISSING_LABELS, MISSING_WORDS, is_like_label
from fedtailor.data.own.table import Sought, read_table


@dataclass(frozen=True)
class _SiteTable:
    """The table of a site, and the roles of its columns."""

    table: Table
    label: str
    group: str
    """Column with the group of each example, such as its patient; empty: none."""

    @property
    def split(self) -> str:
        """Column that marks rows for training and rows for testing; empty: none."""
        return self._special("split")

    @property
    def image(self) -> str:
        """Column with paths of images; a table with it has no features. Empty: none."""
        return self._special("image")

    def _special(self, name: str) -> str:
        return name if name in self.table.columns and name not in (self.label, self.group) else ""

    @property
    def roles(self) -> set[str]:
        """Columns that are not features."""
        return {self.label, self.group, self.split, self.image}

    @property
    def others(self) -> list[str]:
        """Columns without a role."""
        roles = self.roles
        return [name for name in self.table.names if name not in roles]

    @property
    def features(self) -> list[str]:
        """Columns that are features."""
        return [] if self.image else self.others

    @property
    def used(self) -> list[str]:
        """All columns that are used, except label and group."""
        return [*self.features, *filter(None, (self.split, self.image))]

    def is_test(self) -> np.ndarray:
        """Return which rows are for testing (rows,)."""
        if not self.split:
            return np.zeros(len(self.table.lines), dtype=bool)

        cells = self.table.columns[self.split]
        is_test = np.array([text.lower() == "test" for text in cells.texts])
        return np.asarray(is_test[cells.codes])


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
    # Options come from a command line, names of columns from a file: both are compared in safe
    # form.
    digests: dict[str, str] = {}
    group = safe_name(options.group)
    label = safe_name(options.label_column)
    tables = _read_files(files, label, group, options.cell_rules, findings, digests)
    label = label or guess_label(tables, group, findings) or ""
    site_names = [site for site, _ in files]
    findings.sites.extend(Site(site) for site in site_names)
    if not label:
        return None

    usable = []
    for table in tables:
        site_table = _SiteTable(table, label, group)
        if not _check_table(site_table):
            continue

        if table.lines:
            usable.append(site_table)
        else:
            table.place.skip_empty()

    if not usable:
        findings.add_empty()
        return None

    # Labels of all sites together decide whether classes are numbers or texts.
    tables = [site_table.table for site_table in usable]
    classes = name_classes(label, tables, findings)
    if classes is None:
        return None

    # Counts first: they help to find a problem of the columns.
    class_names, y = classes
    numbers = [site_names.index(table.place.site) for table in tables]
    lengths = [len(table.lines) for table in tables]
    examples = Examples(
        x=np.empty((len(y), 0), dtype=np.float32),
        y=y,
        site=np.repeat(np.array(numbers, dtype=np.int64), lengths),
        is_test=np.concatenate([site_table.is_test() for site_table in usable]),
        group=_number_groups(tables, group, findings) if group else None,
    )
    findings.sites[:] = examples.count_sites(site_names, class_names)
    if not _check_columns_alike(usable) or findings.has_errors:
        return None

    first = usable[0]
    name = files[0][1].parent.name
    if first.image:
        pictures = _read_images(files[0][1].parent, usable, examples, class_names, options, report)
        if pictures is None:
            return None

        examples, digests_of_images = pictures
        findings.sites[:] = examples.count_sites(site_names, class_names)
        sources = one_source(name, {**digests, **digests_of_images})
        return examples.to_dataset(name, site_names, class_names, findings, sources=sources)

    # Features stay as read: medians and categories are those of the training rows, later.
    refuses = options.missing == "refuse"
    joined = join_features(first.features, tables, findings, refuses_missing=refuses)
    if joined is None:
        return None

    ends = np.cumsum(lengths)

    def name_of(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        table = tables[number]
        return f"{table.place.path}:{table.lines[row - int(ends[number])]}"

    examples = dataclasses.replace(examples, x=joined.x)
    examples.report_duplicates(name_of, findings)
    unused = tuple(name for name in first.table.names if name in first.roles)
    return examples.to_dataset(
        name,
        site_names,
        class_names,
        findings,
        sources=one_source(name, digests),
        white=1.0,
        normalize=AS_THEY_ARE,
        raw=RawTable(joined.columns, unused),
    )


def _read_files(
    files: Sequence[tuple[str, Path]],
    label: str,
    group: str,
    rules: CellRules | None,
    findings: Findings,
    digests: dict[str, str],
) -> list[Table]:
    """Read the tables that can be read."""

    def is_special(name: str) -> bool:
        return name in ("split", "image", label, group) or (not label and is_like_label(name))

    sought = Sought(
        is_expected=is_special,
        keeps_texts=is_special,
        may_hold_numbers=lambda name: not is_special(name),
        rules=rules or CellRules(),
        skips_blank=True,
    )
    tables = []
    left = MAX_TOTAL_BYTES
    for site, path in files:
        place = FindingPlace(findings, site, safe_name(path.name))
        table = read_table(path, place, sought, digests, limit=left)
        if table is not None:
            left -= 4 * len(table.lines) * len(table.columns)
            tables.append(table)

    return tables


def _check_table(site_table: _SiteTable) -> bool:
    """Return whether every cell of a table can be used; add what is wrong, once for each column."""
    table = site_table.table
    label = site_table.label
    group = site_table.group
    used = [label, *site_table.used, *filter(None, [group])]
    if not table.place.check(_find_wrong_roles(site_table)) or not table.check_types(used, label):
        return False

    checks = [table.check_rows(), table.check_numbers(site_table.features)]
    at = table.columns[label].at(lambda text: text.lower() in MISSING_LABELS)
    checks.append(table.check_cells("missing_label", label, "no label", at))
    if group:
        at = table.columns[group].at(lambda text: text.lower() in MISSING_WORDS)
        checks.append(table.check_cells("missing_group", group, "no group", at))

    if site_table.split:
        at = table.columns["split"].at(lambda text: text.lower() not in ("train", "test"))
        what = "another value than train or test"
        checks.append(table.check_cells("wrong_split", "split", what, at))

    return all(checks)


def _find_wrong_roles(site_table: _SiteTable) -> Iterator[Finding]:
    """Yield what is wrong with the columns of a table."""
    names = site_table.table.names
    label = site_table.label
    group = site_table.group
    others = site_table.others
    columns = f"the columns are: {listed(names, 20)}."
    if label not in names:
        hint = did_you_mean(label, names).rstrip("?")
        message = f"No column {show(label)} for the labels (data.label_column){hint}; {columns}"
        yield Finding("missing_label_column", message)

    if group == label:
        message = f"Column {show(group)} holds the labels, so it cannot be the column of groups"
        yield Finding("missing_group_column", f"{message} (data.group).")

    if group and group not in names:
        hint = did_you_mean(group, [name for name in names if name != label]).rstrip("?")
        message = f"No column {show(group)} for the groups (data.group){hint}; {columns}"
        yield Finding("missing_group_column", message)

    if not site_table.image and not others:
        message = "No column is left for features; an image is missing too: "
        yield Finding("no_features", f"{message}{listed(names, 20)}.")

    if site_table.image and others:
        message = "Because there is a column 'image', other columns are not used: "
        yield Finding("unused_column", f"{message}{listed(others, 20)}.")


def _check_columns_alike(tables: Sequence[_SiteTable]) -> bool:
    """Return whether all tables have the same columns; the smaller group gets the problem."""
    columns = [set(table.used) for table in tables]
    having = Counter(name for table in tables for name in table.used)
    total = len(tables)
    for name, count in having.items():
        if count == total:
            continue

        # A column that few tables have is extra there; one that few lack is missing there.
        is_extra = 2 * count < total
        kind = "extra_column" if is_extra else "missing_column"
        number = counted(count, "table has", "tables have")
        message = f"Column {show(name)} differs: {number} it, of {total}."
        for table, names in zip(tables, columns, strict=True):
            if (name in names) == is_extra:
                table.table.place.add(kind, message)

    return all(count == total for count in having.values())


def _number_groups(tables: Sequence[Table], name: str, findings: Findings) -> np.ndarray:
    """Return the number of the group of every row (rows,)."""
    numbers: dict[str, int] = {}
    parts = []
    for table in tables:
        cells = table.columns[name]
        codes = [numbers.setdefault(text, len(numbers)) for text in cells.texts]
        parts.append(np.array(codes)[cells.codes])

    note_groups(len(numbers), findings)
    return np.concatenate(parts)


def _read_images(
    folder: Path,
    tables: Sequence[_SiteTable],
    examples: Examples,
    class_names: Sequence[str],
    options: DataOptions,
    report: Report,
) -> tuple[Examples, dict[str, str]] | None:
    """Read the images that tables name, relative to their folder; return them with their digests.

    Unreadable images are left out.

    Returns:
        None if an image is missing or outside of the folder, or none can be read.
    """
    from fedtailor.data.own.images import Picture, read_pictures  # imports pillow

    root = folder.resolve()
    findings = tables[0].table.place.findings
    pictures = []
    table_of_row: list[Table] = []
    for site_table in tables:
        table = site_table.table
        cells = table.columns[site_table.image]
        for line, code in zip(table.lines, cells.codes.tolist(), strict=True):
            # Rows are counted over all tables, as in the examples.
            row = len(table_of_row)
            table_of_row.append(table)
            path = _find_image(root, cells.texts[code], table.place, line)
            if path is not None:
                part = "test" if examples.is_test[row] else "train"
                label = class_names[examples.y[row]]
                name = safe_name(cells.texts[code])
                pictures.append(Picture(path, Occurrence(table.place.site, part, label, name)))

    if len(pictures) < len(table_of_row):
        return None

    read = read_pictures(pictures, options, findings, report)
    if read is None:
        findings.add_empty()
        return None

    # A site may have lost all its images.
    filled = {table_of_row[row].place.site for row in read.rows}
    for site_table in tables:
        if site_table.table.place.site not in filled:
            site_table.table.place.skip_empty()

    return examples.take(read.x, np.array(read.rows)), read.digests


def _find_image(root: Path, name: str, place: FindingPlace, line: int) -> Path | None:
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

    message = f"Image {show(name)} does not exist in the folder of the table."
    place.add("missing_image", message, line)
    return None
