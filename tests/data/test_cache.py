"""Decoded data on disk."""

import dataclasses
import errno
import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedtailor.core.errors import DataError
from fedtailor.data import cache, load_dataset
from fedtailor.data.cache import cached, signature_of
from fedtailor.data.dataset import Dataset, Normalization

Write = Callable[..., dict[str, np.ndarray]]
SIGNATURE = "0123456789abcdef" * 4


def make(**more) -> Dataset:
    """Return a data set with a value in every field."""
    given = {
        "name": "made",
        "x": np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3, 1),
        "y": np.array([0, 1, 1, 0]),
        "num_classes": 2,
        "class_names": ("no", "<b>yes</b>"),
        "subclasses": np.array([0, 1, 2, 0]),
        "subclass_names": ("a", "b", "c"),
        "domains": np.array([0, 0, 1, 1]),
        "domain_names": ("north", "süd/../"),
        "groups": np.array([0, 0, 1, 2]),
        "normalize": Normalization((0.1307,), (0.3081,)),
        "white": 15.0,
        "num_official_train": 3,
        "sources": {"a/b": "0" * 64},
        "tested_on": "synthetic",
        "official_size": 7,
        "license": "none",
        "citation": "nobody",
        "notes": ("first", "second"),
    }
    return Dataset(**{**given, **more})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "decoded"


def never() -> Dataset:
    raise AssertionError("decoded again")


def entry(folder: Path) -> Path:
    (only,) = folder.iterdir()
    return only


