"""The plan of the columns: how cells become features, and what it refuses."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from fedtailor.core.errors import DataError
from fedtailor.data.column_summaries import merge_summaries, summarize
from fedtailor.data.columns import MAX_CATEGORIES, Column, Columns, RawColumn, RawTable, Texts
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.encoding import encode_table
from fedtailor.data.options import DataOptions
from fedtailor.data.split import ClientPositions

AGE = Column("age", "number", fill=61.5)
SEX = Column("sex", "category", ("f", "m", "missing"), "missing")
OPTIONS = DataOptions(path="made")
PLAN = Columns((AGE, SEX), ("label", "patient"))


def raw_dataset(x, columns, **changes):
    x = np.array(x, dtype=np.float32)
    fields = {
        "white": 1.0,
        "normalize": Normalization((0.0,), (1.0,)),
        "raw": RawTable(columns, ("label",)),
    }
    return Dataset(
        name="made", x=x, y=np.arange(len(x)) % 2, num_classes=2, **{**fields, **changes}
    )


def known(*train):
    nothing = np.zeros(0, np.int64)
    return [ClientPositions(np.array(rows, dtype=np.int64), nothing, nothing) for rows in train]


def test_cells_become_features():
    cells = {
        "sex": Texts(np.array([1, 0, -1, 2]), ("m", "f", "diverse")),
        "age": np.array([1.5, np.nan, 3, 4]),
    }
    x, missing, unseen = PLAN.encode(cells)
    assert x.dtype == np.float32 and PLAN.feature_names == ("age", "sex=f", "sex=m", "sex=missing")
    assert x.tolist() == [[1.5, 1, 0, 0], [61.5, 0, 1, 0], [3, 0, 0, 1], [4, 0, 0, 0]]
    assert missing == {"age": 1, "sex": 1} and unseen == {"sex": 1}

    # No training row has an empty cell: it is no category.
    plan = Columns((Column("sex", "category", ("f", "m"), "missing"),))
    x, missing, unseen = plan.encode({"sex": Texts(np.array([1, -1]), ("f", "m"))})
    assert x.tolist() == [[0, 1], [0, 0]] and missing == unseen == {"sex": 1}


def test_the_features_are_those_of_scikit_learn():
    generator = np.random.default_rng(3)
    texts = ("a", "b", "c", "d")
    codes = generator.integers(-1, 4, 60)
    numbers = np.where(generator.random(60) < 0.3, np.nan, generator.normal(size=60) * 1e3).astype(
        np.float32
    )
    codes[:40][codes[:40] == 3] = 0  # the training rows do not have d
    x = np.stack([numbers, np.where(codes < 0, np.nan, codes)], axis=1)
    raw = RawTable((RawColumn("n"), RawColumn("t", texts)))
    merged = merge_summaries([summarize(x.astype(np.float32), raw, np.arange(40))], ["all"])
    ours = merged.columns.encode({"n": numbers, "t": Texts(codes, texts)})
    words = np.array([*texts, None], dtype=object)[codes]
    table = np.stack([numbers.astype(np.float64).astype(object), words], axis=1)
    reference = ColumnTransformer(
        [
            ("n", SimpleImputer(strategy="median"), [0]),
            (
                "t",
                make_pipeline(
                    SimpleImputer(missing_values=None, strategy="constant", fill_value="missing"),
                    OneHotEncoder(handle_unknown="ignore", sparse_output=False),
                ),
                [1],
            ),
        ]
    )
    expected = reference.fit(table[:40]).transform(table).astype(np.float32)
    np.testing.assert_array_equal(ours.x, expected)
    assert ours.unseen == {"t": int((codes == 3).sum())} and ours.unseen["t"] > 0


def test_medians_and_categories_are_those_of_the_training_rows_of_known_clients():
    x = [[1, 0], [2, 1], [np.nan, np.nan], [9, 2], [100, 2]]
    dataset = raw_dataset(x, (RawColumn("n"), RawColumn("t", ("a", "b", "z"))))
    encoded, notes = encode_table(
        dataset, known([0, 2], [1]), OPTIONS
    )  # rows 3 and 4 are for testing, or of a new client
    assert encoded.columns == Columns(
        (
            Column("n", "number", fill=1.5),
            Column("t", "category", ("a", "b", "missing"), "missing"),
        ),
        ("label",),
    )
    assert (
        encoded.x[:, 0].tolist() == [1, 2, 1.5, 9, 100]
        and encoded.x[3:, 1:].tolist() == [[0, 0, 0]] * 2
    )
    assert encoded.raw is None and len(notes) == 1 and "'t' 2" in notes[0]


def test_a_table_of_numbers_keeps_its_array():
    dataset = raw_dataset([[1, 5], [2, 6], [4, 7]], (RawColumn("a"), RawColumn("b")))
    encoded, notes = encode_table(dataset, known([0, 1]), OPTIONS)
    assert encoded.x is dataset.x and notes == []
    assert [column.fill for column in encoded.columns.columns] == [1.5, 5.5]
    again = encoded.columns.encode({"a": dataset.x[:, 0], "b": dataset.x[:, 1].astype(np.float64)})
    np.testing.assert_array_equal(again.x, dataset.x)


def test_a_column_without_a_value_in_training_rows_is_left_out():
    x = [[1, np.nan, np.nan], [2, np.nan, np.nan], [3, 7, 0]]
    dataset = raw_dataset(x, (RawColumn("a"), RawColumn("b"), RawColumn("c", ("x",))))
    encoded, notes = encode_table(dataset, known([0, 1]), OPTIONS)
    assert encoded.x.tolist() == [[1], [2], [3]] and encoded.columns.unused == ("label", "b", "c")
    assert notes == ["Left out, because no training example has a value: 'b', 'c'."]
    with pytest.raises(DataError, match="no column has a value in the training examples"):
        encode_table(
            raw_dataset([[np.nan], [np.nan], [1]], (RawColumn("a"),)), known([0, 1]), OPTIONS
        )
    with pytest.raises(DataError, match="no client that is not new has training examples"):
        encode_table(dataset, known([]), OPTIONS)


def test_the_digest_of_a_raw_table_depends_on_the_texts():
    first = raw_dataset([[0], [1]], (RawColumn("a", ("x", "y")),))
    assert first.digest != raw_dataset([[0], [1]], (RawColumn("a", ("x", "z")),)).digest
    numbers = raw_dataset([[0], [1]], (RawColumn("a"),))
    assert numbers.digest == raw_dataset([[0], [1]], (), raw=None).digest  # as it always was


names = st.text(min_size=1, max_size=5)
columns = st.one_of(
    st.builds(
        Column,
        names,
        st.just("number"),
        fill=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    st.builds(
        Column,
        names,
        st.just("category"),
        st.sets(names, min_size=1, max_size=4).map(lambda texts: tuple(sorted(texts))),
        st.just("missing"),
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(columns, min_size=1, max_size=4, unique_by=lambda column: column.name))
def test_every_plan_is_stored_exactly(chosen):
    plan = Columns(tuple(chosen))
    assert Columns.from_record(json.loads(json.dumps(plan.to_record()))) == plan


def changed(**changes):
    record = PLAN.to_record()
    record["columns"][1].update(changes)
    return record


@pytest.mark.parametrize(
    "record",
    [
        "",
        [],
        {"format": "fedtailor columns 1", "columns": [], "unused": []},
        {"format": "fedtailor columns 1", "columns": {}, "unused": []},
        {"format": "other", "columns": [1], "unused": []},
        changed(name=""),
        changed(name=["x"]),
        changed(name="age"),
        changed(name="label"),
        changed(kind="date"),
        changed(kind=["number"]),
        changed(kind="number"),
        changed(categories=[]),
        changed(categories=["m", "f"]),
        changed(categories=["f", 1]),
        changed(categories=[["f"]]),
        changed(categories="fm"),
        changed(categories=[f"{number:03}" for number in range(MAX_CATEGORIES + 1)]),
        changed(fill="other"),
        changed(kind="number", categories=[], fill="1"),
        changed(kind="number", categories=[], fill=True),
        changed(kind="number", categories=[], fill=1e39),
        changed(kind="number", categories=[], fill=10**400),
        changed(kind="number", categories=[], fill=float("nan")),
        changed(kind="number", categories=[], fill=None),
        changed(more=1),
        changed(knots=[1.0, 2.0]),
        changed(indicates_missing=True),
        changed(kind="number", categories=[], fill=0.0, knots=[1.0]),
        changed(kind="number", categories=[], fill=0.0, knots=[2.0, 1.0]),
        changed(kind="number", categories=[], fill=0.0, knots=[1.0, "2"]),
        changed(kind="number", categories=[], fill=0.0, knots=1.0),
        changed(kind="number", categories=[], fill=0.0, knots=[1.0, 2.0], scores=[1.0]),
        changed(kind="number", categories=[], fill=0.0, indicates_missing=1),
        {**PLAN.to_record(), "unused": [1, "label"]},
        {**PLAN.to_record(), "unused": [[], "label"]},
    ],
)
def test_a_hostile_plan_is_refused(record):
    with pytest.raises(DataError, match="must be"):
        Columns.from_record(record)


@pytest.mark.parametrize("name", ["name", "kind", "categories", "fill"])
def test_an_absent_entry_of_a_plan_is_refused(name):
    record = PLAN.to_record()
    del record["columns"][1][name]
    with pytest.raises(DataError, match=f"an object with name, kind, .*'{name}'"):
        Columns.from_record(record)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"age": np.zeros(2)}, "'sex'"),
        ({"age": np.zeros(2), "sex": np.zeros(2)}, "of kind category"),
        (
            {"age": Texts(np.zeros(2, int), ("1",)), "sex": Texts(np.zeros(2, int), ("f",))},
            "of kind number",
        ),
        ({"age": np.zeros(3), "sex": Texts(np.zeros(2, int), ("f",))}, "3 rows"),
        ({"age": np.array([1e39]), "sex": Texts(np.zeros(1, int), ("f",))}, "finite"),
    ],
)
def test_cells_that_do_not_fit_are_refused(cells, words):
    with pytest.raises(DataError, match=words):
        PLAN.encode(cells)
