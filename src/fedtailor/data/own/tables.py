"""Own data as tables: one CSV or Parquet file per site, named after it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError, did_you_mean, unknown_name
from fedtailor.core.text import escaped, listed, quoted
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import Columns, RawTable
from fedtailor.data.dataset import AS_THEY_ARE, Dataset
from fedtailor.data.files import Report, to_nobody
from fedtailor.data.options import DataOptions
from fedtailor.data.own.cells import Table
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.examples import Examples, note_groups, one_source
from fedtailor.data.own.features import check_features, collect_features, join_features
from fedtailor.data.own.findings import MAX_TOTAL_BYTES, Finding, FindingPlace, Findings, Site
from fedtailor.data.own.images import Picture, read_pictures
from fedtailor.data.own.labels import guess_label, name_classes
from fedtailor.data.own.like import (
    TrainingTables,
    check_names,
    check_texts,
    check_units,
    names_of_texts,
)
from fedtailor.data.own.patterns import MISSING_LABELS, MISSING_WORDS, is_like_label, leave_out_text
from fedtailor.data.own.table import Sought, read_table

_UNITS = 2
"""Columns of numbers whose first cell alone is text, from which on it is one of a second header."""
_MOST_SPELLINGS = 200
"""Columns of a table that not all have, among which other spellings are looked for."""
_SPLIT = "split"
"""The column that marks rows for training and rows for testing."""


@dataclass(frozen=True)
class _SiteTable:
    """The table of a site, and the roles of its columns."""

    table: Table
    label: str
    group: str
    """Column with the group of each example, such as its patient; empty: none."""
    left_out: tuple[str, ...] = ()
    """Columns that are not used; the table need not have them."""

    @property
    def split(self) -> str:
        """Column that marks rows for training and rows for testing; empty: none."""
        return self._special(_SPLIT)

    @property
    def image(self) -> str:
        """Column with paths of images; a table with it has no features. Empty: none."""
        return self._special("image")

    def _special(self, name: str) -> str:
        others = (self.label, self.group, *self.left_out)
        return name if name in self.table.columns and name not in others else ""

    @property
    def roles(self) -> set[str]:
        """Columns that are not features."""
        return {self.label, self.group, self.split, self.image, *self.left_out}

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

    @cached_property
    def columns_with_unit(self) -> list[str]:
        """Columns of numbers in whose first row is text, and in no other."""
        names = []
        for name in self.features:
            cells = self.table.columns[name]
            at = cells.text_at
            if at and at.row == 0 and at.num_rows == 1 and not np.isnan(cells.numbers).all():
                names.append(name)

        return names

    @property
    def has_second_header(self) -> bool:
        """Whether the first row is not an example: it has text in several columns of numbers."""
        return len(self.columns_with_unit) >= _UNITS

    def is_test(self) -> np.ndarray:
        """Return which rows are for testing (rows,)."""
        if not self.split:
            return np.zeros(len(self.table.lines), dtype=bool)

        cells = self.table.columns[self.split]
        return cells.look_up(lambda text: text.lower() == "test", bool)


def read_tables(
    files: list[tuple[str, Path]],
    options: DataOptions,
    findings: Findings,
    report: Report = to_nobody,
    *,
    like: TrainingTables | None = None,
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
        like: the tables of a model that exists: columns and the kinds of their cells are those.

    Returns:
        The data set, or None after an error. Its features are the cells as read, see
        ``Dataset.raw``.
    """
    # Options come from a command line, names of columns from a file: both are compared in safe
    # form.
    digests: dict[str, str] = {}
    group = escaped(options.group)
    label = escaped(options.label_column)
    rules = options.cell_rules if like is None else like.rules
    columns = None if like is None else like.columns
    sought = _sought(label, group, rules, columns)
    left_out = tuple(map(escaped, options.leave_out))
    tables = _read_files(files, sought, findings, digests)
    _refuse_unknown_columns(options.missing_values, tables)
    if columns is None:
        _warn_of_unknown_columns(left_out, tables, findings)
    label = label or guess_label(tables, (group, *left_out), findings) or ""
    if columns is not None:
        # Rows are marked for training and testing as in the training tables.
        left_out = tuple(name for name in columns.unused if name != _SPLIT or name in left_out)
    site_names = [site for site, _ in files]
    findings.sites.extend(Site(site) for site in site_names)

    # All that is wrong is told at once, whatever else is wrong.
    site_tables = [_SiteTable(table, label, group, left_out) for table in tables]
    usable = _check_tables(site_tables)
    _check_columns_alike(site_tables)
    classes = None
    if label and usable:
        # Labels of all sites together decide whether classes are numbers or texts.
        classes = name_classes(label, [site_table.table for site_table in usable], findings)

    examples = None if classes is None else _count(usable, site_names, *classes, findings)
    features = collect_features(_features_of(site_tables), columns)
    if columns is None:
        check_features(features, findings, refuses_missing=options.missing == "refuse")
    else:
        for site_table in usable:
            check_names(site_table.table, columns, site_table.roles)
            check_texts(site_table.table, columns)

    if classes is None or examples is None or findings.has_errors:
        findings.add_empty()
        return None

    # Every table has the columns of the first.
    name = files[0][1].parent.name
    class_names, _ = classes
    first = usable[0]
    if first.image:
        pictures = _read_images(files[0][1].parent, usable, examples, class_names, options, report)
        if pictures is None:
            return None

        examples, digests_of_images = pictures
        findings.sites[:] = examples.count_sites(site_names, class_names)
        sources = one_source(name, {**digests, **digests_of_images})
        return examples.to_dataset(name, site_names, class_names, findings, sources=sources)

    # Features stay as read: medians and categories are those of the training rows, later.
    joined = join_features(features, findings, learns=like is None)
    if joined is None:
        return None

    x, raw_columns = joined
    examples = dataclasses.replace(examples, x=x)
    tables = [site_table.table for site_table in usable]
    if like is not None:
        check_units(tables, like)

    examples.report_duplicates([(table.place.path, table.lines) for table in tables], findings)
    roles = (name for name in first.table.names if name in first.roles)
    unused = tuple(dict.fromkeys([*roles, *left_out]))
    decimals = {table.place.site: table.decimal for table in tables}
    if set(decimals.values()) == {"auto"}:
        decimals = {}

    return examples.to_dataset(
        name,
        site_names,
        class_names,
        findings,
        sources=one_source(name, digests),
        white=1.0,
        normalize=AS_THEY_ARE,
        raw=RawTable(raw_columns, unused, decimals),
    )