def age(folder: Path) -> None:
    """Let files be older than the time in which a change leaves no trace."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        os.utime(path, (1e9, 1e9))


@pytest.mark.parametrize(
    "x", [None, np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)], ids=["images", "table"]
)
def test_every_field_comes_back(folder: Path, x: np.ndarray | None) -> None:
    made = (
        make()
        if x is None
        else make(x=x, subclasses=None, subclass_names=(), domains=None, domain_names=())
    )
    first = cached(SIGNATURE, lambda: made, name="made")
    again = cached(SIGNATURE, never, name="made")
    assert first is made and entry(folder).name == f"made-{SIGNATURE[:16]}"
    for field in dataclasses.fields(Dataset):
        ours, theirs = getattr(made, field.name), getattr(again, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
        else:
            assert ours == theirs and type(ours) is type(theirs), field.name
    assert again.digest == made.digest


def test_what_is_loaded_is_mapped_and_cannot_change_the_file(folder: Path) -> None:
    cached(SIGNATURE, make, name="made")
    before = (entry(folder) / "x.npy").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(cached(SIGNATURE, never, name="made").x)
    tensor += 1
    assert (entry(folder) / "x.npy").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("x.npy", b""),
        ("x.npy", b"short"),
        ("x.npy", None),
        ("y.npy", None),
        ("meta.json", b"{"),
        ("meta.json", b"[]"),
        ("meta.json", b'{"arrays": [], "fields": {}}'),
        ("meta.json", b"\xff"),
        ("meta.json", None),
    ],
)
def test_a_damaged_entry_is_decoded_again_and_replaced(
    folder: Path, file: str, content: bytes | None
) -> None:
    cached(SIGNATURE, make, name="made")
    path = entry(folder) / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert cached(SIGNATURE, make, name="made").digest == make().digest
    assert cached(SIGNATURE, never, name="made").digest == make().digest
    assert {path.name for path in entry(folder).iterdir()} == {
        *(f"{name}.npy" for name in cache._ARRAYS),
        "meta.json",
    }


def test_a_header_that_python_cannot_read_is_damage(folder: Path) -> None:
    cached(SIGNATURE, make, name="made")
    path = entry(folder) / "x.npy"
    path.write_bytes(path.read_bytes().replace(b"), }", b"(, }", 1))
    assert cached(SIGNATURE, make, name="made").digest == make().digest


def test_one_changed_pixel_is_noticed(folder: Path) -> None:
    cached(SIGNATURE, make, name="made")
    path = entry(folder) / "x.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    np.testing.assert_array_equal(cached(SIGNATURE, make, name="made").x, make().x)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_official_train", 2),
        ("white", 3.0),
        ("class_names", ["yes", "no"]),
        ("normalize", [[0.5], [0.5]]),
        ("domain_names", ["south", "north"]),
    ],
)
def test_one_changed_field_is_noticed(folder: Path, field: str, value: object) -> None:
    cached(SIGNATURE, make, name="made")
    path = entry(folder) / "meta.json"
    meta = json.loads(path.read_text(encoding="utf-8"))
    meta["fields"][field] = value
    path.write_text(json.dumps(meta), encoding="utf-8")
    again = cached(SIGNATURE, make, name="made")
    assert getattr(again, field) == getattr(make(), field)


def test_arrays_of_objects_are_not_unpickled(folder: Path) -> None:
    cached(SIGNATURE, make, name="made")
    np.save(entry(folder) / "x.npy", np.array([{}, {}, {}, {}]), allow_pickle=True)
    np.testing.assert_array_equal(cached(SIGNATURE, make, name="made").x, make().x)


def test_the_whole_signature_counts(folder: Path) -> None:
    cached(SIGNATURE, make, name="made")
    other = cached(SIGNATURE[:16] + "f" * 48, lambda: make(white=3.0), name="made")
    assert other.white == 3.0


def test_older_entries_of_the_same_name_only_go(folder: Path) -> None:
    for name, first in (("made", "a"), ("made_too", "b"), ("made", "c")):
        cached(first + SIGNATURE[1:], make, name=name)
    abandoned, in_work = (folder / f".made-{SIGNATURE[:16]}.{digit * 16}" for digit in "12")
    for path in (abandoned, in_work):
        path.mkdir()
    os.utime(abandoned, (1e9, 1e9))
    cached("d" + SIGNATURE[1:], make, name="made")
    kept = {f"made-d{SIGNATURE[1:16]}", f"made_too-b{SIGNATURE[1:16]}", in_work.name}
    assert {path.name for path in folder.iterdir()} == kept


def test_a_name_stays_within_the_folder(folder: Path) -> None:
    cached(SIGNATURE, make, name="../../ü\n")
    assert entry(folder).name == f"_________-{SIGNATURE[:16]}"[-len(entry(folder).name) :]
    assert cached(SIGNATURE, never, name="../../ü\n").digest == make().digest


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_stops_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "save", full)
    dataset = cached(SIGNATURE, make, name="made")
    np.testing.assert_array_equal(dataset.x, make().x)
    assert dataset.notes[:2] == make().notes and "No space left on device" in dataset.notes[2]
    assert not list(folder.iterdir()), "nothing is left behind"


def test_a_cache_folder_that_cannot_be_made_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "file" / "cache"))
    dataset = cached(SIGNATURE, make, name="made")
    assert dataset.digest == make().digest and "could not be kept" in dataset.notes[-1]


def test_another_process_that_was_faster_is_no_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def late(source, target):
        if Path(target) == folder / f"made-{SIGNATURE[:16]}" and not Path(target).exists():
            monkeypatch.setattr(os, "replace", replace)
            cached(SIGNATURE, make, name="made")
        replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    assert cached(SIGNATURE, make, name="made").notes == make().notes
    assert cached(SIGNATURE, never, name="made").digest == make().digest
    assert len(list(folder.iterdir())) == 1


def test_several_at_once(folder: Path) -> None:
    start = threading.Barrier(4)
    found: list[str] = []

    def work() -> None:
        start.wait()
        for turn in range(10):
            made = cached(f"{turn % 2:064x}"[::-1], make, name="made")
            found.append(made.digest)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [make().digest] * 40


def test_the_signature_changes_with_files_and_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_text("1")
    (tmp_path / "other").write_text("1")
    age(tmp_path)
    seen = [signature_of(["sub/*"], tmp_path)]
    assert len(seen[0]) == 64 and seen[0] == signature_of(["sub/*", "sub/a"], tmp_path)
    (tmp_path / "other").write_text("22")
    assert signature_of(["sub/*"], tmp_path) == seen[0]

    def note() -> None:
        seen.append(signature_of(["sub/*"], tmp_path))

    os.utime(tmp_path / "sub" / "a", (1e9, 1e9 + 1))
    note()
    (tmp_path / "sub" / "a").write_text("22")
    age(tmp_path)
    note()
    (tmp_path / "sub" / "a").rename(tmp_path / "sub" / "b")
    note()
    monkeypatch.setattr(cache, "CACHE_VERSION", 0)
    note()
    monkeypatch.setattr(cache, "_source_digest", lambda: "another")
    note()
    assert len(set(seen)) == len(seen) == 6


def test_files_of_one_size_and_age_that_change_places_are_noticed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
    age(tmp_path)
    before = signature_of(["[ab]"], tmp_path)
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    (tmp_path / "c").rename(tmp_path / "b")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["b", "a"]
    assert signature_of(["[ab]"], tmp_path) != before


def test_a_file_rewritten_with_its_old_time_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    age(tmp_path)
    before = signature_of(["a"], tmp_path)
    (tmp_path / "a").write_text("2")
    age(tmp_path)
    assert signature_of(["a"], tmp_path) != before


def test_hard_links_of_two_folders_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one/a").write_text("1")
    (tmp_path / "two/a").hardlink_to(tmp_path / "one/a")
    (tmp_path / "link").symlink_to("one")
    age(tmp_path)
    first, second, linked = (
        signature_of(["a"], tmp_path / name) for name in ("one", "two", "link")
    )
    assert first != second and first == linked


def test_no_files_and_fresh_files_have_no_signature(tmp_path: Path, folder: Path) -> None:
    assert signature_of(["*.bin"], tmp_path) == ""
    (tmp_path / "a.bin").write_text("1")
    assert signature_of(["*.bin"], tmp_path) == ""
    assert cached("", make, name="made").digest == make().digest and not folder.exists()


def test_a_known_data_set_is_decoded_once(
    tmp_path: Path, folder: Path, write_idx: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = write_idx()
    age(tmp_path / "MNIST")
    first = load_dataset("mnist", tmp_path)
    monkeypatch.setattr("fedtailor.data.datasets.mnist.load_mnist", lambda _: never())
    again = load_dataset("mnist", tmp_path)
    np.testing.assert_array_equal(again.x[:6, ..., 0], arrays["train-images-idx3-ubyte"])
    assert (again.digest, again.sources, again.license) == (
        first.digest,
        first.sources,
        first.license,
    )
    assert "digest" in vars(again), "computed once, to compare"
    assert json.loads((entry(folder) / "meta.json").read_text())["digest"] == again.digest


def test_missing_files_still_have_the_reader_s_error(
    tmp_path: Path, folder: Path, write_idx: Write
) -> None:
    write_idx()
    age(tmp_path / "MNIST")
    load_dataset("mnist", tmp_path)
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="train-labels-idx1-ubyte"):
        load_dataset("mnist", tmp_path)


def test_entries_of_an_empty_cache(folder: Path) -> None:
    assert cache.entries() == [] and cache.clear() == [] and not folder.exists()


def test_entries_are_listed_with_their_sizes_and_cleared(tmp_path: Path, folder: Path) -> None:
    cached(SIGNATURE, make, name="made")
    cached("f" * 64, lambda: make(white=3.0), name="other")
    corrupted = folder.parent / "corrupted"
    corrupted.mkdir()
    (corrupted / f"frost-3-{SIGNATURE[:32]}.npy").write_bytes(bytes(100))
    (corrupted / f"frost-3-{SIGNATURE[:32]}.sha256").write_bytes(bytes(64))
    unfinished = f".made-{SIGNATURE[:16]}.{'1' * 16}"
    (folder / unfinished).mkdir()
    (folder / "mine").mkdir()  # not an entry
    (folder.parent / "MNIST").mkdir()  # the data folder may be the same
    (folder.parent / "MNIST" / "file").write_text("kept")
    found = cache.entries()
    shown = [(each.kind, each.path.name) for each in found]
    assert shown == [
        ("corrupted", f"frost-3-{SIGNATURE[:32]}.npy"),
        ("corrupted", f"frost-3-{SIGNATURE[:32]}.sha256"),
        ("decoded", unfinished),
        ("decoded", f"made-{SIGNATURE[:16]}"),
        ("decoded", f"other-{'f' * 16}"),
    ]
    made = sum(path.stat().st_size for path in (folder / f"made-{SIGNATURE[:16]}").iterdir())
    assert [each.bytes for each in found][:4] == [100, 64, 0, made] and made > 0
    assert cache.clear() == found and cache.entries() == []
    assert (folder.parent / "MNIST" / "file").read_text() == "kept" and (folder / "mine").is_dir()
    assert [each.name for each in found] == ["frost-3", "frost-3", "made", "made", "other"]
    assert cached(SIGNATURE, make, name="made").digest == make().digest


def test_a_link_in_the_cache_is_removed_and_not_followed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    folder.mkdir(parents=True)
    (folder / f"link-{SIGNATURE[:16]}").symlink_to(tmp_path / "elsewhere")
    assert [entry.path.name for entry in cache.clear()] == [f"link-{SIGNATURE[:16]}"]
    assert (tmp_path / "elsewhere" / "file").read_text() == "kept" and not list(folder.iterdir())


def test_an_entry_that_cannot_be_removed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(SIGNATURE, make, name="made")

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(cache.shutil, "rmtree", refuse)
    with pytest.raises(
        DataError, match=rf"cannot remove '.*made-{SIGNATURE[:16]}': Permission denied"
    ):
        cache.clear()


def test_what_another_process_removed_is_no_failure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(SIGNATURE, make, name="made")
    found = cache.entries()
    cache.clear()
    monkeypatch.setattr(cache, "entries", lambda: found)
    assert cache.clear() == []
