"""Run folders read back as methods, whatever a stranger has written into them."""

import json

import pytest

from fedtailor.core.errors import DataError
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.reader import COMPARISON_FILE
from fedtailor.report.methods import label_methods, read_methods
from written_runs import write_run, write_seeds

SCORES = {"personalized": {0: 0.5, 1: 0.25}}


def write_comparison(folder, runs):
    folder.mkdir(exist_ok=True)
    (folder / COMPARISON_FILE).write_text(json.dumps({"runs": runs}))
    return folder


def test_the_runs_of_a_comparison_are_methods_and_those_that_have_not_begun_are_none(tmp_path):
    folder = write_comparison(tmp_path / "all", ["a", "b", "later"])
    write_run(folder / "a", SCORES, algorithm="ditto")
    write_seeds(folder / "b", {3: SCORES, 5: SCORES})
    single = write_run(tmp_path / "single", SCORES, seed=7, finished=False)
    methods = read_methods([folder, single])
    assert [(each.label, list(each.runs), list(each.finished)) for each in methods] == [
        ("ditto", [0], [0]),
        ("fedavg", [3, 5], [3, 5]),
        ("fedavg #2", [7], []),
    ]
    assert (
        methods[0].algorithm == "ditto"
        and methods[0].split_of(0) == "d s"
        and methods[1].path == folder / "b"
    )


def test_a_folder_that_is_given_twice_is_two_methods(tmp_path):
    path = write_run(tmp_path / "run", SCORES)
    assert [each.label for each in read_methods([path, path, f"{path}/"])] == [
        "fedavg",
        "fedavg #2",
        "fedavg #3",
    ]


def test_no_two_methods_have_the_same_label():
    names = ["fedavg", "fedavg #2", "fedavg", "fedavg"]
    labels = label_methods([{"algorithm": {"name": name}} for name in names])
    assert labels == ["fedavg", "fedavg #2", "fedavg #3", "fedavg #4"]
    (label,) = label_methods([{"algorithm": {"name": "a\nb\x1b[31m" + "x" * 9999}}])
    assert label.isprintable() and len(label) <= 500


@pytest.mark.parametrize("name", ["../run", "/tmp", "", ".", "link", "a\0b", "sub/../../run"])
def test_a_comparison_names_nothing_outside_of_its_folder(tmp_path, name):
    write_run(tmp_path / "run", SCORES)
    folder = write_comparison(tmp_path / "all", [name])
    (folder / "sub").mkdir()
    (folder / "link").symlink_to(tmp_path / "run")
    with pytest.raises(DataError, match=r"comparison\.json' is damaged: 'runs' names .* within"):
        read_methods([folder])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[]", "it holds no object"),
        ("{", "Expecting"),
        ("{}", "must be a list of folders"),
        ('{"runs": [1]}', "must be a list of folders"),
        ('{"runs": "a"}', "must be a list of folders"),
        ('{"runs": ["a", "a"]}', "names a folder twice"),
        ("[" * 10_000, "damaged"),
    ],
)
def test_a_damaged_comparison_is_refused(tmp_path, content, reason):
    (tmp_path / COMPARISON_FILE).write_text(content)
    with pytest.raises(DataError, match=reason):
        read_methods([tmp_path])


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="neither the folder of a run nor that of a comparison"):
        read_methods([tmp_path])

    for path in (tmp_path / "missing", "a\0b"):
        with pytest.raises(DataError, match="there is no folder"):
            read_methods([path])


def test_a_folder_of_runs_says_how_to_name_them(tmp_path):
    write_run(tmp_path / "b", SCORES)
    write_run(tmp_path / "a", SCORES)
    with pytest.raises(DataError, match=f"holds 2 runs: name one, such as '{tmp_path / 'a'}'"):
        read_methods([tmp_path])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("seed = 0\n", r"\[algorithm\] must hold a name"),
        ("seed = 0\nalgorithm = 3\n", r"\[algorithm\] must hold a name"),
        ("[algorithm]\nname = 3\n", r"\[algorithm\] must hold a name"),
        ("[algorithm]\nname = ''\n", r"\[algorithm\] must hold a name"),
        ("seed = 'x'\n[algorithm]\nname = 'a'\n", "seed must be a whole number"),
        ("seed = true\n[algorithm]\nname = 'a'\n", "seed must be a whole number"),
        ("seeds = 3\n[algorithm]\nname = 'a'\n", "seeds must be a list of whole numbers"),
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path, config, reason):
    RunFolder.create(tmp_path / "run", config=config, provenance={})
    with pytest.raises(DataError, match=reason):
        read_methods([tmp_path / "run"])


def test_a_run_of_several_seeds_of_which_none_has_begun_is_a_method_without_runs(tmp_path):
    config = "seeds = [0, 1]\n[algorithm]\nname = 'ditto'\n"
    RunFolder.create(tmp_path / "run", config=config, provenance={})
    (method,) = read_methods([tmp_path / "run"])
    assert (method.label, method.algorithm, method.runs) == ("ditto", "ditto", {})


def test_settings_that_change_no_result_tell_no_methods_apart():
    for key, values in (("verdict", ("accuracy", "auroc")), ("baselines", ("auto", "none"))):
        configs = [{"algorithm": {"name": "ditto"}, "evaluation": {key: one}} for one in values]
        assert label_methods(configs) == ["ditto", "ditto #2"]
