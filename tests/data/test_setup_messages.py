"""What sites exchange before the first round is named, and enough."""

import numpy as np
import pytest

from fedtailor.data import load_dataset
from fedtailor.data.build import build
from fedtailor.data.columns import RawColumn, RawTable
from fedtailor.data.encoding import fit_columns
from fedtailor.data.options import DataOptions
from fedtailor.data.setup_messages import MEDIAN_THRESHOLDS, setup_messages


@pytest.fixture
def hospitals(tmp_path):
    for site in "ab":
        rows = "".join(f"{site}{n // 2},{n % 7 or ''},{n},{'uv'[n % 2]},{'xy'[n % 3 == 0]}\n" for n in range(30))
        (tmp_path / f"{site}.csv").write_text(f"patient,bmi,age,sex,label\n{rows}")
    return str(tmp_path)


def messages(path, **options):
    divided = build(DataOptions(path=path, **options), run_seed=0)
    return {field.name: field for field in setup_messages(divided.dataset, divided.division.options)}


def test_the_messages_of_a_table(hospitals):
    found = messages(hospitals, group="patient")
    shapes = {name: (field.shape, field.reduction) for name, field in found.items()}
    assert shapes == {
        "class names": ((2,), "each"),
        "columns": ((3,), "each"),
        "filled cells": ((2,), "sum"),
        "cells up to a threshold": ((MEDIAN_THRESHOLDS, 2), "sum"),
        "categories": ((2,), "each"),
        "groups": ((30,), "each"),
        "count": ((1,), "sum"),
        "sums": ((4,), "sum"),  # bmi, age, and one for each sex
        "squares": ((4,), "sum"),
    }
    assert all(field.content and not field.content.endswith(".") for field in found.values())


def test_there_is_a_message_only_for_what_is_used(hospitals):
    assert not {"count", "sums", "squares"} & set(messages(hospitals, normalize="dataset", group="patient"))
    assert not {"count", "sums", "squares"} & set(messages(hospitals, mean=(0.0,), std=(1.0,), group="patient"))
    digits = load_dataset("digits")
    assert setup_messages(digits, DataOptions()) == []
    assert [field.shape for field in setup_messages(digits, DataOptions(normalize="training"))] == [(1,), (1,), (1,)]


def halve(sites, wanted):
    """Return the cell at a place of the order of all sites' cells, from sums of counts; and how many sums it took."""
    low, high = -(2**31), 2**31 - 1
    thresholds = 0
    while low < high:
        middle = (low + high) // 2
        thresholds += 1
        if sum(int((cells <= middle).sum()) for cells in sites) > wanted:
            high = middle
        else:
            low = middle + 1
    return low, thresholds


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_sums_of_counts_give_the_medians_exactly(rows):
    x = (np.random.default_rng(rows).normal(size=(rows, 1)) * 1e3).astype(np.float32)
    bits = x[:, 0].view(np.int32).astype(np.int64)
    keys = np.where(bits < 0, -(2**31) - bits - 1, bits)  # whole numbers in the order of the floats
    sites = np.array_split(keys, 3)
    found = [halve(sites, place) for place in ((rows - 1) // 2, rows // 2)]
    assert sum(thresholds for _, thresholds in found) <= MEDIAN_THRESHOLDS
    back = [np.array(key if key >= 0 else -(2**31) - key - 1, dtype=np.int32).view(np.float32) for key, _ in found]
    median = np.float32((float(back[0]) + float(back[1])) / 2)
    assert fit_columns(x, RawTable((RawColumn("a"),)), np.arange(rows)).columns.columns[0].fill == median
