"""Arrays of sites: scales and axes are told apart, and every broken archive is a problem of a kind
that stays."""

import io
import zipfile

import numpy as np
import pytest

from fedtailor.data.options import DataOptions
from fedtailor.data.own.arrays import read_npz_sites
from fedtailor.data.own.findings import Findings

X = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
Y = np.array([0, 1, 2, 1])


def save(folder, site, part="train", **arrays):
    (folder / site).mkdir(exist_ok=True)
    path = folder / site / f"{part}.npz"
    np.savez_compressed(path, **arrays)
    return path


def read(folder, **options):
    findings = Findings()
    sites = []
    for site in sorted(folder.iterdir()):
        sites.append((site.name, {path.stem: path for path in sorted(site.iterdir())}))

    options = DataOptions(path=str(folder), **options)
    return read_npz_sites(folder, sites, options, findings), findings


def kinds(findings):
    return [(problem.severity, problem.kind, problem.path) for problem in findings.problems]


def test_sites_are_put_in_order_with_all_test_rows_last(tmp_path):
    save(tmp_path, "a", x=X, y=Y, class_names=np.array(["cat", "dog", "=1+1"]))
    save(tmp_path, "a", "test", x=X[:2] + 1, y=Y[:2])
    save(tmp_path, "b", "test", x=X[2:] + 2, y=Y[2:].astype(np.uint8))
    dataset, findings = read(tmp_path)
    assert findings.problems == [] and dataset.num_official_train == 4
    assert dataset.x.dtype == np.uint8 and dataset.x.shape == (8, 6, 5, 1)
    np.testing.assert_array_equal(dataset.x[..., 0], np.concatenate([X, X[:2] + 1, X[2:] + 2]))
    assert dataset.y.tolist() == [0, 1, 2, 1, 0, 1, 2, 1]
    assert dataset.domains.tolist() == [0] * 6 + [1, 1] and dataset.domain_names == ("a", "b")
    assert dataset.class_names == ("cat", "dog", "=1+1")
    assert findings.sites[0].train == {"cat": 1, "dog": 2, "=1+1": 1}
    assert findings.sites[1].train == {} and findings.sites[1].test == {"dog": 1, "=1+1": 1}
    assert list(dataset.sources) == [tmp_path.name] and len(dataset.sources[tmp_path.name]) == 64


SCALES = {
    "8 bits": (X, np.uint8, 255.0, 0.5),
    "64 bits": (X.astype(np.int64), np.uint8, 255.0, 0.5),
    "16 bits": (X.astype(np.uint16) * 256, np.float32, 65535.0, 0.5),
    "floats to 1": ((X / 255).astype(">f8"), np.float32, 1.0, 0.5),
    "floats from -1": (X / 255 * 2 - 1, np.float32, 1.0, 0.0),
    "table": (X.reshape(4, 30).astype(np.int32), np.float32, 1.0, 0.0),
    "table of truths": (X.reshape(4, 30) > 7, np.float32, 1.0, 0.0),
}


@pytest.mark.parametrize("case", SCALES)
def test_white_is_told_from_type_and_range(tmp_path, case):
    x, kind, white, mean = SCALES[case]
    save(tmp_path, "a", x=x, y=Y)
    dataset, findings = read(tmp_path)
    assert (dataset.x.dtype, dataset.white, dataset.normalize.mean) == (kind, white, (mean,))
    np.testing.assert_array_equal(dataset.x, x.reshape(dataset.x.shape).astype(kind))
    assert ("warning", "values_unscaled", "a/train.npz") in kinds(findings) or x.min() >= 0


@pytest.mark.parametrize(
    ("peak", "kind", "warned"),
    [
        (0, np.uint8, True),
        (63, np.int64, True),
        (64, np.uint8, False),
        (256, np.uint16, True),
        (16383, np.int32, True),
        (16384, np.uint16, False),
    ],
)
def test_images_far_from_white_are_pointed_out_over_all_sites(tmp_path, peak, kind, warned):
    x = np.zeros((4, 6, 5), kind)
    save(tmp_path, "a", x=x, y=Y)
    x[1, 2, 3] = peak
    save(tmp_path, "b", x=x, y=Y)
    _, findings = read(tmp_path)
    dark = [problem.kind for problem in findings.problems if problem.kind.startswith("dark")]
    assert dark == ["dark_images"] * warned


