"""A folder that takes the place of an older one: at no time is there neither."""

import os

import pytest

from fedtailor.core.errors import RunError
from fedtailor.core.folders import write_folder_whole


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_new_folder_takes_the_place_of_the_old_one(tmp_path):
    folder = tmp_path / "models"
    write_folder_whole(folder, [("a", b"old"), ("b", b"old")])
    write_folder_whole(folder, [("a", b"new")])
    assert contents(folder) == {"a": b"new"}
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("failing", [0, 1])
def test_the_old_folder_stays_if_the_new_one_cannot_be_put_there(tmp_path, monkeypatch, failing):
    folder = tmp_path / "models"
    write_folder_whole(folder, [("a", b"old")])
    rename = os.rename
    renames = []

    def fail_once(source, target):
        renames.append(source)
        if len(renames) == failing + 1:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(RunError, match="No space left on device"):
        write_folder_whole(folder, [("a", b"new")])
    assert contents(folder) == {"a": b"old"}
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    path = tmp_path / "models"
    path.write_bytes(b"mine")
    with pytest.raises(RunError, match="Not a directory"):
        write_folder_whole(path, [("a", b"new")])
    assert path.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [path]
