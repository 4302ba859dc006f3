"""Arrays of sites: scales and axes are told apart, and every broken archive is a problem of a kind
that stays."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.arrays import read_npz_sites
from fedtailor.data.own.findings import Findings

X = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
Y = np.array([0, 1, 2, 1])


def save(folder: Path, site: str, part: str = "train", **arrays: Any) -> Path:
    (folder / site).mkdir(exist_ok=True)
    path = folder / site / f"{part}.npz"
    np.savez_compressed(path, **arrays)
    return path


def read(folder: Path, **options: Any) -> tuple[Dataset | None, Findings]:
    findings = Findings()
    sites = [
        (site.name, {path.stem: path for path in sorted(site.iterdir())})
        for site in sorted(folder.iterdir())
    ]
    return read_npz_sites(
        folder, sites, DataOptions(path=str(folder), **options), findings
    ), findings


def kinds(findings: Findings) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.kind, problem.path) for problem in findings.problems]


def test_sites_are_put_in_order_with_all_test_rows_last(tmp_path: Path) -> None:
    save(tmp_path, "a", x=X, y=Y, class_names=np.array(["cat", "dog", "=1+1"]))
    save(tmp_path, "a", "test", x=X[:2] + 1, y=Y[:2])
    save(tmp_path, "b", "test", x=X[2:] + 2, y=Y[2:].astype(np.uint8))
    dataset, findings = read(tmp_path)
    assert findings.problems == [] and dataset is not None and dataset.domains is not None
    assert (
        dataset.x.dtype == np.uint8
        and dataset.x.shape == (8, 6, 5, 1)
        and dataset.num_official_train == 4
    )
    np.testing.assert_array_equal(dataset.x[..., 0], np.concatenate([X, X[:2] + 1, X[2:] + 2]))
    assert dataset.y.tolist() == [0, 1, 2, 1, 0, 1, 2, 1] and dataset.domains.tolist() == [
        0,
        0,
        0,
        0,
        0,
        0,
        1,
        1,
    ]
    assert dataset.class_names == ("cat", "dog", "=1+1") and dataset.domain_names == ("a", "b")
    assert [(site.train, site.test) for site in findings.sites] == [
        ({"cat": 1, "dog": 2, "=1+1": 1}, {"cat": 1, "dog": 1}),
        ({}, {"dog": 1, "=1+1": 1}),
    ]
    assert list(dataset.sources) == [tmp_path.name] and len(dataset.sources[tmp_path.name]) == 64


@pytest.mark.parametrize(
    ("x", "kind", "white", "mean"),
    [
        (X, np.uint8, 255.0, 0.5),
        (X.astype(np.int64), np.uint8, 255.0, 0.5),
        (X.astype(np.uint16) * 256, np.float32, 65535.0, 0.5),
        ((X / 255).astype(">f8"), np.float32, 1.0, 0.5),
        (X / 255 * 2 - 1, np.float32, 1.0, 0.0),
        (X.reshape(4, 30).astype(np.int32), np.float32, 1.0, 0.0),
        (X.reshape(4, 30) > 7, np.float32, 1.0, 0.0),
    ],
    ids=[
        "8 bits",
        "64 bits",
        "16 bits",
        "floats to 1",
        "floats from -1",
        "table",
        "table of truths",
    ],
)
def test_white_is_told_from_type_and_range(
    tmp_path: Path, x: np.ndarray, kind: type, white: float, mean: float
) -> None:
    save(tmp_path, "a", x=x, y=Y)
    dataset, findings = read(tmp_path)
    assert dataset is not None and (dataset.x.dtype, dataset.white) == (kind, white)
    assert dataset.normalize.mean == (mean,)
    np.testing.assert_array_equal(dataset.x, x.reshape(dataset.x.shape).astype(kind))
    kinds = {
        problem.kind for problem in findings.problems if not problem.kind.startswith("duplicate")
    }
    assert kinds == ({"values_unscaled"} if x.min() < 0 else set())


@pytest.mark.parametrize(
    ("peak", "kind", "warned"),
    [
        (0, np.uint8, "dark_8_bit"),
        (1, np.uint8, "dark_8_bit"),
        (16, np.int64, "dark_8_bit"),
        (63, np.uint8, "dark_8_bit"),
        (64, np.uint8, ""),
        (256, np.uint16, "dark_16_bit"),
        (4095, np.uint16, "dark_16_bit"),
        (16383, np.int32, "dark_16_bit"),
        (16384, np.uint16, ""),
    ],
)
def test_images_far_from_white_are_pointed_out(
    tmp_path: Path, peak: int, kind: type, warned: str
) -> None:
    x = np.zeros((4, 6, 5), kind)
    save(tmp_path, "a", x=x, y=Y)
    x[1, 2, 3] = peak
    save(tmp_path, "b", x=x, y=Y)  # over all sites: dark images of one are no problem
    dataset, findings = read(tmp_path)
    assert dataset is not None
    dark = [problem for problem in findings.problems if problem.kind.startswith("dark")]
    assert [(problem.severity, problem.kind) for problem in dark] == (
        [("warning", warned)] if warned else []
    )
    assert all(
        f"is {peak}," in problem.message and 'data.normalize = "training"' in problem.message
        for problem in dark
    )


def test_numbers_of_a_table_have_no_white(tmp_path: Path) -> None:
    save(tmp_path, "a", x=np.arange(12).reshape(4, 3), y=Y)
    assert read(tmp_path)[1].problems == []


def test_duplicates_are_one_warning_per_kind(tmp_path: Path) -> None:
    def x(*grays: int) -> np.ndarray:
        return np.array(grays)[:, None, None] * np.ones((1, 6, 5), int)

    save(tmp_path, "a", x=x(1, 2, 1, 1, 1, 1, 200), y=np.array([0, 0, 0, 0, 0, 0, 1]))
    save(
        tmp_path, "a", "test", x=x(9, 2).astype(np.uint8), y=np.array([1, 0])
    )  # the same, in another type
    save(tmp_path, "b", x=x(7, 200, 2), y=np.array([0, 0, 0]))
    dataset, findings = read(tmp_path)
    assert dataset is not None and len(dataset.y) == 12, "all are kept"
    messages = {problem.kind: problem.message for problem in findings.problems}
    assert len(findings.problems) == 4 and {problem.severity for problem in findings.problems} == {
        "warning"
    }
    assert "1 found: 'a/test:1' as 'a/train:1'." in messages["duplicate_train_test"]
    assert "1 found: 'b/train:1' as 'a/train:6'." in messages["duplicate_other_class"]
    assert "1 found: 'b/train:2' as 'a/train:1'." in messages["duplicate_across_sites"]
    assert "4 found: 'a/train:2' as 'a/train:0'" in messages["duplicate_in_site"]
    assert messages["duplicate_in_site"].endswith("and 1 more.")


def test_duplicates_are_not_looked_for_among_too_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, "a", x=np.full((4, 6, 5), 200), y=Y)
    monkeypatch.setattr("fedtailor.data.own.duplicates.MAX_ROWS", 3)
    dataset, findings = read(tmp_path)
    assert dataset is not None and findings.problems == []
    assert findings.notes == ["Duplicates were not searched for: there are more than 3 rows."]


def test_channels_first_are_moved_and_said(tmp_path: Path) -> None:
    x = np.arange(4 * 3 * 6 * 5, dtype=np.uint8).reshape(4, 3, 6, 5)
    save(tmp_path, "a", x=x, y=Y)
    save(tmp_path, "b", x=np.moveaxis(x, 1, 3) ^ 1, y=Y)
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.input_shape == (3, 6, 5)
    np.testing.assert_array_equal(dataset.x[:4], dataset.x[4:] ^ 1)
    np.testing.assert_array_equal(dataset.x[:4], x.transpose(0, 2, 3, 1))
    assert sum("channels" in note for note in findings.notes) == 1 and findings.problems == []


def test_what_is_unusual_is_used_with_a_warning(tmp_path: Path) -> None:
    save(tmp_path, "a", x=X, y=Y[::-1] * 2.0, extra=Y)
    save(tmp_path, "b", x=X[:0], y=Y[:0])
    dataset, findings = read(tmp_path, image_size=8, color="rgb")
    assert dataset is not None and dataset.y.tolist() == [2, 4, 2, 0] and dataset.num_classes == 5
    assert [(p.severity, p.kind) for p in findings.problems] == [
        ("warning", "unused_array"),
        ("skipped", "empty_site"),
        ("warning", "labels_as_floats"),
        ("warning", "unused_label"),
        ("warning", "option_unused"),
        ("warning", "option_unused"),
    ]
    assert [site.train for site in findings.sites] == [{"0": 1, "2": 2, "4": 1}, {}]
    assert dataset.domain_names == ("a",)


def test_only_empty_sites_are_an_error(tmp_path: Path) -> None:
    save(tmp_path, "b", x=X[:0], y=Y[:0])
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == ["empty_site", "no_examples"]


FLOATS = X / 255
WITH_NAN = np.where(X == 35, np.nan, FLOATS)
NAMES = np.array(["x", "y"])

BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "no y": ({"x": X, "images": X}, "missing_array", "b/train.npz"),
    "objects": (
        {"x": np.array([[1], None, "a", 2], dtype=object), "y": Y},
        "object_array",
        "b/train.npz",
    ),
    "other rows": ({"x": X, "y": Y[:3]}, "wrong_shape", "b/train.npz"),
    "one-hot": ({"x": X, "y": np.eye(3)[Y]}, "wrong_shape", "b/train.npz"),
    "a number": ({"x": np.float64(3), "y": Y}, "wrong_shape", "b/train.npz"),
    "five axes": ({"x": X[:, None, None], "y": Y}, "wrong_shape", "b/train.npz"),
    "no pixels": ({"x": X[:, :0], "y": Y}, "wrong_shape", "b/train.npz"),
    "channels in the middle": (
        {"x": np.zeros((4, 8, 2, 8), np.uint8), "y": Y},
        "wrong_shape",
        "b/train.npz",
    ),
    "other size": ({"x": X[:, 1:], "y": Y}, "shape_differs", "b/train.npz"),
    "other type": ({"x": FLOATS, "y": Y}, "type_differs", "b/train.npz"),
    "NaN": ({"x": WITH_NAN, "y": Y}, "not_finite", "b/train.npz:1"),
    "beyond 32 bits": ({"x": X * 1e300, "y": Y}, "not_finite", "b/train.npz:0"),
    "text": ({"x": X.astype(str), "y": Y}, "wrong_type", "b/train.npz"),
    "complex": ({"x": X * 1j, "y": Y}, "wrong_type", "b/train.npz"),
    "negative values": ({"x": X.astype(int) - 3, "y": Y}, "value_out_of_range", "b/train.npz"),
    "text labels": ({"x": X, "y": Y.astype(str)}, "wrong_type", "b/train.npz"),
    "label -1": ({"x": X, "y": Y - 1}, "negative_label", "b/train.npz:0"),
    "float label": ({"x": X, "y": Y + 0.5}, "float_label", "b/train.npz:0"),
    "NaN label": ({"x": X, "y": np.where(Y == 2, np.nan, Y)}, "float_label", "b/train.npz:2"),
    "huge label": (
        {"x": X, "y": Y.astype(np.uint64) * 2**62},
        "label_out_of_range",
        "b/train.npz:1",
    ),
    "label >= classes": (
        {"x": X, "y": Y, "class_names": NAMES},
        "label_out_of_range",
        "a/train.npz:2",
    ),
    "a name twice": (
        {"x": X, "y": Y, "class_names": np.array(["x", "y", "x"])},
        "wrong_class_names",
        "b/train.npz",
    ),
    "numbers for names": ({"x": X, "y": Y, "class_names": Y}, "wrong_class_names", "b/train.npz"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_arrays_are_an_error_that_names_the_file(tmp_path: Path, case: str) -> None:
    arrays, kind, path = BROKEN[case]
    save(tmp_path, "a", x=FLOATS if kind == "not_finite" else X, y=Y)
    save(tmp_path, "b", **arrays)
    dataset, findings = read(tmp_path)
    assert dataset is None and ("error", kind, path) in kinds(findings)
    assert {problem.kind for problem in findings.problems if problem.severity == "error"} == {kind}
    assert all(len(problem.message) < 400 for problem in findings.problems)
    assert [site.name for site in findings.sites] == ["a", "b"]


def test_class_names_that_differ_are_an_error(tmp_path: Path) -> None:
    save(tmp_path, "a", x=X, y=Y, class_names=np.array(["x", "y", "z"]))
    save(tmp_path, "b", x=X, y=Y, class_names=np.array(["x", "z", "y"]))
    dataset, findings = read(tmp_path)
    assert dataset is None and kinds(findings) == [("error", "class_names_differ", "b/train.npz")]


def header(shape: str, kind: str = "|u1") -> bytes:
    """Return the header of an array in the NumPy format."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(x: bytes) -> bytes:
    """Return an archive with these bytes as array x."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", x)
        with file.open("y.npy", "w") as member:
            np.lib.format.write_array(member, Y)
    return stream.getvalue()


GOOD = archive(header("(4, 6, 5)") + X.tobytes())


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "damaged_archive"),
        (GOOD[:-30], "damaged_archive"),
        (GOOD[:60] + bytes([GOOD[60] ^ 255]) + GOOD[61:], "damaged_archive"),
        (b"\x80\x04K\x01.", "damaged_archive"),
        (archive(b"no array"), "damaged_archive"),
        (archive(header("(4, 1000000000000)") + X.tobytes()), "damaged_archive"),
        (archive(header("(-4, -30)") + X.tobytes()), "damaged_archive"),
        (archive(header("(4, 6, 5)", "|O") + X.tobytes()), "object_array"),
        (archive(b"\x93NUMPY\x03\x00" + header("(4, 6, 5)")[8:]), "wrong_type"),
    ],
)
def test_a_damaged_archive_is_an_error(tmp_path: Path, content: bytes, kind: str) -> None:
    save(tmp_path, "a", x=X, y=Y).write_bytes(content)
    dataset, findings = read(tmp_path)
    assert dataset is None and kinds(findings) == [("error", kind, "a/train.npz")]


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtailor.data.own.arrays.MAX_TOTAL_BYTES", 10_000)
    save(tmp_path, "a", x=X, y=Y)
    save(tmp_path, "b", x=np.zeros((1000, 30)), y=np.zeros(1000, dtype=int))
    dataset, findings = read(tmp_path)
    assert dataset is None and kinds(findings) == [("error", "too_large", "b/train.npz")]


def test_a_member_never_unpacks_to_more_than_it_announces(tmp_path: Path) -> None:
    content = bytearray(archive(header("(4, 6, 5)") + bytes(200_000)))
    central = content.index(
        b"PK\x01\x02"
    )  # the first entry of the central directory, that of x.npy
    content[central + 24 : central + 28] = (1000).to_bytes(4, "little")
    save(tmp_path, "a", x=X, y=Y).write_bytes(content)
    dataset, findings = read(tmp_path)
    assert dataset is None and kinds(findings) == [("error", "damaged_archive", "a/train.npz")]


def test_no_damage_ends_in_another_exception(tmp_path: Path) -> None:
    path = save(tmp_path, "a", x=X, y=Y)
    np.savez(path, x=X, y=Y)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        for place in generator.integers(0, len(damaged), size=2):
            damaged[place] = generator.integers(0, 256)
        path.write_bytes(damaged)
        dataset, findings = read(tmp_path)
        assert dataset is not None or findings.errors


def test_an_error_after_many_warnings_is_still_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtailor.data.own.findings.MAX_PROBLEMS", 1)
    save(tmp_path, "a", x=X, y=Y, extra=Y, more=Y)
    save(tmp_path, "b", x=X, y=Y - 1)
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == [
        "unused_array",
        "negative_label",
    ]
    assert findings.counts["error", "negative_label"] == 1


def test_whole_numbers_with_few_examples_each_are_refused_as_a_likely_regression(
    tmp_path: Path,
) -> None:
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    save(tmp_path, "a", x=x, y=np.arange(40) * 3)
    dataset, findings = read(tmp_path)
    assert dataset is None and ("error", "likely_regression", "") in kinds(findings)
    assert "class_names" in findings.errors[0].message
    save(
        tmp_path,
        "a",
        x=x,
        y=np.arange(40),
        class_names=np.array([f"class {number}" for number in range(40)]),
    )
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.num_classes == 40
