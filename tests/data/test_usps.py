"""The reader of USPS, on synthetic and on real files."""

import bz2
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data.digit_files import usps_line, write_usps
from fedtailor.core.errors import DataError
from fedtailor.data import load_dataset
from fedtailor.data.datasets import usps


def test_values_and_labels(tmp_path: Path, generator: np.random.Generator) -> None:
    lines = write_usps(tmp_path, generator)
    dataset = load_dataset("usps", tmp_path)
    assert (
        dataset.x.dtype == np.uint8
        and dataset.x.shape == (8, 16, 16, 1)
        and dataset.num_official_train == 5
    )
    assert dataset.y.tolist() == [0, 1, 2, 3, 4, 0, 1, 2] and dataset.subset
    for image, line in zip(dataset.x, lines, strict=False):
        values = [np.float32(pair.split(":")[1]) for pair in line.split()[1:]]
        assert image.ravel().tolist() == [
            int((value + np.float32(1)) / np.float32(2) * 255) for value in values
        ]


def test_ends_of_the_range_and_all_ways_to_write_a_value(
    tmp_path: Path, generator: np.random.Generator
) -> None:
    write_usps(tmp_path, generator)
    values = np.zeros(256, int)
    values[:3] = -1000, 1000, 999
    line = (
        usps_line(10, values)
        .replace(" 5:0 ", " 5:-0 ")
        .replace(" 6:0 ", " 6:0.000 ")
        .replace(" 7:0 ", " 7:5e-05 ")
    )
    (tmp_path / "USPS/usps.bz2").write_bytes(bz2.compress(line.strip().encode() + b"\r\n"))
    dataset = load_dataset("usps", tmp_path)
    assert (
        dataset.x[0].ravel()[:8].tolist() == [0, 255, 254, 127, 127, 127, 127, 127]
        and dataset.y[0] == 9
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: line.replace(" 100:", " 101:"), "in place of index 100"),
        (lambda line: line.replace(" 2:", " 1:"), "in place of index 2"),
        (lambda line: " ".join(line.split()[:-1]), "255 pairs"),
        (lambda line: line + "257:0.5", "257 pairs"),
        (
            lambda line: " ".join([*line.split()[:-1], "256:nan"]),
            "b'256:nan' in place of index 256",
        ),
        (lambda line: " ".join([*line.split()[:-1], "256:1e99"]), "b'256:1e99'"),
        (lambda line: " ".join([*line.split()[:-1], "256:1.001"]), "b'256:1.001'"),
        (lambda line: " ".join([*line.split()[:-1], "256:-2"]), "b'256:-2'"),
        (lambda line: " ".join([*line.split()[:-1], "256:"]), "b'256:'"),
        (lambda line: "11" + line[1:], "the label b'11'"),
        (lambda line: "0" + line[1:], "the label b'0'"),
        (lambda line: "2.5" + line[1:], "the label b'2.5'"),
        (lambda line: line.replace(" 9:", "  9:"), "white space other than"),
        (lambda line: "", "the label b''"),
        (lambda line: "1" * 10**6, "the label b'1111111111"),
        (lambda line: line.replace(" 9:", "\0 9:"), "in place of index 8"),
    ],
)
def test_a_wrong_line_is_named(
    tmp_path: Path, generator: np.random.Generator, change: Callable[[str], str], sentence: str
) -> None:
    lines = write_usps(tmp_path, generator)
    path = tmp_path / "USPS/usps.bz2"
    lines[1] = change(lines[1])
    path.write_bytes(bz2.compress("\n".join(lines).encode()))
    with pytest.raises(DataError) as caught:
        load_dataset("usps", tmp_path)
    assert (
        f"{path}: expected in line 2 a label" in caught.value.message
        and sentence in caught.value.message
    )
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-9], lambda raw: b"no", lambda raw: raw[:40] + b"\0" + raw[41:]]
)
def test_damaged_compression_is_refused(
    tmp_path: Path, generator: np.random.Generator, change: Callable[[bytes], bytes]
) -> None:
    write_usps(tmp_path, generator)
    path = tmp_path / "USPS/usps.bz2"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="expected intact bzip2 data"):
        load_dataset("usps", tmp_path)


def test_what_decompresses_without_end_is_refused(
    tmp_path: Path, generator: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_usps(tmp_path, generator)
    monkeypatch.setattr(usps, "_MAX_TEXT", 2**16)
    (tmp_path / "USPS/usps.bz2").write_bytes(bz2.compress(bytes(2**22)))
    with pytest.raises(DataError, match="expected at most 65536 bytes of text, got more"):
        load_dataset("usps", tmp_path)


def test_missing_and_empty_files(tmp_path: Path, generator: np.random.Generator) -> None:
    write_usps(tmp_path, generator)
    (tmp_path / "USPS/usps.bz2").write_bytes(bz2.compress(b""))
    with pytest.raises(DataError, match=r"usps\.bz2: expected a line for every image, got no line"):
        load_dataset("usps", tmp_path)
    (tmp_path / "USPS/usps.t.bz2").unlink()
    (tmp_path / "USPS/usps.bz2").unlink()
    with pytest.raises(DataError, match=r"'usps\.bz2' was not found") as caught:
        load_dataset("usps", tmp_path)
    assert caught.value.got == "missing"


def test_the_original_has_the_published_counts(data_dir: Path) -> None:
    if not (data_dir / "USPS/usps.bz2").is_file():
        pytest.skip(f"no USPS in {data_dir}")
    dataset = load_dataset("usps", data_dir)
    assert (
        not dataset.subset
        and dataset.tested_on == "original"
        and dataset.num_official_train == 7291
    )
    train, test = np.split(dataset.y, [7291])
    assert np.bincount(train).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(test).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    assert dataset.x.min() == 0 and dataset.x.max() == 255
