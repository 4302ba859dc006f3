"""Comparisons of methods, from records written by hand and from real runs."""

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fedtailor
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.experiment.reader import SCHEMA_VERSION
from fedtailor.report import compare, read_methods
from fedtailor.report.comparison import BESIDE_ACCURACY, FIGURES, SIGNIFICANT
from fedtailor.report.statistics import MOST_EXACT, RESAMPLES, Outcomes, bootstrap_interval
from written_runs import write_run, write_seeds

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "comparing.md"
EXACT = {"rel": 1e-12, "abs": 1e-12}
LOCAL = {0: [4, 6, 2, 8, 5, 7], 1: [3, 6, 4, 8, 4, 6]}
DITTO = {0: [6, 6, 3, 7, 7, 8], 1: [5, 6, 6, 8, 5, 5]}
FEDAVG = {0: [3, 4, 2, 5, 5, 3], 1: [2, 5, 4, 4, 4, 3]}
"""Right predictions of eight, by seed and client."""


def shares(counts):
    return {client: None if count is None else count / 8 for client, count in enumerate(counts)}


def write_three(folder):
    """Write Local, Ditto with a global model, and FedAvg, whose personal models are the global
    one."""
    write_seeds(
        folder / "local",
        {s: {"personalized": shares(c)} for s, c in LOCAL.items()},
        algorithm="local",
    )
    both = {s: {"personalized": shares(DITTO[s]), "global": shares(FEDAVG[s][::-1])} for s in DITTO}
    write_seeds(folder / "ditto", both, algorithm="ditto")
    write_seeds(
        folder / "fedavg",
        {s: {"personalized": shares(c), "global": shares(c)} for s, c in FEDAVG.items()},
    )
    return [folder / name for name in ("local", "ditto", "fedavg")]


def test_the_figures_are_a_hand_computation(tmp_path):
    comparison = compare(read_methods(write_three(tmp_path)))
    (known,) = comparison.groups
    local, ditto, fedavg = known.methods
    assert comparison.reference == comparison.local == "local" and ditto.seeds == (0, 1)
    means = [37 / 48, 35 / 48]
    figures = ditto.figures
    assert figures["mean"].mean == pytest.approx(36 / 48, **EXACT)
    assert figures["mean"].standard_error == pytest.approx(stats.sem(means), **EXACT)
    assert figures["mean"].by_seed == pytest.approx(dict(enumerate(means)), **EXACT)
    assert figures["worst_tenth"].by_seed == {0: 3 / 8, 1: 5 / 8}
    assert figures["smallest_tenth"].by_seed == {
        0: 6 / 8,
        1: 5 / 8,
    }  # client 0 has the least training examples
    assert figures["gain_over_local"].by_seed == pytest.approx({0: 5 / 48, 1: 4 / 48}, **EXACT)
    assert figures["harmed_versus_local"].by_seed == pytest.approx({0: 1 / 6, 1: 1 / 6}, **EXACT)
    assert ditto.global_model == "ditto"
    assert figures["gain_over_global"].by_seed == pytest.approx({0: 15 / 48, 1: 13 / 48}, **EXACT)
    # Local has no global model of its own: that of FedAvg
    assert local.global_model == "fedavg" and "gain_over_local" not in local.figures
    assert local.figures["harmed_versus_global"].by_seed == {0: 0.0, 1: 0.0}
    assert fedavg.figures["gain_over_global"].by_seed == {0: 0.0, 1: 0.0}


