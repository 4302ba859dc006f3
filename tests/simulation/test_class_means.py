"""Class means: the mean features of every client's training examples, recorded on request after the
last round."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

import finished_runs
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedavg_ft import FedAvgFT
from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.prediction import predict_features, predict_logits
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Training
from fedtailor.experiment.class_means import from_file
from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Silence
from fedtailor.experiment.records import read_run
from fedtailor.experiment.run import run
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.federations import make_federation, perceptron

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
FILE = "class_means.safetensors"


def settings(algorithm="fedavg_ft", **sections):
    return make_config(
        {
            "data": {
                "dataset": "digits",
                "clients": 4,
                "fraction": 0.1,
                "new_clients": 1,
                "val_fraction": 0.2,
            },
            "model": {"name": "mlp", "options": {"hidden": 5}},
            "algorithm": {"name": algorithm},
            "training": {"epochs": 1},
            "federation": {"rounds": 2},
            "evaluation": {"class_means": True},
            "engine": {"name": "reference"},
            **sections,
        }
    )


def last_report(algorithm, federation, engine=None, **options):
    schedule = Schedule(rounds=2, class_means=True, **options)
    return list(simulate(algorithm, federation, engine or Reference(), schedule, seed=3))


def by_hand(federation, client, body):
    """Return means and counts from the features of a perceptron, one example after the other."""
    weight = body["hidden.weight"].double().numpy()
    bias = body["hidden.bias"].double().numpy()
    sums = np.zeros((federation.common_task.num_classes, len(bias)))
    counts = np.zeros(federation.common_task.num_classes)
    for position in federation.splits[client].train.tolist():
        x = federation.x[position].double().numpy()
        label = int(federation.y[position])
        sums[label] += np.maximum(weight @ x + bias, 0.0)
        counts[label] += 1
    return sums / np.maximum(counts, 1)[:, None], counts


@pytest.mark.parametrize(
    ("algorithm", "body_of"),
    [
        (FedAvgFT(training=TRAINING), lambda p: p.model),
        (PFedFDA(training=TRAINING), lambda p: p.body),
    ],
    ids=["fedavg_ft", "pfedfda"],
)
def test_they_are_those_of_the_personal_models(algorithm, body_of):
    federation = make_federation(perceptron())
    first, last = last_report(algorithm, federation, personalized_every=1)
    assert first.class_means == {}, "only after the last round"
    assert sorted(last.class_means) == list(range(9)), (
        "known and new clients, those without examples too"
    )
    for client, found in last.class_means.items():
        means, counts = by_hand(federation, client, body_of(last.personal[client]))
        assert found.counts.tolist() == counts.tolist()
        assert found.means.dtype == torch.float32
        np.testing.assert_allclose(found.means.numpy(), means, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["pfedfda", "fedsr"])
def test_engines_agree(name):
    """The contract compares them in float64 for every method; here they are as they are
    recorded."""
    algorithm = load_algorithm(name)(training=TRAINING)
    federation = make_federation(perceptron())
    expected = last_report(algorithm, federation)[-1].class_means
    in_threads = last_report(algorithm, federation, Workers(2))[-1].class_means
    stacked = last_report(algorithm, federation, Batched())[-1].class_means
    assert list(expected) == list(in_threads) == list(stacked)
    for client, found in expected.items():
        assert torch.equal(found.means, in_threads[client].means)
        torch.testing.assert_close(found.means, stacked[client].means, rtol=1e-4, atol=1e-5)
        assert torch.equal(found.counts, stacked[client].counts)


def test_every_method_of_the_package_has_features():
    assert [name for name in ALGORITHMS if not load_algorithm(name).has_features()] == []


@dataclass(frozen=True, kw_only=True)
class Opaque(FedAvg):
    """Predicts in its own way, and does not say what its features are."""

    def predict(self, task, personal, x):
        return predict_logits(task, personal, x)


@dataclass(frozen=True, kw_only=True)
class Transparent(Opaque):
    def features(self, task, personal, x):
        return predict_features(task, personal, x)


@dataclass(frozen=True, kw_only=True)
class Flat(Opaque):
    def features(self, task, personal, x):
        return predict_features(task, personal, x).sum(1)


@dataclass(frozen=True, kw_only=True)
class Endless(FedAvg):
    """The features of some clients are not finite."""

    def features(self, task, personal, x):
        z = predict_features(task, personal, x)
        return torch.where(torch.tensor(len(x) == 14), z / 0, z)


def test_a_method_without_features_is_refused_before_training(tmp_path):
    reason = r"evaluation.class_means needs the features of personal models, and Opaque gives none: .* define features"
    federation = make_federation(perceptron())
    with pytest.raises(ConfigError, match=reason):
        next(simulate(Opaque(), federation, Reference(), Schedule(class_means=True), seed=3))
    with pytest.raises(ConfigError, match=reason):
        run(settings(f"{__name__}:Opaque"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    list(simulate(Opaque(training=TRAINING), federation, Reference(), Schedule(rounds=1), seed=3))
    assert last_report(Transparent(training=TRAINING), federation)[-1].class_means.keys() == set(
        range(9)
    )


def test_features_of_another_shape_and_values_are_refused_by_client():
    federation = make_federation(perceptron())
    with pytest.raises(Exception, match=r"features must return \(n, d\), here n = 1, got \(1,\)"):
        last_report(Flat(training=TRAINING), federation)
    last = last_report(Endless(training=TRAINING), federation)[-1]
    assert set(range(9)) - set(last.class_means) == {4}, "the client with 14 examples"
    assert 4 in last.personal
    (event,) = (event for event in last.events if event["kind"] == "failed")
    assert event["client"] == 4 and "class means are not recorded" in event["reason"]


def test_the_file_holds_them_and_nothing_else_changes(tmp_path):
    config = settings()
    result = run(config, out=tmp_path / "on")
    found = read_run(tmp_path / "on")
    means = found.class_means()
    assert sorted(means) == [0, 1, 2, 3]
    for client, each in means.items():
        assert each.counts.tolist() == found.model(client)[1]["class_counts"]
        assert each.means.shape == (10, 5) and each.means.dtype == np.float32
        np.testing.assert_array_equal(np.isnan(each.means).all(1), each.counts == 0)
        np.testing.assert_array_equal(np.isnan(each.means).any(1), each.counts == 0)
    assert result["class_means_sha256"] == found.result["class_means_sha256"]
    assert "`evaluation.class_means` is on" in (tmp_path / "on" / "what-leaves.md").read_text()
    run(settings(evaluation={}), out=tmp_path / "off")
    assert not (tmp_path / "off" / FILE).exists()
    assert "class_means" not in (tmp_path / "off" / "what-leaves.md").read_text()
    with pytest.raises(
        DataError, match=r"holds no class means: a run with evaluation\.class_means writes them"
    ):
        read_run(tmp_path / "off").class_means()
    on = finished_runs.content(tmp_path / "on")
    off = finished_runs.content(tmp_path / "off")
    assert on.pop("class_means") and off.pop("class_means") is None
    del on["result"]["class_means_sha256"]
    assert on == off


class Interrupted(Silence):
    """Interrupts a run after its last round, before anything of its end is written."""

    def round(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_has_the_same_bits(tmp_path, monkeypatch):
    """Interrupted after the last round, and after the file is written."""
    run(settings(), out=tmp_path / "whole")
    expected = finished_runs.content(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(settings(), out=tmp_path / "one", progress=Interrupted())
    assert not (tmp_path / "one" / FILE).exists()
    with pytest.raises(DataError, match="writes them at its end"):
        read_run(tmp_path / "one").class_means()

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"{run.__module__}._result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(settings(), out=tmp_path / "one")
    assert (tmp_path / "one" / FILE).exists()
    with pytest.raises(DataError, match="writes them at its end"):
        read_run(tmp_path / "one").class_means()
    run(settings(), out=tmp_path / "one")
    assert finished_runs.content(tmp_path / "one") == expected
    assert read_run(tmp_path / "one").class_means().keys() == {0, 1, 2, 3}


def test_they_are_those_of_the_selected_round(tmp_path):
    evaluation = {"class_means": True, "select": "best", "personalized_every": 1}
    run(settings(evaluation=evaluation, federation={"rounds": 3}), out=tmp_path / "best")
    found = read_run(tmp_path / "best")
    selected = found.result["selected"]["round"]
    for client, each in found.class_means().items():
        assert found.model(client)[1]["round"] == selected
        assert each.counts.tolist() == found.model(client)[1]["class_counts"]


def test_several_seeds(tmp_path):
    config = make_config({**_sections(), "seeds": [0, 1]})
    result = run(config, out=tmp_path / "run")
    found = read_run(tmp_path / "run")
    assert "class_means_sha256" not in result
    assert not np.array_equal(
        found.class_means(seed=0)[0].means, found.class_means(seed=1)[0].means, equal_nan=True
    )
    with pytest.raises(ConfigError, match="seed must be one of"):
        found.class_means()


def _sections():
    sections = finished_runs.settings("fedavg")
    del sections["seed"]
    sections["federation"]["rounds"] = 1
    return sections


def test_a_damaged_file_is_refused(tmp_path):
    run(make_config({**_sections(), "seed": 0}), out=tmp_path / "run")
    path = tmp_path / "run" / FILE
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"class_means\.safetensors' is damaged: its SHA-256"):
        read_run(tmp_path / "run").class_means()
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*class_means\.safetensors"):
        read_run(tmp_path / "run").class_means()


SOUND = {
    "clients": np.array([4], np.int64),
    "counts": np.array([[2, 0, 1]], np.int64),
    "means/4": np.ones((2, 5), np.float32),
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"clients": np.zeros((1, 1), np.int64)}, "does not say how many"),
        ({"clients": np.array([4, 5], np.int64)}, "does not say how many"),
        ({"counts": np.array([[2.0, 0, 1]])}, "are not whole"),
        ({"counts": np.array([[2, -1, 1]], np.int64)}, "are not whole"),
        ({"counts": np.array([[2, 1, 1]], np.int64)}, "means and numbers of examples"),
        ({"means/5": np.ones((2, 5), np.float32)}, "clients and means"),
        ({"means/4": np.ones((2, 5))}, "means and numbers of examples"),
        ({"means/4": np.ones(2, np.float32)}, "means and numbers of examples"),
    ],
)
def test_a_file_of_another_form_is_refused(changes, reason):
    assert from_file(save(SOUND), Path("x"))[4].counts.tolist() == [2, 0, 1]
    with pytest.raises(DataError, match=reason):
        from_file(save({**SOUND, **changes}), Path("x"))
