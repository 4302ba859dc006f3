"""What the check says of sites, classes and names, and that its words are those of the
documentation."""

import re
from pathlib import Path

import numpy as np
import pytest
from fedtailor.data.own.crosscheck import cross_check

from fedtailor.core.errors import DataError
from fedtailor.data.options import DataOptions
from fedtailor.data.own.duplicates import Occurrence, report_duplicates
from fedtailor.data.own.findings import KINDS_IN_WORDS, Findings, Site
from fedtailor.data.own.names import check_names, safe_name
from fedtailor.data.own.read import load_own, read_own

ROOT = Path(__file__).resolve().parents[3]


def kinds(findings):
    return {kind for _, kind in findings.counts}


def test_names_lose_what_rewrites_a_terminal():
    assert safe_name("Zürich 東京 é\u200dx") == "Zürich 東京 é\u200dx"
    assert (
        safe_name("a\x1b[31m\n\u202eb\udce9\x9b\u2028")
        == "a\\x1b[31m\\x0a\\u202eb\\xe9\\x9b\\u2028"
    )


@pytest.mark.parametrize("name", ["<script>", "a&b", 'a"b', "=1+1", "@cmd", "-x", "a\\x1bb"])
def test_names_that_need_care_are_pointed_out(name):
    findings = Findings()
    check_names("Class", [name, "plain"], findings)
    assert kinds(findings) == {"unsafe_name"} and len(findings.problems) == 1


@pytest.mark.parametrize(
    "names", [["-1", "+2.5"], ["straße", "Stra"], ["0", "1"], ["site A", "site B"]]
)
def test_plain_names_are_not(names):
    findings = Findings()
    check_names("Site", names, findings)
    assert not findings.problems


def test_good_data_have_no_problem(folder, make):
    dataset, findings = read_own(str(make.images(folder)), DataOptions())
    assert dataset is not None and not findings.problems
    assert dataset.notes == ("Images are 8 x 8, gray.",)


def test_spaces_and_unicode_work(folder, make):
    for place, site in enumerate(("Klinik Süd", "東京 病院")):
        for label in ("mit Befund", "o.B. – 无"):
            for number in range(10):
                array = make.pixels(1000 * place + 100 * len(label) + number)
                make.save(folder / site / label / f"Bild {number} ü.png", array)
    dataset, findings = read_own(str(folder), DataOptions())
    assert not findings.problems
    assert dataset.domain_names == ("Klinik Süd", "東京 病院") and dataset.class_names == (
        "mit Befund",
        "o.B. – 无",
    )


def test_class_names_of_a_file_are_made_safe(folder, make):
    for site in ("A", "BB"):
        make.arrays(folder, site, class_names=np.array(["a\x1b[1m", "b"]))
    dataset, findings = read_own(str(folder), DataOptions())
    assert dataset.class_names == ("a\\x1b[1m", "b")
    assert findings.sites[0].train == {"a\\x1b[1m": 6, "b": 6} and kinds(findings) == {
        "unsafe_name"
    }


def test_sites_are_compared():
    findings = Findings(
        sites=[
            Site("A", {"x": 10, "y": 10}, {"x": 1}),
            Site("B", {"x": 9, "z": 1}, {"y": 1, "w": 1}),
            Site("C", {}, {}),
        ]
    )
    cross_check(findings)
    found = {(problem.kind, problem.site) for problem in findings.problems}
    assert found == {
        ("class_in_test_only", ""),
        ("class_not_trained", "B"),
        ("class_at_one_site", "B"),
    }
    assert "'w', 'z'" in next(
        one.message for one in findings.problems if one.kind == "class_at_one_site"
    )


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ([Site("A", {}, {"x": 3, "y": 1}), Site("B", {}, {"x": 2})], "none are for training"),
        ([Site("A", {"x": 1}), Site("B", {"y": 1})], "more than one example"),
    ],
)
def test_data_of_which_nothing_is_left_for_training_are_an_error(sites, words):
    findings = Findings(sites=sites)
    cross_check(findings)
    (error,) = findings.errors
    assert error.kind == "no_training" and words in error.message


