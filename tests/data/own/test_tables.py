"""Tables of sites: what is read is what was written, and every broken table is a problem of a kind
that stays."""

import csv
import datetime
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_wine

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.build import build
from fedtailor.data.columns import Column
from fedtailor.data.dataset import AS_THEY_ARE
from fedtailor.data.options import DataOptions
from fedtailor.data.own import cells
from fedtailor.data.own.findings import FindingPlace, Findings
from fedtailor.data.own.like import TrainingTables, read_table_like
from fedtailor.data.own.read import load_own, read_own
from fedtailor.data.own.table import read_header


def write(folder, **tables):
    """Write a CSV file per site: bytes, a text, or rows."""
    folder.mkdir(exist_ok=True)
    for site, rows in tables.items():
        path = folder / f"{site}.csv"
        if isinstance(rows, bytes):
            path.write_bytes(rows)
        elif isinstance(rows, str):
            path.write_text(rows, encoding="utf-8")
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)

    return folder


def write_parquet(folder, site, columns):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{site}.parquet")
    return folder


def read(folder, **options):
    return read_own(str(folder), DataOptions(path=str(folder), **options))


def errors(findings):
    return [(problem.kind, problem.path) for problem in findings.errors]


def kinds(findings):
    return {kind for _, kind in findings.counts}


def column(cells):
    """Return a table of a column ``c``, a number ``n``, and labels x and y in turn."""
    rows = [[cell, row, "xy"[row % 2]] for row, cell in enumerate(cells)]
    return [["c", "n", "label"], *rows]


# What is read


def test_a_late_typo_in_a_long_column_of_numbers_is_named(tmp_path):
    # Only numbers are kept of the first block of a long column; the typo comes after it.
    rows = [[f"{row}.5", row % 7, "xy"[row % 2]] for row in range(46_000)]
    rows[-1][0] = "oops"
    findings = read(write(tmp_path / "data", A=[["c", "n", "label"], *rows])).findings
    (error,) = findings.errors
    assert error.kind == "stray_text" and "oops" in error.message


