"""From divided data to tensors."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Federation
from fedtailor.core.task import Model, Task
from fedtailor.data import load_dataset
from fedtailor.data.build import build, split_record
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.options import DataOptions
from fedtailor.data.tensors import to_federation
from fedtailor.training.batches import gather


def task_of(dataset: Dataset, **changes: Any) -> Task:
    fields = {"num_classes": dataset.num_classes, "input_shape": dataset.input_shape, **changes}
    return Task(model=cast(Model, None), **fields)


def colorful(rows: int = 30, **changes: Any) -> Dataset:
    x = np.random.default_rng(0).integers(0, 256, (rows, 4, 5, 3), dtype=np.uint8)
    fields = {
        "name": "colorful",
        "x": x,
        "y": np.arange(rows) % 3,
        "num_classes": 3,
        "class_names": ("a", "b", "c"),
    }
    return Dataset(**{**fields, **changes})


def table(rows: int = 40) -> Dataset:
    """Return features of very different sizes; the third does not vary."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, 3)) * [1e-3, 50, 0] + [0, 1e6, 7]
    return colorful(
        rows, x=x.astype(np.float32), white=1.0, normalize=Normalization((0.0,), (1.0,))
    )


def federation_of(dataset: Dataset, **options: Any) -> Federation:
    divided = build(DataOptions(partition="iid", clients=5, **options), run_seed=0, dataset=dataset)
    return to_federation(divided, task_of(dataset))


def values(federation: Federation) -> np.ndarray:
    """Return all examples as a model gets them."""
    return gather(
        federation.examples(torch.arange(len(federation.y))), torch.arange(len(federation.y))
    ).x.numpy()


def test_images_stay_8_bit_and_are_normalized_when_used(float64: torch.dtype) -> None:
    dataset = colorful()
    federation = federation_of(dataset, new_clients=2)
    assert federation.x.dtype == torch.uint8 and federation.y.dtype == torch.int64
    assert federation.x.shape == (30, 3, 4, 5) and federation.x.permute(0, 2, 3, 1).is_contiguous()
    expected = (dataset.x.transpose(0, 3, 1, 2) / 255 - 0.5) / 0.5
    np.testing.assert_array_equal(values(federation), expected)
    assert federation.roster.population == 3 and list(federation.roster.new) == [3, 4]
    assert federation.class_names == ("a", "b", "c")
    assert federation.splits[0].train.dtype == torch.int64
    assert federation.info(0).num_train == len(federation.splits[0].train)


def test_digits_are_scaled_by_their_white() -> None:
    x = values(federation_of(load_dataset("digits")))
    assert x.dtype == np.float32 and x.shape == (1797, 1, 8, 8)
    assert x.min() == -1 and x.max() == 1


def test_channels_may_have_their_own_normalization(float64: torch.dtype) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    dataset = colorful(normalize=Normalization(mean, std))
    expected = (dataset.x / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_array_equal(values(federation_of(dataset)).transpose(0, 2, 3, 1), expected)


def test_images_of_floats_are_normalized_when_used_so_that_black_comes_in(
    float64: torch.dtype,
) -> None:
    x = np.random.default_rng(0).random((30, 4, 5, 3), dtype=np.float32)
    federation = federation_of(colorful(x=x, white=1.0))
    np.testing.assert_array_equal(
        values(federation).transpose(0, 2, 3, 1), (x.astype(np.float64) - 0.5) / 0.5
    )
    moves = torch.tensor([[2, 0, 0]] * 30)
    moved = gather(federation.examples(torch.arange(30)), torch.arange(30), moves).x
    assert torch.equal(moved[:, :, :2], torch.full_like(moved[:, :, :2], -1.0))


def test_a_split_from_a_file_is_the_same_run(tmp_path: Path) -> None:
    options = DataOptions(partition="iid", clients=4, new_clients=1, val_fraction=0.1)
    divided = build(options, run_seed=0)
    path = tmp_path / "split.json"
    path.write_text(json.dumps(split_record(divided.division)))
    loaded = build(DataOptions(split=str(path)), run_seed=0)
    assert loaded.num_new == 1 and loaded.notes == divided.notes
    for rows, others in zip(divided.positions, loaded.positions, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(rows, others, strict=True))
    again = split_record(loaded.division)
    assert again["split_sha256"] == split_record(divided.division)["split_sha256"]
    path.write_text(json.dumps(again))  # what a run with a split file writes is a split file itself
    assert len(build(DataOptions(split=str(path)), run_seed=0).positions) == 4
    with pytest.raises(ConfigError, match=r"data\.new_clients must be 1, as in the split file"):
        build(DataOptions(split=str(path), new_clients=2), run_seed=0)


def test_other_conditions_than_those_of_a_split_file_are_noted(tmp_path: Path) -> None:
    dataset = colorful(200)
    options = DataOptions(partition="iid", clients=4, shift="cifar_s(clients=2)")
    divided = build(options, run_seed=0, dataset=dataset)
    path = tmp_path / "split.json"
    path.write_text(json.dumps(split_record(divided.division, divided.conditions)))
    clean = build(DataOptions(split=str(path)), run_seed=0, dataset=dataset)
    assert any("the split file has other conditions" in note for note in clean.notes)
    same = build(
        DataOptions(split=str(path), shift="cifar_s(clients=2)"), run_seed=0, dataset=dataset
    )
    assert (
        not any("the split file has other conditions" in note for note in same.notes)
        and same.conditions == divided.conditions
    )


def test_new_clients_under_all_corruptions_need_new_clients() -> None:
    with pytest.raises(ConfigError, match=r"with cifar_s\(new='all'\)"):
        options = DataOptions(partition="iid", clients=4, shift="cifar_s(clients=0, new='all')")
        build(options, run_seed=0, dataset=colorful(200))


@pytest.mark.parametrize("make", [colorful, table])
def test_training_examples_of_known_clients_may_give_mean_and_deviation(
    make: Any, float64: torch.dtype
) -> None:
    dataset = make()
    options = (
        {} if dataset.x.ndim == 2 else {"normalize": "training"}
    )  # tables: unless the options say otherwise
    federation = federation_of(dataset, new_clients=2, **options)
    rows = torch.cat(
        [federation.splits[client].train for client in federation.roster.known]
    ).numpy()
    raw = np.moveaxis(dataset.x.astype(np.float64), -1, 1)
    axes = (0, *range(2, raw.ndim))
    mean, std = (getattr(raw[rows], name)(axes, keepdims=True) for name in ("mean", "std"))
    expected = (raw - mean) / np.where(std > 0, std, 1)
    np.testing.assert_allclose(values(federation), expected, rtol=0, atol=1e-9)


def test_tables_can_be_used_as_they_are(float64: torch.dtype) -> None:
    dataset = table()
    np.testing.assert_array_equal(
        values(federation_of(dataset, normalize="dataset")), dataset.x.astype(np.float64)
    )