def test_tests_are_those_of_scipy_in_every_seed_and_never_pooled(tmp_path):
    (known,) = compare(read_methods(write_three(tmp_path))).groups
    by_label = {each.label: each for each in known.differences}
    p_values = {}
    for label, counts in (("ditto", DITTO), ("fedavg", FEDAVG)):
        assert list(by_label[label].by_seed) == [0, 1]
        for seed, test in by_label[label].by_seed.items():
            gaps = (np.array(counts[seed]) - LOCAL[seed]) / 8
            expected = stats.wilcoxon(
                gaps[gaps != 0], method=stats.PermutationMethod(n_resamples=np.inf)
            )
            assert test.wilcoxon.p_value == pytest.approx(expected.pvalue, **EXACT)
            assert test.difference == pytest.approx(gaps.mean(), **EXACT)
            assert test.interval == pytest.approx(bootstrap_interval(gaps.tolist()), **EXACT)
            assert (test.wins, test.ties, test.losses) == (
                (gaps > 0).sum(),
                (gaps == 0).sum(),
                (gaps < 0).sum(),
            )
            assert (test.clients, test.missing) == (6, 0)
            p_values[label, seed] = expected.pvalue
    for seed in (0, 1):
        low, high = sorted(("ditto", "fedavg"), key=lambda label: p_values[label, seed])
        smaller = min(1.0, 2 * p_values[low, seed])
        assert by_label[low].by_seed[seed].holm_p_value == pytest.approx(smaller, **EXACT)
        assert by_label[high].by_seed[seed].holm_p_value == pytest.approx(
            max(smaller, p_values[high, seed]), **EXACT
        )
    over_seeds = by_label["ditto"].over_seeds
    assert over_seeds.mean == pytest.approx(4.5 / 48, **EXACT)
    assert over_seeds.standard_error == pytest.approx(stats.sem([5 / 48, 4 / 48]), **EXACT)
    assert by_label["ditto"].significant_seeds == 0


def test_a_significant_difference_is_counted_by_seed(tmp_path):
    few = {client: client / 64 for client in range(10)}
    many = {client: 0.5 + client / 32 for client in range(10)}
    write_seeds(tmp_path / "a", {0: {"personalized": few}, 1: {"personalized": few}})
    write_seeds(
        tmp_path / "b", {0: {"personalized": many}, 1: {"personalized": few}}, algorithm="ditto"
    )
    comparison = compare(read_methods([tmp_path / "a", tmp_path / "b"]))
    (difference,) = comparison.groups[0].differences
    assert (
        difference.by_seed[0].wilcoxon.p_value == 2 / 2**10
        and difference.by_seed[1].wilcoxon.p_value == 1.0
    )
    assert difference.significant_seeds == 1
    (record,) = comparison.as_record()["groups"]["known"]["differences"]
    assert record["significant_seeds"] == 1 and record["by_seed"]["0"]["wins"] == 10


def test_clients_without_a_score_are_counted_and_left_out(tmp_path):
    one = write_run(tmp_path / "a", {"personalized": shares([4, 6, None, 8])})
    other = write_run(
        tmp_path / "b", {"personalized": {0: 0.75, 3: 0.5, 4: 0.5}}, algorithm="ditto"
    )
    comparison = compare(read_methods([one, other]))
    (test,) = comparison.groups[0].differences[0].by_seed.values()
    assert (test.clients, test.missing) == (2, 2) and (
        test.wins,
        test.ties,
        test.losses,
    ) == Outcomes(1, 0, 1)
    assert test.difference == pytest.approx((0.25 - 0.5) / 2, **EXACT)
    assert comparison.groups[0].methods[0].clients == {0: 3}
    assert comparison.warnings[0].endswith("no accuracy with fedavg in seed 0: 1.")


def test_one_seed_has_no_standard_error_and_is_no_evidence(tmp_path):
    one = write_run(tmp_path / "a", {"personalized": {0: 0.5}})
    other = write_run(tmp_path / "b", {"personalized": {0: 0.75}}, algorithm="ditto")
    comparison = compare(read_methods([one, other]))
    (difference,) = comparison.groups[0].differences
    assert comparison.groups[0].methods[0].figures["mean"] == (0.5, None, {0: 0.5})
    assert difference.over_seeds == (0.25, None, {0: 0.25})
    assert difference.by_seed[0].interval is None and difference.by_seed[0].wilcoxon.p_value == 1.0
    assert any("no evidence" in note for note in comparison.notes)