def _warn_of_unknown_columns(
    names: Sequence[str], tables: Sequence[Table], findings: Findings
) -> None:
    """Warn of columns to leave out that no table has: what was meant stays a feature."""
    there = sorted({name for table in tables for name in table.names})
    for name in names:
        if name not in there:
            hint = did_you_mean(name, there) or "."
            message = f"No table has a column {quoted(name)} (data.leave_out){hint}"
            findings.add("unknown_left_out", f"{message} Nothing is left out for it.")


def _refuse_unknown_columns(names: Iterable[str], tables: Sequence[Table]) -> None:
    """Check that the columns of ``data.missing_values`` are in a table.

    Raises:
        DataError: one is in none: its values would stay measurements.
    """
    columns = list(dict.fromkeys(name for table in tables for name in table.names))
    for name in names:
        if columns and name not in columns:
            key = "data.missing_values"
            raise unknown_name("column", name, columns, of=key, key=key, kind=DataError)


def _check_tables(site_tables: Sequence[_SiteTable]) -> list[_SiteTable]:
    """Return the tables with rows whose labels can be read; add what is wrong with others."""
    usable = []
    for site_table in site_tables:
        has_labels = _check_table(site_table)
        if not site_table.table.lines:
            site_table.table.place.skip_empty()
        elif has_labels:
            usable.append(site_table)

    return usable


