"""What a result says by class, at every site and over sites; and means over seeds."""

import numpy as np
import pytest
import torch
from scipy import stats

from fedtailor.core.metrics import CLASS_SHARES, METRICS
from fedtailor.core.scores import score
from fedtailor.experiment.config import make_config
from fedtailor.experiment.estimates import auroc_interval, wilson_interval
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.run import run
from fedtailor.experiment.summary import _classes_over_clients, average

NAMES = ["benign", "malignant"]


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """Return the folder of a run at four sites, of which one has no malignant case."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number, site in enumerate(("east", "north", "south", "west")):
        y = np.zeros(40, int) if site == "west" else (np.arange(40) % (2 + number) == 0).astype(int)
        x = rng.normal(size=(40, 3)) + y[:, None]
        (tmp_path / "own" / site).mkdir(parents=True)
        np.savez(tmp_path / "own" / site / "train.npz", x=x, y=y, class_names=np.array(NAMES))
    values = {
        "data": {"path": "own"},
        "algorithm": {"name": "fedavg_ft"},
        "federation": {"rounds": 2},
    }
    run(make_config(values), out="one")
    return read_run("one")


def test_a_metric_by_class_is_one_row_of_the_table(monkeypatch):
    def precision(counts):
        return counts.found, counts.found + counts.negatives - counts.rejected

    monkeypatch.setitem(CLASS_SHARES, "precision", precision)
    logits = torch.tensor([[0.0, 2.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    scores = score(logits, torch.tensor([1, 0, 0, 1]), torch.ones(4), 2)
    of_class = _classes_over_clients([scores], ())["by_class"]["1"]
    assert of_class["precision"]["pooled"] == pytest.approx(2 / 3)
    assert of_class["precision"]["pooled_interval"] == wilson_interval(2 / 3, 3)


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