def test_text_in_a_long_column_of_numbers_is_counted_among_all_its_cells(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.data.own.table._BLOCK", 300)  # a hundred rows at a time
    cells = [f"{row}.5" for row in range(1000)]
    cells[500:520] = ["oops"] * 20
    (error,) = read(write(tmp_path / "data", A=column(cells))).findings.errors
    assert error.kind == "stray_text" and "text in 20 of 1000 cells" in error.message


def test_the_index_that_pandas_saved_is_no_feature(tmp_path):
    columns = {"age": [1.0, 2.0, 4.0], "label": [0, 1, 0], "__index_level_0__": [5, 7, 9]}
    own = read(write_parquet(tmp_path / "data", "A", columns))
    assert [column.name for column in own.dataset.raw.columns] == ["age"]
    assert any("index that pandas wrote" in note for note in own.findings.notes)


def test_a_column_may_have_the_name_of_one_without_a_name(tmp_path):
    rows = [
        ["column 3", "n", "", "label"],
        *([row, row % 3, "", "xy"[row % 2]] for row in range(9)),
    ]
    own = read(write(tmp_path / "data", A=rows))
    assert [column.name for column in own.dataset.raw.columns] == ["column 3", "n"]


@pytest.fixture
def wine(tmp_path):
    """A data set of scikit-learn's at four sites, the columns in another order at each."""
    bunch = load_wine()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    tables = {}
    for number, rows in enumerate(np.array_split(order, 4)):
        columns = np.roll(np.arange(bunch.data.shape[1]), number)
        labels = np.array(bunch.target_names)[bunch.target[rows]]
        cells = zip(bunch.data[rows][:, columns].tolist(), labels, strict=True)
        header = [*np.array(bunch.feature_names)[columns], "diagnosis"]
        tables[f"site{number}"] = [header, *([*row, label] for row, label in cells)]

    return write(tmp_path / "d", **tables), tables, bunch.data[order], bunch.target[order]


def test_csv_and_parquet_give_the_same_data_exactly(wine, tmp_path):
    folder, tables, x, y = wine
    dataset, findings = read(folder)
    assert not findings.problems and dataset.class_names == ("class_0", "class_1", "class_2")
    np.testing.assert_array_equal(dataset.x, x.astype(np.float32))
    np.testing.assert_array_equal(dataset.y, y)
    assert dataset.domain_names == tuple(tables) and dataset.num_official_train == len(y)
    assert dataset.normalize == AS_THEY_ARE and dataset.white == 1.0
    assert sum(sum(site.train.values()) for site in findings.sites) == len(y)

    for site, (header, *rows) in tables.items():
        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        columns["diagnosis"] = pa.array(columns["diagnosis"]).dictionary_encode()
        write_parquet(tmp_path / "e", site, columns)

    again, findings = read(tmp_path / "e")
    assert not findings.problems and again.digest == dataset.digest


def test_parquet_and_csv_hold_the_same_categories(tmp_path):
    columns = {
        "sex": ["m", "", "f", "m"],
        "stage": [1.0, 2.0, "", 3.0],
        "flag": [True, "", False, True],
        "label": ["x", "y", "x", "y"],
    }
    first, _ = read(write(tmp_path / "d", a=[[*columns], *zip(*columns.values(), strict=True)]))
    cells = {name: [cell if cell != "" else None for cell in c] for name, c in columns.items()}
    write_parquet(tmp_path / "e", "a", {**cells, "sex": pa.array(cells["sex"]).dictionary_encode()})
    texts = {**cells, "stage": ["1", "2.0", "", "3"], "flag": ["TRUE", None, "false", "true"]}
    second, findings = read(write_parquet(tmp_path / "e", "b", texts))
    assert not findings.errors and first.raw == second.raw
    np.testing.assert_array_equal(second.x, np.concatenate([first.x, first.x]))


def test_a_column_of_the_split_puts_all_test_rows_last(tmp_path):
    one = "f,label,split\n1,10,train\n2,9,Test\n3,9.0,train\n"
    dataset, findings = read(
        write(tmp_path / "d", a=one, b="split,label,f\ntest,2,4\ntrain,10,5\n")
    )
    assert dataset.x[:, 0].tolist() == [1, 3, 5, 2, 4] and dataset.num_official_train == 3
    assert dataset.class_names == ("2", "9", "10") and dataset.y.tolist() == [2, 1, 2, 1, 0]
    assert dataset.domains.tolist() == [0, 0, 1, 0, 1]
    assert findings.sites[0].train == {"9": 1, "10": 1} and findings.sites[1].test == {"2": 1}


@pytest.mark.parametrize(
    ("mark", "delimiter"),
    [("sep=;", ";"), ('"sep=;"', ";"), ("sep=;;;", ";"), ("SEP=\t", "\t"), ("sep=|", "|")],
)
def test_excel_may_say_which_delimiter_it_has_used(tmp_path, mark, delimiter):
    lines = [mark, delimiter.join(["f, a", "g, b", "label"]), delimiter.join("12x"), ""]
    good = '"f, a","g, b",label\n1,2,x\n3,4,y\n'
    missing = "\r\n".join([*lines, delimiter.join(["3", "4", ""])])
    _, findings = read(write(tmp_path / "d", a=good, s=missing.encode()))
    assert errors(findings) == [("missing_label", "s.csv:5")]

    whole = "\r\n".join([*lines, delimiter.join("34y")])
    dataset, _ = read(write(tmp_path / "e", a=good, s=whole.encode()))
    assert dataset.x.tolist() == [[1, 2], [3, 4]] * 2


def test_a_column_that_is_spelled_differently_at_one_of_two_sites_is_named(tmp_path):
    tables = {"a": "age,g,label\n1,2,x\n3,4,y\n", "b": "Age,g,label\n1,2,x\n3,4,y\n"}
    _, findings = read(write(tmp_path / "d", **tables))
    assert "Is it 'Age' here? Then rename it." in findings.errors[1].message

    tables["c"] = "age,Age,g,label\n1,1,2,x\n3,3,4,y\n"
    _, findings = read(write(tmp_path / "e", **tables))
    assert not any("rename" in problem.message for problem in findings.errors)


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_other_delimiters_and_a_byte_order_mark_are_read(tmp_path, delimiter):
    lines = (["a, or b", "label"], ["1.5", "x"], ["-2e3", "y"])
    text = "\n".join(delimiter.join(line) for line in lines)
    dataset, findings = read(write(tmp_path / "d", s=b"\xef\xbb\xbf" + text.encode() + b"\n\n"))
    assert dataset.x.tolist() == [[1.5], [-2000]] and dataset.raw.columns[0].name == "a, or b"
    assert [note for note in findings.notes if "between their cells" in note]


def test_duplicate_rows_are_one_warning_per_kind_with_the_lines_of_the_files(tmp_path):
    head = ["f", "g", "label", "split"]
    same = [[3, 4, "x", "train"]] * 5
    a = [head, [1, 2, "x", "train"], [1, 2, "y", "test"], *same]
    b = [["g", "f", "label", "split"], [1, 2, "y", "train"], [], [4, 3, "x", "train"]]
    dataset, findings = read(write(tmp_path / "d", a=a, b=b))
    found = {problem.kind: problem.message for problem in findings.problems}
    assert len(dataset.y) == 9
    assert "1 found: 'a.csv:3' as 'a.csv:2'" in found["duplicate_train_test"]
    assert "4 found: 'a.csv:5' as 'a.csv:4'" in found["duplicate_in_site"]
    assert "1 found: 'b.csv:4' as 'a.csv:4'" in found["duplicate_across_sites"]


def test_a_wide_header_is_read_at_once_and_its_names_are_unique():
    place = FindingPlace(Findings(), "", "wide.csv")
    header = ["a", "a (3)", "a", *(f"gene {number}" for number in range(60_000))]
    start = time.process_time()
    names = read_header(header, place)
    assert time.process_time() - start < 5
    assert names[:3] == ("a", "a (3)", "a (3) (3)")
    assert len(set(names)) == len(names) == len(header)


def test_an_empty_site_is_left_out_and_counted(tmp_path):
    folder = write(tmp_path / "d", a="f,label\n", b="f,label\n1,x\n2,y\n")
    dataset, findings = read(folder)
    assert dataset.domain_names == ("b",) and ("skipped", "empty_site") in findings.counts
    assert [(site.name, len(site.train)) for site in findings.sites] == [("a", 0), ("b", 2)]
    (folder / "b.csv").unlink()
    dataset, findings = read(folder)
    assert dataset is None and kinds(findings) == {"no_examples"}


def test_one_table_has_no_domains(tmp_path):
    dataset, _ = read(write(tmp_path / "d", all="f,label\n1,x\n2,y\n"))
    assert dataset.domains is None and dataset.domain_names == ()


@pytest.mark.parametrize(
    "word", ["", " ", "NA", "n/a", "NaN", "null", "None", "?", "#N/A", "<NA>", "-", "."]
)
def test_every_word_for_an_empty_cell_is_replaced_by_the_median_of_training_rows(tmp_path, word):
    rows = column([1, 2, word, 4, 100])
    for row, part in zip(rows, ["split", "train", "train", "train", "train", "test"], strict=True):
        row.append(part)

    b = [rows[0], [50, 9, "y", "train"], [60, 10, "x", "train"]]
    folder = write(tmp_path / "d", a=rows, b=b)
    dataset, findings = read(folder)
    assert not findings.errors and np.isnan(dataset.x[2, 0])
    divided = build(DataOptions(path=str(folder)), run_seed=0)
    assert divided.dataset.x[2, 0] == 2  # of 1, 2 and 4, which outweigh 50 and 60
    assert divided.dataset.columns.columns[0] == Column("c", "number", fill=2.0)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("c;label\n1,5;x\n-2,25e1;y\n1.234,5;x\n", [1.5, -22.5, 1234.5]),
        ("c;label\n1,234;x\n2;y\n", [1.234, 2]),
        ('c,d,label\n"1,234","0,5",x\n3,1,y\n', [1.234, 3]),
        ('c,label\n"1,234.5",x\n"1,000",y\n7.5,x\n', [1234.5, 1000, 7.5]),
        ("c;label\n" + "".join(f"{n},5;{'xy'[n % 2]}\n" for n in range(99)), np.arange(99) + 0.5),
    ],
)
def test_decimal_commas_and_separators_of_thousands_are_read(tmp_path, text, values):
    dataset, findings = read(write(tmp_path / "d", a=text))
    assert not findings.errors and any("'c'" in note for note in findings.notes)
    np.testing.assert_array_equal(dataset.x[:, 0], np.array(values, dtype=np.float32))


