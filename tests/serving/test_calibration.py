"""Temperature and threshold."""

import math

import numpy as np
import pytest
import torch

from fedtailor.core import rng
from fedtailor.core.federation import ExampleSet
from fedtailor.core.rng import normal
from fedtailor.simulation.calibration import calibrate, fit_temperature, score_threshold
from serving.small_runs import data_of, parts_of, settings


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_the_temperature_of_known_logits_is_found(temperature):
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, (20_000, 3))
    shares = torch.softmax(torch.from_numpy(logits), 1).numpy()
    labels = np.array([generator.choice(3, p=share) for share in shares])
    found = fit_temperature(torch.from_numpy(temperature * logits), torch.from_numpy(labels))
    assert found == pytest.approx(temperature, rel=0.05)


def test_models_that_are_always_right_or_wrong_get_a_moderate_temperature():
    logits = 3 * torch.eye(3).repeat(10, 1)
    labels = torch.arange(3).repeat(10)
    assert 0.3 < fit_temperature(logits, labels) < 0.8
    assert 1.5 < fit_temperature(logits, (labels + 1) % 3) <= 20


def prepared(tmp_path, count):
    parts = parts_of(settings("pfedfda", data_of("digits", tmp_path)))
    task = parts.algorithm.bind(parts.federation.roster.task(0))
    server = parts.algorithm.init_server(task, rng.new_key(0))
    personal = parts.algorithm.global_model(task, server)
    positions = torch.arange(count)
    return parts.algorithm, task, personal, parts.federation.examples(positions)


def test_of_all_validation_examples_95_percent_lie_below_the_threshold(tmp_path):
    algorithm, task, personal, examples = prepared(tmp_path, 100)
    found = calibrate(algorithm, task, personal, examples)
    values = (examples.x[:100].float() / examples.scale[0] - examples.scale[1]) / examples.scale[2]
    scores = algorithm.ood_score(task, personal, values)
    assert found.examples == 100
    assert (scores <= found.threshold + 1e-6).sum() == 96  # ceil(0.95 * 101)


def test_few_examples_fit_no_temperature_and_very_few_no_threshold(tmp_path):
    few = calibrate(*prepared(tmp_path, 10))
    assert few.temperature == 1 and few.threshold is not None
    assert calibrate(*prepared(tmp_path, 9)) == (9, 1.0, None, "", None)


@pytest.mark.parametrize(("count", "share"), [(10, 1 / 11), (18, 1 / 19), (19, 0.05), (50, 2 / 51)])
def test_the_share_of_ordinary_inputs_above_the_threshold_is_the_stated_one(count, share):
    draws = torch.rand(20_000, count, generator=torch.Generator().manual_seed(count))
    above = [1 - score_threshold(draw) for draw in draws]  # of a uniform score, the exact share
    assert sum(above) / len(above) == pytest.approx(share, abs=0.002)


def test_a_method_that_fails_to_score_strangers_loses_the_threshold_only(tmp_path, monkeypatch):
    algorithm, task, personal, examples = prepared(tmp_path, 40)

    def broken(self, task, personal, x):
        raise ValueError("no idea")

    monkeypatch.setattr(type(algorithm), "ood_score", broken)
    found = calibrate(algorithm, task, personal, examples)
    assert found.threshold is None and "no idea" in found.problem and found.temperature != 1

    monkeypatch.setattr(
        type(algorithm),
        "ood_score",
        lambda self, task, personal, x: torch.full((len(x),), math.nan),
    )
    assert calibrate(algorithm, task, personal, examples).threshold is None


def test_the_order_of_examples_changes_the_temperature_by_rounding_only(tmp_path):
    algorithm, task, personal, examples = prepared(tmp_path, 64)
    order = torch.argsort(normal(rng.new_key(1), (64,)))
    other = ExampleSet(
        examples.x, examples.y, examples.positions[order], examples.weight, examples.scale
    )
    one = calibrate(algorithm, task, personal, examples)
    two = calibrate(algorithm, task, personal, other)
    assert (
        one.temperature == pytest.approx(two.temperature, rel=1e-3)
        and one.threshold == two.threshold
    )
