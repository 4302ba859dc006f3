"""From options to a federation."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.task import Model, Task
from fedtailor.data import load_dataset
from fedtailor.data.build import (
    DataOptions,
    build,
    build_federation,
    check_disjoint,
    images,
    split_client,
    to_federation,
)
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.split import ClientRows


def task_of(dataset: Dataset, **changes: Any) -> Task:
    fields = {"num_classes": dataset.num_classes, "input_shape": dataset.input_shape, **changes}
    return Task(model=cast(Model, None), **fields)


def colorful(rows: int = 30) -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (rows, 4, 5, 3), dtype=np.uint8)
    return Dataset(name="colorful", x=x, y=np.arange(rows) % 3, num_classes=3, class_names=("a", "b", "c"))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 200), st.floats(0.01, 1), st.floats(0, 0.99), st.floats(0, 0.99), st.integers(0, 2**33))
def test_parts_have_the_sizes_asked_for(n: int, fraction: float, share: float, val: float, seed: int) -> None:
    options = DataOptions(fraction=fraction, test_share=share, val_fraction=val)
    positions = np.arange(n) * 7
    rows = split_client(positions, options, seed)
    num_train = math.floor((1 - share) * n)
    kept = max(math.floor(fraction * num_train), 1) if num_train else 0
    assert len(rows.test) == n - num_train
    assert len(rows.val) == math.floor(val * kept)
    assert len(rows.train) == kept - len(rows.val)
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) and np.isin(used, positions).all()


def test_a_fraction_keeps_the_test_part_and_is_nested() -> None:
    positions = np.arange(500)
    splits = [split_client(positions, DataOptions(fraction=fraction), 42) for fraction in (1.0, 0.75, 0.5, 0.25)]
    assert [len(each.train) for each in splits] == [400, 300, 200, 100]
    for larger, smaller in pairwise(splits):
        assert np.array_equal(larger.test, smaller.test)
        assert set(smaller.train) < set(larger.train)


@pytest.mark.parametrize("n", [5, 63, 101])
def test_the_split_is_that_of_the_release(n: int) -> None:
    positions = np.random.default_rng(1).permutation(1000)[:n]
    train, test = train_test_split(positions, train_size=0.8, shuffle=True, random_state=42)
    rows = split_client(positions, DataOptions(), 42)
    assert np.array_equal(rows.train, train) and np.array_equal(rows.test, test)


def test_a_share_of_three_tenths_rounds_as_released_codes_do() -> None:
    assert len(split_client(np.arange(700), DataOptions(test_share=0.3), 0).train) == 489  # int(700 * 0.7)


@pytest.mark.parametrize("partition", ["iid", "dirichlet(alpha=0.3)", "classes(k=3)"])
def test_clients_share_no_example(partition: str) -> None:
    divided = build(DataOptions(partition=partition, clients=20, val_fraction=0.1), run_seed=0)
    used = np.concatenate([positions for rows in divided.rows for positions in rows])
    assert len(np.unique(used)) == len(used) == 1797
    assert divided.notes == []


def test_an_example_used_twice_is_refused() -> None:
    nothing = np.empty(0, np.int64)
    rows = [ClientRows(np.array([0, 1]), nothing, np.array([2])), ClientRows(np.array([3]), nothing, np.array([1]))]
    with pytest.raises(DataError, match="example 1 and 0 others are used more than once"):
        check_disjoint(rows, 4)


def test_the_seed_may_follow_the_run() -> None:
    fixed, run = DataOptions(), DataOptions(seed="run")
    digits = load_dataset("digits")

    def first(options: DataOptions, run_seed: int) -> list[int]:
        divided = build(options, run_seed=run_seed, dataset=digits)
        assert divided.seed == (run_seed if options.seed == "run" else options.seed)
        return cast(list[int], divided.rows[0].train.tolist())

    assert first(fixed, 1) == first(fixed, 2)
    assert first(run, 1) != first(run, 2)
    assert first(run, 42) == first(fixed, 7)


def test_clients_without_test_examples_are_noted() -> None:
    divided = build(DataOptions(partition="iid", clients=30, test_share=0.0), run_seed=0, dataset=colorful())
    assert divided.notes == ["30 of 30 clients have no test examples: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and more."]
    divided = build(DataOptions(partition="iid", clients=29), run_seed=0, dataset=colorful())
    assert len(divided.rows[0].train) == 1  # two examples
    assert divided.notes[0].startswith("28 of 29 clients have no training examples: 1, 2,")


def test_a_federation_has_normalized_images_channels_last(float64: torch.dtype) -> None:
    dataset = colorful()
    federation = build_federation(
        DataOptions(partition="iid", clients=5, new_clients=2), task_of(dataset), run_seed=0, dataset=dataset
    )
    assert federation.x.dtype == float64 and federation.y.dtype == torch.int64
    assert federation.x.shape == (30, 3, 4, 5) and federation.x.permute(0, 2, 3, 1).is_contiguous()
    expected = (dataset.x.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5
    np.testing.assert_allclose(federation.x.numpy(), expected, rtol=0, atol=1e-15)  # rounding of the division
    assert federation.population == 3 and list(federation.new) == [3, 4]
    assert federation.class_names == ("a", "b", "c")
    assert federation.splits[0].train.dtype == torch.int64
    assert federation.info(0).num_train == len(federation.splits[0].train)
    dataset.x[:] = 0
    dataset.y[:] = 0
    assert federation.x.abs().max() > 0 and federation.y.max() == 2  # tensors of their own


def test_digits_are_scaled_by_their_white() -> None:
    x = images(load_dataset("digits"))
    assert x.dtype == torch.float32 and x.shape == (1797, 1, 8, 8) and x.stride() == (64, 1, 8, 1)
    assert x.min() == -1 and x.max() == 1


def test_channels_may_have_their_own_normalization(float64: torch.dtype) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    base = colorful()
    dataset = Dataset(name="own", x=base.x, y=base.y, num_classes=3, normalize=Normalization(mean, std))
    expected = (base.x / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(images(dataset).permute(0, 2, 3, 1).numpy(), expected, rtol=0, atol=1e-15)


def test_a_task_for_other_data_is_refused() -> None:
    dataset = colorful()
    divided = build(DataOptions(partition="iid", clients=2), run_seed=0, dataset=dataset)
    for changes in ({"num_classes": 4}, {"input_shape": (1, 4, 5)}):
        with pytest.raises(ConfigError, match=r"shape \(3, 4, 5\) in 3 classes, as data set 'colorful'"):
            to_federation(divided, task_of(dataset, **changes))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dataset": "digitss"}, "unknown dataset 'digitss'; did you mean 'digits'?"),
        ({"partition": "iidd"}, "unknown partition 'iidd'"),
        ({"clients": 0}, "data.clients must be >= 1, got 0."),
        ({"new_clients": 20}, "data.new_clients must be less than data.clients (20), got 20."),
        ({"fraction": 0.0}, "data.fraction must be > 0 and <= 1, got 0.0."),
        ({"test_share": 1.0}, "data.test_share must be >= 0 and < 1, got 1.0."),
        ({"val_fraction": "0.1"}, "data.val_fraction must be a number, got '0.1'."),
        ({"seed": -1}, "data.seed must be >= 0, got -1."),
        ({"seed": "runs"}, "data.seed must be a whole number or one of 'run', got 'runs'."),
        ({"dir": 1}, "data.dir must be text, got 1."),
    ],
)
def test_options_are_checked(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataOptions(**changes)
    assert sentence in caught.value.message


def test_the_folder_option_is_where_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cifar-100-python"):
        build(DataOptions(dataset="cifar100", dir=str(tmp_path)), run_seed=0)
