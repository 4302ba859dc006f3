"""Tables as hospitals have them: empty cells, text, dates, patients, and columns that are not
features."""

import csv
import os
import textwrap
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data import cache
from fedtailor.data.build import build
from fedtailor.data.columns import Column
from fedtailor.data.options import DataOptions
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.layout import recognize
from fedtailor.data.own.read import load_own, read_own


def write(folder, **tables):
    """Write a CSV file per site: a text, or rows."""
    folder.mkdir(exist_ok=True)
    for site, rows in tables.items():
        path = folder / f"{site}.csv"
        if isinstance(rows, str):
            path.write_text(rows, encoding="utf-8")
        else:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(rows)
    return folder


def read(folder, **options):
    return read_own(str(folder), DataOptions(path=str(folder), **options))


def errors(findings):
    return [(one.kind, one.path) for one in findings.errors]


def column(cells, labels="xy"):
    """Return a table of one column ``c``, a number, and alternating labels."""
    rows = [[cell, row, labels[row % 2]] for row, cell in enumerate(cells)]
    return [["c", "n", "label"], *rows]


# Empty cells


@pytest.mark.parametrize("word", ["", " ", "NA", "n/a", "NaN", "null", "None", "?", "#N/A", "<NA>"])
def test_every_word_for_an_empty_cell_is_replaced_by_the_median_of_training_rows(tmp_path, word):
    rows = column([1, 2, word, 4, 100])
    for number, part in enumerate(["train", "train", "train", "train", "test"]):
        rows[number + 1].append(part)
    rows[0].append("split")
    folder = write(
        tmp_path / "d", a=rows, b=[rows[0], [50, 9, "y", "train"], [60, 10, "x", "train"]]
    )
    dataset, findings = read(folder)
    assert not findings.errors and any(
        "1 empty cell in 7 rows, by column: 'c' 1." in note for note in findings.notes
    )
    divided = build(DataOptions(path=str(folder)), run_seed=0)
    place = int(np.flatnonzero(np.isnan(dataset.x[:, 0]))[0])
    assert (
        divided.dataset.x[place, 0] == 2
    )  # of 1, 2 and 4, which outweigh 50 and 60; not of the test row
    assert divided.dataset.columns.columns[0] == Column("c", "number", fill=2.0)
    assert np.isfinite(divided.dataset.x).all()


def test_empty_cells_can_be_refused(tmp_path):
    folder = write(tmp_path / "d", a=column([1, "", 3]), b=column([1, 2, 3]))
    dataset, findings = read(folder, missing="refuse")
    assert dataset is None and errors(findings) == [("missing_value", "a.csv:3")]
    assert 'data.missing = "refuse"' in findings.errors[0].message


def test_new_clients_have_no_part_in_medians_and_categories(tmp_path):
    folder = write(
        tmp_path / "d", a=column([1, 3, "", 3, 3]), b=column([1000, 1000, 1000, 1000, ""])
    )
    divided = build(DataOptions(path=str(folder), new_clients=1, test_share=0.0), run_seed=0)
    assert divided.dataset.columns.columns[0].fill == 3
    folder = write(tmp_path / "e", a=column(["u", "v", "u", "v"]), b=column(["w", "w", "u", "w"]))
    divided = build(DataOptions(path=str(folder), new_clients=1, test_share=0.0), run_seed=0)
    assert divided.dataset.columns.columns[0].categories == ("u", "v")
    (note,) = [note for note in divided.notes if "with a category" in note]
    assert "'c' 3" in note


def test_a_row_without_a_label_stays_an_error(tmp_path):
    _, findings = read(write(tmp_path / "d", a="n,label\n1,x\n2,\n3,y\n"))
    assert errors(findings) == [("missing_label", "a.csv:3")]


def test_a_column_without_any_value_is_left_out(tmp_path):
    folder = write(tmp_path / "d", a=column(["", "NA"]), b=column(["?", ""]))
    dataset, findings = read(folder)
    assert ("skipped", "empty_column") in findings.counts and "'c'" in findings.problems[0].message
    assert [each.name for each in dataset.raw.columns] == ["c", "n"]
    assert np.isnan(dataset.x[:, 0]).all()
    used = build(DataOptions(path=str(folder), test_share=0.0), run_seed=0).dataset
    assert used.x.shape == (4, 1)
    assert used.columns.names == ("n",)
    assert "c" in used.columns.unused
    _, findings = read(write(tmp_path / "e", a="c,label\n,x\n,y\n"))
    assert [one.kind for one in findings.errors] == ["no_features"]