def test_a_method_that_is_compared_with_itself_is_named(tmp_path):
    one = write_run(tmp_path / "a", {"personalized": shares([4, 6, 8])})
    copy = write_run(tmp_path / "b", {"personalized": shares([4, 6, 8])})
    other = write_run(tmp_path / "c", {"personalized": shares([4, 6, 7])})
    comparison = compare(read_methods([one, one, copy, other]))
    pairs = [note.partition(" have ")[0] for note in comparison.notes if "same" in note]
    assert pairs[1:] == ["fedavg and fedavg #3", "fedavg #2 and fedavg #3"]
    assert pairs[0].startswith("fedavg and fedavg #2 are the same run folder")
    for difference in comparison.groups[0].differences[:2]:
        (test,) = difference.by_seed.values()
        assert (test.difference, test.interval, test.holm_p_value) == (0.0, (0.0, 0.0), 1.0)
        assert (test.wins, test.ties, test.losses) == Outcomes(0, 3, 0)


def test_only_seeds_of_the_same_data_and_split_are_compared_client_by_client(tmp_path):
    a = write_seeds(
        tmp_path / "a",
        {s: {"personalized": shares(c)} for s, c in LOCAL.items()},
        algorithm="local",
    )
    b = write_seeds(
        tmp_path / "b",
        {1: {"personalized": shares(DITTO[1])}, 2: {"personalized": shares(DITTO[0])}},
    )
    c = write_run(
        tmp_path / "c", {"personalized": shares(DITTO[0])}, algorithm="ditto", split="other"
    )
    d = write_run(tmp_path / "d", {"personalized": shares(DITTO[0])}, algorithm="apfl", split="")
    comparison = compare(read_methods([a, b, c, d]))
    fedavg, ditto, apfl = comparison.groups[0].differences
    assert list(fedavg.by_seed) == [1] and ditto.by_seed == apfl.by_seed == {}
    assert (
        ditto.over_seeds is None
        and "gain_over_local" not in comparison.groups[0].methods[2].figures
    )
    assert comparison.groups[0].methods[2].figures["mean"].mean == pytest.approx(37 / 48, **EXACT)
    seeds, groups, unknown = comparison.warnings[:3]
    assert "seeds 0 and 1 (local); seeds 1 and 2 (fedavg); seed 0 (" in seeds
    assert "local; ditto." in groups and "seed 0" in unknown and "apfl" in unknown


def test_every_difference_between_the_runs_is_a_warning(tmp_path):
    scores = {"personalized": shares([4, 6])}
    settings = {
        "training": {"epochs": 5, "batch_size": 8, "lr": 0.3},
        "model": {"name": "cnn"},
        "evaluation": {"select": "best"},
    }
    settings["federation"] = {
        "participation": 0.5,
        "train": "all",
        "rounds": 3,
        "robust_share": 0.4,
    }
    one = write_run(tmp_path / "a", scores)
    other = write_run(
        tmp_path / "b",
        scores,
        algorithm="ditto",
        settings=settings,
        versions={"fedtailor": "0.2.0", "torch": "2.13.0"},
        data={"dataset": "mnist", "sha256": "e"},
        reduction=1,
        engine="workers",
        commit="abc",
    )
    open_one = write_run(tmp_path / "c", scores, algorithm="apfl", finished=False)
    text = "\n".join(compare(read_methods([one, other, open_one])).warnings)
    for words in (
        "apfl has not finished seed 0 (interrupted): left out.",
        "data: digits with digest d (fedavg); mnist with digest e (ditto)",
        "training.epochs: 1 (fedavg); 5 (ditto)",
        "training.batch_size: not recorded (fedavg); 8 (ditto)",
        "training.lr: not recorded (fedavg); 0.3 (ditto)",
        "federation.participation: all (fedavg); 0.5 (ditto)",
        "federation.robust_share: not recorded (fedavg); 0.4 (ditto)",
        "evaluation.select",
        "model.name",
        "(federation.train)",
        "the version of fedtailor: 0.1.0 (fedavg); 0.2.0 (ditto)",
        "the version of torch",
        "the order of addition (reduction): 2 (fedavg); 1 (ditto)",
        "the engine: reference (fedavg); workers (ditto)",
        "the commit of fedtailor",
    ):
        assert words in text
    assert compare(read_methods([one, one])).warnings == ()