def test_the_option_says_what_a_comma_is(tmp_path):
    folder = write(tmp_path / "d", a='c,label\n"1,234",x\n2.5,y\n')
    assert errors(read(folder)[1]) == [("not_a_number", "a.csv:2")]
    assert read(folder, decimal="point")[0].x[:, 0].tolist() == [1234, 2.5]
    assert read(folder, decimal="comma")[0].x[:, 0].tolist() == [np.float32(1.234), 2.5]


def test_values_that_mean_missing_are_empty_cells_whatever_the_file(tmp_path):
    columns = {"chol": [0.0, 200, 7, -9], "smoker": ["?", "yes", "not asked", "no"]}
    columns["label"] = ["x", "y", "x", "y"]
    rows = [[*columns], *zip(*columns.values(), strict=True)]
    values = {"chol": [0, -9], "smoker": ["not asked"]}
    folder = write(tmp_path / "d", a=rows)
    first, _ = read(folder, missing_values=values)
    second, _ = read(write_parquet(tmp_path / "e", "a", columns), missing_values=values)
    assert np.isnan(first.x).tolist() == [
        [True, True],
        [False, False],
        [False, True],
        [True, False],
    ]
    assert first.raw == second.raw
    np.testing.assert_array_equal(first.x, second.x)

    from_long = write(tmp_path / "f", a=column([*range(100)]))
    assert int(np.isnan(read(from_long, missing_values={"c": [0, 99]})[0].x).sum()) == 2
    with pytest.raises(ConfigError, match=r"data\.missing_values\.chol"):
        DataOptions(path="x", missing_values={"chol": [None]})


def test_columns_that_are_left_out_are_not_looked_at(tmp_path):
    rows = [
        ["when", "c", "outcome", "label"],
        ["2024-01-01", 1, "u", "x"],
        ["2024-01-02", 2, "v", "y"],
    ]
    others = [["c", "weight", "outcome", "label"], [3, 80, "u", "x"], [4, 81, "v", "y"]]
    folder = write(tmp_path / "d", a=rows, b=others)
    left_out = ("when", "weight", "outcome")
    dataset, findings = read(folder, leave_out=left_out)
    assert dataset.x.tolist() == [[1], [2], [3], [4]] and not findings.errors
    assert dataset.class_names == ("x", "y")
    assert set(left_out) < set(dataset.raw.unused)

    # Tables to predict may have such columns too, whichever site they are of.
    divided = build(DataOptions(path=str(folder), leave_out=left_out, test_share=0.0), run_seed=0)
    for table in ("a", "b"):
        tables = TrainingTables(divided.dataset.columns)
        like = read_table_like(folder / f"{table}.csv", tables)
        assert len(like.x) == 2 and not like.problems

    dates = [datetime.date(2024, 1, day) for day in (1, 2)]
    parquet = write_parquet(tmp_path / "e", "a", {"when": dates, "c": [1, 2], "label": ["x", "y"]})
    assert read(parquet)[0] is None
    assert read(parquet, leave_out=("when",))[0].x.tolist() == [[1], [2]]
    unknown = read(parquet, leave_out=("when", "whem"))[1].problems[0]
    assert unknown.kind == "unknown_left_out" and "did you mean 'when'" in unknown.message


def test_other_encodings_of_spreadsheets_are_read(tmp_path):
    text = "c,ward\n1,Süd\n2,Nord\n".replace("ward", "label")
    for encoding in ("cp1252", "utf-16"):
        dataset, findings = read(write(tmp_path / encoding, a=text.encode(encoding)))
        assert dataset.class_names == ("Nord", "Süd")
        assert ("wrong_encoding" in kinds(findings)) == (encoding == "cp1252")


def test_lines_and_columns_that_spreadsheets_add_are_left_out(tmp_path):
    text = "\n,c,label,\n0,5,x,\n\n1,6,y,\n,,,\n"
    dataset, findings = read(write(tmp_path / "d", a=text))
    assert dataset.x.tolist() == [[5], [6]] and not findings.errors
    assert sum("has no name" in note for note in findings.notes) == 2


def test_new_clients_have_no_part_in_medians_and_categories(tmp_path):
    b = column([1000, 1000, 1000, 1000, ""])
    folder = write(tmp_path / "d", a=column([1, 3, "", 3, 3]), b=b)
    divided = build(DataOptions(path=str(folder), new_clients=1, test_share=0.0), run_seed=0)
    assert divided.dataset.columns.columns[0].fill == 3
    folder = write(tmp_path / "e", a=column("uvuv"), b=column("wwuw"))
    divided = build(DataOptions(path=str(folder), new_clients=1, test_share=0.0), run_seed=0)
    assert divided.dataset.columns.columns[0].categories == ("u", "v")
    assert any("'c' 3" in note for note in divided.notes)


def test_a_column_without_any_value_is_left_out(tmp_path):
    folder = write(tmp_path / "d", a=column(["", "NA"]), b=column(["?", ""]))
    dataset, findings = read(folder)
    assert ("skipped", "empty_column") in findings.counts and np.isnan(dataset.x[:, 0]).all()
    used = build(DataOptions(path=str(folder), test_share=0.0), run_seed=0).dataset
    assert used.columns.names == ("n",) and "c" in used.columns.unused
    _, findings = read(write(tmp_path / "e", a="c,label\n,x\n,y\n"))
    assert [kind for kind, _ in errors(findings)] == ["no_features"]


