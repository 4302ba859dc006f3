"""What the check says of sites, classes, names, groups and the cache, whatever the files."""

import os
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.text import escaped
from fedtailor.data.build import build
from fedtailor.data.options import DataOptions
from fedtailor.data.own.duplicates import Occurrence, report_duplicate_files
from fedtailor.data.own.findings import Findings, Site
from fedtailor.data.own.layout import recognize
from fedtailor.data.own.read import load_own, read_own
from fedtailor.data.own.sites import cross_check


def kinds(findings):
    return {kind for _, kind in findings.counts}


def test_names_lose_what_rewrites_a_terminal():
    assert escaped("Zürich 東京 é\u200dx") == "Zürich 東京 é\u200dx"
    hostile = "a\x1b[31m\n\u202eb\udce9\x9b\u2028"
    assert escaped(hostile) == "a\\x1b[31m\\x0a\\u202eb\\xe9\\x9b\\u2028"


def test_good_data_have_no_problem_whatever_their_letters(folder, make):
    for place, site in enumerate(("Klinik Süd", "東京 病院")):
        for label in ("mit Befund", "o.B. – 无"):
            for number in range(10):
                array = make.pixels(1000 * place + 100 * len(label) + number)
                make.save(folder / site / label / f"Bild {number} ü.png", array)

    dataset, findings = read_own(str(folder), DataOptions())
    assert not findings.problems and dataset.notes == ("Images are 8 x 8, gray.",)
    assert dataset.domain_names == ("Klinik Süd", "東京 病院")
    assert dataset.class_names == ("mit Befund", "o.B. – 无")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("pictures", {"label_column": "x"}),
        ("pictures", {"missing_values": {"a": [0]}}),
        ("pictures", {"numbers": "bins"}),
        ("tables", {"image_size": 8}),
        ("tables", {"color": "rgb"}),
    ],
)
def test_options_for_another_kind_of_data_are_named(folder, make, kind, options):
    if kind == "pictures":
        make.images(folder)
    else:
        folder.mkdir()
        rows = "".join(f"{row},{'xy'[row % 2]}\n" for row in range(20))
        (folder / "a.csv").write_text(f"age,label\n{rows}")

    _, findings = read_own(str(folder), DataOptions(path=str(folder), **options))
    (problem,) = [problem for problem in findings.problems if problem.kind == "option_unused"]
    (name,) = options
    assert problem.message.startswith(f"data.{name} = ")


def test_class_names_of_a_file_are_made_safe(folder, make):
    for site in ("A", "BB"):
        make.arrays(folder, site, class_names=np.array(["a\x1b[1m", "b"]))

    dataset, findings = read_own(str(folder), DataOptions())
    assert dataset.class_names == ("a\\x1b[1m", "b")
    assert findings.sites[0].train == {"a\\x1b[1m": 6, "b": 6}


def test_sites_are_compared():
    a = Site("A", {"x": 10, "y": 10}, {"x": 1})
    b = Site("B", {"x": 19, "z": 1}, {"y": 1, "w": 1})
    findings = Findings(sites=[a, b, Site("C")])
    cross_check(findings)
    messages = {(problem.kind, problem.site): problem.message for problem in findings.problems}
    expected = {"class_in_test_only": "", "class_not_trained": "B", "class_at_one_site": "B"}
    assert set(messages) == set(expected.items())
    assert "'w', 'z'" in messages["class_at_one_site", "B"]


@pytest.mark.parametrize(
    ("sites", "is_error"),
    [
        ([Site("A", {}, {"x": 3, "y": 1}), Site("B", {}, {"x": 2})], True),
        ([Site("A", {"x": 1}), Site("B", {"y": 1})], True),
        ([Site("A", {"x": 1}), Site("B", {"y": 2})], False),
        ([Site("A", {"x": 1, "y": 1}, {"x": 1}), Site("B", {"y": 1})], False),
    ],
)
def test_data_of_which_nothing_is_left_for_training_are_an_error(sites, is_error):
    findings = Findings(sites=sites)
    cross_check(findings)
    assert [problem.kind for problem in findings.errors] == ["no_training"] * is_error


def test_duplicates_get_one_problem_each_the_most_serious():
    places = "A train cat,A train cat,B train cat,B train cat,B train dog,B test dog,B train dog,"
    places += "A test cat,A test cat"
    where = [Occurrence(*each.split(), str(n)) for n, each in enumerate(places.split(","), 1)]
    findings = Findings()
    report_duplicate_files([b"x"] * 6 + [b"y"] + [b"z"] * 2, where, findings)
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

    with pytest.raises(DataError, match=r"site0/train\.npz.*\(6\)\.$") as caught:
        load_own(str(folder), DataOptions())

    assert caught.value.key == "data.path" and caught.value.got == "negative_label"


def test_an_error_names_the_path_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("nope.zip").write_text("")
    for name in ("nope", "nope.zip"):
        with pytest.raises(DataError) as caught:
            load_own(name, DataOptions())

        assert caught.value.message.count("nope") == 1, caught.value.message


def test_an_error_after_many_other_problems_is_still_one(folder, make, monkeypatch):
    make.images(folder, images=1)
    for number in range(5):
        (folder / f"{number}.txt").write_text("stray")

    make.save(folder / "A" / "cat" / "odd.png", make.pixels(1, (9, 9)))
    monkeypatch.setattr("fedtailor.data.own.findings.MAX_PROBLEMS", 3)
    dataset, findings = read_own(str(folder), DataOptions())
    assert dataset is None and ("error", "image_sizes") in findings.counts
    assert len(findings.problems) == 4