def test_lost_work_and_models_of_other_rounds_are_warnings(tmp_path):
    paths = [
        write_run(tmp_path / name, {"personalized": shares([4, 6])}, algorithm=name)
        for name in ("a", "b", "c")
    ]
    result = json.loads((paths[1] / "result.json").read_text())
    result |= {"events": {"quarantine": 2, "failed": 1, "absent": 0, "skipped": 7}, "rounds": 9}
    result["metrics"]["personalized"]["round"] = 2
    (paths[1] / "result.json").write_text(json.dumps(result))
    change_lines(paths[1], round=2)
    rounds = (paths[1] / "rounds.jsonl").read_text()
    last = rounds.replace('"round": 3', '"round": 9')
    (paths[1] / "rounds.jsonl").write_text(rounds + rounds.replace("3", "2") + last)
    rounds, models, lost = compare(read_methods(paths)).warnings
    assert "rounds: 3 (a, c); 9 (b)." in rounds and "made: 3 (a, c); 2 (b)." in models
    assert lost.startswith("b: ") and "3 times" in lost


def test_the_epochs_of_an_algorithm_are_those_that_count(tmp_path):
    scores = {"personalized": shares([4, 6])}
    one = write_run(tmp_path / "a", scores, settings={"training": {"epochs": 5}})
    settings = {"training": {"epochs": 1}, "model": {"name": "mlp"}}
    other = write_run(
        tmp_path / "b", scores, algorithm='ditto"\nepochs = 5\nx = "', settings=settings
    )
    text = (
        (other / "experiment.toml")
        .read_text()
        .replace('name = "ditto', 'epochs = 5\nname = "ditto')
    )
    (other / "experiment.toml").write_text(text)
    assert not any(
        "training.epochs" in sentence for sentence in compare(read_methods([one, other])).warnings
    )


def test_a_split_that_varies_over_seeds_is_named(tmp_path):
    paths = []
    for name in ("local", "ditto"):
        path = write_seeds(
            tmp_path / name, {s: {"personalized": shares([4, 6])} for s in (0, 1)}, algorithm=name
        )
        provenance = json.loads((path / "seed-1" / "provenance.json").read_text())
        (path / "seed-1" / "provenance.json").write_text(
            json.dumps({**provenance, "split_sha256": "other"})
        )
        paths.append(path)
    comparison = compare(read_methods(paths))
    assert list(comparison.groups[0].differences[0].by_seed) == [0, 1]
    (varies,) = [note for note in comparison.notes if note.startswith("Seeds differ in ")]
    assert "the split" in varies.partition(";")[0] and "the cohorts" in varies.partition(";")[2]


def test_strange_counts_of_clients_are_not_believed(tmp_path):
    paths = [
        write_run(tmp_path / name, {"personalized": shares([4, 6])}, algorithm=name)
        for name in ("a", "b")
    ]
    for number in (-(10**9), 10**9, True, "x"):
        for path in paths:
            (path / "split.json").write_text(
                json.dumps({"clients": [{}] * 2, "new_clients": number})
            )
        (test,) = compare(read_methods(paths)).groups[0].differences[0].by_seed.values()
        assert test.missing == 0
    for path in paths:
        (path / "split.json").write_text(json.dumps({"clients": [{}] * 5, "new_clients": 2}))
    (test,) = compare(read_methods(paths)).groups[0].differences[0].by_seed.values()
    assert test.missing == 1  # a known client of which there is no line