def test_a_column_without_values_at_one_site_only_is_kept(tmp_path):
    texts = write(tmp_path / "d", a=column(["", "", ""]), b=column(["u", "v", "u"]))
    divided = build(DataOptions(path=str(texts), test_share=0.0), run_seed=0)
    assert divided.dataset.columns.feature_names == ("c=missing", "c=u", "c=v", "n")
    assert divided.dataset.x[:3, 0].tolist() == [1, 1, 1] and divided.dataset.x[3:, 0].tolist() == [
        0,
        0,
        0,
    ]


def test_none_is_a_category_where_another_site_has_text(tmp_path):
    folder = write(tmp_path / "d", a=column(["none", "", "none"]), b=column(["u", "none", ""]))
    dataset, _ = read(folder)
    assert dataset.raw.columns[0].texts == ("none", "u")
    np.testing.assert_array_equal(
        dataset.x[:, 0], np.array([0, np.nan, 0, 1, 0, np.nan], np.float32)
    )
    dataset, findings = read(
        write(tmp_path / "e", a=column(["none", "", "3"]), b=column([1, "none", 2]))
    )
    assert (
        not dataset.raw.columns[0].texts
        and np.isnan(dataset.x[:, 0]).sum() == 3
        and not findings.errors
    )


def test_a_site_that_lacks_a_column_is_an_error(tmp_path):
    folder = write(tmp_path / "d", a=column("uvu"), b=column("uvv"), c="n,label\n1,x\n2,y\n")
    dataset, findings = read(folder)
    assert dataset is None and errors(findings) == [("missing_column", "c.csv")]


# Categories


def test_text_is_a_category_whatever_the_order_of_sites_and_columns(tmp_path):
    one = "sex,age,smoker,label\nm,50,never,x\nf,60,none,y\nm,70,never,x\n"
    other = "smoker,label,age,sex\ncurrent,y,51,diverse\nnever,x,61, f \n,y,71,m\n"
    folder = write(tmp_path / "d", a=one, b=other)
    dataset, findings = read(folder)
    assert not findings.errors
    assert [each.texts for each in dataset.raw.columns] == [
        ("diverse", "f", "m"),
        (),
        ("current", "never", "none"),
    ]
    assert dataset.x[:, 0].tolist() == [2, 1, 2, 0, 1, 2]
    divided = build(DataOptions(path=str(folder), test_share=0.0), run_seed=0)
    plan = divided.dataset.columns
    assert plan.feature_names[:4] == ("sex=diverse", "sex=f", "sex=m", "age")
    assert plan.feature_names[4:] == (
        "smoker=current",
        "smoker=missing",
        "smoker=never",
        "smoker=none",
    )
    assert divided.dataset.x[4].tolist() == [0, 1, 0, 61, 0, 0, 1, 0]
    assert plan.unused == ("label",)
    assert any("1 column of numbers and 2 columns of categories" in note for note in findings.notes)
    assert any("'sex' (3), 'smoker' (3)" in note for note in findings.notes)


def test_parquet_and_csv_hold_the_same_categories(tmp_path):
    cells = {
        "sex": ["m", None, "f", "m"],
        "stage": [1.0, 2.0, None, 3.0],
        "label": ["x", "y", "x", "y"],
    }
    write(
        tmp_path / "d",
        a=[
            [*cells],
            *zip(*([c if c is not None else "" for c in v] for v in cells.values()), strict=True),
        ],
    )
    (tmp_path / "e").mkdir()
    columns = {name: pa.array(values) for name, values in cells.items()}
    columns["sex"] = columns["sex"].dictionary_encode()
    pq.write_table(pa.table(columns), tmp_path / "e" / "a.parquet")
    pq.write_table(
        pa.table({**columns, "stage": pa.array(["1", "2.0", "", "3"])}),
        tmp_path / "e" / "b.parquet",
    )
    first, _ = read(tmp_path / "d")
    second, findings = read(tmp_path / "e")
    assert not findings.errors and first.raw == second.raw
    np.testing.assert_array_equal(second.x, np.concatenate([first.x, first.x]))


