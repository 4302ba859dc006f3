"""Which layout a folder has, and in which order it is read."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.options import DataOptions
from fedtailor.data.own import walk
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.layout import (
    ARRAYS,
    LAYOUTS,
    ONE_TABLE,
    SITE_ARRAYS,
    SITE_TABLES,
    recognize,
)
from fedtailor.data.own.read import load_own, read_own


def layout_of(path):
    findings = Findings()
    return recognize(str(path), findings), findings


@pytest.mark.parametrize(
    ("layout", "words", "sites"),
    [
        ("{site}/{label}", LAYOUTS[0], ["A", "B"]),
        ("{site}/Train/{label}", LAYOUTS[1], ["A", "B"]),
        ("{label}", LAYOUTS[2], []),
        ("training/{label}", LAYOUTS[3], []),
    ],
)
def test_images(layout, words, sites, folder, make):
    make.images(folder, layout=layout)
    found, findings = layout_of(folder)
    assert (found.words, list(found.sites), list(found.classes)) == (words, sites, ["cat", "dog"])
    assert findings.layout == words and not findings.problems
    assert len(found.pictures) == 40
    dataset, _ = read_own(str(folder), DataOptions())
    assert dataset.domain_names == tuple(sites) and dataset.class_names == ("cat", "dog")


def test_rows_are_in_order_training_first(folder, make):
    make.images(folder, layout="{site}/train/{label}")
    make.save(folder / "A" / "test" / "dog" / "1.png", make.pixels(9))
    make.save(folder / "B" / "test" / "cat" / "1.png", make.pixels(10))
    dataset, findings = read_own(str(folder), DataOptions())
    assert dataset.num_official_train == 40
    np.testing.assert_array_equal(dataset.y, [*np.repeat([0, 1, 0, 1], 10), 1, 0])
    np.testing.assert_array_equal(dataset.domains, [*np.repeat([0, 1], 20), 0, 1])
    np.testing.assert_array_equal(dataset.x[40, ..., 0], make.pixels(9))
    assert findings.sites[0].train == {"cat": 10, "dog": 10} and findings.sites[0].test == {
        "dog": 1
    }
    assert dataset.input_shape == (1, 8, 8) and dataset.name == "mine"
    assert list(dataset.sources) == ["mine (42 files)"]


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (("A/test", "A/control", "B/test", "B/control"), LAYOUTS[0]),
        (("train", "bus"), LAYOUTS[2]),
        (("train/train/x", "train/test/x", "bus/train/x", "bus/test/x"), LAYOUTS[1]),
    ],
)
def test_sites_and_classes_may_be_called_train_or_test(folders, words, folder, make):
    for number, place in enumerate(folders):
        make.save(folder / place / "1.png", make.pixels(number))
    assert layout_of(folder)[0].words == words


@pytest.mark.parametrize(
    "folders",
    [
        ("train", "holdout"),
        ("Training", "holdout"),
        ("test", "B"),
        ("train", "test", "B"),
        ("A/train", "A/holdout"),
    ],
)
def test_a_part_beside_other_names_is_refused(folders, folder, make):
    for place in folders:
        for label in ("cat", "dog"):
            make.save(folder / place / label / "1.png", make.pixels(len(place) + len(label)))
    found, findings = layout_of(folder)
    assert found is None and [problem.kind for problem in findings.errors] == ["ambiguous_layout"]


@pytest.mark.parametrize(
    "text", ["file,age\n1.png,3\n", "file,label\n1.png,cat\n2.png,dog\n", ",file\n0,1.png\n"]
)
def test_a_table_that_hides_images_is_named(text, folder, make):
    make.images(folder)
    (folder / "metadata.csv").write_text(text)
    dataset, findings = read_own(str(folder), DataOptions())
    assert dataset is None
    assert sum("out of the folder" in problem.message for problem in findings.errors) == 1
    with pytest.raises(DataError, match=r"move 'metadata\.csv' out of the folder"):
        load_own(str(folder), DataOptions())


def test_parts_without_classes_are_refused(folder, make):
    for part in ("train", "test"):
        make.save(folder / "A" / part / "1.png", make.pixels(len(part)))
    found, findings = layout_of(folder)
    assert found is None and findings.errors[0].kind == "unknown_layout"
    assert all(words in findings.errors[0].message for words in LAYOUTS)


def test_arrays_and_tables(folder, make):
    make.images(folder / "images")
    make.table(folder, "A")
    make.table(folder, "B2")
    found, findings = layout_of(folder)
    assert found.words == SITE_TABLES and [site for site, _ in found.tables] == ["A", "B2"]
    assert findings.notes == ["40 images of the folder will be read if a table names them."]
    one, _ = layout_of(folder / "A.csv")
    assert one.words == ONE_TABLE and [site for site, _ in one.tables] == [""]
    arrays = folder.parent / "arrays"
    for part in ("train", "test"):
        make.arrays(arrays, "A", part)
    (arrays / "B").mkdir()
    found, _ = layout_of(arrays)
    assert found.words == SITE_ARRAYS and [
        (site, sorted(files)) for site, files in found.arrays
    ] == [("A", ["test", "train"])]
    dataset, findings = read_own(str(arrays), DataOptions())
    assert dataset.num_official_train == 12 and len(dataset.y) == 24
    assert findings.counts["skipped", "empty_site"] == 1


def test_arrays_of_one_site_need_no_folder_of_the_site(folder, make):
    make.arrays(folder, "A")
    make.arrays(folder, "A", "test")
    dataset, findings = read_own(str(folder / "A"), DataOptions())
    assert findings.layout == ARRAYS
    assert dataset.domains is None and dataset.num_official_train == 12 and len(dataset.y) == 24


def test_a_function_is_recognized_by_its_form(folder):
    assert layout_of("my.module:function")[0].target == "my.module:function"
    for wrong in (
        "my.module",
        "my.module:",
        ":function",
        "my..module:function",
        "a b:c",
        "",
        "x" * 5000,
        "a\0b",
    ):
        found, findings = layout_of(wrong)
        assert found is None and findings.errors[0].kind == "not_found"


def test_hidden_files_are_ignored(folder, make):
    make.images(folder)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "A" / "Thumbs.db").write_bytes(b"x")
    make.save(folder / ".cache" / "cat" / "1.png", make.pixels(1))
    found, findings = layout_of(folder)
    assert len(found.pictures) == 40 and not findings.problems
    assert findings.notes == []


def test_links_to_files_within_are_followed(folder, make):
    make.images(folder)
    (folder / "A" / "cat" / "linked.png").symlink_to("A0.png")
    (folder.parent / "link").symlink_to(folder)
    found, findings = layout_of(folder.parent / "link")
    assert len(found.pictures) == 41 and not findings.problems


def test_links_that_are_not_followed_say_why(folder, make):
    make.images(folder)
    (folder.parent / "secret.png").write_bytes(b"0")
    for name, target in (("a", "../../secret.png"), ("b", "../B"), ("c", "nothing"), ("d", "d")):
        (folder / "A" / name).symlink_to(target)
    _, findings = layout_of(folder)
    assert findings.counts == {("skipped", "link"): 4}
    outside, inside, nothing, itself = [problem.message for problem in findings.problems]
    assert "out of the data's folder" in outside and "copy its target" in outside
    assert "folder of the data" in inside and "nowhere" in nothing and itself == nothing


def test_an_entry_that_cannot_be_looked_at_is_left_out(folder, make, monkeypatch):
    """A file system may tell no types, so that the question for one can fail."""

    def fail(**_):
        raise PermissionError(13, "Permission denied")

    class Entries(list):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    entry = SimpleNamespace(
        name="A", path=str(folder / "A"), is_dir=fail, is_symlink=lambda: False, stat=fail
    )
    make.images(folder)
    monkeypatch.setattr(walk.os, "scandir", lambda _: Entries([entry]))
    findings = Findings()
    assert walk.walk(folder, findings).files == []
    assert findings.counts == {("skipped", "unreadable_file"): 1}


def test_the_walk_has_bounds(folder, make):
    make.images(folder)
    os.makedirs(folder / "A" / "/".join("x" * 9))
    _, findings = layout_of(folder)
    assert findings.counts == {("skipped", "too_deep"): 1}


def test_the_signature_changes_with_files_and_options(folder, make):
    make.images(folder)

    def signature(**options):
        return layout_of(folder)[0].signature(DataOptions(path="mine", **options))

    assert signature() == ""  # just written: it could change again and not show
    files = list(folder.rglob("*.png"))
    for path in files:
        os.utime(path, (1e9, 1e9))
    first = signature()
    assert first and signature() == first and signature(clients=3) == first
    assert signature(image_size=4) != first and signature(color="rgb") != first
    os.utime(files[0], (1e9, 1e9 + 1))
    assert signature() not in ("", first)


def test_content_put_back_to_its_time_and_another_folder_are_noticed(folder, make):
    path = make.save(folder / "mine" / "cat" / "1.bmp", np.full((8, 8), 100, np.uint8))
    make.save(folder / "mine" / "dog" / "1.bmp", np.full((8, 8), 150, np.uint8))

    def signature(place):
        return layout_of(place)[0].signature(DataOptions(path="mine"))

    for file in folder.rglob("*.bmp"):
        os.utime(file, (1e9, 1e9))
    first = signature(folder / "mine")
    (folder / "linked").symlink_to(folder / "mine")
    assert signature(folder / "linked") == first != ""
    for _ in range(1000):  # until the clock of the file system has changed
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        os.utime(path, (1e9, 1e9))
        if signature(folder / "mine") != first:
            break
    else:
        pytest.fail("another content of the same size and time has the same signature")
    second = signature(folder / "mine")
    (folder / "mine").rename(folder / "moved")
    assert signature(folder / "moved") not in ("", first, second)