def test_new_clients_are_compared_apart(tmp_path):
    paths = []
    for name, counts in (("local", [1, 2]), ("ditto", [5, 6])):
        new = {"personalized": {7: counts[0] / 8, 8: counts[1] / 8}}
        paths.append(
            write_run(tmp_path / name, {"personalized": shares([4, 6])}, algorithm=name, new=new)
        )
    known, new = compare(read_methods(paths)).groups
    assert (known.group, new.group) == ("known", "new")
    assert known.differences[0].over_seeds.mean == 0.0 and new.differences[0].over_seeds.mean == 0.5
    assert new.differences[0].by_seed[0].clients == 2


def test_the_reference_is_the_first_method_or_the_one_that_is_named(tmp_path):
    methods = read_methods(write_three(tmp_path))
    comparison = compare(methods, against="FedAvg", point="global")
    assert comparison.reference == "fedavg" and comparison.point == "global"
    local, ditto = comparison.groups[0].differences
    assert local.by_seed == {} and list(ditto.by_seed) == [0, 1]
    assert "gain_over_global" not in comparison.groups[0].methods[1].figures
    # Local is its personal models whatever is compared
    assert comparison.groups[0].methods[1].figures["gain_over_local"].by_seed[0] == pytest.approx(
        -10 / 48, **EXACT
    )
    assert any("local has no accuracy" in sentence for sentence in comparison.warnings)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"metric": "acuracy"}, ConfigError, "did you mean 'accuracy'"),
        ({"point": "personal"}, ConfigError, "did you mean 'personalized'"),
        ({"against": "dito"}, ConfigError, "did you mean 'ditto'"),
        ({"metric": "auroc"}, DataError, "no finished run has the auroc of clients"),
        (
            {"point": "global", "against": "local"},
            DataError,
            "Choose another one with --against: ditto, fedavg",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        compare(read_methods(write_three(tmp_path)), **options)


def change_lines(path, **changes):
    lines = [
        {**json.loads(line), **changes}
        for line in (path / "clients.jsonl").read_text().splitlines()
    ]
    (path / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_damaged_scores_are_refused(tmp_path):
    good = write_run(tmp_path / "good", {"personalized": shares([4, 6])})
    hostile = (
        {"accuracy": "1"},
        {"accuracy": True},
        {"accuracy": 10**400},
        {"accuracy": 1e308},
        {"accuracy": [1]},
    )
    for number, changes in enumerate(
        (*hostile, {"client": "0"}, {"client": 0}, {"num_train": None})
    ):
        path = write_run(tmp_path / str(number), {"personalized": shares([4, 6])})
        change_lines(path, **changes)
        with pytest.raises(DataError, match=r"clients\.jsonl' is damaged"):
            compare(read_methods([good, path]))


@pytest.mark.parametrize("metrics", ['{"personalized": 3}', '{"personalized": {"round": "x"}}'])
def test_damaged_results_and_single_methods_are_refused(tmp_path, metrics):
    good = write_run(tmp_path / "good", {"personalized": shares([4, 6])})
    path = write_run(tmp_path / "bad", {"personalized": shares([4, 6])})
    (path / "result.json").write_text(f'{{"metrics": {metrics}}}')
    with pytest.raises(DataError, match=r"result\.json' is damaged"):
        compare(read_methods([good, path]))
    with pytest.raises(ConfigError):
        compare(read_methods([good]))


@pytest.mark.parametrize(
    "provenance", [{"data": 3, "versions": []}, {"data": {"sha256": {}}, "split_sha256": [1]}]
)
def test_a_strange_provenance_gives_warnings(tmp_path, provenance):
    good = write_run(tmp_path / "good", {"personalized": shares([4, 6])})
    path = write_run(tmp_path / "odd", {"personalized": shares([4, 6])})
    (path / "provenance.json").write_text(json.dumps({"schema": SCHEMA_VERSION, **provenance}))
    (path / "result.json").write_text(
        '{"metrics": {"personalized": {"round": 3}}, "events": 4, "steps": {}}'
    )
    comparison = compare(read_methods([good, path]))
    assert comparison.groups[0].differences[0].by_seed == {} and len(comparison.warnings) > 3


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory):
    """Return the folders of two methods on digits, each with two seeds and new clients."""
    folder = tmp_path_factory.mktemp("real")
    settings = {
        "seeds": [0, 1],
        "data": {"clients": 5, "new_clients": 1},
        "federation": {"rounds": 1},
        "engine": {"name": "reference"},
    }
    for name in ("local", "fedavg"):
        config = fedtailor.make_config({**settings, "algorithm": {"name": name}})
        fedtailor.run(config, out=folder / name)
    return [folder / name for name in ("local", "fedavg")]


def test_the_figures_of_real_runs_are_those_of_their_results(real_runs):
    methods = read_methods(real_runs)
    places = {"mean": "mean", "worst_tenth": "worst10", "smallest_tenth": "smallest10"}
    for metric, properties in CLIENT_METRICS.items():
        comparison = compare(methods, metric=metric)
        for group, place in zip(comparison.groups, ("metrics", "new_clients"), strict=True):
            for summary, method in zip(group.methods, methods, strict=True):
                for seed, run in method.runs.items():
                    expected = run.result[place]["personalized"][metric]
                    for name, figure in places.items():
                        value = summary.figures[name].by_seed[seed]
                        assert value == pytest.approx(expected[figure], **EXACT)
                    for name in BESIDE_ACCURACY if metric == "accuracy" else ():
                        value = summary.figures[name].by_seed[seed]
                        mean = run.result[place]["personalized"][name]["mean"]
                        assert value == pytest.approx(mean, **EXACT)
        (difference,) = comparison.groups[0].differences
        local, fedavg = (one.figures["mean"].mean for one in comparison.groups[0].methods)
        gain = (fedavg - local) * (1 if properties.higher_is_better else -1)
        assert difference.over_seeds.mean == pytest.approx(gain, abs=1e-11)


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path):
    page = PAGE.parents[1] / "howto" / "compare.md"
    (text,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    with contextlib.chdir(tmp_path), contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, "compare.md", "exec"), {})
    assert "| ditto | 2 | 20 |" in printed.getvalue()


