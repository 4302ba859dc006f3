"""Tables of sites: what is read is what was written, and every broken table is a problem of a kind
that stays."""

from __future__ import annotations

import csv
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_wine

from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.tables import read_tables


class Federation(NamedTuple):
    """What was written, site by site."""

    folder: Path
    x: dict[str, np.ndarray]
    y: dict[str, np.ndarray]
    class_names: list[str]


def write(path: Path, rows: list[list[object]], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


@pytest.fixture(params=["breast_cancer", "wine"])
def federation(request: pytest.FixtureRequest, tmp_path: Path) -> Federation:
    """A scikit-learn data set split among four hospitals, the columns in another order at each."""
    bunch = {"breast_cancer": load_breast_cancer, "wine": load_wine}[request.param]()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    result = Federation(tmp_path, {}, {}, [str(name) for name in bunch.target_names])
    for site, rows in zip("abcd", np.array_split(order, 4), strict=True):
        name = f"hospital {site}"
        result.x[name], result.y[name] = bunch.data[rows], bunch.target[rows]
        columns = (
            np.random.default_rng(ord(site)).permutation(bunch.data.shape[1])
            if site != "a"
            else slice(None)
        )
        header = [*np.array(bunch.feature_names)[columns], "diagnosis"]
        labels = np.array(result.class_names)[result.y[name]]
        write(
            tmp_path / f"{name}.csv",
            [
                header,
                *(
                    [*row, label]
                    for row, label in zip(result.x[name][:, columns].tolist(), labels, strict=True)
                ),
            ],
        )
    return result


def read(folder: Path, **options: Any) -> tuple[Dataset | None, Findings]:
    findings = Findings()
    files = [
        (path.stem, path)
        for path in sorted(folder.iterdir())
        if path.suffix in {".csv", ".parquet"}
    ]
    return read_tables(files, DataOptions(path=str(folder), **options), findings), findings


def test_features_of_all_sites_are_read_exactly(federation: Federation) -> None:
    dataset, findings = read(federation.folder, label_column="diagnosis")
    assert findings.problems == [] and dataset is not None
    names = sorted(federation.class_names)
    recode = np.array([names.index(name) for name in federation.class_names])
    np.testing.assert_array_equal(
        dataset.x, np.concatenate([*federation.x.values()]).astype(np.float32)
    )
    np.testing.assert_array_equal(dataset.y, recode[np.concatenate([*federation.y.values()])])
    assert dataset.x.dtype == np.float32 and dataset.class_names == tuple(names)
    assert dataset.domain_names == tuple(federation.x) and dataset.domains is not None
    np.testing.assert_array_equal(
        dataset.domains, np.repeat(range(4), [len(y) for y in federation.y.values()])
    )
    assert dataset.normalize == ((0.0,), (1.0,)) and dataset.white == 1.0
    assert dataset.num_official_train == len(dataset.y)
    for site in findings.sites:
        labels = federation.y[site.name]
        assert site.train == {
            federation.class_names[k]: int((labels == k).sum()) for k in np.unique(labels)
        }
        assert site.test == {}


def test_parquet_and_csv_give_the_same_data(federation: Federation) -> None:
    from_csv, _ = read(federation.folder, label_column="diagnosis")
    for path in sorted(federation.folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        columns = {name: [row[k] for row in rows] for k, name in enumerate(header)}
        numbers = {
            name: np.array(cells, dtype=float)
            for name, cells in columns.items()
            if name != "diagnosis"
        }
        labels = pa.array(columns["diagnosis"]).dictionary_encode()
        pq.write_table(pa.table({"diagnosis": labels, **numbers}), path.with_suffix(".parquet"))
        path.unlink()
    from_parquet, findings = read(federation.folder, label_column="diagnosis")
    assert findings.problems == [] and from_csv is not None and from_parquet is not None
    order = sorted(
        federation.x
    )  # site a of the Parquet files has its columns in the order of site a of the CSV files
    assert from_parquet.domain_names == tuple(order) and from_parquet.digest == from_csv.digest
    assert from_parquet.sources != from_csv.sources and len(from_parquet.sources) == 1


def test_a_column_of_the_split_puts_all_test_rows_last(tmp_path: Path) -> None:
    write(
        tmp_path / "a.csv",
        [["f", "label", "split"], [1, 10, "train"], [2, 9, "Test"], [3, "9.0", "train"]],
    )
    write(tmp_path / "b.csv", [["split", "label", "f"], ["test", 2, 4], ["train", 10, 5]])
    dataset, findings = read(tmp_path)
    assert findings.problems == [] and dataset is not None
    assert dataset.x[:, 0].tolist() == [1, 3, 5, 2, 4] and dataset.num_official_train == 3
    assert dataset.class_names == (
        "2",
        "9",
        "10",
    )  # whole numbers, in their order, however they are written
    assert dataset.y.tolist() == [2, 1, 2, 1, 0] and dataset.domains is not None
    assert dataset.domains.tolist() == [0, 0, 1, 0, 1]
    assert [(site.train, site.test) for site in findings.sites] == [
        ({"9": 1, "10": 1}, {"9": 1}),
        ({"10": 1}, {"2": 1}),
    ]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark_are_read(tmp_path: Path, delimiter: str) -> None:
    lines = [["a, or b", "label"], ["1.5", "x"], ["-2e3", "y"]]
    text = "\n".join(delimiter.join(line) for line in lines) + "\n\n"
    (tmp_path / "s.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.x.tolist() == [[1.5], [-2000.0]]
    assert any("between their cells" in note for note in findings.notes)


def test_truth_values_are_numbers_and_names_are_kept_or_made_safe(tmp_path: Path) -> None:
    write(
        tmp_path / "s.csv",
        [["f", "label"], ["True", "=1+1"], ["false", "<b>"], [0.25, "a\x1b[31m"]],
    )
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.x[:, 0].tolist() == [1, 0, 0.25]
    assert dataset.class_names == ("<b>", "=1+1", "a\\x1b[31m") and dataset.y.tolist() == [1, 0, 2]
    columns = {"f": [True, False, None], "label": [True, False, True]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    (tmp_path / "s.csv").unlink()
    dataset, findings = read(tmp_path)
    assert findings.problems == [] and dataset is not None
    np.testing.assert_array_equal(dataset.x[:, 0], [1, 0, np.nan])


def test_duplicate_rows_are_one_warning_per_kind_whatever_the_order_of_columns(
    tmp_path: Path,
) -> None:
    repeated = [[3, 4, "x", "train"]] * 50
    write(
        tmp_path / "a.csv",
        [["f", "g", "label", "split"], [1, 2, "x", "train"], [1, 2, "y", "test"], *repeated],
    )
    write(
        tmp_path / "b.csv",
        [["g", "f", "label", "split"], [1, 2, "y", "train"], [], [4, 3, "x", "train"]],
    )
    dataset, findings = read(tmp_path)
    assert dataset is not None and len(dataset.y) == 54
    found = {problem.kind: problem for problem in findings.problems}
    assert set(findings.counts.values()) == {1} and {
        problem.severity for problem in findings.problems
    } == {"warning"}
    assert set(found) == {"duplicate_train_test", "duplicate_in_site", "duplicate_across_sites"}
    assert "1 found: 'a.csv:3' as 'a.csv:2'" in found["duplicate_train_test"].message
    assert "49 found: 'a.csv:5' as 'a.csv:4'" in found["duplicate_in_site"].message
    assert "1 found: 'b.csv:4' as 'a.csv:4'" in found["duplicate_across_sites"].message, (
        "lines of the file"
    )
    assert all("by chance" in problem.message for problem in findings.problems)


def test_an_empty_site_is_left_out_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", [["f", "label"]])
    write(tmp_path / "b.csv", [["f", "label"], [1, "x"]])
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.domain_names == ("b",)
    assert [(p.severity, p.kind, p.site) for p in findings.problems] == [
        ("skipped", "empty_site", "a")
    ]
    assert [(site.name, site.train) for site in findings.sites] == [("a", {}), ("b", {"x": 1})]
    (tmp_path / "b.csv").unlink()
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == ["empty_site", "no_examples"]


def test_one_table_without_a_site_has_no_domains(tmp_path: Path) -> None:
    write(tmp_path / "all.csv", [["f", "label"], [1, "x"], [2, "y"]])
    findings = Findings()
    dataset = read_tables([("", tmp_path / "all.csv")], DataOptions(path="all.csv"), findings)
    assert dataset is not None and dataset.domains is None and dataset.domain_names == ()
    write(tmp_path / "all.csv", [["f", "label"]])
    assert read_tables([("", tmp_path / "all.csv")], DataOptions(path="all.csv"), findings) is None
    assert [problem.kind for problem in findings.problems] == ["no_examples"]


GOOD = "f,g,label\n1,2,x\n3,4,y\n"

BROKEN: dict[str, tuple[bytes, str, str, str]] = {
    "no label column": (
        b"f,g,lable\n1,2,x\n",
        "missing_label_column",
        "s.csv",
        "did you mean 'lable'",
    ),
    "ragged": (b"f,g,label\n1,2,x\n1,2\n", "ragged_row", "s.csv:3", "2 cells, the header 3"),
    "infinite": (b"f,g,label\n1,inf,x\n1,1e39,x\n", "not_finite", "s.csv:2", "2 values"),
    "no label": (b"f,g,label\n1,2,x\n1,2,\n", "missing_label", "s.csv:3", "1 row has no label"),
    "a column missing": (b"f,label\n1,x\n", "missing_column", "s.csv", "'g' is missing"),
    "a column more": (b"f,g,h,label\n1,2,3,x\n", "extra_column", "s.csv", "'h' is only in 1 of 3"),
    "a column twice": (b"f,f,g,label\n1,2,3,x\n", "duplicate_column", "s.csv", "'f'"),
    "a column without a name": (b",f,g,label\n0,1,2,x\n", "unnamed_column", "s.csv", "Column 1"),
    "no features": (b"label\nx\n", "no_features", "s.csv", "feature"),
    "0 bytes": (b"", "empty_file", "s.csv", "empty"),
    "Latin-1": (
        "f,g,label\n1,2,Müller\n".encode("latin-1"),
        "wrong_encoding",
        "s.csv",
        "0xfc in line 2",
    ),
    "UTF-16": ("f,g,label\n1,2,x\n".encode("utf-16"), "wrong_encoding", "s.csv", "0xff in line 1"),
    "an open quote": (b'f,g,label\n1,2,"x\n', "broken_table", "s.csv", "Line"),
    "a huge field": (
        b"f,g,label\n1,2," + b"x" * 200_000 + b"\n",
        "broken_table",
        "s.csv",
        "Line 2",
    ),
    "wrong split": (
        b"f,g,label,split\n1,2,x,train\n1,2,x,dev\n",
        "wrong_split",
        "s.csv:3",
        "'dev'",
    ),
    "commas for points": (b"f;g;label\n1,5;2;x\n", "not_a_number", "s.csv:2", "'1,5'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_table_is_an_error_that_names_file_and_row(tmp_path: Path, case: str) -> None:
    content, kind, path, words = BROKEN[case]
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(GOOD)
    (tmp_path / "s.csv").write_bytes(content)
    dataset, findings = read(tmp_path)
    assert dataset is None
    found = [problem for problem in findings.problems if problem.kind == kind]
    assert [(one.severity, one.site, one.path) for one in found] == [("error", "s", path)], (
        findings.problems
    )
    assert len(findings.problems) == 1 or case == "wrong split"
    assert re.search(words, found[0].message), found[0].message
    assert len(found[0].message) < 400
    assert [site.name for site in findings.sites] == ["a", "b", "s"]


def test_labels_that_are_fractions_are_an_error_and_numbers_beside_text_a_warning(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a.csv", [["f", "label"], [1, 1], [2, 0.5]])
    dataset, findings = read(tmp_path)
    assert dataset is None and [(p.kind, p.path) for p in findings.problems] == [
        ("float_label", "a.csv:3")
    ]
    write(tmp_path / "b.csv", [["f", "label"], [1, 3], [3, -0.1]])
    _, findings = read(tmp_path)
    assert findings.problems[0].path == "a.csv:3" and "'0.5'" in findings.problems[0].message, (
        "the first in reading"
    )
    write(tmp_path / "b.csv", [["f", "label"], [3, "one"], [4, "eight"], [5, "0"]])
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.class_names == ("0", "0.5", "1", "eight", "one")
    assert [(p.severity, p.kind) for p in findings.problems] == [("warning", "mixed_labels")]
    assert "numbers such as '1' and text such as 'one'" in findings.problems[0].message


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_no_damage_to_a_table_ends_in_another_exception(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s{suffix}"
    columns = {
        "f": np.arange(20.0),
        "g": [True, False] * 10,
        "label": ["x", "ü"] * 10,
        "split": ["train", "test"] * 10,
    }
    if suffix == ".csv":
        write(path, [[*columns], *([*row] for row in zip(*columns.values(), strict=True))])
    else:
        pq.write_table(pa.table(columns), path)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(
            content[: generator.integers(1, len(content))] if generator.random() < 0.2 else content
        )
        for place in generator.integers(0, len(damaged), size=3):
            damaged[place] = generator.integers(0, 256)
        path.write_bytes(damaged)
        dataset, findings = read(tmp_path)
        assert dataset is not None or findings.errors


def corrupt(content: bytes) -> dict[str, bytes]:
    """Return versions of a Parquet file that are damaged."""
    middle = len(content) // 2
    return {
        "cut": content[:middle],
        "turned": content[:20] + bytes(255 - byte for byte in content[20:60]) + content[60:],
        "footer": content[:-8] + b"\xff\xff\xff\x7f" + content[-4:],
        "text": b"f,g,label\n1,2,x\n",
        "empty": b"",
    }


@pytest.mark.parametrize("case", ["cut", "turned", "footer", "text", "empty"])
def test_a_damaged_parquet_file_is_an_error(tmp_path: Path, case: str) -> None:
    pq.write_table(pa.table({"f": np.arange(50.0), "label": ["x"] * 50}), tmp_path / "s.parquet")
    content = corrupt((tmp_path / "s.parquet").read_bytes())[case]
    (tmp_path / "s.parquet").write_bytes(content)
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == ["damaged_table"]
    assert "\n" not in findings.problems[0].message


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"f": [[1, 2], [3]], "label": ["x", "y"]}, "time_series"),
        ({"f": [1, 2], "label": [["x", "y"], ["y"]]}, "several_labels"),
        ({"f": np.array(["2020-01-31", "2020-02-01"], "M8[D]"), "label": ["x", "y"]}, "dates"),
        ({"f": [1.0, 2.0], "label": [{"a": 1}, {"a": 2}]}, "wrong_column_type"),
        ({"f": [b"1", b"2"], "label": ["x", "y"]}, "wrong_column_type"),
        ({"f": [1.0, 2.0], "label": ["x", None]}, "missing_label"),
        ({"f": ["1,5", "2"], "label": ["x", "y"]}, "not_a_number"),
        ({"f": [1.0, 2.0]}, "missing_label_column"),
        ({"f": [1.0, 1e300], "label": [1, 2]}, "not_finite"),
        ({"f": [1.0, 2.0], "label": [0.5, 1.0]}, "float_label"),
    ],
)
def test_parquet_of_the_wrong_type_is_an_error(
    tmp_path: Path, columns: dict[str, list[object]], kind: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == [kind]


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"f": [1.0], "label": ["x"]}), tmp_path / "s.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == ["pyarrow_missing"]
    assert "fedtailor[data]" in findings.problems[0].message


def test_more_than_can_be_held_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fedtailor.data.own.tables.MAX_TOTAL_BYTES", 40
    )  # 10 values for both tables together
    write(tmp_path / "a.csv", [["f", "label"], *([[k, "x"] for k in range(8)])])
    pq.write_table(pa.table({"f": np.arange(8.0), "label": ["x"] * 8}), tmp_path / "b.parquet")
    write(tmp_path / "c.csv", [["f", "label"], *([[k, "x"] for k in range(8)])])
    dataset, findings = read(tmp_path)
    assert dataset is None
    assert [(p.kind, p.path) for p in findings.problems] == [
        ("too_large", "b.parquet"),
        ("too_large", "c.csv"),
    ]


def test_too_many_classes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.data.own.tables.MAX_CLASSES", 3)
    write(tmp_path / "a.csv", [["f", "label"], *([[k, f"patient {k}"] for k in range(4)])])
    dataset, findings = read(tmp_path)
    assert dataset is None and [p.kind for p in findings.problems] == ["too_many_classes"]


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[[list[list[object]]], Path]:
    """Six gray images 0.png to 5.png, of that gray, and a table of them."""
    (tmp_path / "images").mkdir()
    for gray in range(6):
        Image.fromarray(np.full((4, 5), gray, dtype=np.uint8)).save(
            tmp_path / "images" / f"{gray}.png"
        )
    (tmp_path / "images" / "broken.png").write_bytes(b"not an image")

    def make(rows: list[list[object]]) -> Path:
        write(tmp_path / "a.csv", [["image", "label", "split", "age"], *rows])
        write(tmp_path / "b.csv", [["label", "image", "split"], ["x", "images/5.png", "test"]])
        return tmp_path

    return make


def test_images_named_by_tables_are_read_in_order(
    pictures: Callable[[list[list[object]]], Path],
) -> None:
    rows: list[list[object]] = [
        ["images/3.png", "y", "test", 1],
        ["images/0.png", "x", "train", 2],
        ["images/broken.png", "x", "train", 3],
        ["images/2.png", "y", "train", 4],
    ]
    dataset, findings = read(pictures(rows))
    assert dataset is not None and dataset.x.shape == (4, 4, 5, 1) and dataset.x.dtype == np.uint8
    assert dataset.x[:, 0, 0, 0].tolist() == [0, 2, 3, 5] and dataset.y.tolist() == [0, 1, 1, 0]
    assert dataset.num_official_train == 2 and dataset.domains is not None
    assert dataset.domains.tolist() == [0, 0, 0, 1]
    severities = [(p.severity, p.kind) for p in findings.problems]
    assert ("warning", "unused_column") in severities and any(
        severity == "skipped" for severity, _ in severities
    )
    assert [(site.train, site.test) for site in findings.sites] == [
        ({"x": 1, "y": 1}, {"y": 1}),
        ({}, {"x": 1}),
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../secret.png", "image_outside"),
        ("/etc/passwd", "image_outside"),
        ("images/link.png", "image_outside"),
        ("images/none.png", "missing_image"),
        ("images/loop.png", "missing_image"),
        ("images", "missing_image"),
        ("a\x00b.png", "missing_image"),
    ],
)
def test_an_image_that_is_not_in_the_folder_is_an_error(
    pictures: Callable[[list[list[object]]], Path], name: str, kind: str
) -> None:
    folder = pictures([["images/1.png", "x", "train", 1], [name, "x", "train", 2]])
    (folder / "images" / "link.png").symlink_to("/etc/hosts")
    (folder / "images" / "loop.png").symlink_to("loop.png")
    dataset, findings = read(folder)
    assert dataset is None
    assert [(p.kind, p.path) for p in findings.problems if p.severity == "error"] == [
        (kind, "a.csv:3")
    ]


def prices(different: int, each: int) -> str:
    rows = [f"{row},{row * 2},{1000 + 7 * (row % different)}" for row in range(different * each)]
    return "\n".join(["f,g,label", *rows, ""])


def test_whole_numbers_with_few_examples_each_are_refused_as_a_likely_regression(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.csv").write_text(prices(31, 4))
    dataset, findings = read(tmp_path)
    (problem,) = findings.errors
    assert dataset is None and (problem.kind, problem.path) == ("likely_regression", "a.csv")
    assert "31 different whole numbers with 4.0 examples each" in problem.message
    assert "Only classification is supported" in problem.message and "as text" in problem.message


@pytest.mark.parametrize(("different", "each"), [(30, 1), (31, 5), (100, 5)])
def test_few_numbers_or_many_examples_of_each_are_classes(
    tmp_path: Path, different: int, each: int
) -> None:
    (tmp_path / "a.csv").write_text(prices(different, each))
    dataset, _ = read(tmp_path)
    assert dataset is not None and dataset.num_classes == different


def test_names_of_classes_are_never_a_regression(tmp_path: Path) -> None:
    rows = [f"{row},{row * 2},class {row}" for row in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["f,g,label", *rows, ""]))
    dataset, findings = read(tmp_path)
    assert dataset is not None and dataset.num_classes == 40 and not findings.errors


def test_a_fraction_as_a_label_says_that_regression_is_not_supported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f,g,label\n1,2,1.5\n3,4,2\n")
    _, findings = read(tmp_path)
    assert (
        findings.errors[0].kind == "float_label" and "not regression" in findings.errors[0].message
    )


def test_the_time_to_read_grows_with_the_columns_not_with_their_square(tmp_path: Path) -> None:
    """Gene expression has 20,000 columns. When every column was looked up among all, this took half
    a minute."""
    genes = [f"gene{number}" for number in range(20_000)]
    for site in "ab":
        rows = [
            [*range(ord(site) * (label + 1), 20_000 + ord(site) * (label + 1)), label]
            for label in (0, 1)
        ]
        write(tmp_path / f"{site}.csv", [[*genes, "label"], *rows])
    start = time.process_time()
    dataset, findings = read(tmp_path)
    assert time.process_time() - start < 5
    assert dataset is not None and dataset.x.shape == (4, 20_000) and findings.problems == []