def test_a_column_without_values_at_one_site_only_is_kept(tmp_path):
    folder = write(tmp_path / "d", a=column(["", "", ""]), b=column("uvu"))
    divided = build(DataOptions(path=str(folder), test_share=0.0), run_seed=0)
    assert divided.dataset.columns.feature_names == ("c=missing", "c=u", "c=v", "n")
    assert divided.dataset.x[:, 0].tolist() == [1, 1, 1, 0, 0, 0]


def test_none_is_a_category_where_any_site_has_text(tmp_path):
    a = column(["none", "", "none"])
    dataset, _ = read(write(tmp_path / "d", a=a, b=column(["u", "none", ""])))
    assert dataset.raw.columns[0].texts == ("none", "u")
    np.testing.assert_array_equal(dataset.x[:, 0], [0, np.nan, 0, 1, 0, np.nan])
    dataset, _ = read(write(tmp_path / "e", a=a, b=column([1, "none", 2])))
    assert not dataset.raw.columns[0].texts and np.isnan(dataset.x[:, 0]).sum() == 4


def test_text_is_a_category_whatever_the_order_of_sites_and_columns(tmp_path):
    one = "sex,age,smoker,label\nm,50,never,x\nf,60,none,y\nm,70,never,x\n"
    other = "smoker,label,age,sex\ncurrent,y,51,diverse\nnever,x,61, f \n,y,71,m\n"
    folder = write(tmp_path / "d", a=one, b=other)
    dataset, findings = read(folder)
    texts = [("diverse", "f", "m"), (), ("current", "never", "none")]
    assert not findings.errors and [each.texts for each in dataset.raw.columns] == texts
    assert dataset.x[:, 0].tolist() == [2, 1, 2, 0, 1, 2]
    plan = build(DataOptions(path=str(folder), test_share=0.0), run_seed=0).dataset.columns
    assert plan.feature_names[:4] == ("sex=diverse", "sex=f", "sex=m", "age")
    assert plan.unused == ("label",)


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_column_of_numbers_and_text_is_categories_with_a_warning(tmp_path, first):
    """Also if one site has only numbers; 1, 1.0 and 01 are one category."""
    tables = [["1", "1.0", "01", "2.5", "True"], ["1", "abc", "2.50", "", "true"]]
    a, b = tables if first == "a" else reversed(tables)
    dataset, findings = read(write(tmp_path / "d", a=column(a), b=column(b)))
    assert ("warning", "mixed_column") in findings.counts
    assert dataset.raw.columns[0].texts == ("1", "2.5", "abc", "true")


def test_text_far_down_in_a_column_of_numbers_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.data.own.table._BLOCK", 30)  # ten rows at a time
    cells = [*(number % 7 for number in range(500)), "low", *range(5), "high"]
    dataset, _ = read(write(tmp_path / "d", a=column(cells)))
    assert dataset.raw.columns[0].texts == ("0", "1", "2", "3", "4", "5", "6", "high", "low")
    assert dataset.x[498:503, 0].tolist() == [1, 2, 8, 0, 1]
    numbers = [*range(500), "", 7.5, "none"]
    dataset, findings = read(write(tmp_path / "d", a=column(numbers)))
    assert not findings.errors and not dataset.raw.columns[0].texts
    np.testing.assert_array_equal(dataset.x[498:, 0], [498, 499, np.nan, 7.5, np.nan])
    _, findings = read(write(tmp_path / "d", a=column([*numbers, "high"])))
    assert errors(findings) == [("stray_text", "a.csv:505")]


def test_a_typing_error_in_a_column_of_numbers_is_an_error_that_says_how_to_read_it(tmp_path):
    """Up to 5 % of the cells; more text, or few different numbers, is a column of categories."""
    ages = [[str(20 + row % 50), row % 2] for row in range(60)]
    ages[7][0] = "about 50"
    folder = write(tmp_path / "d", a=[["age", "label"], *ages])
    _, findings = read(folder)
    (problem,) = findings.errors
    assert (problem.kind, problem.path) == ("stray_text", "a.csv:9")
    assert "text in 1 of 60 cells, such as 'about 50' (row 9 of 'a.csv')" in problem.message
    assert """--set 'data.missing_values={age = ["about 50"]}'""" in problem.message

    dataset, findings = read(folder, missing_values={"age": ("about 50",)})
    assert not findings.errors and np.isnan(dataset.x[7, 0])


def test_a_wide_table_costs_one_reading_of_every_cell(monkeypatch):
    read = []
    monkeypatch.setattr(cells, "number_or_none", lambda text: read.append(text) or float(text))
    column = cells.Cells()
    for row in range(40):
        column.add([f"{row}.5"])
    assert column.text_at is None and column.num_filled == len(column.numbers) == 40
    assert len(read) == 40


def test_hostile_names_of_columns_and_categories_are_made_safe(tmp_path):
    rows = [["@x", 1, "\x1b[31m", "x"], ["@x", 2, "\u202e", "y"], ["-", 3, "ok", "x"]]
    folder = write(tmp_path / "d", a=[["=1+1", "a\nb", "<script>", "label"], *rows])
    dataset, findings = read(folder)
    assert [each.name for each in dataset.raw.columns] == ["=1+1", "a\\x0ab", "<script>"]
    assert dataset.raw.columns[2].texts == ("\\u202e", "\\x1b[31m", "ok")
    assert "".join([*findings.notes, *dataset.notes]).isprintable()


@pytest.mark.parametrize(
    "cells", [["120/80", "130/85"], ["G2P1", "10-12"], ["+", "-"], [".", "<5"]]
)
def test_other_short_texts_are_categories(tmp_path, cells):
    dataset, _ = read(write(tmp_path / "d", a=column(cells)))
    assert dataset.raw.columns[0].texts == tuple(sorted(cells))


