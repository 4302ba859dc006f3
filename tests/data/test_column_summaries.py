"""How cells become features, merged from the summaries of single sites."""

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedtailor.core.errors import DataError
from fedtailor.data import column_summaries as module
from fedtailor.data.column_summaries import ColumnSummaries, merge_summaries, summarize
from fedtailor.data.columns import MAX_CATEGORIES, Column, Columns, RawColumn, RawTable

laws = settings(max_examples=10, deadline=None)
RAW = RawTable((RawColumn("age"), RawColumn("sex", ("d", "f", "m")), RawColumn("bmi")), ("label",))
NONE = np.nan


def summary(cells, raw=RAW):
    """Return the summary of all rows of a table."""
    x = np.array(cells, dtype=np.float32).reshape(-1, len(raw.columns))
    return summarize(x, raw, np.arange(len(x)))


def sent(summaries):
    return ColumnSummaries.from_record(json.loads(json.dumps(summaries.to_record())))


def same(one, other):
    return repr(one) == repr(other)  # which tells 0 from -0


def fill_of(*sites):
    """Return the fill of a column of numbers, from the cells of every site."""
    raw = RawTable((RawColumn("n"),))
    merged = merge_summaries(
        [sent(summary(cells, raw)) for cells in sites], [str(at) for at in range(len(sites))]
    )
    return merged.columns.columns[0].fill


def test_one_site():
    found = summary([[60, 1, 2], [NONE, 1, 3], [50, NONE, NONE], [70, 2, 4]])
    assert found.to_record() == {
        "columns": [
            {"name": "age", "count": 3, "empty": True, "median": 60.0, "categories": None},
            {"name": "sex", "count": 3, "empty": True, "median": 0.0, "categories": ("f", "m")},
            {"name": "bmi", "count": 3, "empty": True, "median": 3.0, "categories": None},
        ],
        "unused": ["label"],
    }
    assert merge_summaries([found], ["a"]).columns == Columns(
        (
            Column("age", "number", fill=60.0),
            Column("sex", "category", ("f", "m", "missing"), "missing"),
            Column("bmi", "number", fill=3.0),
        ),
        ("label",),
    )


def test_sites_are_merged():
    first = summary([[60, 1, 2], [50, 1, 3]])
    second = summary([[90, 0, NONE], [90, 2, NONE], [90, 0, NONE]])
    merged = merge_summaries([first, sent(second), summary([])], ["a", "b", "c"])
    assert [column.fill for column in merged.columns.columns] == [90, "missing", 2.5]
    assert merged.columns.columns[1].categories == ("d", "f", "m") and merged.left_out == ()


@pytest.mark.parametrize(
    ("sites", "fill"),
    [
        (([1, 2, 3, 10],), 2.5),
        (([1], [5]), 3),  # one cell is half of two: the mean of this median and the next one
        (([1, 1], [5]), 1),
        (([1], [5, 5]), 5),
        (([1], [5], [9]), 5),
        (([9], [1], [5], [3]), 4),
        (([1], [2], [9, 9]), 5.5),  # the first two have half of the cells
        (([1], [NONE, NONE, NONE], [7, NONE]), 4),  # empty cells do not count
        (([-5], [NONE], [5]), 0),
        (([2, 2], [2], [2]), 2),
        (([-1, -1, -1], [NONE], [8]), -1),
    ],
)
def test_the_fill_is_the_weighted_median_of_medians(sites, fill):
    assert fill_of(*sites) == fill
    assert fill_of(*reversed(sites)) == fill


@laws
@given(
    st.lists(
        st.lists(
            st.one_of(st.just(NONE), st.floats(-(2.0**100), 2.0**100, width=32)),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=5,
    ).filter(lambda sites: any(not math.isnan(cell) for cells in sites for cell in cells))
)
def test_weights_repeat_a_median(sites):
    """A weighted median is the median of a list in which every site's median stands once for each
    of its cells."""
    repeated = []
    for cells in sites:
        filled = [cell for cell in cells if not math.isnan(cell)]
        if filled:
            repeated += [float(np.median(np.array(filled, dtype=np.float64)))] * len(filled)
    assert fill_of(*sites) == float(np.float32(np.median(repeated)))
    everything = np.array([cell for cell in sites[0] if not math.isnan(cell)], dtype=np.float64)
    if len(everything):
        assert fill_of(sites[0]) == float(np.float32(np.median(everything)))


@laws
@given(st.integers(0, 2**20), st.integers(0, 30))
def test_a_site_alone_has_the_bits_of_a_simulation(seed, rows):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(80, 3)).astype(np.float32)
    x[:, 1] = generator.integers(0, 3, 80)
    x[generator.random((80, 3)) < 0.3] = NONE
    place = generator.choice(80, rows, replace=False)
    own = summarize(np.ascontiguousarray(x[place]), RAW, np.arange(rows))
    assert same(summarize(x, RAW, place), own) and same(sent(own), own)


def test_columns_beyond_a_chunk(monkeypatch):
    generator = np.random.default_rng(0)
    raw = RawTable(tuple(RawColumn(str(number)) for number in range(7)))
    x = generator.normal(size=(30, 7)).astype(np.float32)
    rows = np.split(np.arange(30), [4, 5, 20])
    whole = merge_summaries([summarize(x, raw, each) for each in rows], "abcd")
    monkeypatch.setattr(module, "_CHUNK", 8)
    assert merge_summaries([summarize(x, raw, each) for each in rows], "abcd") == whole