def test_numbers_that_could_be_codes_and_truth_values_stay_numbers(tmp_path):
    dataset, _ = read(write(tmp_path / "d", a="code,flag,label\n101,true,x\n202,FALSE,y\n101,,x\n"))
    assert not any(each.texts for each in dataset.raw.columns)
    np.testing.assert_array_equal(
        dataset.x, np.array([[101, 1], [202, 0], [101, np.nan]], np.float32)
    )


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_column_of_numbers_and_text_is_categories_with_a_warning(tmp_path, first):
    """Also if one site has only numbers: they are read again as text, and 1, 1.0 and 01 are one
    category."""
    tables = {
        "a": column(["1", "1.0", "01", "2.5", "True"]),
        "b": column(["1", "abc", "2.50", "", "true"]),
    }
    if first == "b":
        tables = {"a": tables["b"], "b": tables["a"]}
    dataset, findings = read(write(tmp_path / "d", **tables))
    assert [(one.severity, one.kind) for one in findings.problems if one.kind != "few_examples"][
        :1
    ] == [("warning", "mixed_column")]
    assert "numbers such as '1' and text such as 'abc'" in findings.problems[0].message
    assert dataset.raw.columns[0].texts == ("1", "2.5", "abc", "true")


def test_text_far_down_in_a_column_of_numbers_is_found(tmp_path):
    cells = [
        *(number % 7 for number in range(500)),
        "low",
        *(number % 5 for number in range(300)),
        "high",
    ]
    dataset, _ = read(write(tmp_path / "d", a=column(cells)))
    assert dataset.raw.columns[0].texts == ("0", "1", "2", "3", "4", "5", "6", "high", "low")
    assert (dataset.x[:, 0] == 8).sum() == 1 and len(dataset.x) == 802
    assert dataset.x[:500, 0].tolist() == [number % 7 for number in range(500)]


def test_categories_of_the_same_name_in_another_case_are_a_warning(tmp_path):
    _, findings = read(
        write(tmp_path / "d", a=column(["Male", "female"] * 9), b=column(["male", "female"] * 9))
    )
    (problem,) = [one for one in findings.problems if one.kind == "similar_names"]
    assert "'Male', 'male'" in problem.message and "'c'" in problem.message


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([f"patient {number}" for number in range(60)], "60 different texts.*--set data.group=c"),
        ([f"ward {number % 60}" for number in range(600)], "60 different texts.*fewer"),
        ([*range(100), "n.d."], "101 different texts, such as 'n.d.'.*Most are numbers.*1 text"),
        (
            [f"patient {number}" for number in range(10_000)],
            "more than 1000 different texts.*identifier",
        ),
    ],
)
def test_too_many_categories_are_refused_with_the_likely_reason(tmp_path, cells, words):
    start = time.process_time()
    dataset, findings = read(write(tmp_path / "d", a=column(cells)))
    assert dataset is None and [one.kind for one in findings.errors] == ["too_many_categories"]
    with pytest.raises(DataError, match=f"Column 'c' has {words}"):
        load_own(str(tmp_path / "d"), DataOptions(path=str(tmp_path / "d")))
    assert time.process_time() - start < 5


def test_fifty_categories_are_read(tmp_path):
    dataset, _ = read(
        write(tmp_path / "d", a=column([f"ward {number % 50}" for number in range(300)]))
    )
    assert len(dataset.raw.columns[0].texts) == 50


def test_hostile_names_of_columns_and_categories_are_made_safe(tmp_path):
    header = ["=1+1", "a\nb", "<script>", "label"]
    rows = [
        ["@x", 1, "\x1b[31m", "x"],
        ["@x", 2, "\u202e", "y"],
        *(["-", number, "ok", "x"] for number in range(20)),
    ]
    folder = write(tmp_path / "d", a=[header, *rows])
    dataset, findings = read(folder)
    assert [each.name for each in dataset.raw.columns] == ["=1+1", "a\\x0ab", "<script>"]
    assert dataset.raw.columns[2].texts == ("\\u202e", "\\x1b[31m", "ok")
    divided = build(DataOptions(path=str(folder)), run_seed=0)
    printed = "".join([*divided.dataset.columns.feature_names, *divided.notes, *findings.notes])
    assert printed.isprintable()


