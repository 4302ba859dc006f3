"""Tables to predict have the features of the tables in training."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.build import build
from fedtailor.data.cell_rules import CellRules
from fedtailor.data.columns import Column, Columns
from fedtailor.data.dataset import Normalization
from fedtailor.data.input_specification import input_specification
from fedtailor.data.options import DataOptions
from fedtailor.data.own.like import TrainingTables, read_frame_like, read_table_like
from fedtailor.serving.site_data import load_site

PLAN = Columns(
    (
        Column("age", "number", fill=61.5),
        Column("sex", "category", ("f", "m", "missing"), "missing"),
    ),
    ("label", "patient"),
)
TABLES = TrainingTables(PLAN)


class Frame:
    """What a data frame of pandas offers, as far as it is used."""

    def __init__(self, columns):
        self.columns = list(columns)
        self._cells = columns

    def __getitem__(self, name):
        class Series:
            def to_numpy(series):
                return self._cells[name]

        return Series()


def predict(folder, text, name="new.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_table_like(path, TABLES)


def kinds(table):
    return [(one.severity, one.kind, one.path) for one in table.problems]


@pytest.mark.parametrize(
    "text",
    [
        "age,sex\n50,m\n60.5,f\n",
        "sex;age\nm;50\n\nf;60.5\n",
        "label,sex,patient,age\n,m,1,50\n,f,,60.5\n",
    ],
)
def test_any_order_and_unused_columns_are_read(tmp_path, text):
    x, lines, problems, *_ = predict(tmp_path, text)
    assert (
        x.dtype == np.float32 and x.tolist() == [[50, 0, 1, 0], [60.5, 1, 0, 0]] and problems == []
    )
    assert list(lines) == ([2, 4] if ";" in text else [2, 3])


def test_empty_and_unseen_cells_are_counted(tmp_path):
    assert predict(tmp_path, "age,sex\n").x.shape == (0, 4)
    text = "".join(f"1,{number}\n" for number in range(1_100))
    assert predict(tmp_path, f"age,sex\n{text}").x[:, 1:].sum() == 0
    table = predict(tmp_path, "age,sex\nNA,diverse\n60,\n,f\n")
    assert table.x.tolist() == [[61.5, 0, 0, 0], [60, 0, 0, 1], [61.5, 1, 0, 0]]
    assert sorted(kind for _, kind, _ in kinds(table)) == [
        "missing_value",
        "missing_value",
        "unseen_category",
    ]
    assert "'age' has 2 empty cells" in table.problems[0].message
    assert {one.severity for one in table.problems} == {"warning"}


def test_rows_without_any_value_are_named(tmp_path):
    def named(text):
        problems = predict(tmp_path, f"patient,age,sex\n{text}").problems
        return [(one.path, one.message) for one in problems if one.kind == "no_values"]

    assert named("1,50,m\n2,,f\n3,60,\n") == []
    [(path, message)] = named("1,50,m\n2,,\n")
    assert path == "new.csv:3" and message.startswith("The row has no value")
    [(path, message)] = named("1,,\n,,\n3,NA,\n4,60,f\n")
    assert path == "new.csv:2" and message.startswith("This row and 1 more have no value")


@pytest.mark.parametrize(
    ("text", "problem", "words"),
    [
        ("age\n1\n", ("error", "missing_column", "new.csv"), "'sex'"),
        ("age,sex,bmi\n1,f,2\n", ("error", "extra_column", "new.csv"), "'bmi'"),
        ("age,sex\n1,f\nold,m\n", ("error", "not_a_number", "new.csv:3"), "'old'"),
        ("age,sex\n1\n", ("error", "ragged_row", "new.csv:2"), "1 cells"),
        ("age,sex\n1e40,f\n", ("error", "not_finite", "new.csv:2"), "'age'"),
        ("age,sex,age\n1,f,2\n", ("error", "duplicate_column", "new.csv"), "'age'"),
        ("", ("error", "empty_file", "new.csv"), "empty"),
    ],
)
def test_what_does_not_fit_is_an_error(tmp_path, text, problem, words):
    table = predict(tmp_path, text)
    assert table.x is None and kinds(table) == [problem] and words in table.problems[0].message


def test_a_file_that_is_no_table_is_an_error(tmp_path):
    assert kinds(predict(tmp_path, "age,sex\n", "new.txt")) == [
        ("error", "unknown_layout", "new.txt")
    ]
    assert kinds(read_table_like(tmp_path / "none.csv", TABLES)) == [
        ("error", "unreadable_file", "none.csv")
    ]


def test_parquet_and_data_frames_give_the_same_bits(tmp_path):
    ages = [50.1, None, 1 / 3]
    sexes = ["m", None, "f"]
    pq.write_table(
        pa.table({"sex": sexes, "age": ages, "label": [1, 2, 3]}), tmp_path / "new.parquet"
    )
    from_parquet = read_table_like(tmp_path / "new.parquet", TABLES)
    numbers = np.array([50.1, np.nan, 1 / 3])
    frame = read_frame_like(
        Frame({"age": numbers, "sex": np.array(["m", None, "f"], dtype=object)}), TABLES
    )
    texts = predict(tmp_path, f"age,sex\n{ages[0]},m\nNA,\n{ages[2]!r},f\n")
    np.testing.assert_array_equal(from_parquet.x, texts.x)
    np.testing.assert_array_equal(frame.x, texts.x)
    assert list(from_parquet.lines) == [1, 2, 3] and list(frame.lines) == [0, 1, 2]
    missing = np.array(["f", np.nan, "m"], dtype=object)
    objects = read_frame_like(
        Frame({"sex": missing, "age": np.array([1, "2", None], dtype=object)}), TABLES
    )
    assert objects.x.tolist() == [[1, 1, 0, 0], [2, 0, 0, 1], [61.5, 0, 1, 0]]


def test_cells_are_read_by_the_rules_of_training(tmp_path):
    rules = CellRules(missing_values={"age": [999], "sex": ["u"]})
    (tmp_path / "new.csv").write_text("age;sex\n50,5;m\n;\n999;u\n", encoding="utf-8")
    table = read_table_like(tmp_path / "new.csv", TrainingTables(PLAN, rules), ["age"])
    ages = np.array(["50,5", "999"], dtype=object)
    frame = read_frame_like(
        Frame({"age": ages, "sex": np.array(["m", "u"])}), TrainingTables(PLAN, rules)
    )
    assert (
        table.x.tolist()
        == frame.x.tolist()
        == predict(tmp_path, "age,sex\n50.5,m\nNA,\n").x.tolist()
    )
    assert table.keep == {"age": ["50,5", "999"]}, "as they stand"
    assert list(table.lines) == [2, 4], "a row of empty cells is left out, as in training"
    assert CellRules.from_record(rules.to_record()) == rules

    (tmp_path / "new.csv").write_text("age;sex\n50,5;m\n ; \n;\n", encoding="utf-8")
    table = read_table_like(tmp_path / "new.csv", TrainingTables(PLAN, rules), ["age"])
    assert list(table.lines) == [2, 3], "a row of blanks is one"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "an object with decimal, missing_values"),
        ({"decimal": "auto"}, "an object with decimal, missing_values"),
        ({"decimal": "auto", "missing_values": []}, "a section with keys"),
        ({"decimal": "auto", "missing_values": {"age": [None]}}, "a list of numbers or texts"),
        ({"decimal": "auto", "missing_values": {}, "at_sites": {"a": "dot"}}, "known decimals"),
    ],
)
def test_rules_of_cells_that_cannot_be_are_refused(record, words):
    with pytest.raises(DataError, match=words):
        CellRules.from_record(record)


def test_a_data_frame_that_does_not_fit_is_an_error():
    assert kinds(read_frame_like(Frame({"age": np.ones(2)}), TABLES)) == [
        ("error", "missing_column", "data frame")
    ]
    texts = Frame({"age": np.array(["old"], dtype=object), "sex": np.array(["f"], dtype=object)})
    assert kinds(read_frame_like(texts, TABLES)) == [("error", "not_a_number", "data frame:0")]
    for other in (None, 3, [1], {"age": 1}, np.ones(2)):
        with pytest.raises(DataError, match="expected a data frame"):
            read_frame_like(other, TABLES)


def test_a_table_that_is_predicted_gives_the_bits_of_training(tmp_path):
    """Text, mixed text and numbers, truth values, empty cells and awkward floats."""
    generator = np.random.default_rng(0)
    folder = tmp_path / "d"
    folder.mkdir()
    tables = {}
    for site in "abc":
        tables[site] = [
            [
                repr(float(generator.normal() * 1e3)) if generator.random() > 0.2 else "",
                str(generator.choice(["m", "f", "", "NA", " m "])),
                str(generator.choice(["1", "1.0", "low", "2.50", "True"])),
                str(generator.choice(["true", "FALSE", "0.1"])),
                f"{site}{row // 2}",
                "xy"[row % 2],
            ]
            for row in range(40)
        ]
        with (folder / f"{site}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(
                [["v", "sex", "mixed", "flag", "patient", "label"], *tables[site]]
            )
    divided = build(DataOptions(path=str(folder), group="patient"), run_seed=0)
    plan = Columns.from_record(divided.dataset.columns.to_record())
    tables_of_plan = TrainingTables(plan)
    again = [read_table_like(folder / f"{site}.csv", tables_of_plan) for site in "abc"]
    np.testing.assert_array_equal(np.concatenate([each.x for each in again]), divided.dataset.x)
    assert all(one.severity == "warning" for each in again for one in each.problems)
    for rows in (1, 17):  # a part of a table has the same features
        with (tmp_path / "part.csv").open("w", newline="") as file:
            order = [3, 0, 2, 1]
            header = ["v", "sex", "mixed", "flag"]
            picked = [[row[place] for place in order] for row in tables["b"][:rows]]
            csv.writer(file).writerows([[header[place] for place in order], *picked])
        np.testing.assert_array_equal(
            read_table_like(tmp_path / "part.csv", tables_of_plan).x, again[1].x[:rows]
        )


@pytest.mark.parametrize(
    ("decimal", "cell", "number"),
    [
        ("comma", "1,250", 1.25),
        ("point", "1,250", 1250),
        ("comma", "1.250", 1250),
        ("point", "1.250", 1.25),
        ("comma", "1.25", 1.25),
        ("auto", "1,250", None),
    ],
)
def test_a_comma_means_what_it_meant_in_training(tmp_path, decimal, cell, number):
    (tmp_path / "new.csv").write_text(f'age,sex\n"{cell}",m\n', encoding="utf-8")
    rules = CellRules(at_sites={"a": decimal})
    table = read_table_like(tmp_path / "new.csv", TrainingTables(PLAN, rules))
    assert (None if table.x is None else table.x[0, 0]) == number


def test_typed_numbers_have_no_separators_of_thousands(tmp_path):
    pq.write_table(pa.table({"sex": ["m"] * 2, "age": [1.125, 2.5]}), tmp_path / "new.parquet")
    rules = CellRules("comma")
    table = read_table_like(tmp_path / "new.parquet", TrainingTables(PLAN, rules))
    assert table.x[:, 0].tolist() == [1.125, 2.5]


def test_each_site_keeps_what_its_commas_were_and_kinds_of_columns(tmp_path):
    """Two sites write numbers in two ways, and a third file alone does not tell what it means."""
    folder = tmp_path / "d"
    folder.mkdir()
    rows = {"a": '"1,5",1\n"2,5",low\n', "b": '"1,234.5",1\n2,low\n'}
    for site, text in rows.items():
        lines = [f"{line},{label}" for line, label in zip(text.split(), "xy", strict=True)] * 5
        (folder / f"{site}.csv").write_text("v,mixed,label\n" + "\n".join(lines) + "\n")

    divided = build(DataOptions(path=str(folder)), run_seed=0)
    inputs = input_specification(divided, Normalization())
    assert inputs.cells.at_sites == {"a": "comma", "b": "point"}
    assert CellRules.from_record(inputs.cells.to_record()) == inputs.cells

    # A file of labelled rows for evaluate, with a number where training had categories.
    new = tmp_path / "new.csv"
    new.write_text('v,mixed,label\n"1,250",1,x\n"1,250",1,x\n3,1,y\n')
    for site, number in (("a", 1.25), ("b", 1250)):
        stored = load_site(str(new), inputs.for_site(site)).x
        assert stored[:3].tolist() == [[number, 1, 0], [number, 1, 0], [3, 1, 0]]
    with pytest.raises(DataError, match="comma that may be"):
        load_site(str(new), inputs)


@pytest.mark.parametrize(
    ("column", "deviation"),
    [
        (Column("chol", "number", fill=240.0), 45.0),
        (Column("chol", "number", fill=240.0, knots=(120.0, 205.0, 240.0, 275.0, 560.0)), 1.0),
        (
            Column(
                "chol", "number", fill=240.0, knots=(100.0, 240.0, 380.0), scores=(-2.5, 0.0, 2.5)
            ),
            1.0,
        ),
    ],
    ids=["standard", "bins", "quantile"],
)
def test_another_unit_than_in_training_is_a_warning(tmp_path, column, deviation):
    """From milligrams per decilitre in training to millimoles per litre."""
    columns = Columns((Column("sex", "category", ("f", "m"), "missing"), column))
    deviations = np.full(len(columns.feature_names), deviation)
    training = TrainingTables(columns, std=deviations)
    cholesterol = np.random.default_rng(0).normal(240, 45, 40)

    def problems(values):
        rows = "".join(f"m,{value:.3f}\n" for value in values)
        (tmp_path / "new.csv").write_text(f"sex,chol\n{rows}m,\n")
        return read_table_like(tmp_path / "new.csv", training).problems

    assert [one.kind for one in problems(cholesterol)] == ["missing_value"]
    assert [one.kind for one in problems(cholesterol[:9] / 38.67)] == ["missing_value"], "too few"
    (_, problem) = problems(cholesterol / 38.67)
    assert (problem.severity, problem.kind) == ("warning", "unit_differs")
    assert "times as small here" in problem.message and "of cholesterol" in problem.message


def test_without_a_deviation_in_training_nothing_is_said_of_units(tmp_path):
    rows = "".join(f"m,{year}\n" for year in range(600, 640))
    assert predict(tmp_path, f"sex,age\n{rows}").problems == []