def _count(
    usable: Sequence[_SiteTable],
    site_names: Sequence[str],
    class_names: Sequence[str],
    y: np.ndarray,
    findings: Findings,
) -> Examples:
    """Return all examples, still without features, and count those of every site."""
    tables = [site_table.table for site_table in usable]
    numbers = [site_names.index(table.place.site) for table in tables]
    group = usable[0].group
    examples = Examples(
        x=np.empty((len(y), 0), dtype=np.float32),
        y=y,
        site=np.repeat(np.array(numbers, dtype=np.int64), [len(table.lines) for table in tables]),
        is_test=np.concatenate([site_table.is_test() for site_table in usable]),
        group=_number_groups(tables, group, findings) if group else None,
    )
    findings.sites[:] = examples.count_sites(site_names, class_names)
    return examples


def _features_of(site_tables: Sequence[_SiteTable]) -> dict[str, list[Table]]:
    """Return the columns of features, and the tables in which each can be looked at."""
    features: dict[str, list[Table]] = {}
    for site_table in site_tables:
        table = site_table.table
        if not table.lines or site_table.has_second_header:
            continue

        for name in site_table.features:
            is_label = not site_table.label and is_like_label(name)
            if name not in table.refused and not is_label:
                features.setdefault(name, []).append(table)

    return features


def _sought(label: str, group: str, rules: CellRules | None, columns: Columns | None) -> Sought:
    """Return what is known of the columns; ``columns`` are those of the data in training."""
    categories = set() if columns is None else names_of_texts(columns)

    def is_special(name: str) -> bool:
        return name in (_SPLIT, "image", label, group) or (not label and is_like_label(name))

    def is_text(name: str) -> bool:
        return name in categories or is_special(name)

    return Sought(
        is_expected=is_special,
        keeps_texts=is_text,
        may_hold_numbers=lambda name: not is_text(name),
        rules=rules or CellRules(),
    )


def _read_files(
    files: Sequence[tuple[str, Path]],
    sought: Sought,
    findings: Findings,
    digests: dict[str, str],
) -> list[Table]:
    """Read the tables that can be read."""
    tables = []
    left = MAX_TOTAL_BYTES
    for site, path in files:
        place = FindingPlace(findings, site, escaped(path.name))
        table = read_table(path, place, sought, digests, limit=left)
        if table is not None:
            left -= 4 * len(table.lines) * len(table.columns)
            tables.append(table)

    return tables


def _check_table(site_table: _SiteTable) -> bool:
    """Return whether the labels and the groups of a table can be used.

    What is wrong with any of its cells is added, once for each column.
    """
    table = site_table.table
    wrong_roles = list(_find_wrong_roles(site_table))
    for finding in wrong_roles:
        table.place.add(*finding)

    if site_table.has_second_header:
        line = table.lines[0]
        names = listed(site_table.columns_with_unit)
        message = f"Line {line} is a second header: it has text in columns of numbers, {names}."
        table.place.add("second_header", message, line)
        return False

    used = {*site_table.used, site_table.label, site_table.group}
    table.check_rows()
    table.check_types([name for name in table.names if name in used], site_table.label)
    table.check_numbers(name for name in site_table.features if name not in table.refused)
    errors = ("missing_label_column", "missing_group_column")
    has_roles = not any(finding.kind in errors for finding in wrong_roles)
    return _check_roles(site_table) and has_roles


def _check_roles(site_table: _SiteTable) -> bool:
    """Return whether the cells of label, group and split can be used; add their first wrong ones.

    That a column is missing is told by the names of the columns.
    """
    table = site_table.table
    # Whether the words are those that are wrong, or those that are right.
    split_words = "another value than train or test"
    rules = (
        ("missing_label", site_table.label, "no label", MISSING_LABELS, True),
        ("missing_group", site_table.group, "no group", MISSING_WORDS, True),
        ("wrong_split", site_table.split, split_words, ("train", "test"), False),
    )
    checks = []
    for kind, name, what, words, are_wrong in rules:
        if name in table.refused:
            checks.append(False)
        elif name in table.columns:
            cells = table.columns[name]
            wrong = {text for text in cells.texts if (text.lower() in words) == are_wrong}
            at = cells.at(wrong.__contains__)
            table.check_cells(kind, name, what, at)
            checks.append(at is None)

    return all(checks)