def test_the_columns_of_a_site_may_be_in_another_order():
    turned = RawTable((RAW.columns[2], RAW.columns[0], RAW.columns[1]), ("patient", "label"))
    second = summary([[7, 80, 0], [9, 80, 0], [NONE, 80, 0]], turned)
    merged = merge_summaries([summary([[60, 1, 2]]), second], ["a", "b"])
    assert merged.columns.names == ("age", "sex", "bmi") and merged.columns.unused == (
        "label",
        "patient",
    )
    assert [column.fill for column in merged.columns.columns] == [80, "missing", 8]
    assert merged.columns.columns[1].categories == ("d", "f")


def test_a_site_where_a_column_is_empty_does_not_know_what_it_holds():
    """Its reader takes it for numbers; others say that it is text."""
    numbers = RawTable((RawColumn("age"), RawColumn("sex"), RawColumn("bmi")))
    merged = merge_summaries([summary([[1, NONE, 1]], numbers), summary([[1, 1, 1]])], ["a", "b"])
    assert merged.columns.columns[1] == Column("sex", "category", ("f", "missing"), "missing")


def test_numbers_here_and_text_there_is_an_error_that_names_both():
    numbers = RawTable((RawColumn("age"), RawColumn("sex"), RawColumn("bmi")))
    sites = [summary([[1, 1, 1]]), summary([[1, NONE, 1]], numbers), summary([[1, 1, 1]], numbers)]
    with pytest.raises(
        DataError, match="column 'sex' holds numbers at site 'Oslo' and text at site 'Bergen'"
    ) as info:
        merge_summaries(sites, ["Bergen", "Narvik", "Oslo"])
    assert info.value.key == "sex"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("age", "sex"),
            "column 'bmi' is at site 'Bergen', but not at site 'Oslo'",
        ),
        (
            ("age", "sex", "bmi", "x"),
            "column 'x' is at site 'Oslo', but not at site 'Bergen'",
        ),
    ],
)
def test_a_column_that_a_site_lacks_is_an_error_that_names_both(names, words):
    other = RawTable(tuple(RawColumn(name) for name in names))
    with pytest.raises(DataError, match=words):
        merge_summaries(
            [summary([[1, 1, 1]]), summary([[1] * len(names)], other)], ["Bergen", "Oslo"]
        )


def test_too_many_categories_together():
    tables = []
    for site in "ab":
        texts = tuple(f"{site}{number:02}" for number in range(30))
        tables.append(summary(np.arange(30.0), RawTable((RawColumn("t", texts),))))
    with pytest.raises(
        DataError, match=f"categories of column 't' must be 1 to {MAX_CATEGORIES} different texts"
    ):
        merge_summaries(tables, ["a", "b"])


def number(**changes):
    column = {
        "name": "n",
        "count": 2,
        "empty": False,
        "median": 1.5,
        "categories": None,
        **changes,
    }
    return {"columns": [column], "unused": []}


def category(**changes):
    column = {
        "name": "t",
        "count": 2,
        "empty": True,
        "median": 0.0,
        "categories": ["a", "b"],
        **changes,
    }
    return {"columns": [column], "unused": []}


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"columns": [], "unused": []},
        {"columns": {}, "unused": []},
        {"columns": [{}], "unused": []},
        {**number(), "more": 1},
        {**number(), "unused": [1]},
        {**number(), "unused": ["n"]},
        {**number(), "unused": ["a", "a"]},
        {"columns": number()["columns"] * 2, "unused": []},
        number(name=""),
        number(name=["n"]),
        number(more=1),
        number(count=-1),
        number(count=True),
        number(count=2**41),
        number(count=0),
        number(empty=0),
        number(median=math.nan),
        number(median=math.inf),
        number(median=1e39),
        number(median=10**400),
        number(median="1"),
        category(median=1.0),
        category(count=0),
        category(count=1),
        category(categories=[]),
        category(categories=["b", "a"]),
        category(categories=["", "a"]),
        category(categories=["a", 1]),
        category(categories=[["a"]]),
        category(categories="ab"),
        category(count=99, categories=[f"{at:02}" for at in range(MAX_CATEGORIES + 1)]),
    ],
)
def test_a_hostile_record_is_refused(record):
    with pytest.raises(DataError, match="must be"):
        ColumnSummaries.from_record(record)


@pytest.mark.parametrize("name", ["name", "count", "empty", "median", "categories"])
def test_an_absent_entry_of_a_column_is_refused(name):
    record = number()
    del record["columns"][0][name]
    with pytest.raises(DataError, match=f"an object with name, count, .*'{name}'") as caught:
        ColumnSummaries.from_record(record)
    assert "__init__" not in caught.value.message


def test_sound_records_are_read():
    for record in (
        number(),
        number(count=0, median=0.0, empty=True),
        category(),
        category(count=0, categories=[]),
    ):
        written = ColumnSummaries.from_record(record).to_record()
        assert json.loads(json.dumps(written)) == record
