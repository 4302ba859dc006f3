"""CIFAR-S: its options, which client gets which pair, and data sets with corrupted copies."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.build import build, split_record
from fedtailor.data.corruptions import CORRUPTIONS, corrupt
from fedtailor.data.corruptions.shift import (
    CifarS,
    Pair,
    apply_shift,
    pairs,
    parse_shift,
)
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.split import clients_of_run

KINDS = list(CORRUPTIONS)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def dataset(images):
    return Dataset(
        name="photographs",
        x=images,
        y=np.arange(60) % 4,
        num_classes=4,
        subclasses=np.arange(60) % 8,
        subclass_names=tuple("abcdefgh"),
        domains=np.arange(60) // 20,
        domain_names=("one", "two", "three"),
        num_official_train=50,
        official_size=60,
        sources={"file": "0" * 64},
        notes=("a note.",),
    )


def test_options_are_read():
    assert parse_shift("cifar_s") == CifarS(50, "release", "clean")
    assert parse_shift("cifar_s(clients=0, pairing='unique', new='all')") == CifarS(
        0, "unique", "all"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cifar", "unknown shift 'cifar'"),
        ("cifar_s(client=3)", "did you mean 'clients'"),
        ("cifar_s(clients=-1)", "cifar_s.clients must be >= 0, got -1"),
        ("cifar_s(clients=2.5)", "cifar_s.clients must be a whole number"),
        ("cifar_s(pairing='other')", "one of 'release', 'unique'"),
        ("cifar_s(50)", "data.shift must be"),
        ("__import__('os')", "data.shift must be"),
    ],
)
def test_wrong_options_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_shift(text)


def test_pairs_of_the_release():
    done = pairs(CifarS(), 60)
    assert done[50:] == [None] * 10
    ten = [Pair(kind, level) for kind, level in zip(KINDS, [1, 2, 3, 4, 5] * 2, strict=True)]
    assert done[:50] == ten * 5


def test_unique_pairs_start_anew_after_fifty():
    done = pairs(CifarS(53, "unique"), 53)
    assert done[:50] == [Pair(kind, level) for kind in KINDS for level in range(1, 6)]
    assert done[50:] == done[:3] and len(set(done)) == 50


def test_more_corrupted_clients_than_clients_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"cifar_s\.clients must be at most 20, the number of clients that are not new",
    ):
        pairs(CifarS(), 20)
    assert pairs(CifarS(0), 2) == [None, None]


def test_clients_get_copies_of_their_rows(dataset, tmp_path):
    clients = [np.array([9, 1, 55]), np.array([4, 2]), np.array([7, 8]), np.array([1, 30])]
    done = [Pair("fog", 2), None, Pair("contrast", 5), Pair("fog", 2)]
    progress = []
    corrupted, moved = apply_shift(
        dataset,
        clients,
        done,
        seed=6,
        frost_folder=tmp_path,
        progress=lambda made, total: progress.append((made, total)),
    )
    np.testing.assert_array_equal(corrupted.x[:60], dataset.x)
    np.testing.assert_array_equal(moved[1], clients[1])
    for rows, copies, pair in zip(clients, moved, done, strict=True):
        assert copies.shape == rows.shape
        if pair is not None:
            expected = corrupt(dataset.x[rows], *pair, positions=rows, seed=6)
            np.testing.assert_array_equal(corrupted.x[copies], expected)
        for column in ("y", "subclasses", "domains"):
            np.testing.assert_array_equal(
                getattr(corrupted, column)[copies], getattr(dataset, column)[rows]
            )
    assert (
        len(corrupted.y) == 60 + 4 + 2 and moved[0][1] == moved[3][0]
    )  # row 1 under fog is copied once
    assert progress == [(4, 6), (6, 6)]


def test_what_is_known_of_a_data_set_stays(dataset, tmp_path):
    corrupted, _ = apply_shift(
        dataset, [np.arange(5)], [Pair("jpeg", 1)], seed=0, frost_folder=tmp_path
    )
    assert corrupted.num_official_train == 50 and not dataset.subset and not corrupted.subset
    assert corrupted.sources == dataset.sources and corrupted.notes == dataset.notes
    assert corrupted.digest != dataset.digest
    part = Dataset(name="part", x=dataset.x, y=dataset.y, num_classes=4, official_size=100)
    corrupted, _ = apply_shift(
        part, [np.arange(5)], [Pair("jpeg", 1)], seed=0, frost_folder=tmp_path
    )
    assert corrupted.subset


def test_copies_have_the_groups_of_their_originals(dataset, tmp_path):
    grouped = replace(dataset, groups=np.arange(len(dataset.y)) // 3)
    corrupted, (moved,) = apply_shift(
        grouped, [np.arange(6)], [Pair("jpeg", 1)], seed=0, frost_folder=tmp_path
    )
    assert corrupted.groups[moved].tolist() == [0, 0, 0, 1, 1, 1]


def test_without_corrupted_clients_nothing_changes(dataset, tmp_path):
    rows = [np.arange(5), np.arange(5, 9)]
    same, moved = apply_shift(dataset, rows, [None, None], seed=0, frost_folder=tmp_path)
    assert same is dataset and all(a is b for a, b in zip(moved, rows, strict=True))


def test_notes_say_what_is_not_as_in_the_release(dataset, tmp_path):
    rows, done = [np.arange(2), np.arange(2)], [Pair("frost", 2), Pair("motion_blur", 1)]
    drawn, _ = apply_shift(dataset, rows, done, seed=0, frost_folder=tmp_path / "frost")
    assert drawn.notes[0] == "a note." and len(drawn.notes) == 3
    assert any("without ImageMagick" in note for note in drawn.notes)
    assert any("frost' is approximate" in note for note in drawn.notes)
    assert not any(str(tmp_path) in note for note in drawn.notes)  # notes go into records


def test_photographs_of_frost_are_sources(dataset, tmp_path):
    (tmp_path / "frost").mkdir()
    for number in range(1, 6):
        Image.new("RGB", (200, 200), (250, 250, 250)).save(
            tmp_path / "frost" / f"frost{number}.png"
        )
    arguments = {"seed": 0, "frost_folder": tmp_path / "frost"}
    corrupted, moved = apply_shift(dataset, [np.arange(3)], [Pair("frost", 1)], **arguments)
    assert set(corrupted.sources) == {
        "file",
        *(f"frost/frost{number}.png" for number in range(1, 6)),
    }
    assert corrupted.notes == ("a note.",)
    expected = np.minimum(dataset.x[:3].astype(int) + 50, 255)
    np.testing.assert_array_equal(corrupted.x[moved[0]], expected)


@pytest.mark.parametrize(
    "options",
    [
        {"x": np.zeros((4, 8, 8, 3), np.float32)},
        {"x": np.zeros((4, 8), np.float32)},
        {"x": np.zeros((4, 8, 8, 2), np.uint8)},
        {"x": np.zeros((4, 8, 8, 1), np.uint8), "white": 16.0},
    ],
)
def test_what_is_not_an_image_of_8_bits_is_refused(options, tmp_path):
    dataset = Dataset(name="numbers", y=np.zeros(4, np.int64), num_classes=1, **options)
    with pytest.raises(DataError, match=r"data\.shift needs 8-bit images.*'numbers'"):
        apply_shift(dataset, [np.arange(2)], [Pair("fog", 1)], seed=0, frost_folder=tmp_path)


def test_a_run_names_its_new_clients_once_per_condition(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    (tmp_path / "own").mkdir()
    np.savez(tmp_path / "own" / "train.npz", x=pixels, y=np.arange(100) % 2)
    options = DataOptions(
        path=str(tmp_path / "own"),
        partition="iid",
        clients=5,
        new_clients=2,
        shift="cifar_s(clients=1, new='all')",
    )
    divided = build(options, run_seed=0)
    record = split_record(divided.division, divided.conditions)
    clients = clients_of_run(record)
    assert tuple(name for _, name in clients) == divided.client_names
    assert clients[4] == (3, f"3-{divided.conditions[4]}") and divided.conditions[3] == "clean"
    assert [position for position, _ in clients[:4]] == [0, 1, 2, 3] and clients[-1][0] == 4
    plain = {**record, "conditions": []}
    assert clients_of_run(plain) == [(number, str(number)) for number in range(5)]

    # Without variants, clients without names stay so: they are no sites.
    alone = build(replace(options, shift="cifar_s(clients=1)"), run_seed=0)
    assert alone.client_names == () and len(alone.conditions) == 5
