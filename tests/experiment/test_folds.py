"""Runs with folds: all test examples together, resumed with the same bits, readable as a run."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import fedtailor
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.federation import Roster
from fedtailor.experiment.config import make_config
from fedtailor.experiment.folds import FinishedFold, _roster_of_all, operating_points
from fedtailor.experiment.predictions import BASELINES_FILE, PREDICTIONS_FILE, read_predictions
from fedtailor.experiment.reader import fold_folder, read_run
from fedtailor.experiment.run import count_unfinished, run
from fedtailor.experiment.tracking import RunProgress
from fedtailor.report.methods import read_methods
from fedtailor.report.page.build import build_page
from fedtailor.report.worth_it import choose_shown

FOLDS = 3


def write_sites(folder, rows=60, sites=("Oslo", "Porto", "Turin"), seed=0):
    """Write a table per site: two rows a patient, more of them ill at later sites."""
    generator = np.random.default_rng(seed)
    folder.mkdir()
    for number, site in enumerate(sites):
        lines = ["patient,age,pressure,label"]
        for row in range(rows):
            ill = generator.random() < 0.25 + 0.15 * number
            age, pressure = generator.normal([50 + 8 * ill, 120 + 10 * ill], [8, 10])
            label = "ill" if ill else "well"
            lines.append(f"{site}-{row // 2},{age:.1f},{pressure:.1f},{label}")
        (folder / f"{site}.csv").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("folds") / "sites"
    write_sites(folder)
    return folder


def config(sites, *overrides, algorithm="fedavg_ft"):
    settings = {
        "data": {"path": str(sites), "group": "patient", "folds": FOLDS},
        "algorithm": {"name": algorithm},
        "federation": {"rounds": 2},
        "evaluation": {"baselines": "majority"},
        "engine": {"name": "reference"},
    }
    return make_config(settings, overrides)


@pytest.fixture(scope="module")
def whole(sites):
    folder = sites.parent / "whole"
    run(config(sites), out=folder)
    return folder


def contents(folder):
    """Return the bytes of everything that must not depend on an interruption."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".safetensors", ".jsonl") and path.name != "events.jsonl":
            # Lines of rounds hold seconds.
            text = path.read_bytes()
            if path.name == "rounds.jsonl":
                rounds = [json.loads(line) for line in text.splitlines()]
                text = [{**record, "seconds": None} for record in rounds]
            files[str(path.relative_to(folder))] = text

    return files


def test_every_example_is_predicted_once_by_a_fold_that_has_left_out_its_patient(whole):
    joint = read_predictions(whole / PREDICTIONS_FILE)
    assert {client: len(content.positions) for client, content in joint.items()} == {
        0: 60,
        1: 60,
        2: 60,
    }
    patients = Counter()
    for fold in range(1, FOLDS + 1):
        split = read_run(fold_folder(whole, fold)).split
        of_fold = read_predictions(fold_folder(whole, fold) / PREDICTIONS_FILE)
        for client, content in of_fold.items():
            place = {position: row for row, position in enumerate(joint[client].positions.tolist())}
            rows = [place[position] for position in content.positions.tolist()]
            for model, probabilities in content.probabilities.items():
                assert np.array_equal(joint[client].probabilities[model][rows], probabilities)

            assert not set(split["clients"][client]["train"]) & set(content.positions.tolist())
            patients.update((client, group) for group in set(content.groups.tolist()))

    assert set(patients.values()) == {1}, "a patient is in the test part of one fold"


def area_within_folds(folder, line):
    """Return the AUROC of pairs of examples that the same model has predicted."""
    won = pairs = 0
    for fold in range(1, FOLDS + 1):
        content = read_predictions(fold_folder(folder, fold) / PREDICTIONS_FILE)[line["client"]]
        ill = content.labels == 1
        num_pairs = ill.sum() * (~ill).sum()
        scores = content.probabilities[line["point"]][:, 1]
        won += num_pairs * roc_auc_score(content.labels, scores)
        pairs += num_pairs

    return won / pairs


def test_scores_are_those_of_all_predictions_together(whole):
    joint = read_predictions(whole / PREDICTIONS_FILE)
    lines = [json.loads(line) for line in (whole / "clients.jsonl").read_text().splitlines()]
    result = json.loads((whole / "result.json").read_text())
    assert {line["point"] for line in lines} == {"global", "personalized"}
    assert result["folds"] == FOLDS and result["rounds"] == 2

    for line in lines:
        content = joint[line["client"]]
        probabilities = content.probabilities[line["point"]].astype(float)
        right = probabilities.argmax(axis=1) == content.labels
        chosen = probabilities[np.arange(len(right)), content.labels]
        recalls = [right[content.labels == label].mean() for label in (0, 1)]

        assert line["num_test"] == len(right) == 60
        assert line["accuracy"] == pytest.approx(right.mean())
        assert line["balanced_accuracy"] == pytest.approx(np.mean(recalls))
        assert line["loss"] == pytest.approx(-np.log(chosen).mean(), rel=1e-5)
        assert line["auroc"] == pytest.approx(area_within_folds(whole, line))

    accuracies = [line["accuracy"] for line in lines if line["point"] == "personalized"]
    mean = result["metrics"]["personalized"]["accuracy"]["mean"]
    assert mean == pytest.approx(np.mean(accuracies))
    assert [site["num_test"] for site in result["sites"].values()] == [60, 60, 60]