def test_fifty_categories_are_read(tmp_path):
    dataset, _ = read(write(tmp_path / "d", a=column([f"ward {n % 50}" for n in range(300)])))
    assert len(dataset.raw.columns[0].texts) == 50


# What is refused

BROKEN = [
    (b"f,g,lable\n1,2,x\n", "missing_label_column", "s.csv", "'lable'"),
    (b"f,g,label\n1,2,x\n1,2\n", "ragged_row", "s.csv:3", "2 cells"),
    (b"f,g,label\n1,inf,x\n1,1e39,x\n", "not_finite", "s.csv:2", "2 rows"),
    (b"f,g,label\n1,2,x\n1,2,\n", "missing_label", "s.csv:3", "1 row"),
    (b"f,label\n1,x\n", "missing_column", "s.csv", "'g'"),
    (b"f,g,h,label\n1,2,3,x\n", "extra_column", "s.csv", "'h'"),
    (b"f,f,g,label\n1,2,3,x\n", "duplicate_column", "s.csv", "'f'"),
    (b",f,g,label\n7,1,2,x\n7,1,2,x\n", "unnamed_column", "s.csv", "1"),
    (b"label\nx\n", "no_features", "s.csv", "'label'"),
    (b"", "empty_file", "s.csv", ""),
    (b"f,g,label\n1,2,M\xc3\xbcller\n1,2,\xfc\n", "wrong_encoding", "s.csv", "0xfc in line 3"),
    (b"f,g,label\n1,2,x\x81\n", "wrong_encoding", "s.csv", "not UTF-8: byte 0x81 in line 2"),
    ("f,g,label\n".encode("utf-16") + b"1", "wrong_encoding", "s.csv", "not UTF-16: byte 0x31"),
    (b"f,g,label\n1,2,x\n , , \n", "missing_label", "s.csv:3", "1 row"),
    (b'f,g,label\n1,"2,x\n3,4,y\n5,6,z\n', "broken_table", "s.csv", "Line 2"),
    (b'f,g,label\n1,"2"2,x\n', "broken_table", "s.csv", "Line 2"),
    (b'f,g,label\n1,"2,x\n3,4,y\n5,6,"z"\n', "broken_table", "s.csv", "Line 2"),
    (b"sep=;\n", "empty_file", "s.csv", "no header"),
    (b"f,g,label\n1,2," + b"x" * 200_000 + b"\n", "broken_table", "s.csv", "Line 2"),
    (b"f,g,label,split\n1,2,x,train\n1,2,x,dev\n", "wrong_split", "s.csv:3", "'dev'"),
    (b'f,g,label\n"1,5",2,x\n2.5,2,x\n', "not_a_number", "s.csv:2", "beside '2.5'"),
]


@pytest.mark.parametrize(("content", "kind", "path", "word"), BROKEN)
def test_a_broken_table_is_an_error_that_names_file_and_row(tmp_path, content, kind, path, word):
    good = "f,g,label\n1,2,x\n3,4,y\n"
    dataset, findings = read(write(tmp_path / "d", a=good, b=good, s=content), label_column="label")
    assert dataset is None and (kind, path) in errors(findings)
    assert word in findings.errors[0].message and findings.errors[0].site == "s"
    assert [site.name for site in findings.sites] == ["a", "b", "s"]


@pytest.mark.parametrize(
    ("rows", "has_hint"),
    [
        (b'25,"f"x,a\n', False),
        (b'25,"f,a\n26,"g,b\n', True),
        (b'25,f,"a', True),
        (b"25," + b"f" * 200_000 + b",a\n", True),
    ],
)
def test_an_open_quotation_mark_is_suspected_where_it_can_be(tmp_path, rows, has_hint):
    _, findings = read(write(tmp_path / "d", s=b"age,sex,label\n24,m,a\n" + rows))
    (problem,) = findings.errors
    assert problem.message.startswith("Line 3 cannot be read: ")
    assert ("nothing closes a quotation mark" in problem.message) == has_hint


TEXTS = [
    (["2020-01-31", "2021-12-01"], "dates"),
    (["2020-01-31T12:30:00Z", "2020-01-31 12:30"], "dates"),
    (["31.01.2020", "1.2.2021"], "dates"),
    (["01/31/2020", "12/1/99"], "dates"),
    (["31 Jan 2020", "1 March 2021"], "dates"),
    (["January 31, 2020", "Feb 1, 2020"], "dates"),
    (["12:30", "7:05:10"], "dates"),
    (["2020-01-31", "", "unknown", "2020-02-01", 3], "dates"),
    (["[1, 2]", "[3.5]"], "time_series"),
    (["1 2 3", "4 5.5 6e1"], "time_series"),
    (["1|2|3", "-1|2|3"], "time_series"),
    (["1,234", "2,225"], "not_a_number"),
    (["1,5", "7.5"], "not_a_number"),
    (["1,234,567.5", "1,5"], "not_a_number"),
    (["a/1.png", "a/2.png"], "image_paths"),
    ([f"the patient {n} was seen today" for n in range(6)], "free_text"),
    ([f"patient {n}" for n in range(60)], "too_many_categories"),
    ([f"ward {n % 60}" for n in range(600)], "too_many_categories"),
    ([*range(100), "high"], "stray_text"),
    ([*range(100), *["high", "low"] * 10], "too_many_categories"),
    ([f"patient {n}" for n in range(10_000)], "too_many_categories"),
]


@pytest.mark.parametrize(("cells", "kind"), TEXTS)
def test_a_column_of_other_texts_is_refused_at_the_first(tmp_path, cells, kind):
    _, findings = read(write(tmp_path / "d", a=column(cells)))
    first = next(row for row, cell in enumerate(cells) if isinstance(cell, str)) + 2
    assert errors(findings) == [(kind, f"a.csv:{first}")] and "'c'" in findings.errors[0].message