def test_duplicates_are_one_warning_per_kind(tmp_path, monkeypatch):
    def x(*grays):
        return np.array(grays)[:, None, None] * np.ones((1, 6, 5), int)

    save(tmp_path, "a", x=x(1, 2, 1, 1, 1, 1, 200), y=np.array([0, 0, 0, 0, 0, 0, 1]))
    save(tmp_path, "a", "test", x=x(9, 2).astype(np.uint8), y=np.array([1, 0]))  # another type
    save(tmp_path, "b", x=x(7, 200, 2), y=np.array([0, 0, 0]))
    dataset, findings = read(tmp_path)
    assert len(dataset.y) == 12, "all are kept"
    messages = {problem.kind: problem.message for problem in findings.problems}
    assert "1 found: 'a/test:1' as 'a/train:1'." in messages["duplicate_train_test"]
    assert "1 found: 'b/train:1' as 'a/train:6'." in messages["duplicate_other_class"]
    assert "1 found: 'b/train:2' as 'a/train:1'." in messages["duplicate_across_sites"]
    assert "4 found: 'a/train:2' as 'a/train:0'" in messages["duplicate_in_site"]
    monkeypatch.setattr("fedtailor.data.own.examples.MAX_ROWS", 3)
    _, findings = read(tmp_path)
    assert findings.problems == [] and len(findings.notes) == 1


def test_groups_may_be_unsigned_and_keep_large_numbers(tmp_path):
    one, other = 2**53, 2**53 + 1
    save(tmp_path, "a", x=X, y=Y, groups=np.array([one, other, 1, 1], dtype=np.uint64))
    save(tmp_path, "b", x=X, y=Y, groups=np.array([0, 1, 1, 1]))
    (dataset, findings) = read(tmp_path)
    assert not findings.errors and len(set(dataset.groups[:4].tolist())) == 3

    save(tmp_path, "b", x=X, y=Y, groups=np.array([2**63, 1, 1, 1], dtype=np.uint64))
    (error,) = read(tmp_path)[1].errors
    assert "at most 9223372036854775807" in error.message


def test_channels_first_are_moved_and_said(tmp_path):
    x = np.arange(4 * 3 * 6 * 5, dtype=np.uint8).reshape(4, 3, 6, 5)
    save(tmp_path, "a", x=x, y=Y)
    save(tmp_path, "b", x=np.moveaxis(x, 1, 3) ^ 1, y=Y)
    dataset, findings = read(tmp_path)
    assert dataset.input_shape == (3, 6, 5) and findings.problems == []
    np.testing.assert_array_equal(dataset.x[:4], dataset.x[4:] ^ 1)
    np.testing.assert_array_equal(dataset.x[:4], x.transpose(0, 2, 3, 1))
    assert sum("channels" in note for note in findings.notes) == 1


def test_what_is_unusual_is_used_with_a_warning(tmp_path):
    save(tmp_path, "a", x=X, y=Y[::-1] * 2.0, extra=Y)
    save(tmp_path, "b", x=X[:0], y=Y[:0])
    dataset, findings = read(tmp_path, image_size=8, color="rgb")
    assert dataset.y.tolist() == [2, 4, 2, 0] and dataset.domain_names == ("a",)
    assert findings.counts == {
        ("warning", "unused_array"): 1,
        ("skipped", "empty_site"): 1,
        ("warning", "unused_label"): 1,
        ("warning", "option_unused"): 2,
    }
    _, findings = read(tmp_path, group="x")
    assert ("error", "option_unused", "") in kinds(findings)