def test_the_majority_class_is_that_of_each_fold(whole):
    right = {client: [] for client in range(3)}
    for fold in range(1, FOLDS + 1):
        for client, content in read_predictions(fold_folder(whole, fold) / BASELINES_FILE).items():
            right[client] += list(content.probabilities["majority"].argmax(1) == content.labels)

    result = json.loads((whole / "result.json").read_text())
    means = [np.mean(of_client) for of_client in right.values()]
    assert result["majority_accuracy"] == pytest.approx(np.mean(means), abs=1e-5)


class StopInFold(RunProgress):
    """Interrupts a run after a round of a fold."""

    def __init__(self, fold, round):
        self.place = f"fold {fold} of"
        self.round_to_stop = round
        self.rounds = 0
        self.title = ""

    def begin(self, title, num_rounds, done):
        self.title = title

    def round(self, record):
        self.rounds += 1
        if self.place in self.title and record["round"] == self.round_to_stop:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("fold", "after", "left"), [(2, 1, 4), (3, 2, 1)])
def test_an_interrupted_run_has_the_same_bits(sites, whole, tmp_path, fold, after, left):
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(config(sites), out=folder, progress=StopInFold(fold, after))
    assert read_run(folder).status["state"] == "interrupted"
    assert count_unfinished(folder, config(sites)) == FOLDS - fold + 1

    progress = StopInFold(fold=0, round=0)
    result = run(config(sites), out=folder, progress=progress)
    assert progress.rounds == left, "finished folds are only read"
    assert contents(folder) == contents(whole)
    assert result["metrics"] == json.loads((whole / "result.json").read_text())["metrics"]


def test_a_site_that_joins_keeps_its_name_in_verdicts(sites, tmp_path):
    result = run(config(sites, ("federation.history", ["2 join Oslo"])), out=tmp_path / "run")
    names = read_run(tmp_path / "run").split["client_names"]
    assert names == read_run(tmp_path / "run" / "fold-1").split["client_names"]
    assert names[-1] == "Oslo"

    for row in result["worth_it"]["sites"]:
        expected = result["sites"][row["site"]]["accuracy"]
        assert row["scores"]["personalized"]["accuracy"] == pytest.approx(expected), row["site"]


def test_seeds_have_folds_each_and_draw_them_from_their_own_split(sites, tmp_path):
    folder = tmp_path / "run"
    several = (("seeds", [0, 1]), ("data.seed", "run"), ("data.folds", 2))
    result = run(config(sites, *several, algorithm="local"), out=folder)
    assert result["shared_split"] is False and result["folds"] == 2
    parts = [read_run(folder / f"seed-{seed}" / "fold-1").split["clients"] for seed in (0, 1)]
    assert parts[0] != parts[1]

    (method,) = read_methods([folder])
    assert list(method.finished) == [0, 1]
    assert "<html" in build_page([method]).html.lower()


def test_a_folder_of_folds_has_no_model_and_says_how_to_get_one(whole):
    loaded = fedtailor.load(whole)
    assert [client.personalized.accuracy for client in loaded.clients]
    with pytest.raises(DataError, match=r"fedtailor run .*experiment.toml --folds 0"):
        loaded.model("Oslo")
    with pytest.raises(DataError, match="--folds 0"):
        loaded.onboard("anything", whole.parent / "new")

    # A single fold is an ordinary run.
    assert fedtailor.load(fold_folder(whole, 1)).model("Oslo") is not None


def test_the_table_is_of_the_best_method_on_validation_examples_of_all_folds(sites, tmp_path):
    methods = []
    for name in ("local", "fedavg_ft"):
        out = tmp_path / name
        run(config(sites, ("data.val_fraction", 0.2), algorithm=name), out=out)
        methods += read_methods([out])

    results = [read_run(tmp_path / name).result for name in ("local", "fedavg_ft")]
    means = [result["metrics"]["validation"]["accuracy"]["mean"] for result in results]
    folds = [read_run(fold_folder(tmp_path / "local", fold)).result for fold in range(1, FOLDS + 1)]
    values = [result["metrics"]["validation"]["accuracy"]["mean"] for result in folds]
    assert means[0] == pytest.approx(np.mean(values), abs=1e-12)

    shown = choose_shown(methods)
    assert shown.label == methods[int(np.argmax(means))].label
    assert "the best one on validation examples" in shown.reason