def test_empty_cells_can_be_refused(tmp_path):
    folder = write(tmp_path / "d", a=column([1, "", 3]), b=column([1, 2, 3]))
    _, findings = read(folder, missing="refuse")
    assert errors(findings) == [("missing_value", "a.csv:3")]


def test_categories_of_the_same_name_in_another_case_are_a_warning(tmp_path):
    a = column(["Male", "female"] * 9)
    b = column(["male", "female"] * 9)
    _, findings = read(write(tmp_path / "d", a=a, b=b))
    assert findings.counts["warning", "similar_names"] == 1


@pytest.mark.parametrize("text", ["1" + " " * 50_000 + "x", "1," * 50_000 + "x", "[" * 100_000])
def test_a_hostile_text_takes_no_time(tmp_path, text):
    start = time.process_time()
    read(write(tmp_path / "d", a=column([text, "y"])))
    read(write(tmp_path / "d", a=f"n,label\n1,{text.replace(',', '|')}\n2,x\n"))
    assert time.process_time() - start < 2


PARQUET = [
    ({"f": [[1, 2], [3]], "label": ["x", "y"]}, "time_series"),
    ({"f": [1, 2], "label": [["x", "y"], ["y"]]}, "several_labels"),
    ({"f": np.array(["2020-01-31", "2020-02-01"], "M8[D]"), "label": ["x", "y"]}, "dates"),
    ({"f": [1.0, 2.0], "label": [{"a": 1}, {"a": 2}]}, "wrong_column_type"),
    ({"f": [1.0, 2.0], "label": ["x", None]}, "missing_label"),
    ({"f": ["1,500", "2"], "label": ["x", "y"]}, "not_a_number"),
    ({"f": [1.0, 1e300], "label": [1, 2]}, "not_finite"),
    ({"f": [1.0, 2.0], "label": [0.5, 1.0]}, "float_label"),
]


@pytest.mark.parametrize(("columns", "kind"), PARQUET)
def test_parquet_of_the_wrong_type_is_an_error(tmp_path, columns, kind):
    _, findings = read(write_parquet(tmp_path / "d", "s", columns))
    assert [kind for kind, _ in errors(findings)] == [kind]


def test_a_damaged_parquet_file_is_an_error(tmp_path):
    folder = write_parquet(tmp_path / "d", "s", {"f": np.arange(50.0), "label": ["x"] * 50})
    content = (folder / "s.parquet").read_bytes()
    footer = content[:-8] + b"\xff\xff\xff\x7f" + content[-4:]
    for damaged in (content[:200], footer, b"f,g,label\n1,2,x\n", b""):
        (folder / "s.parquet").write_bytes(damaged)
        _, findings = read(folder)
        assert errors(findings) == [("damaged_table", "s.parquet")]