FLOATS = X / 255
NAMES = np.array(["x", "y", "x"])
BROKEN = {
    "no y": ({"x": X, "images": X}, "missing_array", "b/train.npz"),
    "objects": ({"x": np.array([[1], None, "a", 2], dtype=object), "y": Y}, "object_array", "b/train.npz"),
    "other rows": ({"x": X, "y": Y[:3]}, "wrong_shape", "b/train.npz"),
    "one-hot": ({"x": X, "y": np.eye(3)[Y]}, "wrong_shape", "b/train.npz"),
    "multi-label": ({"x": X, "y": np.ones((4, 3))}, "several_labels", "b/train.npz"),
    "a number": ({"x": np.float64(3), "y": Y}, "wrong_shape", "b/train.npz"),
    "five axes": ({"x": X[:, None, None], "y": Y}, "wrong_shape", "b/train.npz"),
    "no pixels": ({"x": X[:, :0], "y": Y}, "wrong_shape", "b/train.npz"),
    "channels in the middle": ({"x": np.zeros((4, 8, 2, 8)), "y": Y}, "wrong_shape", "b/train.npz"),
    "other size": ({"x": X[:, 1:], "y": Y}, "shape_differs", "b/train.npz"),
    "other type": ({"x": FLOATS, "y": Y}, "type_differs", "b/train.npz"),
    "NaN": ({"x": np.where(X == 35, np.nan, FLOATS), "y": Y}, "not_finite", "b/train.npz:1"),
    "beyond 32 bits": ({"x": X * 1e300, "y": Y}, "not_finite", "b/train.npz:0"),
    "text": ({"x": X.astype(str), "y": Y}, "wrong_type", "b/train.npz"),
    "complex": ({"x": X * 1j, "y": Y}, "wrong_type", "b/train.npz"),
    "negative": ({"x": X.astype(int) - 3, "y": Y}, "value_out_of_range", "b/train.npz"),
    "text labels": ({"x": X, "y": Y.astype(str)}, "wrong_type", "b/train.npz"),
    "label -1": ({"x": X, "y": Y - 1}, "negative_label", "b/train.npz:0"),
    "float label": ({"x": X, "y": Y + 0.5}, "float_label", "b/train.npz:0"),
    "NaN label": ({"x": X, "y": np.where(Y == 2, np.nan, Y)}, "float_label", "b/train.npz:2"),
    "huge": ({"x": X, "y": Y.astype(np.uint64) * 2**62}, "label_out_of_range", "b/train.npz:1"),
    "label >= classes": ({"x": X, "y": Y, "class_names": NAMES[:2]}, "label_out_of_range", "a/train.npz:2"),
    "a name twice": ({"x": X, "y": Y, "class_names": NAMES}, "wrong_class_names", "b/train.npz"),
    "numbers for names": ({"x": X, "y": Y, "class_names": Y}, "wrong_class_names", "b/train.npz"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_arrays_are_an_error_that_names_the_file(tmp_path, case):
    arrays, kind, path = BROKEN[case]
    save(tmp_path, "a", x=FLOATS if kind == "not_finite" else X, y=Y)
    save(tmp_path, "b", **arrays)
    dataset, findings = read(tmp_path)
    assert dataset is None and ("error", kind, path) in kinds(findings)
    assert {problem.kind for problem in findings.errors} == {kind}
    assert [site.name for site in findings.sites] == ["a", "b"]


def test_class_names_that_differ_are_an_error(tmp_path):
    save(tmp_path, "a", x=X, y=Y, class_names=np.array(["x", "y", "z"]))
    save(tmp_path, "b", x=X, y=Y, class_names=np.array(["x", "z", "y"]))
    assert kinds(read(tmp_path)[1]) == [("error", "class_names_differ", "b/train.npz")]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (
            ["long" * 15, "long" * 16, "b"],
            "at index 2: 'a/train.npz' has 'a', and this file has 'b'",
        ),
        (["long" * 15, "long" * 16], "at index 2: 'a/train.npz' has 'a', and this file has none"),
    ],
)
def test_the_first_class_name_that_differs_is_named(tmp_path, others, words):
    save(tmp_path, "a", x=X, y=Y, class_names=np.array(["long" * 15, "long" * 16, "a"]))
    save(tmp_path, "b", x=X, y=Y, class_names=np.array(others))
    assert words in read(tmp_path)[1].errors[0].message


def header(shape, kind="|u1"):
    """Return the header of an array in the NumPy format."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(x):
    """Return an archive with these bytes as array x."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", x)
        with file.open("y.npy", "w") as member:
            np.lib.format.write_array(member, Y)

    return stream.getvalue()


GOOD = archive(header("(4, 6, 5)") + X.tobytes())


