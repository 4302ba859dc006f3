"""Audits of noise: a mechanism that keeps its claim is not accused, and planted faults are found."""

import dataclasses
import json

import pytest

from fedtailor.cli.main import main
from fedtailor.core import rng, tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Sum
from fedtailor.experiment.config import make_config
from fedtailor.experiment.noise_audit import audit_noise
from fedtailor.privacy.mechanism import ClientMechanism

SETTINGS = {
    "data": {"clients": 3, "fraction": 0.1},
    "algorithm": {"name": "fedavg"},
    "model": {"name": "linear"},
    "federation": {"rounds": 3},
    "engine": {"name": "reference"},
}
MEAN_EXAMPLES = 48
BUDGETS = (2.0, 4.0, 8.0)


OPTIONS = [
    *("audit", "noise", "-a", "fedavg", "--clients", "3", "--rounds", "3", "--model", "linear"),
    *("--set", "data.fraction=0.1", "--set", "privacy.unit=client"),
    *("--set", "privacy.epsilon=4", "--set", "privacy.delta=0.001"),
]


def config_of(epsilon=4.0, **sections):
    privacy = {"unit": "client", "epsilon": epsilon, "delta": 1e-3}
    return make_config({**SETTINGS, "privacy": privacy, **sections})


def with_noise(factor):
    """Return a fault: less noise than is claimed."""
    noisy = ClientMechanism.noisy

    def fault(self, totals, key):
        return noisy(dataclasses.replace(self, noise=factor * self.noise), totals, key)

    return "noisy", fault


def without_bound():
    """Return a fault: contributions are as large as clients want."""
    bounded = ClientMechanism.bounded

    def fault(self, upload, sent):
        return bounded(dataclasses.replace(self, clip=1e9), upload, sent)

    return "bounded", fault


def weighted():
    """Return a fault: clients count by their examples, and the noise is for equal ones."""
    bounded = ClientMechanism.bounded

    def fault(self, upload, sent):
        heavier = {}
        for name, entry in bounded(self, upload, sent).items():
            weight = upload[name].weight / MEAN_EXAMPLES
            heavier[name] = Sum(tree.map(lambda leaf, weight=weight: weight * leaf, entry.value))
        return heavier

    return "bounded", fault


FAULTS = {
    "half the noise": lambda: with_noise(0.5),
    "a quarter of the noise": lambda: with_noise(0.25),
    "no bound": without_bound,
    "weighted by examples": weighted,
}


@pytest.mark.parametrize("epsilon", BUDGETS)
def test_a_mechanism_that_keeps_its_claim_is_not_accused(epsilon):
    record = audit_noise(config_of(epsilon))
    assert record["claim"] == pytest.approx(epsilon, rel=1e-3)
    assert not record["contradiction"]

    # The estimate is of the right size, so that the audit is not blind.
    estimate = record["estimate"]
    assert estimate["low"] < epsilon < estimate["high"]
    assert record["guesses"]["epsilon"] < min(epsilon, record["guesses"]["at_most"])
    assert record["half_noise"]["would_be_found"]
    assert record["added_noise"]["share"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("epsilon", BUDGETS)
def test_planted_faults_are_found(monkeypatch, fault, epsilon):
    name, broken = FAULTS[fault]()
    monkeypatch.setattr(ClientMechanism, name, broken)
    record = audit_noise(config_of(epsilon))
    assert record["contradiction"]
    # By the scores alone.
    assert record["estimate"]["low"] > 1.05 * record["claim"]


def test_noise_that_is_missing_in_a_small_part_is_found(monkeypatch, capsys):
    noisy = ClientMechanism.noisy

    def fault(self, totals, key):
        sums = noisy(self, totals, key)
        sums["model"]["head.bias"] = totals["model"].leaves["head.bias"]
        return sums

    monkeypatch.setattr(ClientMechanism, "noisy", fault)
    assert main(OPTIONS) == 5
    text = capsys.readouterr().out
    assert "less noise than is claimed in model/head.bias." in text
    assert "above the claim" not in text, "canaries alone do not show it"


def test_noise_that_repeats_is_found(monkeypatch, capsys):
    noisy = ClientMechanism.noisy

    def fault(self, totals, key):
        return noisy(self, totals, rng.new_key(1, purpose="the same in every round"))

    monkeypatch.setattr(ClientMechanism, "noisy", fault)
    assert main(OPTIONS) == 5
    assert "depends on that of others" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "sections"),
    [
        ("scaffold", {}),
        ("pfedfda", {"privacy": {"unit": "client", "noise": 2.0, "scales": {"means": 4.0}}}),
        ("fedcgs", {}),
        ("fedavg", {"privacy": {"unit": "client", "noise": 1.0, "secure_sums": True}}),
        ("fedavg", {"engine": {"name": "batched"}}),
    ],
)
def test_other_methods_and_ways_to_add_are_not_accused(method, sections):
    record = audit_noise(config_of(**{"algorithm": {"name": method}, **sections}))
    assert not record["contradiction"]
    assert record["estimate"]["high"] > record["claim"]


def test_clients_that_are_drawn_are_audited_against_the_smaller_claim():
    drawn = {"rounds": 12, "participation": 0.4, "full_last_round": False}
    data = {"clients": 8, "fraction": 0.2}
    record = audit_noise(config_of(federation=drawn, data=data))
    assert record["claim"] == pytest.approx(4.0, rel=1e-3)
    assert not record["contradiction"]
    assert record["estimate"]["epsilon"] > 1.0


def test_an_audit_repeats_exactly():
    first = audit_noise(config_of())
    assert audit_noise(config_of()) == first
    assert audit_noise(config_of(seed=1))["estimate"] != first["estimate"]


@pytest.mark.parametrize(
    ("sections", "canaries", "message"),
    [
        ({"privacy": {}}, 200, "privacy.unit must be 'client' for an audit of noise, got 'none'"),
        ({"seeds": [0, 1]}, 200, "seeds must be one seed"),
        ({}, 49, "--canaries must be 50 or more, got 49"),
        ({}, 651, "--canaries must be at most 650"),
        ({"algorithm": {"name": "fedproto"}}, 200, "weighs 'prototypes'"),
    ],
)
def test_what_cannot_be_audited_is_refused(sections, canaries, message):
    with pytest.raises(ConfigError, match=message):
        audit_noise(config_of(**sections), canaries=canaries)


def test_the_command_prints_the_claim_and_what_was_found(capsys):
    assert main(OPTIONS) == 0
    text = capsys.readouterr().out
    assert "claim                4.00\n" in text
    assert "No contradiction" in text

    assert main([*OPTIONS, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["claim"] == pytest.approx(4.0, rel=1e-3)
    assert f"{record['estimate']['epsilon']:.2f}" in text


def test_a_contradiction_is_exit_code_5(capsys, monkeypatch):
    name, broken = with_noise(0.25)
    monkeypatch.setattr(ClientMechanism, name, broken)
    assert main(OPTIONS) == 5
    assert "CONTRADICTION" in capsys.readouterr().out
    assert main([*OPTIONS, "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["contradiction"]


def test_the_command_refuses_in_one_sentence(capsys):
    assert main(["audit", "noise"]) == 3
    text = capsys.readouterr().err
    assert text.startswith("error: privacy.unit must be 'client'") and text.count("\n") == 1