# What is not supported


@pytest.mark.parametrize(
    "cells",
    [
        ["2020-01-31", "2021-12-01"],
        ["2020-01-31T12:30:00Z", "2020-01-31 12:30"],
        ["31.01.2020", "1.2.2021"],
        ["01/31/2020", "12/1/99"],
        ["2020/01/31", "2020/2/1"],
        ["31 Jan 2020", "1 March 2021"],
        ["31-JAN-20", "01-FEB-21"],
        ["January 31, 2020", "Feb 1, 2020"],
        ["12:30", "7:05:10"],
        ["2020-01-31", "", "unknown", "2020-02-01"],
        ["2020-01-31", "NA", 3],
    ],
)
def test_dates_are_refused_with_what_to_do_instead(tmp_path, cells):
    _, findings = read(write(tmp_path / "d", a=column(cells)))
    assert [one.kind for one in findings.errors] == ["dates"]
    message = findings.errors[0].message
    assert "Column 'c' holds dates or times, such as" in message and "age in years" in message


@pytest.mark.parametrize(
    "cells", [["[1, 2]", "[3.5]"], ["1 2 3", "4 5.5 6e1"], ["1;2;3", "4;5;6"], ["1|2|3", "-1|2|3"]]
)
def test_lists_in_cells_are_refused(tmp_path, cells):
    _, findings = read(write(tmp_path / "d", a=column(cells)))
    assert [one.kind for one in findings.errors] == [
        "time_series"
    ] and "Time series" in findings.errors[0].message


@pytest.mark.parametrize("cells", [["1,5", "2,25"], ["1.234,5", "7"], ["1,234,567.5", "12"]])
def test_numbers_with_commas_are_refused(tmp_path, cells):
    _, findings = read(write(tmp_path / "d", a=column(cells)))
    assert [one.kind for one in findings.errors] == ["not_a_number"]
    assert "with a point and without commas" in findings.errors[0].message


@pytest.mark.parametrize(
    "cells",
    [["120/80", "130/85"], ["G2P1", "10-12"], ["N0 M1", "type II b"], ["+", "-"], [".", "<5"]],
)
def test_other_short_texts_are_categories(tmp_path, cells):
    dataset, findings = read(write(tmp_path / "d", a=column(cells)))
    assert not findings.errors and dataset.raw.columns[0].texts == tuple(sorted(cells))


@pytest.mark.parametrize(
    "text", ["1" + " " * 100_000 + "x", "1" * 100_000 + "x", "1," * 50_000 + "x", "[" * 100_000]
)
def test_a_hostile_text_takes_no_time(tmp_path, text):
    start = time.process_time()
    read(write(tmp_path / "d", a=column([text, "y"])))
    read(write(tmp_path / "d", a=f"n,label\n1,{text.replace(',', '|')}\n2,x\n"))
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "labels",
    [
        ["flu", "covid", "flu|covid"],
        ["a;b", "b;c", "a;c"],
        ["flu", "covid", "covid, flu"],
        ["[1, 0]", "[0, 1]"],
    ],
)
def test_several_labels_per_example_are_refused(tmp_path, labels):
    rows = [["n", "label"], *([number, label] for number, label in enumerate(labels))]
    _, findings = read(write(tmp_path / "d", a=rows))
    assert [one.kind for one in findings.errors] == [
        "several_labels"
    ] and "multi-label" in findings.errors[0].message


@pytest.mark.parametrize(
    "labels", [["benign, type 1", "benign, type 2"], ["a;b", "c;d"], ["I/II", "III/IV"]]
)
def test_labels_with_punctuation_are_single(tmp_path, labels):
    rows = [["n", "label"], *([number, label] for number, label in enumerate(labels))]
    dataset, _ = read(write(tmp_path / "d", a=rows))
    assert dataset.class_names == tuple(labels)


def test_a_dicom_file_alone_is_refused(tmp_path):
    for name in ("scan.dcm", "IM1"):
        (tmp_path / name).write_bytes(b"\0" * 128 + b"DICM")
        _, findings = read_own(str(tmp_path / name), DataOptions())
        assert [one.kind for one in findings.errors] == ["dicom"] and "PNG" in findings.errors[
            0
        ].message