def forged():
    """Return an archive whose array x unpacks to more than it announces."""
    content = bytearray(archive(header("(4, 6, 5)") + bytes(200_000)))
    central = content.index(b"PK\x01\x02")  # the entry of x.npy in the central directory
    content[central + 24 : central + 28] = (1000).to_bytes(4, "little")
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "damaged_archive"),
        (GOOD[:-30], "damaged_archive"),
        (GOOD[:60] + bytes([GOOD[60] ^ 255]) + GOOD[61:], "damaged_archive"),
        (b"\x80\x04K\x01.", "damaged_archive"),
        (archive(b"no array"), "wrong_shape"),
        (archive(header("(4, 1000000000000)") + X.tobytes()), "damaged_archive"),
        (archive(header("(-4, -30)") + X.tobytes()), "damaged_archive"),
        (archive(header("(4, 6, 5)", "|O") + X.tobytes()), "object_array"),
        (forged(), "damaged_archive"),
    ],
)
def test_a_damaged_archive_is_an_error(tmp_path, content, kind):
    save(tmp_path, "a", x=X, y=Y).write_bytes(content)
    assert kinds(read(tmp_path)[1]) == [("error", kind, "a/train.npz")]


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.data.own.arrays.MAX_TOTAL_BYTES", 10_000)
    save(tmp_path, "a", x=X, y=Y)
    save(tmp_path, "b", x=np.zeros((1000, 30)), y=np.zeros(1000, dtype=int))
    assert kinds(read(tmp_path)[1]) == [("error", "too_large", "b/train.npz")]


def test_no_damage_ends_in_another_exception(tmp_path):
    path = save(tmp_path, "a", x=X, y=Y)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(content)
        for place in generator.integers(0, len(damaged), size=2):
            damaged[place] = generator.integers(0, 256)

        path.write_bytes(damaged)
        dataset, findings = read(tmp_path)
        assert dataset is not None or findings.errors


def test_many_numbers_with_few_examples_each_are_refused_as_a_likely_regression(tmp_path):
    x = np.arange(80, dtype=np.float32).reshape(40, 2)
    save(tmp_path, "a", x=x, y=np.arange(40) * 3)
    assert ("error", "likely_regression", "") in kinds(read(tmp_path)[1])
    names = np.array([f"class {number}" for number in range(40)])
    save(tmp_path, "a", x=x, y=np.arange(40), class_names=names)
    assert read(tmp_path)[0].num_classes == 40


SERIES = np.random.default_rng(0).normal(5, 3, (4, 12, 3))


@pytest.mark.parametrize(
    ("x", "kind", "shape"),
    [
        (SERIES, "series", (3, 12)),
        (SERIES[..., 0], "series", (1, 12)),
        (SERIES, "features", (36,)),
        (SERIES, "pictures", (1, 12, 3)),
        (np.abs(SERIES).astype(np.uint8), "auto", (1, 12, 3)),
        (SERIES[:, :4], "auto", (1, 4, 3)),
    ],
)
def test_the_kind_says_what_arrays_hold(tmp_path, x, kind, shape):
    save(tmp_path, "a", x=x, y=Y)
    dataset, findings = read(tmp_path, kind=kind)
    assert dataset.input_shape == shape and not findings.has_errors
    np.testing.assert_array_equal(dataset.x.ravel(), x.astype(dataset.x.dtype).ravel())
    standardizes = DataOptions().standardizes(dataset.kind)
    assert standardizes == (kind in ("series", "features"))


def test_arrays_that_can_be_series_or_pictures_ask_once(tmp_path):
    for site in "ab":
        save(tmp_path, site, x=SERIES, y=Y)

    dataset, findings = read(tmp_path)
    assert dataset is None and kinds(findings) == [("error", "unclear_kind", "a/train.npz")]
    assert [sum(site.train.values()) for site in findings.sites] == [4, 4]
    message = findings.errors[0].message
    assert "data.kind=series" in message and "data.kind=pictures" in message


def test_series_of_other_shapes_are_pointed_out(tmp_path):
    save(tmp_path, "a", x=SERIES.transpose(0, 2, 1), y=Y)
    assert kinds(read(tmp_path, kind="series")[1]) == [("warning", "axes_unusual", "a/train.npz")]

    save(tmp_path, "a", x=SERIES[..., None], y=Y)
    assert kinds(read(tmp_path, kind="series")[1]) == [("error", "wrong_shape", "a/train.npz")]