def test_one_site_that_can_train_is_enough():
    for sites in (
        [Site("A", {"x": 1}), Site("B", {"y": 2})],
        [Site("A", {"x": 1, "y": 1}, {"x": 1}), Site("B", {"y": 1})],
    ):
        findings = Findings(sites=sites)
        cross_check(findings)
        assert not findings.errors


def test_duplicates_get_one_problem_each_the_most_serious():
    where = [
        Occurrence("A", "train", "cat", "1"),
        Occurrence("A", "train", "cat", "2"),
        Occurrence("B", "train", "cat", "3"),
        Occurrence("B", "train", "cat", "4"),
        Occurrence("B", "train", "dog", "5"),
        Occurrence("B", "test", "dog", "6"),
        Occurrence("B", "train", "dog", "7"),
        Occurrence("A", "test", "cat", "8"),
        Occurrence("A", "test", "cat", "9"),
    ]
    findings = Findings()
    report_duplicates([b"x"] * 6 + [b"y"] + [b"z"] * 2, where, findings)
    assert [(problem.path, problem.kind) for problem in findings.problems] == [
        ("2", "duplicate_in_site"),
        ("3", "duplicate_across_sites"),
        ("4", "duplicate_in_site"),
        ("5", "duplicate_other_class"),
        ("6", "duplicate_train_test"),
        ("9", "duplicate_in_site"),
    ]
    assert "'3'" in findings.problems[2].message and "'1'" in findings.problems[4].message


def test_loading_tells_the_first_errors_and_counts_the_rest(folder, make):
    for number in range(6):
        make.arrays(folder, f"site{number}", y=np.arange(12) - 1)
    with pytest.raises(DataError, match=r"All errors: 6 files with negative labels\.$") as caught:
        load_own(str(folder), DataOptions())
    assert caught.value.key == "data.path" and caught.value.got == "negative_label"
    assert "site0/train.npz" in caught.value.message


def test_an_error_of_a_single_file_names_it_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("x.csv")
    for text in ("f,label\n1,0.5\n", "f,label\n", "f,f\n1,2\n"):
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            load_own(str(path), DataOptions())
        assert caught.value.message.count("x.csv") == 1, caught.value.message
    Path("nope.zip").write_text("")
    for name in ("nope", "nope.zip"):
        with pytest.raises(DataError) as caught:
            load_own(name, DataOptions())
        assert caught.value.message.count("nope") == 1, caught.value.message


def test_an_error_after_many_other_problems_is_still_one(folder, make, monkeypatch):
    make.images(folder)
    for number in range(5):
        (folder / f"{number}.txt").write_text("stray")
    make.save(folder / "A" / "cat" / "odd.png", make.pixels(1, (9, 9)))
    monkeypatch.setattr("fedtailor.data.own.findings.MAX_PROBLEMS", 3)
    dataset, findings = read_own(str(folder), DataOptions())
    assert dataset is None and ("error", "image_sizes") in findings.counts
    with pytest.raises(DataError, match="Images have 2 sizes"):
        load_own(str(folder), DataOptions())


def test_every_kind_in_the_documentation_is_in_the_code():
    page = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
    source = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "src/fedtailor/data/own").glob("*.py")
    )
    documented = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert len(documented) == len(set(documented)) > 60
    assert [kind for kind in documented if f'"{kind}"' not in source] == []


def test_every_kind_has_words_and_a_place_in_the_documentation():
    page = (ROOT / "docs" / "own-data.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(KINDS_IN_WORDS) == sorted(documented)
    assert all(one and many and one != many for one, many in KINDS_IN_WORDS.values())


def test_the_notes_of_a_data_set_count_what_was_left_out_in_words(folder, make):
    make.images(folder)
    (folder / "A" / "cat" / "broken.png").write_bytes(b"not a picture")
    (folder / "A" / "notes.txt").write_text("stray")
    dataset = load_own(str(folder), DataOptions())
    assert "Left out: 1 unreadable image, 1 file of another kind." in dataset.notes
