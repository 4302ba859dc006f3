"""Audits of noise: a mechanism that keeps its claim is not accused, and planted faults are found."""

import dataclasses
import json

import pytest

from fedtailor.algorithms import _closed_form
from fedtailor.cli.main import main
from fedtailor.core import rng, tree
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.core.message import Sum
from fedtailor.experiment.config import make_config
from fedtailor.experiment.noise_audit import audit_noise
from fedtailor.privacy.class_statistics import SumsMechanism
from fedtailor.privacy.examples import ExamplePlan
from fedtailor.privacy.mechanism import ClientMechanism
from fedtailor.training import private_steps
from fedtailor.training.private_steps import PrivateSteps
from marks import quick

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


@pytest.mark.parametrize("epsilon", quick(BUDGETS, 4.0))
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
@pytest.mark.parametrize("epsilon", quick(BUDGETS, 4.0))
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
        ({"privacy": {}}, 200, "privacy.unit must be 'client' or 'example' for an audit of noise"),
        ({"seeds": [0, 1]}, 200, "seeds must be one seed"),
        ({}, 49, "--canaries must be 50 or more, got 49"),
        ({}, 651, "--canaries must be at most 650"),
        (
            {
                "algorithm": {"name": "fedncm", "feature_clip": 8.0},
                "privacy": {"unit": "example", "epsilon": 4.0},
            },
            651,
            "--canaries must be at most 650",
        ),
        ({"algorithm": {"name": "fedproto"}}, 200, "weighs 'prototypes'"),
        ({"evaluation": {"select": "best", "personalized_every": 10}}, 200, "the last round"),
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
    assert (
        text.startswith("error: privacy.unit must be 'client' or 'example'")
        and text.count("\n") == 1
    )


# Made-up examples

ONE_STEP = {"training": {"steps": 1, "batch_size": 0, "lr": 0.2}}
KINDS = {
    "steps": {**ONE_STEP, "privacy": {"noise_from": "sites"}},
    "drawn steps": {
        "training": {"steps": 5, "batch_size": 8, "lr": 0.2},
        "privacy": {"noise_from": "sites"},
    },
    "shares": {
        **ONE_STEP,
        "data": {"clients": 6, "fraction": 0.1},
        "privacy": {"noise_from": "server", "secure_sums": True},
    },
    "sums": {
        "algorithm": {"name": "fedcgs", "feature_clip": 8.0},
        "federation": {"rounds": 1},
        "privacy": {"noise_from": "server"},
    },
    "sums of sites": {
        "algorithm": {"name": "fedncm", "feature_clip": 2.0},
        "model": {"name": "mlp"},
        "federation": {"rounds": 1},
        "privacy": {"noise_from": "sites"},
    },
}


def audit_examples(kind, epsilon=4.0, **options):
    """Audit made-up examples."""
    sections = {"data": {"clients": 3, "fraction": 0.1, "partition": "iid"}, **KINDS[kind]}
    privacy = {"unit": "example", "epsilon": epsilon, "delta": 1e-3, **KINDS[kind]["privacy"]}
    values = {**SETTINGS, **sections, "privacy": privacy, "seed": 1, **options}
    return audit_noise(make_config(values))


@pytest.mark.parametrize("kind", KINDS)
def test_noise_that_hides_examples_is_not_accused(kind):
    record = audit_examples(kind)
    assert record["claim"] == pytest.approx(4.0, rel=1e-3)
    assert record["unit"] == "example" and not record["contradiction"]
    assert record["added_noise"]["share"] == pytest.approx(1.0, abs=0.05)
    if kind in ("steps", "shares", "sums"):
        # Of drawn steps, few are with a canary; features of a network have similar directions.
        assert record["estimate"]["low"] < 4.0 < record["estimate"]["high"]
        assert record["half_noise"]["would_be_found"]


def with_less(owner, name, attribute):
    """Return a fault: half of a deviation."""
    whole = getattr(owner, name)

    def fault(self, *inputs):
        if dataclasses.is_dataclass(self):
            return whole(
                dataclasses.replace(self, **{attribute: getattr(self, attribute) / 2}), *inputs
            )
        setattr(self, attribute, getattr(self, attribute) / 2)
        noisy = whole(self, *inputs)
        setattr(self, attribute, getattr(self, attribute) * 2)
        return noisy

    return owner, name, fault


def without_clip():
    """Return a fault: gradients are as long as they are."""

    def fault(self, gradients):
        return [gradient.sum(0) for gradient in gradients]

    return PrivateSteps, "bounded", fault


def noise_of_one():
    """Return a fault: of the clients that have shares, one adds its own."""
    with_noise = PrivateSteps.with_noise

    def fault(self, totals, step):
        return with_noise(self, totals, step) if int(self.key.client) == 0 else totals

    return PrivateSteps, "with_noise", fault