# The column of the labels


@pytest.mark.parametrize(
    "name", ["label", "Diagnosis", "TARGET", "class", "y", "outcome", "Class_Label", "labels"]
)
def test_an_obvious_column_of_labels_is_taken(tmp_path, name):
    dataset, findings = read(
        write(tmp_path / "d", a=f"n,{name},m\n1,u,3\n2,v,4\n", b=f"{name},m,n\nu,3,5\nv,4,6\n")
    )
    assert dataset.class_names == ("u", "v") and [each.name for each in dataset.raw.columns] == [
        "n",
        "m",
    ]
    assert any(f"column '{name}'" in note for note in findings.notes) == (name != "label")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "age,sex,tumor stage\n50,f,I\n60,m,II\n70,f,I\n80,m,II\n",
            "No column is obviously.*--set 'data.label_column=tumor stage' .2 values. or --set data.label_column=sex",
        ),
        (
            "class,outcome,n\nu,x,1\nv,y,2\n",
            "Several columns.*'class', 'outcome'.*--set data.label_column=class",
        ),
        (
            "y,group,n\n0.5,a,1\n0.7,b,2\n0.1,a,3\n0.2,b,4\n",
            "No column is obviously.*--set data.label_column=group",
        ),
        (
            "a,b\n0.5,1.5\n0.7,2.5\n",
            "the columns are: 'a', 'b'. Say which one it is: --set data.label_column=NAME",
        ),
    ],
)
def test_otherwise_the_error_says_what_to_type(tmp_path, text, words):
    folder = write(tmp_path / "d", a=text)
    _, findings = read(folder)
    assert errors(findings) == [("missing_label_column", "a.csv")]
    with pytest.raises(DataError, match=words):
        load_own(str(folder), DataOptions())


def test_a_column_called_like_a_label_that_holds_none_is_passed_over(tmp_path):
    dataset, _ = read(write(tmp_path / "d", a="x,y,label\n1,0.5,u\n2,0.25,v\n"))
    assert dataset.class_names == ("u", "v") and dataset.x.shape == (2, 2)
    _, findings = read(write(tmp_path / "e", a="n,label\n1,0.5\n2,0.7\n"))
    assert [one.kind for one in findings.errors] == ["float_label"]


def test_sites_that_call_it_differently_are_refused(tmp_path):
    folder = write(tmp_path / "d", a="n,label\n1,u\n2,v\n", b="n,diagnosis\n1,u\n2,v\n")
    _, findings = read(folder)
    assert [one.kind for one in findings.errors] == ["missing_label_column"]


# Groups


