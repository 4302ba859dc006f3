"""What a result says by class, at every site and over sites; and means over seeds."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from fedtailor.core.federation import Roster
from fedtailor.core.metrics import CLASS_SHARES, METRICS
from fedtailor.core.scores import score
from fedtailor.core.task import Task
from fedtailor.experiment.config import make_config
from fedtailor.experiment.estimates import auroc_interval, wilson_interval
from fedtailor.experiment.reader import chance_warning, read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.summary import (
    _chance,
    _classes_over_clients,
    _final_metrics,
    _majority_of,
    _site_scores,
    average,
    event_sentences,
)
from fedtailor.simulation.report import NOBODY, Evaluation, RoundReport, RunState

NAMES = ["benign", "malignant"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the records of a run at four sites, of which one has no malignant case."""
    folder = tmp_path_factory.mktemp("four-sites")
    rng = np.random.default_rng(0)
    for number, site in enumerate(("east", "north", "south", "west")):
        y = np.zeros(40, int) if site == "west" else (np.arange(40) % (2 + number) == 0).astype(int)
        x = rng.normal(size=(40, 3)) + y[:, None]
        (folder / "own" / site).mkdir(parents=True)
        np.savez(folder / "own" / site / "train.npz", x=x, y=y, class_names=np.array(NAMES))
    values = {
        "data": {"path": str(folder / "own")},
        "algorithm": {"name": "fedavg_ft"},
        "federation": {"rounds": 2},
        "evaluation": {"baselines": "none"},
    }
    run(make_config(values), out=folder / "one")
    return read_run(folder / "one")