def test_parquet_without_pyarrow_is_an_error(tmp_path, monkeypatch):
    folder = write_parquet(tmp_path / "d", "s", {"f": [1.0], "label": ["x"]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert errors(read(folder)[1]) == [("pyarrow_missing", "s.parquet")]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_no_damage_to_a_table_ends_in_another_exception(tmp_path, suffix):
    columns = {"f": np.arange(20.0), "g": [True, False] * 10, "label": ["x", "ü"] * 10}
    if suffix == "csv":
        folder = write(tmp_path / "d", s=[[*columns], *zip(*columns.values(), strict=True)])
    else:
        folder = write_parquet(tmp_path / "d", "s", columns)

    path = folder / f"s.{suffix}"
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(content[: generator.integers(len(content) // 2, len(content))])
        for place in generator.integers(0, len(damaged), size=3):
            damaged[place] = generator.integers(0, 256)

        path.write_bytes(damaged)
        dataset, findings = read(folder)
        assert dataset is not None or findings.errors


def test_more_than_can_be_held_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.data.own.tables.MAX_TOTAL_BYTES", 80)  # 20 cells together
    rows = "f,label\n" + "".join(f"{row},x\n" for row in range(8))
    folder = write(tmp_path / "d", a=rows, c=rows)
    write_parquet(folder, "b", {"f": np.arange(8.0), "label": ["x"] * 8})
    assert errors(read(folder)[1])[:2] == [("too_large", "b.parquet"), ("too_large", "c.csv")]


@pytest.mark.slow
def test_the_time_to_read_grows_with_the_columns_not_with_their_square(tmp_path):
    """Gene expression has 20,000 columns. When every column was looked up among all, this took half
    a minute."""
    header = [*(f"gene{number}" for number in range(8_000)), "label"]
    rows = [[*range(label, 8_000 + label), label] for label in (0, 1)]
    start = time.process_time()
    dataset, _ = read(write(tmp_path / "d", a=[header, *rows]))
    assert dataset.x.shape == (2, 8_000) and time.process_time() - start < 3


def test_points_after_the_first_rows_of_a_long_column_say_what_points_mean(tmp_path, monkeypatch):
    """Texts of a long column of numbers are not kept, and all of its numbers decide together."""
    monkeypatch.setattr("fedtailor.data.own.table._BLOCK", 300)  # a hundred rows at a time
    rows = [f"{row},5;{row};{'xy'[row % 2]}" for row in range(1000)]
    rows[500] = "1,5;1.250;x"
    dataset, _ = read(write(tmp_path / "one", a="\n".join(["f;ck;label", *rows])))
    assert sorted(dataset.x[:, 1])[-1] == 1250

    rows[600] = "1,5;0.250;x"
    dataset, _ = read(write(tmp_path / "two", a="\n".join(["f;ck;label", *rows])))
    assert {1.25, 0.25} <= set(dataset.x[:, 1].tolist())


@pytest.mark.slow
def test_wide_tables_are_compared_in_seconds(tmp_path):
    """Every column that a table lacks was looked up in a new list of all columns, for each other."""
    tables = {}
    for site in "ab":
        lacking = [f"{site}{number}" for number in range(80)]
        header = [*lacking, *(f"gene{number}" for number in range(5_000)), "label"]
        tables[site] = [header, *([*range(5_080), label] for label in (0, 1))]

    start = time.process_time()
    findings = read(write(tmp_path / "d", **tables)).findings
    assert findings.counts["error", "missing_column"] == 160 and time.process_time() - start < 4


@pytest.mark.slow
def test_tables_with_other_names_for_all_columns_are_compared_in_seconds(tmp_path):
    """Nobody can spell thousands of columns differently: they are other columns."""
    tables = {}
    for site in "ab":
        header = [*(f"{site}{number}" for number in range(3_000)), "label"]
        tables[site] = [header, *([*range(3_000), label] for label in (0, 1))]

    start = time.process_time()
    findings = read(write(tmp_path / "d", **tables)).findings
    assert findings.counts["error", "missing_column"] == 6_000 and time.process_time() - start < 20


# Images in tables


@pytest.fixture
def pictures(tmp_path, make):
    """Six gray images of that gray, and a function that writes tables of them."""
    folder = tmp_path / "d"
    for gray in range(6):
        make.save(folder / "images" / f"{gray}.png", np.full((4, 5), gray, dtype=np.uint8))

    (folder / "images" / "broken.png").write_bytes(b"not an image")

    def tables(*rows):
        b = [["label", "image", "split"], ["x", "images/5.png", "test"]]
        return write(folder, a=[["image", "label", "split", "age"], *rows], b=b)

    return tables


def test_images_named_by_tables_are_read_in_order(pictures):
    folder = pictures(
        ["images/3.png", "y", "test", 1],
        ["images/0.png", "x", "train", 2],
        ["images/broken.png", "x", "train", 2],
        ["images/2.png", "y", "train", 3],
    )
    dataset, findings = read(folder)
    assert dataset.x.shape == (4, 4, 5, 1) and dataset.x[:, 0, 0, 0].tolist() == [0, 2, 3, 5]
    assert dataset.y.tolist() == [0, 1, 1, 0] and dataset.domains.tolist() == [0, 0, 0, 1]
    assert {"unused_column", "not_an_image"} <= kinds(findings)
    assert findings.sites[0].train == {"x": 1, "y": 1} and findings.sites[1].test == {"x": 1}
    (folder / "b.csv").unlink()
    dataset, _ = read(folder, group="age", label_column="label")
    assert dataset.groups.tolist() == [1, 2, 0] and dataset.num_official_train == 2


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../secret.png", "image_outside"),
        ("/etc/passwd", "image_outside"),
        ("images/link.png", "image_outside"),
        ("images/none.png", "missing_image"),
        ("images/loop.png", "missing_image"),
        ("images", "missing_image"),
        ("a\x00b.png", "missing_image"),
    ],
)
def test_an_image_that_is_not_in_the_folder_is_an_error(pictures, name, kind):
    folder = pictures(["images/1.png", "x", "train", 1], [name, "x", "train", 2])
    (folder / "images" / "link.png").symlink_to("/etc/hosts")
    (folder / "images" / "loop.png").symlink_to("loop.png")
    assert errors(read(folder)[1])[0] == (kind, "a.csv:3")


# Labels


@pytest.mark.parametrize(
    ("labels", "kind", "row"),
    [
        (["1", "0.5"], "float_label", ":3"),
        (["flu", "covid", "flu|covid"], "several_labels", ":4"),
        (["a;b", "b;c", "a;c"], "several_labels", ":2"),
        (["flu", "covid", "covid, flu"], "several_labels", ":4"),
        (["[1, 0]", "[0, 1]"], "several_labels", ":2"),
        ([1000 + n % 31 for n in range(31 * 4)], "likely_regression", ""),
        ([f"class {n}" for n in range(4)], "too_many_classes", None),
    ],
)
def test_labels_that_cannot_be_classes_are_refused(tmp_path, labels, kind, row, monkeypatch):
    if row is None:
        monkeypatch.setattr("fedtailor.data.own.labels.MAX_CLASSES", 3)

    rows = [["n", "label"], *([number, label] for number, label in enumerate(labels))]
    _, findings = read(write(tmp_path / "d", a=rows))
    assert errors(findings) == [(kind, "" if row is None else f"a.csv{row}")]


@pytest.mark.parametrize(
    "labels",
    [
        ["benign, type 1", "benign, type 2"],
        ["a;b", "c;d"],
        ["I/II", "III/IV"],
        [1000 + n % 30 for n in range(30)],
        [1000 + n % 31 for n in range(31 * 5)],
        [f"class {n}" for n in range(40)],
    ],
)
def test_other_labels_are_classes(tmp_path, labels):
    rows = [["n", "label"], *([number, label] for number, label in enumerate(labels))]
    dataset, _ = read(write(tmp_path / "d", a=rows))
    assert dataset.class_names == tuple(sorted({str(label) for label in labels}))


def test_numbers_beside_text_are_classes_with_a_warning(tmp_path):
    folder = write(tmp_path / "d", a="f,label\n1,1\n2,0.5\n", b="f,label\n3,one\n5,0\n")
    dataset, findings = read(folder)
    assert dataset.class_names == ("0", "0.5", "1", "one")
    assert ("warning", "mixed_labels") in findings.counts


def test_a_whole_number_is_the_same_class_beside_text_and_alone(tmp_path):
    """Real sites read their labels alone, and agree on their names."""
    a = "f,label\n1,01\n2,02\n"
    both, _ = read(write(tmp_path / "both", a=a, b="f,label\n3,01\n5,UNK\n"))
    alone, _ = read(write(tmp_path / "alone", a=a))
    assert both.class_names == ("1", "2", "UNK") and alone.class_names == ("1", "2")


def test_words_for_no_label_are_classes_with_a_warning(tmp_path):
    folder = write(tmp_path / "d", a="f,label\n1,NA\n2,ill\n3,NA\n4,none\n", b="f,label\n3,ill\n")
    dataset, findings = read(folder)
    assert dataset.class_names == ("NA", "ill", "none")
    (said,) = [problem for problem in findings.problems if problem.kind == "doubtful_label"]
    assert "'NA' in 2 rows" in said.message


@pytest.mark.parametrize(("rows_each", "warns"), [(1, True), (2, False)])
def test_labels_that_may_be_names_of_cases_are_a_warning(tmp_path, rows_each, warns):
    names = [f"P{number:02d}" for number in range(21) for _ in range(rows_each)]
    lines = [f"{row},{name}" for row, name in enumerate(names)]
    _, findings = read(write(tmp_path / "d", a="\n".join(["f,label", *lines])))
    assert (("warning", "single_rows") in findings.counts) == warns


@pytest.mark.parametrize("name", ["label", "Diagnosis", "TARGET", "y", "Class_Label", "labels"])
def test_an_obvious_column_of_labels_is_taken(tmp_path, name):
    a = f"n,{name},m\n1,u,3\n2,v,4\n"
    b = f"{name},m,n\nu,3,5\nv,4,6\n"
    dataset, findings = read(write(tmp_path / "d", a=a, b=b))
    assert dataset.class_names == ("u", "v")
    assert [each.name for each in dataset.raw.columns] == ["n", "m"]
    assert any(f"'{name}'" in note for note in findings.notes) == (name != "label")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            "age,sex,tumor stage\n50,f,I\n60,m,II\n70,f,I\n80,m,II\n",
            ["'data.label_column=tumor stage'", "data.label_column=sex"],
        ),
        ("class,outcome,n\nu,x,1\nv,y,2\n", ["data.label_column=class"]),
        ("y,group,n\n0.5,a,1\n0.7,b,2\n0.1,a,3\n0.2,b,4\n", ["data.label_column=group"]),
        ("a,b\n0.5,1.5\n0.7,2.5\n", ["data.label_column=NAME"]),
    ],
)
def test_otherwise_the_error_says_what_to_type(tmp_path, text, options):
    _, findings = read(write(tmp_path / "d", a=text))
    assert errors(findings) == [("missing_label_column", "a.csv")]
    assert all(f"--set {option}" in findings.errors[0].message for option in options)


