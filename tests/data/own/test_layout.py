"""Which layout a folder has, and in which order it is read."""

import os

import numpy as np
import pytest

from fedtailor.data.options import DataOptions
from fedtailor.data.own import walk
from fedtailor.data.own.check import check
from fedtailor.data.own.layout import LAYOUTS, recognize
from fedtailor.data.own.read import load_own
from fedtailor.data.own.report import Findings


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
    dataset, _ = check(str(folder), DataOptions())
    assert dataset.domain_names == tuple(sites) and dataset.class_names == ("cat", "dog")


def test_rows_are_in_order_training_first(folder, make):
    make.images(folder, layout="{site}/train/{label}")
    make.save(folder / "A" / "test" / "dog" / "1.png", make.pixels(9))
    make.save(folder / "B" / "test" / "cat" / "1.png", make.pixels(10))
    dataset, findings = check(str(folder), DataOptions())
    assert dataset.num_official_train == 40
    np.testing.assert_array_equal(dataset.y, [*np.repeat([0, 1, 0, 1], 10), 1, 0])
    np.testing.assert_array_equal(dataset.domains, [*np.repeat([0, 1], 20), 0, 1])
    np.testing.assert_array_equal(dataset.x[40, ..., 0], make.pixels(9))
    assert findings.sites[0].train == {"cat": 10, "dog": 10} and findings.sites[0].test == {"dog": 1}
    assert dataset.input_shape == (1, 8, 8) and dataset.name == "mine"
    assert list(dataset.sources) == ["mine (42 files)"]


def test_classes_may_be_called_train_or_test(folder, make):
    for label in ("test", "control"):
        make.save(folder / "A" / label / "1.png", make.pixels(len(label)))
        make.save(folder / "B" / label / "1.png", make.pixels(len(label) + 10))
    assert layout_of(folder)[0].words == LAYOUTS[0]


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
    assert found.words == LAYOUTS[5] and [site for site, _ in found.tables] == ["A", "B2"]
    assert findings.notes == ["40 images of the folder are read where a table names them."]
    one, _ = layout_of(folder / "A.csv")
    assert one.words == LAYOUTS[6] and [site for site, _ in one.tables] == [""]
    arrays = folder.parent / "arrays"
    for part in ("train", "test"):
        make.arrays(arrays, "A", part)
    (arrays / "B").mkdir()
    found, _ = layout_of(arrays)
    assert found.words == LAYOUTS[4] and [(site, sorted(files)) for site, files in found.arrays] == [
        ("A", ["test", "train"])
    ]
    dataset, findings = check(str(arrays), DataOptions())
    assert dataset.num_official_train == 12 and len(dataset.y) == 24
    assert findings.counts["skipped", "empty_site"] == 1


def test_a_function_is_recognized_by_its_form(folder):
    assert layout_of("my.module:function")[0].target == "my.module:function"
    for wrong in ("my.module", "my.module:", ":function", "my..module:function", "a b:c", "", "x" * 5000, "a\0b"):
        found, findings = layout_of(wrong)
        assert found is None and findings.errors[0].kind == "not_found"


def test_hidden_files_are_counted(folder, make):
    make.images(folder)
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "A" / "Thumbs.db").write_bytes(b"x")
    make.save(folder / ".cache" / "cat" / "1.png", make.pixels(1))
    found, findings = layout_of(folder)
    assert len(found.pictures) == 40 and not findings.problems
    assert findings.notes == ["3 hidden files or folders were passed over."]


def test_links_to_files_within_are_followed(folder, make):
    make.images(folder)
    (folder / "A" / "cat" / "linked.png").symlink_to("A0.png")
    (folder.parent / "link").symlink_to(folder)
    found, findings = layout_of(folder.parent / "link")
    assert len(found.pictures) == 41 and not findings.problems


def test_the_walk_has_bounds(folder, make, monkeypatch):
    make.images(folder)
    os.makedirs(folder / "A" / "/".join("x" * 9))
    _, findings = layout_of(folder)
    assert findings.counts == {("skipped", "too_deep"): 1}
    monkeypatch.setattr(walk, "MAX_FILES", 39)
    found, findings = layout_of(folder)
    assert found is None and findings.errors[0].kind == "too_many_files"


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


def test_decoded_images_are_kept(folder, make, monkeypatch):
    make.images(folder)
    for path in folder.rglob("*.png"):
        os.utime(path, (1e9, 1e9))
    first = load_own(str(folder), DataOptions())
    monkeypatch.setattr("fedtailor.data.own.read.read_pictures", None)  # not called again
    again = load_own(str(folder), DataOptions())
    assert again.digest == first.digest and again.notes == first.notes and again.domain_names == ("A", "B")