def test_a_metric_by_class_is_one_row_of_the_table(monkeypatch):
    def precision(counts):
        return counts.found, counts.found + counts.negatives - counts.rejected

    monkeypatch.setitem(CLASS_SHARES, "precision", precision)
    logits = torch.tensor([[0.0, 2.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    scores = score(logits, torch.tensor([1, 0, 0, 1]), torch.ones(4), 2)
    evaluation = Evaluation("global", "none", "known", {0: scores})
    roster = Roster(Task(torch.nn.Linear(2, 2), 2, (2,)), num_train=[4], names=["north"])
    of_class = _classes_over_clients(evaluation, roster)["by_class"]["1"]
    assert of_class["precision"]["pooled"] == pytest.approx(2 / 3)
    assert of_class["precision"]["pooled_interval"] == wilson_interval(2 / 3, 3)


def test_the_interval_of_a_loss_may_lie_above_one():
    scores = {}
    for client, margin in enumerate((3.0, 5.0)):
        logits = torch.tensor([[margin, 0.0]])
        scores[client] = score(logits, torch.tensor([1]), torch.ones(1), 2)

    task = Task(torch.nn.Linear(2, 2), 2, (2,))
    roster = Roster(task, num_train=[4, 4], names=["north", "south"])
    report = RoundReport(1, [0], RunState(server=()))
    report.evaluations = [Evaluation("global", "none", "known", scores)]
    of_known, _ = _final_metrics(report, roster)
    assert of_known["global"]["loss"]["mean_interval"]["high"] > 5


def test_every_metric_has_a_function():
    for metric in METRICS.values():
        assert (metric.of_client is None) != (metric.share_of_class is None)


def test_figures_by_class_follow_from_confusion_and_auroc(finished):
    sites = finished.result["sites"]
    assert sites["west"]["auroc"] is None and sites["west"]["by_class"]["1"]["sensitivity"] is None
    assert sites["west"]["by_class"]["1"]["auroc_interval"] is None
    assert sites["west"]["by_class"]["1"]["specificity"] is not None
    over = finished.result["metrics"]["personalized"]
    for label, name in enumerate(NAMES):
        areas = []
        right = examples = 0
        for site in sites.values():
            counts = {(each, predicted): count for each, predicted, count in site["confusion"]}
            positives = sum(count for (each, _), count in counts.items() if each == label)
            found = site["by_class"][str(label)]
            assert (found["class"], found["positives"]) == (name, positives)
            if positives:
                share = counts.get((label, label), 0) / positives
                assert found["sensitivity"] == pytest.approx(share)
                assert found["sensitivity_interval"] == wilson_interval(share, positives)
                right += counts.get((label, label), 0)
                examples += positives
            if found["auroc"] is not None:
                areas.append(found["auroc"])
                assert found["auroc_interval"] == auroc_interval(
                    found["auroc"], positives, found["negatives"]
                )
        found = over["by_class"][str(label)]
        assert found["sensitivity"]["pooled"] == pytest.approx(right / examples)
        assert found["sensitivity"]["pooled_interval"] == wilson_interval(
            right / examples, examples
        )
        interval = stats.ttest_1samp(areas, 0).confidence_interval(0.95)
        assert found["auroc"]["clients"] == len(areas) == 3 and found["auroc"][
            "mean"
        ] == pytest.approx(np.mean(areas))
        assert found["auroc"]["mean_interval"]["low"] == pytest.approx(max(0, interval.low))
        assert found["auroc"]["mean_interval"]["high"] == pytest.approx(min(1, interval.high))
        low_and_high = found["auroc"]["pooled_interval"]
        assert low_and_high["low"] < found["auroc"]["pooled"] < low_and_high["high"]
    assert over["auroc"]["clients"] == 3 and over["auroc"]["mean"] == pytest.approx(np.mean(areas))
    assert sum(count for *_, count in over["confusion"]) == over["examples"]
    assert finished.result["metrics"]["global"]["by_class"].keys() == {"0", "1"}


def test_a_mean_over_seeds_has_no_intervals_no_confusion_and_no_mean_of_nothing():
    results = [
        {"sites": {"a": {"auroc": 0.5, "confusion": [[0, 0, 3]], "auroc_interval": {"low": 0.4}}}},
        {"sites": {"a": {"auroc": None, "confusion": [[0, 0, 4]], "auroc_interval": None}}},
    ]
    assert average(results) == {"sites": {"a": {"auroc": None}}}


def test_seeds_that_end_and_select_differently_have_no_mean_round():
    results = []
    for end, best in ((12, 11), (8, 6)):
        metrics = {"personalized": {"round": best, "accuracy": {"mean": 0.5, "pooled": 0.5}}}
        selected = {"round": best, "by": "validation"}
        results.append({"rounds": end, "metrics": metrics, "selected": selected})

    joint = average(results)
    assert joint["rounds"] == 12
    assert joint["selected"] == {"rounds": [11, 6], "by": "validation"}
    assert "round" not in joint["metrics"]["personalized"]

    # Folds of each seed have rounds of their own.
    assert average([joint, joint])["selected"]["rounds"] == [11, 6, 11, 6]


def _two_class_scores(right, counts):
    """Return scores of a client with so many right ones of so many examples of two classes."""
    logits, labels = [], []
    for label in (0, 1):
        for place in range(counts[label]):
            predicted = label if place < right[label] else 1 - label
            logits.append([1.0 - predicted, float(predicted)])
            labels.append(label)
    return score(torch.tensor(logits), torch.tensor(labels), torch.ones(len(labels)), 2)


def test_models_that_guess_are_named_and_the_majority_is_a_number():
    # Always healthy; better than chance; too few sick to ask; one class only; a new client.
    scores = [
        _two_class_scores((40, 0), (40, 8)),
        _two_class_scores((30, 15), (40, 20)),
        _two_class_scores((40, 4), (40, 4)),
        _two_class_scores((9, 0), (10, 0)),
        _two_class_scores((0, 20), (20, 20)),
    ]
    roster = Roster(
        common_task=None,
        num_train=[10] * 5,
        num_new=1,
        names=["always", "good", "few", "one", "fresh"],
        majority=[0, 1, 0, 0, -1],
    )
    by_client = dict(enumerate(scores))
    assert _chance(by_client, roster) == {"asked": 3, "unclear": ["always", "fresh"]}
    expected = (40 / 48 + 20 / 60 + 40 / 44 + 1) / 4
    assert _majority_of(by_client, roster)["majority_accuracy"] == pytest.approx(expected)
    assert _majority_of(by_client, replace(roster, majority=())) == {}


def test_over_seeds_a_client_is_named_if_most_seeds_name_it():
    chances = [
        {"asked": 3, "unclear": ["a", "b"]},
        {"asked": 4, "unclear": ["a"]},
        {"asked": 3, "unclear": []},
    ]
    usual = average([{"chance": chance} for chance in chances])["chance"]
    assert usual == {"asked": 4, "unclear": ["a"]}
    assert "a" in chance_warning(usual) and not chance_warning({"asked": 4, "unclear": []})


def _most_frequent(finished):
    """Return the most frequent training class of every site, by its model card."""
    majority = {}
    for site in finished.result["sites"]:
        card = json.loads((finished.path / "models" / f"{site}.json").read_text())
        majority[site] = int(np.argmax(card["class_counts"]))
    return majority


def test_the_majority_of_a_run_is_that_of_training_classes(finished):
    sites = finished.result["sites"]
    # Benign at all sites but "east", where the split decides.
    benign = [site["by_class"]["0"]["positives"] / 8 for site in sites.values()]
    east = 1 - benign[0] if _most_frequent(finished)["east"] else benign[0]
    expected = np.mean([east, *benign[1:]])
    assert finished.result["majority_accuracy"] == pytest.approx(expected)
    assert "balanced_accuracy_interval" in sites["south"]


def test_a_failure_on_the_complete_test_part_is_that_of_no_client():
    task = Task(torch.nn.Linear(2, 2), 2, (2,))
    roster = Roster(task, num_train=[1, 1], names=["north", "south"])
    report = RoundReport(1, [0], RunState(server=()))
    for client, words in ((NOBODY, "the complete test part"), (0, "client north")):
        report.events = [{"kind": "failed", "client": client, "reason": "out of memory."}]
        (sentence,) = event_sentences(report, roster)
        assert sentence == f"round 1: 1 client failed ({words}: out of memory)"


def test_intervals_count_a_patient_once():
    """A hundred rows of ten patients say no more than ten."""
    examples = torch.arange(20)
    roster = Roster(
        common_task=SimpleNamespace(num_classes=2),
        num_train=[10],
        names=["clinic"],
        num_test=[20],
        test_groups=[5],
    )
    assert roster.independence(0) == 0.25
    scores = score(
        torch.stack([examples % 2, 1 - examples % 2], 1).float() * (examples < 16)[:, None],
        1 - examples % 2,
        torch.ones(20),
        2,
    )
    alone = _site_scores({0: scores}, replace(roster, test_groups=()))["clinic"]
    grouped = _site_scores({0: scores}, roster)["clinic"]
    for name in ("accuracy_interval", "balanced_accuracy_interval"):
        widths = [site[name]["high"] - site[name]["low"] for site in (alone, grouped)]
        assert widths[1] > 1.4 * widths[0], name

    assert grouped["accuracy"] == alone["accuracy"]
    assert grouped["accuracy_interval"] == wilson_interval(alone["accuracy"], 5)

    # So do the intervals over all clients.
    report = RoundReport(1, [0], RunState(server=()))
    report.evaluations = [Evaluation("personalized", "none", "known", {0: scores})]
    of_known, _ = _final_metrics(report, roster)
    pooled = of_known["personalized"]
    assert pooled["pooled_interval"] == grouped["accuracy_interval"]
    of_class = grouped["by_class"]["0"]["sensitivity_interval"]
    assert pooled["by_class"]["0"]["sensitivity"]["pooled_interval"] == of_class
