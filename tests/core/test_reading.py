"""Guarded reading: what is not a file with content, too long, or too deep is refused, at once."""

import os
import tomllib
import tracemalloc

import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.reading import (
    UnreadableError,
    parse_json,
    parse_toml,
    read_file,
    read_lines,
    read_object,
    read_toml,
)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, limit=5) == b"12345"
    with pytest.raises(DataError, match="has more than 4 bytes"):
        read_file(path, limit=4)
    os.truncate(path, 2**40)
    with pytest.raises(DataError, match="has more than 1000 bytes"):
        read_file(path, limit=1000)
    with pytest.raises(DataError, match="has more than 34359738368 bytes"):
        list(read_lines(path))
    os.truncate(path, 2**30)
    with pytest.raises(DataError, match="a line has more than"):
        list(read_lines(path))


def test_a_small_file_takes_little_memory_whatever_the_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert peak_of(lambda: read_file(path, limit=2**33)) < 2**20


def peak_of(function):
    """Return the most bytes that Python held while a function ran."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("pipe", "folder", "device"):
        with pytest.raises(DataError, match=r"it is not a file with content|cannot read"):
            read_file(tmp_path / name, limit=10)
    for name in ("loop", "missing", "a" * 300):
        with pytest.raises(UnreadableError, match="cannot read"):
            read_file(tmp_path / name, limit=10)
    with pytest.raises(DataError, match="cannot be the name of a file"):
        read_file(tmp_path / "a\0b", limit=10)


def test_links_may_be_kept_within_a_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.json").write_text("{}")
    (tmp_path / "b.json").write_text("{}")
    (folder / "inside").symlink_to("a.json")
    (folder / "outside").symlink_to("../b.json")
    assert read_object(folder / "inside", within=folder) == {}
    assert read_object(folder / "outside") == {}
    with pytest.raises(DataError, match="a link that leads out of"):
        read_object(folder / "outside", within=folder)


def test_what_is_not_json_is_damaged(tmp_path):
    for wrong in (b"NaN", b"\xff", b"", b"1" * 5000, b"\xff\xfe1\x00", b"[" * 10**6):
        with pytest.raises(DataError, match="is damaged"):
            parse_json(wrong, tmp_path / "file")


def test_lines_are_objects_and_a_torn_end_is_left_out(tmp_path):
    path = tmp_path / "lines"
    assert list(read_lines(path)) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert list(read_lines(path)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n[]\n')
    with pytest.raises(DataError, match="a line holds no object"):
        list(read_lines(path))


def test_deep_toml_is_refused(tmp_path):
    text = "a = " + "[" * 10**4 + "]" * 10**4
    with pytest.raises(DataError, match="nested too deep"):
        parse_toml(text.encode(), tmp_path / "file")


def test_plain_toml_is_read(tmp_path):
    text = "a.b.c = [0.1,0.2,0.3]\n[x.y]\n" + "numbers = [" + "0.5," * 500 + "]\ntext = 'a.b.c.d'\n"
    path = tmp_path / "file.toml"
    path.write_text(text)
    assert read_toml(path) == tomllib.loads(text)
    path.write_text("a =")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_toml(path)
