"""A sweep tries what it was told to try, chooses by validation examples only, and trains nothing
twice."""

import inspect
import json
import math
import shutil
import sys

import numpy as np
import pytest

from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.experiment import sweep as module
from fedtailor.experiment.config import load_config, make_config
from fedtailor.experiment.folder import exclusive
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.sweep import halving_rounds, make_searches, sweep, validation_accuracy
from fedtailor.experiment.sweep_options import SweepOptions, load_sweep, sweep_to_toml
from fedtailor.experiment.tracking import RunProgress
from fedtailor.simulation import server

SMALL = {
    "data": {"clients": 3, "partition": "iid", "fraction": 0.4, "val_fraction": 0.3},
    "model": {"name": "mlp", "options": {"hidden": 16}},
    "algorithm": {"name": "fedavg"},
    "training": {"epochs": 1, "lr": 0.3, "batch_size": 5},
    "federation": {"rounds": 2},
    "engine": {"name": "reference"},
}


def config(*overrides):
    return make_config(SMALL, overrides)


def scores(result):
    """Return the table of a sweep: everything but times and places."""
    return json.loads(
        json.dumps(result["methods"]),
        object_hook=lambda table: {
            key: value for key, value in table.items() if key not in ("seconds", "run")
        },
    )


def choice(result):
    """Return what a sweep has chosen, and by which scores."""
    return [
        [
            (trial["values"], [step["validation"] for step in trial["steps"]], trial["rank"])
            for trial in method["trials"]
        ]
        + [method["best"]["trial"], method["spread"]]
        for method in result["methods"]
    ] + [result["best"]["method"]]


class Stop(RunProgress):
    """Interrupts a sweep after so many rounds."""

    def __init__(self, after):
        self.left = after

    def round(self, record):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture
def count_rounds(monkeypatch):
    """Return a list that grows with every round that is trained."""
    trained = []
    begin_round = server.RunServer.begin_round

    def counted(*arguments, **named):
        trained.append(1)
        return begin_round(*arguments, **named)

    monkeypatch.setattr(server.RunServer, "begin_round", counted)
    return trained