def test_a_column_called_like_a_label_that_holds_none_is_passed_over(tmp_path):
    dataset, _ = read(write(tmp_path / "d", a="x,y,label\n1,0.5,u\n2,0.25,v\n"))
    assert dataset.class_names == ("u", "v") and dataset.x.shape == (2, 2)
    a = "n,label\n1,u\n2,v\n"
    b = "n,diagnosis\n1,u\n2,v\n"
    _, findings = read(write(tmp_path / "e", a=a, b=b))
    assert "missing_label_column" in kinds(findings)


# Groups

HEAD = ["patient", "n", "label"]


def patients(count, start=0):
    return [[number // 3 + start, number, "xyx"[number % 3]] for number in range(count)]


def test_a_column_of_groups_is_no_feature_and_keeps_patients_together(tmp_path):
    b = [HEAD[::-1], *(row[::-1] for row in patients(60, start=100))]
    folder = write(tmp_path / "d", a=[HEAD, *patients(60)], b=b)
    options = {"path": str(folder), "group": "patient", "val_fraction": 0.2}
    dataset, _ = read_own(str(folder), DataOptions(**options))
    assert [each.name for each in dataset.raw.columns] == ["n"] and "patient" in dataset.raw.unused
    assert dataset.groups.tolist() == [number // 3 for number in range(120)]
    for changes in ({}, {"partition": "iid", "clients": 5}):
        for rows in build(DataOptions(**options, **changes), run_seed=0).positions:
            used = [set(dataset.groups[part]) for part in rows]
            assert all(used) and sum(map(len, used)) == len(set.union(*used))


@pytest.mark.parametrize("name", ["patient_id", "ID", "subject no", "patient age", "idle"])
def test_an_identifier_that_is_a_feature_is_a_warning(tmp_path, name):
    folder = write(tmp_path / "d", a=[[name, "n", "label"], *patients(60)])
    is_identifier = name not in ("patient age", "idle")
    assert ("identifier" in kinds(read(folder)[1])) == is_identifier
    assert "identifier" not in kinds(read(folder, group=name)[1])


@pytest.mark.parametrize(
    ("rows", "group", "problem"),
    [
        ([["p", "n", "label"], [1, 1, "x"], ["", 2, "y"]], "p", ("missing_group", "a.csv:3")),
        ([HEAD, *patients(6)], "patent", ("missing_group_column", "a.csv")),
        ([HEAD, *patients(6)], "label", ("missing_group_column", "a.csv")),
        (
            [[*HEAD, "split"], [1, 2, "x", "train"], [1, 3, "y", "test"], [2, 4, "x", "test"]],
            "patient",
            ("group_in_train_and_test", ""),
        ),
    ],
)
def test_groups_that_cannot_be_used_are_an_error(tmp_path, rows, group, problem):
    _, findings = read(write(tmp_path / "d", a=rows), group=group, label_column="label")
    assert errors(findings) == [problem]


def test_groups_at_several_sites_are_a_warning_and_on_one_side_at_all(tmp_path):
    folder = write(tmp_path / "d", a=[HEAD, *patients(30)], b=[HEAD, *patients(30, start=7)])
    dataset, findings = read(folder, group="patient")
    assert ("warning", "group_at_several_sites") in findings.counts
    rows = build(DataOptions(path=str(folder), group="patient"), run_seed=0).positions
    train = set(dataset.groups[np.concatenate([client.train for client in rows])])
    test = set(dataset.groups[np.concatenate([client.test for client in rows])])
    assert train and test and not train & test


def test_the_errors_of_a_single_file_name_it_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in ("f,label\n1,0.5\n", "f,label\n", "f,f\n1,2\n"):
        (tmp_path / "x.csv").write_text(text)
        with pytest.raises(DataError) as caught:
            load_own("x.csv", DataOptions())
        assert caught.value.message.count("x.csv") == 1, caught.value.message