def patients(count, start=0):
    return [[number // 3 + start, number, "xyx"[number % 3]] for number in range(count)]


def test_a_column_of_groups_is_no_feature_and_keeps_patients_together(tmp_path):
    head = ["patient", "n", "label"]
    folder = write(
        tmp_path / "d",
        a=[head, *patients(60)],
        b=[head[::-1], *(row[::-1] for row in patients(60, start=100))],
    )
    options = DataOptions(path=str(folder), group="patient", val_fraction=0.2)
    dataset, findings = read_own(str(folder), options)
    assert [each.name for each in dataset.raw.columns] == ["n"] and "patient" in dataset.raw.unused
    assert dataset.groups.tolist() == [number // 3 for number in range(120)]
    assert any("40 groups" in note for note in findings.notes)
    assert {one.kind for one in findings.problems} == {"duplicate_across_sites"}
    for changes in ({}, {"partition": "iid", "clients": 5}):
        divided = build(
            DataOptions(path=str(folder), group="patient", val_fraction=0.2, **changes), run_seed=0
        )
        for rows in divided.rows:
            used = [set(dataset.groups[part]) for part in rows]
            assert all(used) and sum(map(len, used)) == len(set.union(*used))


@pytest.mark.parametrize("name", ["patient_id", "Patient", "ID", "subject no", "MRN"])
def test_an_identifier_that_is_a_feature_is_a_warning(tmp_path, name):
    folder = write(tmp_path / "d", a=[[name, "n", "label"], *patients(60)])
    _, findings = read(folder)
    (problem,) = [one for one in findings.problems if one.kind == "identifier"]
    assert problem.severity == "warning" and f"data.group={name}" in problem.message
    _, findings = read(folder, group=name)
    assert "identifier" not in {one.kind for one in findings.problems}
    _, findings = read(write(tmp_path / "e", a=[["patient age", "idle", "label"], *patients(60)]))
    assert "identifier" not in {one.kind for one in findings.problems}


def test_a_row_without_a_group_is_named(tmp_path):
    folder = write(tmp_path / "d", a="p,n,label\n1,1,x\n,2,y\nNA,3,x\n")
    _, findings = read(folder, group="p")
    assert (
        errors(findings) == [("missing_group", "a.csv:3")]
        and "2 rows have no group" in findings.errors[0].message
    )


@pytest.mark.parametrize(
    ("group", "words"), [("patent", "did you mean 'patient'"), ("label", "holds the labels")]
)
def test_a_column_of_groups_that_is_not_there_is_an_error(tmp_path, group, words):
    folder = write(tmp_path / "d", a=[["patient", "n", "label"], *patients(6)])
    _, findings = read(folder, group=group, label_column="label")
    assert [one.kind for one in findings.errors] == [
        "missing_group_column"
    ] and words in findings.errors[0].message


def test_groups_in_training_and_in_test_are_counted(tmp_path):
    rows = [
        [number // 2, number, "xy"[number % 2], "test" if number in (3, 5, 8, 9) else "train"]
        for number in range(12)
    ]
    folder = write(tmp_path / "d", a=[["p", "n", "label", "split"], *rows])
    dataset, findings = read(folder, group="p")
    assert dataset is None and [one.kind for one in findings.errors] == ["group_in_train_and_test"]
    assert "2 groups have examples in training and in test" in findings.errors[0].message


def test_groups_at_several_sites_are_a_warning(tmp_path):
    head = ["patient", "n", "label"]
    folder = write(tmp_path / "d", a=[head, *patients(30)], b=[head, *patients(30, start=7)])
    dataset, findings = read(folder, group="patient")
    (problem,) = [one for one in findings.problems if one.kind == "group_at_several_sites"]
    assert problem.severity == "warning" and "3 groups are at several sites" in problem.message
    divided = build(DataOptions(path=str(folder), group="patient"), run_seed=0)
    train, test = (
        set(dataset.groups[np.concatenate([getattr(each, part) for each in divided.rows])])
        for part in ("train", "test")
    )
    assert train and test and not train & test


def photos(folder, make, layout="{site}/{label}"):
    for site in "AB":
        for label in ("cat", "dog"):
            for number in range(12):
                name = f"patient{number // 2}{label}{site}_{number}.png"
                make.save(
                    folder / layout.format(site=site, label=label) / name,
                    make.pixels(ord(site) * 10_000 + ord(label[0]) * 100 + number),
                )
    return folder


def test_an_expression_finds_the_group_of_a_picture_in_its_path(folder, make):
    photos(folder, make)
    options = {"path": str(folder), "group": r"patient(\d+\w+)_"}
    dataset, findings = read_own(str(folder), DataOptions(**options))
    assert len(np.unique(dataset.groups)) == 24 and not findings.errors
    divided = build(DataOptions(partition="iid", clients=3, **options), run_seed=0)
    groups = [set(dataset.groups[np.concatenate(rows)]) for rows in divided.rows]
    assert sum(map(len, groups)) == 24
    assert all(
        not set(dataset.groups[rows.train]) & set(dataset.groups[rows.test])
        for rows in divided.rows
    )


@pytest.mark.parametrize("group", ["patient", "(", "(a)(b)", "(?P<x>", "(a){99999999999}"])
def test_an_expression_must_have_one_group(folder, make, group):
    photos(folder, make)
    _, findings = read_own(str(folder), DataOptions(path=str(folder), group=group))
    assert [one.kind for one in findings.errors] == [
        "wrong_group"
    ] and "such as 'patient(\\d+)'" in findings.errors[0].message


def test_pictures_without_a_group_are_named(folder, make):
    photos(folder, make)
    make.save(folder / "A" / "cat" / "other.png", make.pixels(1))
    _, findings = read_own(str(folder), DataOptions(path=str(folder), group=r"patient(\d+)"))
    assert errors(findings) == [("missing_group", "A/cat/other.png")]


def test_pictures_of_a_group_in_both_folders_are_counted(folder, make):
    photos(folder, make, layout="{site}/train/{label}")
    make.save(folder / "A" / "test" / "cat" / "patient0catA_99.png", make.pixels(1))
    make.save(folder / "A" / "test" / "cat" / "patient77catA_99.png", make.pixels(2))
    _, findings = read_own(str(folder), DataOptions(path=str(folder), group=r"patient(\d+\w+)_"))
    assert [one.kind for one in findings.errors] == ["group_in_train_and_test"]
    assert "1 group has" in findings.errors[0].message


def test_tables_of_pictures_have_a_column_of_groups(folder, make):
    rows = [[f"{number}.png", number // 2, "xy"[number % 2]] for number in range(20)]
    for number in range(20):
        make.save(folder / f"{number}.png", make.pixels(number))
    (folder / "3.png").write_bytes(b"broken")
    write(folder, a=[["image", "patient", "label"], *rows])
    dataset, findings = read(folder, group="patient")
    assert dataset.groups.tolist() == [number // 2 for number in range(20) if number != 3]
    assert "unused_column" not in {kind for _, kind in findings.counts}


def test_a_function_may_return_groups(tmp_path, monkeypatch):
    module = """
        import numpy as np
        from fedtailor.data.dataset import Dataset
        x = np.arange(40, dtype=np.float32).reshape(20, 2)
        def good():
            return Dataset(name="x", x=x, y=np.arange(20) % 2, num_classes=2, groups=np.arange(20) // 2)
        def divided():
            return Dataset(
                name="x", x=x, y=np.arange(20) % 2, num_classes=2, groups=np.arange(20) // 2, num_official_train=15
            )
        """
    (tmp_path / "with_groups.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    options = DataOptions(path="with_groups:good", partition="iid", clients=2)
    divided = build(options, run_seed=0)
    train, test = (
        divided.dataset.groups[np.concatenate([each[part] for each in divided.rows])]
        for part in (0, 2)
    )
    assert not set(train) & set(test)
    _, findings = read_own("with_groups:divided", options)
    assert [one.kind for one in findings.errors] == ["group_in_train_and_test"]


def test_arrays_have_no_groups(folder, make):
    make.arrays(folder, "A")
    _, findings = read_own(str(folder), DataOptions(path=str(folder), group="x"))
    assert [one.kind for one in findings.errors] == ["option_unused"]


# The cache


def test_the_cache_knows_the_options_and_keeps_what_was_read(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    rows = [
        [f"p{number // 2}", number % 3 or "", "uvw"[number % 3], "xy"[number % 2]]
        for number in range(20)
    ]
    folder = write(tmp_path / "d", a=[["patient", "n", "t", "label"], *rows])
    os.utime(folder / "a.csv", (1e9, 1e9))
    monkeypatch.setattr("fedtailor.data.own.layout._TOO_FRESH", -1.0)
    options = {"path": str(folder), "group": "patient"}
    first = load_own(str(folder), DataOptions(**options))
    assert len(cache.entries()) == 1
    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.data.own.read._read", None)  # not called again
        again = load_own(str(folder), DataOptions(**options))
    assert again.raw == first.raw and again.digest == first.digest and again.notes == first.notes
    np.testing.assert_array_equal(again.x, first.x)
    np.testing.assert_array_equal(again.groups, first.groups)
    signatures = {
        recognize(str(folder), Findings()).signature(DataOptions(path="x", **changes))
        for changes in ({}, {"group": "patient"}, {"missing": "refuse"}, {"label_column": "label"})
    }
    assert len(signatures) == 4
    with pytest.raises(DataError, match="empty cell"):
        load_own(str(folder), DataOptions(missing="refuse", **options))
    (entry,) = cache.entries()
    assert entry.bytes < 20 * 4 * 2 + 20 * 8 * 3 + 4000  # 4 bytes per cell, 8 per label and group


@pytest.mark.parametrize("option", [{"group": "p"}, {"missing": "refuse"}])
def test_the_options_are_for_own_data_only(option):
    with pytest.raises(ConfigError, match="it is for your own data"):
        DataOptions(**option)