def test_folds_that_stop_at_different_rounds_name_them(tmp_path):
    write_sites(tmp_path / "sites", rows=30, seed=3)
    overrides = [
        ("data.val_fraction", 0.3),
        ("federation.rounds", 8),
        ("evaluation.personalized_every", 1),
        ("evaluation.patience", 1),
        ("training.lr", 0.02),
    ]
    run(config(tmp_path / "sites", *overrides), out=tmp_path / "run")
    result = read_run(tmp_path / "run").result
    folds = [read_run(fold_folder(tmp_path / "run", fold)).result for fold in range(1, FOLDS + 1)]
    ends = [fold["rounds"] for fold in folds]
    assert len(set(ends)) > 1, "the test needs folds that stop at different rounds"
    assert result["selected"] == {"rounds": ends, "by": "the last round"}
    assert result["rounds"] == max(ends)


def test_scores_of_the_best_rounds_of_folds_are_not_those_of_the_last(sites, tmp_path):
    overrides = [
        ("data.val_fraction", 0.2),
        ("federation.rounds", 4),
        ("evaluation.personalized_every", 1),
        ("evaluation.select", "best"),
        ("training.lr", 0.5),
    ]
    run(config(sites, *overrides), out=tmp_path / "run")
    record = read_run(tmp_path / "run")
    folds = [read_run(fold_folder(tmp_path / "run", fold)) for fold in range(1, FOLDS + 1)]
    best = [fold.result["selected"]["round"] for fold in folds]
    assert min(best) < 4, "the test needs a best round before the last"
    assert record.result["selected"]["rounds"] == best
    assert record.result["metrics"]["personalized"]["round"] == max(best)

    # The last line is about the last round of every fold.
    def last(run):
        (scores,) = [
            one
            for one in list(run.rounds)[-1]["evaluations"]
            if one["point"] == "personalized" and one["test_set"] == "clients"
        ]
        return scores["metrics"]["accuracy"]["mean"]

    assert last(record) == pytest.approx(np.mean([last(fold) for fold in folds]), abs=1e-12)


def test_a_sweep_has_no_folds(sites, tmp_path):
    from fedtailor.experiment.sweep import sweep

    with pytest.raises(ConfigError, match="0 in a sweep"):
        sweep(
            config(sites, ("data.val_fraction", 0.2)),
            out=tmp_path / "sweep",
            values={"training.lr": [0.1, 0.2]},
        )


def test_a_site_without_test_examples_in_a_fold_is_tested_in_the_others(tmp_path):
    write_sites(tmp_path / "sites", rows=4, sites=("Oslo", "Porto"))
    more = tmp_path / "more"
    write_sites(more, rows=40, sites=("Turin",))
    (more / "Turin.csv").rename(tmp_path / "sites" / "Turin.csv")

    run(config(tmp_path / "sites"), out=tmp_path / "run")
    joint = read_predictions(tmp_path / "run" / PREDICTIONS_FILE)
    assert [len(content.labels) for content in joint.values()] == [4, 4, 40]
    notes = " ".join(read_run(Path(tmp_path / "run")).provenance["notes"])
    assert "1 of 3 at Oslo, which has 4 examples" in notes


def test_operating_points_of_folds_count_the_tests_of_all_that_have_a_threshold():
    point = {"sensitivity": 0.9, "positives": 12, "problem": "", "probability": 0.4, "log_odds": -1}
    counts = {"positives": 10, "found": 9, "negatives": 20, "rejected": 15}
    too_few = {**point, "positives": 4, "probability": None, "problem": "too few", "test": None}
    points = [{**point, "test": counts}, too_few, {**point, "test": counts}]
    folds = [
        FinishedFold({"operating_points": {"Oslo": of_fold}}, [], None, {}) for of_fold in points
    ]
    joint = operating_points(folds)["Oslo"]
    assert joint["test"] == {name: 2 * count for name, count in counts.items()}
    assert (joint["folds"], joint["positives"], joint["problem"]) == (2, 4, "too few")
    assert joint["probability"] is None


def test_what_happened_in_a_fold_is_told_with_its_number(sites, tmp_path):
    folder = tmp_path / "run"
    run(config(sites), out=folder)
    assert {event["kind"] for event in read_run(folder).events} <= {"note"}

    # As if an upload had been left out in the second fold.
    (folder / "result.json").unlink()
    event = {"round": 1, "client": 0, "kind": "quarantine", "reason": "not finite"}
    with (fold_folder(folder, 2) / "events.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")

    run(config(sites), out=folder)
    told = [event for event in read_run(folder).events if event["kind"] != "note"]
    assert told == [{**event, "fold": 2}]
    (section,) = [
        part for part in build_page(read_methods([folder])).sections if part.name == "events"
    ]
    _, every = section.tables
    assert ["1 (fold 2)", "Oslo", "quarantine", "not finite"] in [row[2:] for row in every.rows]


def test_groups_of_all_folds_count():
    rosters = [Roster(None, [20], num_test=[20], test_groups=[groups]) for groups in (10, 9, 11)]
    roster = _roster_of_all([SimpleNamespace(roster=one) for one in rosters])
    assert (roster.num_test, roster.test_groups) == ([60], [30])
    assert roster.independence(0) == 0.5