def _find_wrong_roles(site_table: _SiteTable) -> Iterator[Finding]:
    """Yield what is wrong with the columns of a table."""
    names = site_table.table.names
    label = site_table.label
    group = site_table.group
    others = site_table.others
    columns = f"the columns are: {listed(names, 20)}."
    if label and label not in names:
        hint = did_you_mean(label, names).rstrip("?")
        message = f"No column {quoted(label)} for the labels (data.label_column){hint}; {columns}"
        yield Finding("missing_label_column", message)

    if group and group == label:
        message = f"Column {quoted(group)} holds the labels, so it cannot be the column of groups"
        yield Finding("missing_group_column", f"{message} (data.group).")

    if group and group not in names:
        hint = did_you_mean(group, [name for name in names if name != label]).rstrip("?")
        message = f"No column {quoted(group)} for the groups (data.group){hint}; {columns}"
        yield Finding("missing_group_column", message)

    if not site_table.image and not others:
        message = "No column is left for features; an image is missing too: "
        yield Finding("no_features", f"{message}{listed(names, 20)}.")

    if site_table.image and others:
        message = "Because there is a column 'image', other columns are not used: "
        yield Finding("unused_column", f"{message}{listed(others, 20)}.")


def _check_columns_alike(tables: Sequence[_SiteTable]) -> None:
    """Add the columns that not all tables have; the smaller group gets the problem."""
    having = Counter(name for table in tables for name in table.used)
    total = len(tables)

    # A column that few tables have is extra there; one that few lack is missing there.
    extra = {name for name, count in having.items() if 2 * count < total}
    used = [set(table.used) for table in tables]
    for table, names in zip(tables, used, strict=True):
        # Where most names differ, none is another spelling of one of them.
        rare = [name for name in table.used if having[name] < total]
        if len(rare) > _MOST_SPELLINGS:
            rare = []

        for name, count in having.items():
            if name in names and name in extra:
                message = f"Column {quoted(name)} is in {count} of {total} tables only."
                hint = f" To leave it out: {leave_out_text(name)}."
                table.table.place.add("extra_column", message + hint)
            elif name not in names and name not in extra:
                have = "has" if count == 1 else "have"
                message = f"No column {quoted(name)}: {count} of {total} tables {have} it."
                apart = [other for other in rare if not _share_a_table(name, other, used)]
                other = _similar(name, apart)
                hint = f" Is it {quoted(other)} here? Then rename it." if other else ""
                table.table.place.add("missing_column", message + hint)


def _share_a_table(name: str, other: str, used: Sequence[set[str]]) -> bool:
    """Return whether a table has both columns, which then are different ones."""
    return any(name in names and other in names for names in used)


def _similar(name: str, others: Sequence[str]) -> str:
    """Return the name of a column that may be another name of one; empty if none is near."""
    for other in others:
        texts = sorted((name.casefold(), other.casefold()), key=len)
        if texts[1].startswith(texts[0]) or did_you_mean(name, [other]):
            return other

    return ""


def _number_groups(tables: Sequence[Table], name: str, findings: Findings) -> np.ndarray:
    """Return the number of the group of every row (rows,)."""
    numbers: dict[str, int] = {}

    def number_of(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    parts = [table.columns[name].look_up(number_of, np.int64) for table in tables]
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
                name = escaped(cells.texts[code])
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
            message = f"Image {quoted(name)} is not in the folder of the table."
            place.add("image_outside", message, line)
            return None

        if path.is_file():
            return path
    except (OSError, RuntimeError, ValueError):
        pass  # a link that leads to itself, or a name that no file can have

    message = f"Image {quoted(name)} does not exist in the folder of the table."
    place.add("missing_image", message, line)
    return None