def test_the_page_names_every_figure_and_what_is_significant():
    text = PAGE.read_text()
    rows = re.findall(r"^\| ([\w ]+) \| the (?:mean|share)", text, re.MULTILINE)
    assert rows == list(FIGURES.values())
    assert f"below {SIGNIFICANT}" in text and f"up to {MOST_EXACT} clients" in text
    assert f"{RESAMPLES:,} times" in text and SIGNIFICANT < 2 / 2**5  # five clients are too few
    assert all(f"`{metric}`" in text for metric in CLIENT_METRICS)


def test_a_figure_of_some_seeds_does_not_stand_beside_those_of_all(tmp_path):
    folders = write_three(tmp_path)
    path = folders[1] / "seed-0" / "clients.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["point"] == "personalized":
            line["auroc"] = 0.75

    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (known,) = compare(read_methods(folders)).groups
    _, ditto, _ = known.methods
    assert ditto.seeds == (0, 1) and "auroc" not in ditto.figures

    other = folders[1] / "seed-1" / "clients.jsonl"
    lines = [json.loads(line) for line in other.read_text().splitlines()]
    other.write_text("".join(json.dumps({**line, "auroc": 0.5}) + "\n" for line in lines))
    (known,) = compare(read_methods(folders)).groups
    assert known.methods[1].figures["auroc"].by_seed == {0: 0.75, 1: 0.5}