def too_small_shares():
    """Return a fault: shares as if all clients kept their noise to themselves."""
    bound = ExamplePlan.bound

    def fault(self, client):
        return bound(dataclasses.replace(self, shares=len(self.releases) * self.shares), client)

    return ExamplePlan, "bound", fault


def all_in_every_step():
    """Return a fault: nothing is drawn, and the claim says that it is."""
    draw = private_steps.draw_batches

    def fault(weight, key, training, amount, moves):
        planned = draw(weight, key, training, amount, moves)
        everyone = (weight > 0).nonzero().flatten()
        return planned._replace(batches=[everyone for _ in planned.batches])

    return private_steps, "draw_batches", fault


def same_noise():
    """Return a fault: the noise of every step is the same."""
    with_noise = PrivateSteps.with_noise

    def fault(self, totals, step):
        key = self.key
        self.key = rng.new_key(0, client=int(key.client), purpose="the same")
        noisy = with_noise(self, totals, 0)
        self.key = key
        return noisy

    return PrivateSteps, "with_noise", fault


def long_features():
    """Return a fault: features are as long as they are."""
    return _closed_form, "shortened", lambda features, longest: features


EXAMPLE_FAULTS = {
    "half the noise": ("steps", lambda: with_less(PrivateSteps, "with_noise", "deviation")),
    "no bound": ("steps", without_clip),
    "the same noise": ("steps", same_noise),
    "nothing drawn": ("drawn steps", all_in_every_step),
    "noise of one": ("shares", noise_of_one),
    "too small shares": ("shares", too_small_shares),
    "half the noise of sums": ("sums", lambda: with_less(SumsMechanism, "with_noise", "noise")),
    "half the noise of sites": (
        "sums of sites",
        lambda: with_less(SumsMechanism, "with_noise", "noise"),
    ),
    "no bound of features": ("sums", long_features),
}


@pytest.mark.parametrize("fault", EXAMPLE_FAULTS)
def test_planted_faults_in_what_hides_examples_are_found(monkeypatch, fault):
    kind, plant = EXAMPLE_FAULTS[fault]
    monkeypatch.setattr(*plant())
    record = audit_examples(kind)
    assert record["contradiction"]
    parts = record["added_noise"]["parts"]
    if fault == "the same noise":
        assert any(part["repeats"] for part in parts)
    has_less = "half" in fault or KINDS[kind]["privacy"].get("secure_sums", False)
    assert any(part["is_too_small"] for part in parts) == has_less
    if fault not in ("the same noise", "noise of one"):
        # By the scores alone.
        assert record["estimate"]["low"] > record["claim"]


def test_a_part_of_sums_without_noise_is_found(monkeypatch):
    with_noise = SumsMechanism.with_noise

    def fault(self, sums, key, secret=b""):
        return {**with_noise(self, sums, key, secret), "counts": sums["counts"].double()}

    monkeypatch.setattr(SumsMechanism, "with_noise", fault)
    parts = audit_examples("sums")["added_noise"]["parts"]
    assert [part["part"] for part in parts if part["is_too_small"]] == ["sums/counts"]


@pytest.mark.slow
def test_phases_that_train_different_layers_are_seen_together():
    options = {"algorithm": {"name": "fedrep"}, "model": {"name": "mlp"}}
    record = audit_examples("drawn steps", **options)
    parts = [part["part"] for part in record["added_noise"]["parts"]]
    assert parts == [f"gradient/{name}" for name in ("head.weight", "head.bias")] + [
        f"gradient/{name}" for name in ("hidden.weight", "hidden.bias")
    ]
    assert not record["contradiction"]


def test_examples_that_cannot_be_audited_are_refused():
    with pytest.raises(RunError, match=r"nothing to audit: .*--canaries must be at most 650"):
        audit_noise(
            make_config(
                {
                    **SETTINGS,
                    **ONE_STEP,
                    "privacy": {"unit": "example", "noise": 2.0, "noise_from": "sites"},
                }
            ),
            canaries=651,
        )
    both = {"name": "fedlda", "preset": "private", "feature_clip": 4.0}
    with pytest.raises(ConfigError, match="no sums over features"):
        audit_examples("steps", algorithm=both, model={"name": "mlp"})


def test_the_command_says_whose_examples_were_made_up(capsys):
    options = [option.replace("unit=client", "unit=example") for option in OPTIONS]
    for value in ("privacy.noise_from=sites", "training.steps=1", "training.batch_size=0"):
        options += ["--set", value]

    assert main(options) == 0
    text = capsys.readouterr().out
    assert "examples of client " in text and "by gradients" in text
    assert "No contradiction" in text
