"""The reader of tables: CSV and Parquet files, and data frames, become the same columns.

CSV is read with Python's csv module even if pyarrow is installed: types are not guessed, and every
problem has its row. Parquet needs pyarrow (the extra ``data``).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.core.extras import install_command
from fedtailor.core.text import escaped, listed, quoted
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import MAX_CATEGORIES, Decimal
from fedtailor.data.files import read_bytes
from fedtailor.data.own.cells import Cells, Rewrite, Table
from fedtailor.data.own.decimals import find_meanings, rewrites
from fedtailor.data.own.findings import FindingPlace, Findings, Unusable, limit_size
from fedtailor.data.own.kinds import DATES, SERIES
from fedtailor.data.own.patterns import cell_of, is_number

TABLES = (".csv", ".parquet", ".pq")
"""Endings of the names of tables, in upper or lower case."""

PARQUET = TABLES[1:]

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_LONGEST_HEADER = 2**20
"""Most characters of the first line from which the delimiter is recognized."""

_NO_HEADER = "The file is empty: it has no header."
_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__")
"""The name that pandas gives to an index without one in a Parquet file."""
_MARK_OF_DELIMITER = re.compile(r'"?sep=([,;\t|])"?[,;\t|]*', re.IGNORECASE)
"""What Excel writes above the header to say which delimiter it has used."""
_OF_OPEN_QUOTATIONS = ("unexpected end of data", "field larger than")
"""Beginnings of errors of the csv module that a quotation mark causes if nothing closes it."""
_BLOCK = 2**17
"""Cells of a CSV table that are held as text at once."""


@dataclass(frozen=True)
class Sought:
    """What the reader of a table knows of its columns in advance."""

    is_expected: Callable[[str], bool]
    """Whether a column of that name is looked for; the delimiter is one that gives such columns."""
    keeps_texts: Callable[[str], bool]
    """Whether all texts of the column of that name are kept, however many they are."""
    may_hold_numbers: Callable[[str], bool]
    """Whether commas in the column of that name can be those of numbers."""
    rules: CellRules = CellRules()
    """How the cells of features are read."""
    keep: Collection[str] = ()
    """Columns whose cells are wanted as they stand in the file, too."""
    rewrite: Mapping[str, Rewrite] = field(default_factory=dict)
    """How the texts of columns are changed; others stay."""

    def new_cells(self, name: str) -> Cells:
        """Return the cells of a column, still none."""
        return Cells(keeps_texts=self.keeps_texts(name), rewrite=self.rewrite.get(name))


def read_table(
    path: Path, place: FindingPlace, sought: Sought, digests: dict[str, str], *, limit: int
) -> Table | None:
    """Read a CSV or Parquet file; None, with the problems added, if it cannot be used.

    Args:
        path: the file; every name that does not end as that of a Parquet file is CSV.
        place: gets the problems.
        sought: what is known of its columns.
        digests: gets the SHA-256 of the file.
        limit: most bytes, 4 for each cell.
    """
    read = _read_parquet if path.suffix.lower() in PARQUET else _read_csv
    try:
        raw = read_bytes(path, digests, folder=path.parent)

        def read_with(rewrite: Mapping[str, Rewrite], place: FindingPlace) -> Table:
            return read(raw, place, replace(sought, rewrite=rewrite), limit)

        return read_cells(read_with, place, sought)
    except DataError as error:
        place.add("unreadable_file", error.message, severity="error")
    except Unusable as error:
        place.add(error.kind, error.message, severity="error")

    return None


def read_cells(
    read: Callable[[Mapping[str, Rewrite], FindingPlace], Table],
    place: FindingPlace,
    sought: Sought,
) -> Table:
    """Read a table by the rules for its cells; once more if numbers have a comma.

    Args:
        read: reads the table, with texts of columns rewritten.
        place: gets the problems.
        sought: what is known of its columns.
    """
    rules = sought.rules
    table = read(rewrites(rules, {}), place)

    # All numbers of a column together decide what its commas mean.
    numbers = [name for name in table.names if sought.may_hold_numbers(name)]
    meanings = find_meanings(table, numbers, rules)
    if not meanings:
        return table

    by_meaning = {"comma": "decimal commas", "point": "commas between thousands"}
    for meaning, words in by_meaning.items():
        names = [name for name, other in meanings.items() if other == meaning]
        if names:
            place.findings.note(f"Numbers with {words} are read in {listed(names)}.")

    # The problems of the file are known from the first time.
    again = read(rewrites(rules, meanings), replace(place, findings=Findings()))
    decimal: Decimal = "comma" if "comma" in meanings.values() else "point"
    return replace(again, place=place, decimal=decimal)


def read_header(header: Iterable[str], place: FindingPlace) -> tuple[str, ...]:
    """Return the names of columns, different and safe to print; add what is wrong with them.

    A column without a name is ``column N``; one with a name that is there already gets a number
    too, so that all else can be checked.
    """
    # All messages and features use these names, so they are unique and safe.
    names: dict[str, int] = {}
    written = [escaped(name.strip()) for name in header]
    for number, name in enumerate(written, start=1):
        unique = name or unnamed(number)
        while unique in names or (not name and unique in written):
            unique = f"{unique} ({number})"
        names[unique] = number

    repeated = [name for name, count in Counter(filter(None, written)).items() if count > 1]
    if repeated:
        place.add("duplicate_column", f"More than one column is called {listed(repeated)}.")

    return tuple(names)


def _are_values(names: Sequence[str]) -> bool:
    """Return whether most names are numbers that nobody calls columns: fractions, or twice.

    >>> _are_values(["63.0", "1.0", "145.0", "yes"]), _are_values(["0", "1", "2", "label"])
    (True, False)
    """
    numbers = [name.strip() for name in names if is_number(name)]
    is_count = len(set(numbers)) == len(numbers) and all(name.isdecimal() for name in numbers)
    return len(numbers) > len(names) / 2 and not is_count


def unnamed(number: int) -> str:
    """Return what a column without a name is called."""
    return f"column {number}"


# CSV


def _read_csv(raw: bytes, place: FindingPlace, sought: Sought, limit: int) -> Table:
    """Read text with commas, semicolons, tabs or vertical bars between the cells.

    Blank lines are ignored, and rows of empty cells, as spreadsheets write them below a table. The
    text is UTF-8, UTF-16 with its mark, or, with a warning, Windows-1252.
    """
    if not raw.strip():
        raise Unusable("empty_file", _NO_HEADER)

    text = io.TextIOWrapper(io.BytesIO(raw), encoding=_find_encoding(raw, place), newline="")
    first = text.readline(_LONGEST_HEADER)
    while first and not first.strip():
        first = text.readline(_LONGEST_HEADER)

    # Where a comma is the decimal point, spreadsheets write semicolons.
    mark = _MARK_OF_DELIMITER.fullmatch(first.strip("\r\n "))
    delimiter = _find_delimiter(first, sought) if mark is None else mark[1]
    text.seek(0)
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    begun = 1

    def filled() -> Iterator[tuple[int, list[str]]]:
        nonlocal begun
        for row in reader:
            begun = reader.line_num + 1
            if any(row):
                yield reader.line_num, row

    rows = filled()
    named = (row for _, row in rows if any(map(str.strip, row)))
    try:
        if mark is not None:
            next(named)

        header = next(named, None)
        if header is None:
            raise Unusable("empty_file", _NO_HEADER)
        if _are_values(header):
            shown = listed(map(escaped, header), 5)
            message = f"The first line holds values, not names of columns: {shown}."
            raise Unusable("no_header", f"{message} Add a line of names above it.")

        names = read_header(header, place)
        if delimiter != ",":
            place.findings.note(f"Tables have {_DELIMITERS[delimiter]} between their cells.")

        table = _read_rows(rows, names, place, sought, limit)
    except csv.Error as error:
        # Everything after a quotation mark that nothing closes is one cell, up to the next one.
        reason = str(error)
        if begun < reader.line_num or reason.startswith(_OF_OPEN_QUOTATIONS):
            reason += "; perhaps nothing closes a quotation mark in it"

        raise Unusable("broken_table", f"Line {begun} cannot be read: {reason}.") from error

    return _without_unnamed(replace(table, delimiter=delimiter), header)


def _find_encoding(raw: bytes, place: FindingPlace) -> str:
    """Return the encoding of a text, with a warning if it is not Unicode."""
    # Spreadsheets write a mark of the byte order, which utf-8-sig removes.
    has_two_bytes = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if has_two_bytes else "utf-8-sig"
    try:
        raw.decode(encoding)
        return encoding
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        where = f"byte 0x{error.object[error.start]:02x} in line {line}"
        message = f"The file is not {'UTF-16' if has_two_bytes else 'UTF-8'}: {where}"
        if has_two_bytes or not _is_windows_1252(raw):
            raise Unusable("wrong_encoding", f"{message}.") from error

    message += ". It is read as Windows-1252: look at its letters, or save it as CSV UTF-8."
    place.add("wrong_encoding", message, severity="warning")
    return "cp1252"


def _is_windows_1252(raw: bytes) -> bool:
    """Return whether all letters beyond ASCII can be of that encoding, and none is of UTF-8."""
    text = raw.decode("utf-8", errors="surrogateescape")
    if any(character > "\x7f" and not "\udc80" <= character <= "\udcff" for character in text):
        return False

    try:
        return not any(ord(character) < 9 for character in raw.decode("cp1252"))
    except UnicodeDecodeError:
        return False


def _without_unnamed(table: Table, header: Sequence[str]) -> Table:
    """Leave out columns without a name that are empty or number the rows; refuse others.

    Spreadsheets end lines with delimiters, and pandas writes the numbers of rows first.
    """
    columns = dict(table.columns)
    for number, (written, name) in enumerate(zip(header, table.names, strict=True), start=1):
        if written.strip():
            continue

        cells = columns.pop(name)
        values = cells.numbers
        is_empty = bool(np.isnan(values).all()) and cells.text_at is None
        is_count = number == 1 and len(values) > 0 and bool((np.diff(values) == 1).all())
        if is_empty or is_count:
            why = "it is empty" if is_empty else "it numbers the rows"
            table.place.findings.note(f"Column {number} has no name and is left out: {why}.")
        else:
            names = listed(columns, 20)
            message = f"Column {number} has no name; the others are: {names}."
            table.place.add("unnamed_column", message)

    return replace(table, columns=columns)


def _find_delimiter(first: str, sought: Sought) -> str:
    """Return the delimiter that gives the most expected columns, or else the most columns."""

    def fit(delimiter: str) -> tuple[int, int]:
        try:
            names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
        except csv.Error:
            return 0, 0

        expected = sum(sought.is_expected(escaped(name)) for name in names)
        return expected if len(names) > 1 else 0, len(names)

    return max(_DELIMITERS, key=fit)


def _read_rows(
    numbered: Iterable[tuple[int, list[str]]],
    names: Sequence[str],
    place: FindingPlace,
    sought: Sought,
    limit: int,
) -> Table:
    """Read the rows below the header with their lines, some at a time."""
    lines = array("q")
    ragged: list[tuple[int, int]] = []
    columns = [sought.new_cells(name) for name in names]
    kept: dict[str, list[str]] = {name: [] for name in names if name in sought.keep}

    def whole_rows() -> Iterator[list[str]]:
        for line, row in numbered:
            if len(row) == len(names):
                lines.append(line)
                yield row
            # Rows of another length are told together, after the types of the columns.
            else:
                ragged.append((line, len(row)))

    rows = whole_rows()
    while block := list(islice(rows, max(_BLOCK // len(names), 1))):
        if 4 * len(lines) * len(names) > limit:
            message = f"At most {limit} bytes, 4 for each cell, can be read"
            raise Unusable("too_large", f"{message}; line {lines[-1]} exceeds the limit.")

        # By column: few texts of a block are held at once, and numbers replace them.
        for name, cells, texts in zip(names, columns, zip(*block, strict=True), strict=True):
            cells.add(texts)
            if name in kept:
                kept[name] += texts

    cells_of = dict(zip(names, columns, strict=True))
    return Table(place, cells_of, lines, ragged=ragged, kept=kept)


# Parquet


def _read_parquet(raw: bytes, place: FindingPlace, sought: Sought, limit: int) -> Table:
    try:
        import pyarrow.parquet
    except ImportError as error:
        message = f"Parquet files need pyarrow: {install_command('data')}, or use CSV."
        raise Unusable("pyarrow_missing", message) from error

    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(raw))
        # A few kilobytes can announce terabytes.
        _check_size(file.metadata, limit)
        names = read_header(file.schema_arrow.names, place)
        content = file.read()
        columns = {}
        refused = {}
        kept = {}
        for name, column in zip(names, content.columns, strict=True):
            if name in sought.keep:
                values = column.to_pylist()
                kept[name] = [v if isinstance(v, str) else cell_of(v) for v in values]

            reason = _refuse_type(column.type)
            if reason is not None:
                refused[name] = reason
                columns[name] = Cells()
            else:
                columns[name] = _cells_of(column, name, sought)

        table = Table(place, columns, range(1, content.num_rows + 1), refused, kept=kept)
        table = _without_unnamed(table, file.schema_arrow.names)
        return _without_index(table, sought)
    except Unusable:
        raise
    except Exception as error:  # pyarrow raises OSError, its own exceptions, and Python's
        first_line = str(error).partition("\n")[0]
        message = f"The Parquet file is damaged: {type(error).__name__}: {first_line.rstrip('.')}."
        raise Unusable("damaged_table", message) from error


def _without_index(table: Table, sought: Sought) -> Table:
    """Leave out the numbers of rows that pandas writes as columns.

    A model could learn classes from them where rows are sorted.
    """
    columns = dict(table.columns)
    for name in table.names:
        is_sought = sought.is_expected(name) or name in sought.keep
        if _INDEX_OF_PANDAS.fullmatch(name) and not is_sought:
            del columns[name]
            table.place.findings.note(
                f"Column {quoted(name)} is left out: it is the index that pandas wrote."
            )

    return replace(table, columns=columns)


def _check_size(metadata: Any, limit: int) -> None:
    """Check the size that the file announces, before anything is decompressed."""
    groups = range(metadata.num_row_groups)
    announced = sum(metadata.row_group(group).total_byte_size for group in groups)
    size = max(announced, 4 * metadata.num_rows * metadata.num_columns)
    limit_size(f"{metadata.num_rows} rows", size, limit)


def _refuse_type(kind: Any) -> tuple[str, str] | None:
    """Return kind and sentence of the problem if a column holds neither numbers nor text."""
    import pyarrow.types as kinds

    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    if _is_text(plain) or any(test(plain) for test in (*numbers, kinds.is_null)):
        return None

    if kinds.is_temporal(plain):
        return "dates", f"holds dates or times ({kind}). {DATES}"

    if kinds.is_list(plain) or kinds.is_large_list(plain) or kinds.is_fixed_size_list(plain):
        return "time_series", f"holds lists. {SERIES}"

    return "wrong_column_type", f"must hold numbers or text, but holds {quoted(kind)}."


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _cells_of(column: Any, name: str, sought: Sought) -> Cells:
    """Return the cells of a column of pyarrow's that holds numbers or text."""
    import pyarrow.types as kinds

    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)

    keeps_texts = sought.keeps_texts(name)
    rewrite = sought.rewrite.get(name)

    is_text = _is_text(column.type)
    encoded = column.combine_chunks().dictionary_encode()
    if not is_text and not keeps_texts and len(encoded.dictionary) > MAX_CATEGORIES:
        values = np.asarray(column.cast("float64", safe=False).to_numpy())
        return Cells.of_numbers(values, rewrite)

    # One text for each different value, as in a CSV file.
    texts = [cell_of(value) for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    if encoded.null_count:
        texts.append("")

    cells = Cells.of_codes(codes, texts, keeps_texts=keeps_texts, rewrite=rewrite)
    cells.is_typed = not is_text
    return cells