RANDOM = {"values": {"training.lr": "loguniform(0.01, 1)"}, "trials": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder and the result of a finished sweep, which must not be changed."""
    folder = tmp_path_factory.mktemp("finished") / "sweep"
    return folder, sweep(config(("seeds", [0, 1])), **RANDOM, out=folder)


@pytest.fixture
def copied(finished, tmp_path):
    """Return a copy of the folder, and the result."""
    folder, result = finished
    return shutil.copytree(folder, tmp_path / "sweep"), result


# the choice


SITES = """
import numpy as np

def sites():
    generator = np.random.default_rng(0)
    shuffle = np.random.default_rng(1).permutation
    found = {{}}
    for site in "ABC":
        parts = []
        for number in (60, 40):
            y = np.arange(number) % 3
            x = (generator.normal(size=(number, 4)) + 2 * np.eye(4)[y]).astype(np.float32)
            parts.append((x, y))
        (train, (x, y)) = parts
        found[site] = (train, (x, shuffle(y) if {permuted} else y))
    return found
"""


def sites_config(monkeypatch, folder, *, permuted):
    """Return a configuration on data of three sites with their own test examples."""
    name = f"sites_{permuted}".lower()
    (folder / f"{name}.py").write_text(SITES.format(permuted=permuted))
    monkeypatch.syspath_prepend(folder)
    data = {"path": f"{name}:sites", "val_fraction": 0.4, "normalize": "training"}
    return make_config({**SMALL, "data": data, "evaluation": {"baselines": "none"}})


@pytest.mark.parametrize(
    "settings",
    [
        {"values": {"training.lr": [0.001, 0.05]}},
        pytest.param(
            {
                "values": {"training.lr": "loguniform(0.001, 0.5)"},
                "sampler": "tpe",
                "trials": 12,
                "halving": 2,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=["grid", "tpe-and-pruning"],
)
def test_the_choice_is_the_same_if_test_labels_are_permuted(settings, tmp_path, monkeypatch):
    found = {}
    for permuted in (False, True):
        data = sites_config(monkeypatch, tmp_path, permuted=permuted)
        found[permuted] = sweep(
            data, methods=["fedavg_ft", "ditto"], **settings, out=tmp_path / str(permuted)
        )
    tests = [
        [method["test"]["personalized"]["mean"] for method in each["methods"]]
        for each in found.values()
    ]
    assert tests[0] != tests[1], "the test labels were permuted"
    assert choice(found[False]) == choice(found[True])


def test_selection_reads_nothing_but_validation_scores(tmp_path, monkeypatch):
    """Results without any test score, until the choice is made, give the same choice."""
    settings = {"values": {"training.lr": [0.01, 0.1]}, "out": tmp_path / "sweep"}
    expected = choice(sweep(config(), **settings))
    run = module.run

    def only_validation(config, **options):
        result = run(config, **options)
        return {**result, "metrics": {"validation": result["metrics"]["validation"]}}

    monkeypatch.setattr(module, "run", only_validation)
    monkeypatch.setattr(module, "_test_scores", lambda folder: {})
    assert choice(sweep(config(), **settings)) == expected


@pytest.mark.slow
def test_the_best_on_validation_examples_is_chosen_and_of_equal_ones_the_first(tmp_path):
    result = sweep(config(), values={"training.lr": [1e-9, 2e-9, 0.3]}, out=tmp_path / "sweep")
    (method,) = result["methods"]
    trials = method["trials"]
    assert trials[0]["validation"] == trials[1]["validation"] < trials[2]["validation"]
    assert [trial["rank"] for trial in trials] == [2, 3, 1]
    assert method["best"] == trials[2] and result["best"] == {
        "method": "fedavg",
        "config": "best-fedavg.toml",
    }
    spread = method["spread"]
    assert (spread["min"], spread["max"], spread["trials"]) == (
        trials[0]["validation"],
        trials[2]["validation"],
        3,
    )
    assert spread["median"] == trials[1]["validation"]


def test_the_scores_are_those_of_the_runs(finished):
    folder, result = finished
    trial = result["methods"][0]["best"]
    found = read_run(folder / trial["run"]).result
    accuracy = found["metrics"]["validation"]["accuracy"]
    assert trial["validation"] == pytest.approx(accuracy["mean"])
    assert trial["standard_error"] == pytest.approx(accuracy["sem"]["mean"])
    assert (
        result["methods"][0]["test"]["personalized"] == found["metrics"]["personalized"]["accuracy"]
    )
    assert json.loads((folder / "sweep.json").read_text()) == json.loads(json.dumps(result))


def test_the_best_configuration_gives_the_same_bits(finished, tmp_path):
    folder, _ = finished
    run(load_config(folder / "best-fedavg.toml"), out=tmp_path / "alone")
    listed = json.loads((folder / "comparison.json").read_text())
    (there,) = listed["runs"]
    assert listed["kind"] == "sweep"
    for seed in (0, 1):
        models = [
            {path.name: path.read_bytes() for path in (place / f"seed-{seed}" / "models").iterdir()}
            for place in (tmp_path / "alone", folder / there)
        ]
        assert models[0] == models[1]


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"validation": {"clients": {"evaluated": 0}}},
        {"validation": {"accuracy": {"mean": None}}},
    ],
)
def test_a_result_without_validation_scores_has_none(metrics):
    assert validation_accuracy(metrics) is None


def test_without_validation_examples_nothing_is_chosen(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.val_fraction=0\.2") as raised:
        sweep(
            config(("data.val_fraction", 0.0)),
            values={"training.lr": [0.1]},
            out=tmp_path / "sweep",
        )
    assert raised.value.key == "data.val_fraction"
    assert not (tmp_path / "sweep").exists()


def test_a_trial_that_fails_counts_and_is_never_chosen(tmp_path):
    values = {"training.lr": [1e30, 0.1], "algorithm.penalty": [1.0]}
    ditto = config(("algorithm.name", "ditto"), ("federation.rounds", 1))
    result = sweep(ditto, values=values, out=tmp_path / "sweep")
    (method,) = result["methods"]
    assert method["failed"] == 1 and method["best"]["trial"] == 2
    assert method["trials"][0]["rank"] is None and "not finite" in method["trials"][0]["error"]
    with pytest.raises(RunError, match=r"every trial of the sweep failed; the first: .*not finite"):
        sweep(ditto, values={"training.lr": [1e30]}, out=tmp_path / "failed")
    assert json.loads((tmp_path / "failed" / "sweep.json").read_text())["best"] is None


# what is trained


def stop_before_third_trial(sentence):
    if "trial 3" in sentence:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("interruption", "trained"),
    [
        pytest.param(
            {"announce": stop_before_third_trial}, 8, id="between-trials", marks=pytest.mark.slow
        ),
        pytest.param({"progress": Stop(4)}, 9, id="within-a-trial"),
    ],
)
def test_an_interrupted_sweep_is_resumed(interruption, trained, tmp_path, count_rounds):
    settings = {"values": {"training.lr": [0.01, 0.1], "algorithm.finetune_epochs": [1, 2]}}
    tuned = config(("algorithm.name", "fedavg_ft"))
    expected = sweep(tuned, **settings, out=tmp_path / "alone")
    count_rounds.clear()
    with pytest.raises(KeyboardInterrupt):
        sweep(tuned, **settings, out=tmp_path / "cut", **interruption)
    found = sweep(tuned, **settings, out=tmp_path / "cut")
    assert scores(found) == scores(expected)
    assert len(count_rounds) == trained, "at most a round that was not complete is trained again"


def test_a_sweep_that_has_finished_trains_nothing_and_trials_can_be_added(copied, count_rounds):
    folder, first = copied
    settings = config(("seeds", [0, 1]))
    assert scores(sweep(settings, **RANDOM, out=folder)) == scores(first)
    assert count_rounds == []
    more = sweep(settings, **{**RANDOM, "trials": 3}, out=folder)
    assert len(count_rounds) == 2 * 2
    trials = [result["methods"][0]["trials"] for result in (first, more)]
    assert [trial["values"] for trial in trials[0]] == [trial["values"] for trial in trials[1]][:2]
    assert len(trials[1]) == 3


def test_another_sweep_does_not_go_into_the_folder(finished, tmp_path):
    folder, _ = finished
    before = (folder / "sweep.json").read_bytes()
    for overrides, options, key in (
        ([("seeds", [0, 1])], {"values": {"training.lr": [0.2]}}, "sweep.values.training.lr"),
        ([("seeds", [0, 1])], {"seed": 1}, "sweep.seed"),
        ([("seeds", [0, 1]), ("training.epochs", 2)], {}, "training.epochs"),
        ([("seed", 1)], {}, "seeds"),
    ):
        with pytest.raises(ConfigError) as raised:
            sweep(config(*overrides), **{**RANDOM, **options}, out=folder)
        assert raised.value.key == key
    assert (folder / "sweep.json").read_bytes() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="already exists"):
        sweep(config(), **RANDOM, out=tmp_path / "other")


# pruning


@pytest.mark.parametrize(
    ("trials", "num_rounds", "factor", "expected"),
    [(9, 9, 3, [1, 3, 9]), (5, 100, 2, [25, 50, 100]), (2, 30, 3, [30]), (4, 30, 0, [30])],
)
def test_rounds_of_halving(trials, num_rounds, factor, expected):
    assert halving_rounds(trials, num_rounds, factor) == expected


def test_a_method_of_one_exchange_is_trained_once_a_trial(tmp_path):
    settings = config(("algorithm.name", "fed3r"), ("federation.rounds", 4))
    values = {"algorithm.ridge": [0.01, 1.0]}
    result = sweep(settings, values=values, halving=2, out=tmp_path / "sweep")
    (method,) = result["methods"]
    rounds = [[step["rounds"] for step in trial["steps"]] for trial in method["trials"]]
    assert rounds == [[1], [1]]


def test_what_noise_promises_counts_every_trial(tmp_path):
    noisy = [
        ("data.clients", 8),
        ("federation.rounds", 1),
        ("federation.participation", 1.0),
        ("privacy.unit", "client"),
        ("privacy.epsilon", 8.0),
        ("privacy.delta", 0.01),
    ]
    values = {"training.lr": [0.1, 0.3, 0.9]}
    result = sweep(config(*noisy), values=values, out=tmp_path / "sweep")
    assert result["privacy"]["runs"] == 3
    assert "per client in each of 3 runs (they add up)" in result["privacy"]["claim"]


def test_trials_that_lag_behind_are_pruned(tmp_path, count_rounds):
    settings = config(("federation.rounds", 4))
    values = {"training.lr": [0.3, 1e-9, 2e-9, 3e-9]}
    said = []
    result = sweep(settings, values=values, halving=2, out=tmp_path / "sweep", announce=said.append)
    (method,) = result["methods"]
    rounds = [[step["rounds"] for step in trial["steps"]] for trial in method["trials"]]
    assert rounds[0] == [1, 2, 4]
    assert rounds[1] == rounds[2] == [1]
    assert len(count_rounds) == method["trained_rounds"] == sum(map(sum, rounds))
    assert method["best"]["trial"] == 1 and method["best"]["rounds"] == 4
    assert method["spread"]["rounds"] == 1 and method["spread"]["trials"] == 4
    assert "fedavg: trial 3 of 4, 1 of 4 rounds: training.lr=2e-09" in said


@pytest.mark.slow
def test_rounds_of_seeds_that_stop_early_are_added(tmp_path, count_rounds):
    overrides = [
        ("seeds", [0, 1]),
        ("federation.rounds", 12),
        ("evaluation.personalized_every", 1),
        ("evaluation.select", "best"),
        ("evaluation.patience", 1),
    ]
    result = sweep(config(*overrides), values={"training.lr": [0.3]}, out=tmp_path / "sweep")
    (method,) = result["methods"]
    assert len(count_rounds) == method["trained_rounds"] < 24


def test_pruning_does_not_go_with_other_choices_of_rounds():
    watching = config(("evaluation.select", "best"), ("evaluation.personalized_every", 1))
    with pytest.raises(ConfigError) as raised:
        sweep(watching, values={"training.lr": [0.1]}, halving=2)
    assert raised.value.key == "sweep.halving"
    with pytest.raises(ConfigError) as raised:
        sweep(config(), values={"federation.rounds": [1, 2]}, halving=2)
    assert raised.value.key == "sweep.values.federation.rounds"


# what is tried


def searches(values, *overrides, **options):
    return make_searches(config(*overrides), SweepOptions(values=values, **options))


def drawn(search, score=lambda values: 0.0):
    """Return the values of all trials, if a function scores them in place of a run."""
    study, trials = search.make_study(), []
    for number in range(1, search.num_trials + 1):
        trial = search.draw_trial(study, number, trials)
        trials.append(trial.params)
        study.tell(trial, score(trial.params))
    return trials


def test_a_grid_has_every_combination_in_order():
    (search,) = searches({"training.lr": [0.1, 0.2], "training.epochs": [1, 2]})
    assert [tuple(values.values()) for values in drawn(search)] == [
        (0.1, 1),
        (0.1, 2),
        (0.2, 1),
        (0.2, 2),
    ]


def test_random_values_have_the_bounds_and_the_distribution_of_their_range():
    values = {
        "training.lr": "loguniform(0.001, 1)",
        "training.epochs": "integers(2, 5)",
        "training.flip": [True, False],
    }
    (search,) = searches(values, trials=400)
    columns = {key: np.array([point[key] for point in drawn(search)]) for key in values}
    lr = np.log10(columns["training.lr"])
    assert -3 <= lr.min() < -2.9 and -0.1 < lr.max() <= 0 and abs(lr.mean() + 1.5) < 0.15
    assert np.abs(np.bincount(columns["training.epochs"], minlength=6)[2:] - 100).max() < 40
    assert abs(columns["training.flip"].sum() - 200) < 40


def test_random_trials_differ():
    values = {"training.lr": [0.1, 0.2, 0.3], "training.epochs": [1, 2, 3]}
    (search,) = searches(values, trials=8)
    points = drawn(search)
    assert len({tuple(point.values()) for point in points}) == 8
    assert sorted(points, key=str) != points

    # More trials than combinations would repeat some.
    (search,) = searches(values, trials=10, sampler="random")
    points = drawn(search)
    assert len(points) == len({tuple(point.values()) for point in points}) == 9


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_draws_depend_on_seed_method_number_and_scores_only(sampler):
    values = {"training.lr": "uniform(0.1, 1)"}

    def trials(count, **options):
        (search,) = searches(values, trials=count, sampler=sampler, **options)
        return drawn(search, lambda point: -abs(point["training.lr"] - 0.3))

    assert trials(20)[:15] == trials(15)
    assert trials(15, seed=1) != trials(15)


def test_tpe_draws_near_the_best():
    (search,) = searches({"training.lr": "uniform(0.1, 1)"}, trials=60, sampler="tpe")
    late = drawn(search, lambda point: -abs(point["training.lr"] - 0.3))[30:]
    assert np.median([abs(point["training.lr"] - 0.3) for point in late]) < 0.12


def test_methods_have_their_own_options_and_unequal_grids_are_said():
    values = {
        "training.lr": [0.1, 0.2],
        "algorithm.finetune_epochs": [1, 2, 3],
        "ditto.penalty": [0.5],
        "ditto.lr": [0.3],
    }
    methods = ("fedavg_ft", "ditto", "fedavg_ft(finetune=head)", "fedavg")
    tuned, ditto, head, plain = searches(values, methods=methods)
    assert [search.method for search in (tuned, ditto, head)] == list(methods[:3])
    assert (tuned.name, ditto.name, head.name) == ("fedavg_ft", "ditto", "fedavg_ft-2")
    assert set(tuned.space) == {"training.lr", "algorithm.finetune_epochs"}
    assert drawn(ditto) == [{"algorithm.penalty": 0.5, "algorithm.lr": 0.3}]
    assert [search.num_trials for search in (tuned, ditto, head, plain)] == [6, 1, 6, 2]
    notes = " ".join(module._notes(config(), [tuned, ditto, head]))
    assert "fedavg_ft 6, ditto 1" in notes
    assert "equal budgets" not in " ".join(module._notes(config(), [tuned, head]))


def test_methods_that_choose_on_validation_examples_themselves_are_named():
    values = {"training.lr": [0.1]}
    notes = module._notes(config(), searches(values, methods=("knn_per", "fedavg")))
    assert any(note.startswith("knn_per") for note in notes)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_say_whether_they_look_at_validation_examples(name):
    cls = load_algorithm(name)
    source = inspect.getsource(sys.modules[cls.__module__])
    assert cls.chooses_by_validation == ("data.val" in source)


def test_a_method_with_nothing_to_vary_has_one_trial():
    fedavg, _ = searches({"ditto.penalty": [0.5, 1.0]}, methods=("fedavg", "ditto"))
    assert drawn(fedavg) == [{}]


# mistakes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "what to try"),
        ({"lr": [0.1]}, "did you mean 'training.lr'"),
        ({"finetune": ["head"]}, "unknown option 'finetune'"),
        ({"training": [0.1]}, "must be a section"),
        ({"seed": [1]}, "SECTION.OPTION"),
        ({"": [1]}, "SECTION.OPTION"),
        ({"training.lrr": [0.1]}, "did you mean 'lr'"),
        ({"trainig.lr": [0.1]}, "did you mean 'training'"),
        ({"fedavgg.lr": [0.1]}, "did you mean 'fedavg'"),
        ({"fedavg.penalty": [0.1]}, "unknown option 'penalty' of fedavg"),
        ({"algorithm.finetun": [0.1]}, "unknown option 'finetun' of fedavg"),
        ({"algorithm.name": ["ditto"]}, "sweep.methods"),
        ({"data.val_fraction": [0.1, 0.2]}, "other validation examples"),
        ({"data.seed": [1]}, "other validation examples"),
        ({"engine.name": ["batched"]}, "neither a section"),
        ({"evaluation.select": ["best"]}, "neither a section"),
        ({"training.lr": 0.1}, "must be a list"),
        ({"training.lr": []}, "at least one value"),
        ({"training.lr": [-1]}, "training.lr must be > 0"),
        ({"training.lr": ["x"]}, "training.lr must be a number"),
        ({"training.lr": [None]}, "training.lr must be a number"),
        ({"training.lr": [math.nan]}, "a finite number"),
        ({"training.lr": "uniform"}, "must be a list"),
        ({"training.lr": "normal(0, 1)"}, "unknown range 'normal'"),
        ({"training.lr": "loguniforn(1, 2)"}, "did you mean 'loguniform'"),
        ({"training.lr": "uniform(1, x)"}, "two numbers"),
        ({"training.lr": "uniform(2, 1)"}, "A < B"),
        ({"training.lr": "uniform(nan, 1)"}, "A < B"),
        ({"training.lr": "uniform(0, inf)"}, "A < B"),
        ("training.lr", "sweep.values"),
        ({"training.lr": "loguniform(0, 1)"}, "A > 0"),
        ({"training.epochs": "integers(1, 2.5)"}, "two whole numbers"),
        ({"training.epochs": "uniform(1, 3)"}, "training.epochs must be a whole number"),
        ({"training.lr": "uniform(0.1, 1)", "training.epochs": [1, 2]}, "sweep.trials must be"),
        ({"training": {"lr": [0.1]}, "training.lr": [0.2]}, "gives 'training.lr' twice"),
        ({"model.options.hidden.x": [1]}, "must be a section"),
        (
            {
                "training.lr": [k / 1000 for k in range(1, 201)],
                "training.epochs": list(range(1, 101)),
            },
            "got 20000",
        ),
    ],
    ids=str,
)
def test_mistakes_are_errors_before_anything_is_written(values, words, tmp_path):
    trials = 3 if "uniform(1, 3)" in str(values) else 0
    with pytest.raises(ConfigError) as raised:
        sweep(config(), values=values, trials=trials, out=tmp_path / "sweep")
    assert words in raised.value.message
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": ("ditto", "Ditto")}, "given twice"),
        ({"methods": ("dito",)}, "did you mean 'ditto'"),
        ({"methods": ("ditto(lr=0.1)",)}, "ditto has lr = 0.1"),
        (
            {"methods": ("ditto(penalty=1)",), "values": {"ditto.penalty": [0.1]}},
            "ditto has penalty = 1",
        ),
        ({"halving": 1}, "2 or more"),
        ({"halving": -1}, "sweep.halving must be >= 0"),
        ({"trials": 10**9}, "sweep.trials must be"),
        ({"trials": 2.5}, "sweep.trials must be a whole number"),
        ({"seed": -1}, "sweep.seed must be"),
    ],
    ids=str,
)
def test_wrong_options_are_errors(options, words, tmp_path):
    with pytest.raises(ConfigError) as raised:
        sweep(config(), **{"values": {"training.lr": [0.1]}, **options}, out=tmp_path / "sweep")
    assert words in raised.value.message


def test_options_that_no_method_would_use_are_an_error(tmp_path):
    ditto = config(("algorithm.name", "ditto"), ("algorithm.penalty", 2.0))
    with pytest.raises(
        ConfigError, match=r"\[algorithm\] must be without options .* got 'penalty'"
    ):
        sweep(ditto, methods=["fedavg"], values={"training.lr": [0.1]}, out=tmp_path / "sweep")
    # Those of the file are where a sweep begins.
    (search,) = make_searches(ditto, SweepOptions(values={"algorithm.penalty": [0.1]}))
    assert drawn(search) == [{"algorithm.penalty": 0.1}]
    with pytest.raises(ConfigError, match="configuration of sweep"):
        sweep("experiment.toml", values={})


def test_the_section_of_a_file_is_read_and_written(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        '[sweep]\ntrials = 4\n[sweep.values]\ntraining.lr = [0.1]\n"training.epochs" = '
        '"integers(1, 9)"\n'
    )
    settings, options = load_sweep(
        path, [("sweep.trials", 5), ("sweep.values.training.lr", [0.2]), ("seed", 3)]
    )
    assert settings.seeds == (3,) and options.trials == 5
    assert options.values == {"training.lr": [0.2], "training.epochs": "integers(1, 9)"}
    path.write_text(sweep_to_toml(settings, options))
    assert load_sweep(path) == (settings, options)
    for text, words in (
        ("sweep = 3", "must be a section"),
        ("[sweep]\ntrails = 3", "did you mean 'trials'"),
        ("[sweep]\nvalues = 3", "sweep.values must be"),
        ("[sweep.values]\ntraining.lr = [2020-01-01]", "a list of numbers"),
        (
            '[sweep.values]\n"training.lr" = [0.1]\ntraining.lr = [0.2]',
            "gives 'training.lr' twice",
        ),
        ("[sweep", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError) as raised:
            load_sweep(path)
        assert words in raised.value.message


def test_a_mark_that_an_editor_writes_before_the_first_letter_is_no_part_of_a_file(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_bytes("seed = 7\r\n[sweep.values]\r\ntraining.lr = [0.1]\r\n".encode("utf-8-sig"))
    settings, options = load_sweep(path)
    assert settings.seeds == (7,) and options.values == {"training.lr": [0.1]}


def test_values_of_the_command_need_a_table_in_the_file(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text("[sweep]\nvalues = 5\n")
    with pytest.raises(ConfigError, match=r"sweep\.values must be a table of what to try"):
        load_sweep(path, [("sweep.values.training.lr", [0.1])])


@pytest.mark.parametrize(
    ("name", "text"), [("comparison.json", "{"), ("sweep.toml", "["), ("sweep.toml", "")]
)
def test_a_damaged_folder_is_an_error(name, text, copied):
    folder, _ = copied
    (folder / name).write_text(text)
    with pytest.raises((ConfigError, DataError)):
        sweep(config(("seeds", [0, 1])), **RANDOM, out=folder)


def test_a_damaged_result_of_a_trial_is_an_error(copied):
    folder, result = copied
    place = folder / result["methods"][0]["trials"][0]["run"]
    for text in ("{", "{}", '{"metrics": 3}'):
        (place / "result.json").write_text(text)
        with pytest.raises(DataError, match="damaged"):
            sweep(config(("seeds", [0, 1])), **RANDOM, out=folder)


def test_two_processes_do_not_write_to_one_folder(copied):
    folder, _ = copied
    with exclusive(folder), pytest.raises(ConfigError, match="another process"):
        sweep(config(("seeds", [0, 1])), **RANDOM, out=folder)