def test_the_notes_of_a_data_set_count_what_was_left_out(folder, make):
    make.images(folder)
    (folder / "A" / "cat" / "broken.png").write_bytes(b"not a picture")
    (folder / "A" / "notes.txt").write_text("stray")
    notes = load_own(str(folder), DataOptions()).notes
    assert (
        "Warning: left out: unreadable images (1), files of a kind that is not read (1)." in notes
    )


# Groups of pictures


def photos(folder, make, layout="{site}/{label}"):
    for site in "AB":
        for label in ("cat", "dog"):
            for number in range(12):
                name = f"patient{number // 2}{label}{site}_{number}.png"
                seed = ord(site) * 10_000 + ord(label[0]) * 100 + number
                make.save(folder / layout.format(site=site, label=label) / name, make.pixels(seed))

    return folder


def test_an_expression_finds_the_group_of_a_picture_in_its_path(folder, make):
    photos(folder, make)
    options = {"path": str(folder), "group": r"patient(\d+\w+)_"}
    dataset, findings = read_own(str(folder), DataOptions(**options))
    assert len(np.unique(dataset.groups)) == 24 and not findings.errors
    divided = build(DataOptions(partition="iid", clients=3, **options), run_seed=0)
    groups = [set(dataset.groups[np.concatenate(rows)]) for rows in divided.positions]
    assert sum(map(len, groups)) == 24
    for rows in divided.positions:
        assert not set(dataset.groups[rows.train]) & set(dataset.groups[rows.test])


@pytest.mark.parametrize("group", ["patient", "(", "(a)(b)", "(?P<x>", "(a){99999999999}"])
def test_an_expression_must_have_one_group(folder, make, group):
    make.images(folder, images=1)
    _, findings = read_own(str(folder), DataOptions(path=str(folder), group=group))
    assert [problem.kind for problem in findings.errors] == ["wrong_group"]


def test_pictures_without_a_group_or_in_both_parts_are_errors(folder, make):
    photos(folder, make, layout="{site}/train/{label}")
    options = DataOptions(path=str(folder), group=r"patient(\d+\w+)_")
    make.save(folder / "A" / "test" / "cat" / "patient0catA_99.png", make.pixels(1))
    _, findings = read_own(str(folder), options)
    assert [problem.kind for problem in findings.errors] == ["group_in_train_and_test"]
    make.save(folder / "A" / "test" / "cat" / "other.png", make.pixels(2))
    _, findings = read_own(str(folder), options)
    assert findings.errors[0][1:4:2] == ("missing_group", "A/test/cat/other.png")


def test_a_function_may_return_groups(tmp_path, monkeypatch):
    module = """
        import numpy as np
        from fedtailor.data.dataset import Dataset
        def made(**options):
            x = np.arange(40, dtype=np.float32).reshape(20, 2)
            y = np.arange(20)
            return Dataset(name="x", x=x, y=y % 2, num_classes=2, groups=y // 2, **options)
        def good():
            return made()
        def divided():
            return made(num_official_train=15)
        """
    (tmp_path / "with_groups.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    options = DataOptions(path="with_groups:good", partition="iid", clients=2)
    divided = build(options, run_seed=0)
    for rows in divided.positions:
        assert not set(divided.dataset.groups[rows.train]) & set(divided.dataset.groups[rows.test])

    _, findings = read_own("with_groups:divided", options)
    assert [problem.kind for problem in findings.errors] == ["group_in_train_and_test"]


# The cache


def test_the_cache_knows_the_options_and_keeps_what_was_read(folder, make, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    rows = [f"p{n // 2},{n % 3 or ''},{'uvw'[n % 3]},{'xy'[n % 2]}" for n in range(20)]
    make.table(folder, "a", "\n".join(["patient,n,t,label", *rows]))
    os.utime(folder / "a.csv", (1e9, 1e9))
    monkeypatch.setattr("fedtailor.data.own.layout._TOO_FRESH", -1.0)
    options = {"path": str(folder), "group": "patient"}
    first = load_own(str(folder), DataOptions(**options))
    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.data.own.read._read", None)  # not called again
        again = load_own(str(folder), DataOptions(**options))

    assert again.raw == first.raw and again.digest == first.digest and again.notes == first.notes
    np.testing.assert_array_equal(again.groups, first.groups)
    changes = ({}, {"group": "patient"}, {"missing": "refuse"}, {"label_column": "label"})
    layout = recognize(str(folder), Findings())
    assert len({layout.signature(DataOptions(path="x", **change)) for change in changes}) == 4
    with pytest.raises(DataError, match="empty cells"):
        load_own(str(folder), DataOptions(missing="refuse", **options))

    (entry,) = (tmp_path / "cache" / "decoded").iterdir()
    size = sum(path.stat().st_size for path in entry.iterdir())
    assert size < 20 * 4 * 2 + 20 * 8 * 3 + 4000  # 4 bytes per cell, 8 per label and group


@pytest.mark.parametrize("option", [{"group": "p"}, {"missing": "refuse"}])
def test_the_options_are_for_own_data_only(option):
    with pytest.raises(ConfigError, match="it is for your own data"):
        DataOptions(**option)
