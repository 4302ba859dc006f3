"""pFedFDA on clients that hardly have data, or damaged data; compared with the specification, or
bit for bit."""

import numpy as np
import pytest
import torch

from fedtailor.algorithms.pfedfda import PFedFDA
from fedtailor.core import tree
from fedtailor.core.task import Training
from golden import compare, fda, harness
from marks import quick

TRAINING = Training(lr=0.1, momentum=0.5, weight_decay=0.02, epochs=2, batch_size=5)
MULTI = pytest.param("multi", marks=pytest.mark.slow)
MODES = pytest.mark.parametrize("mode", ["single", MULTI])
USUAL = harness.LABELS[0]
SMALL = {
    "one example": [2],
    "one class": [1, 1, 1, 1, 1, 1],
    "fewer examples than features": [0, 2],
    "two of one class": [0, 0],
    "one of each class": [1, 2, 0],
}


def constant(x, splits):
    """Make all inputs of the second client equal."""
    x[splits[1].train] = x[splits[1].train][0]


@MODES
@pytest.mark.parametrize("labels", quick(SMALL.values(), [2], [0, 0]), ids=SMALL)
def test_small_clients(recorder, labels, mode):
    federation = harness.make_federation((USUAL, labels))
    algorithm = PFedFDA(training=TRAINING, beta=mode)
    recorder.run(algorithm, federation)
    trained, evaluated = compare.assert_run(recorder, federation, algorithm)
    if len(set(labels)) == len(labels) and mode != "none":
        assert trained[1, 1] != [0.0, 0.0], "several epochs give copies to divide"
        assert evaluated[1, 1] == evaluated[2, 1] == [0.0, 0.0], "one pass gives none"


@MODES
def test_constant_features(recorder, mode):
    """Beta of the covariance hardly matters here: ties of 1e-12 at each level of the search add
    up."""
    federation = harness.make_federation((USUAL, [0, 1, 2, 0, 1, 2, 0]), change=constant)
    algorithm = PFedFDA(training=TRAINING, beta=mode)
    recorder.run(algorithm, federation)
    compare.assert_run(recorder, federation, algorithm, slack=1e-11 if mode == "multi" else 0.0)


@MODES
def test_constant_features_without_any_ridge(recorder, mode):
    """The scatter has zeros on its diagonal, so that correlations are undefined; compared after one
    round."""
    federation = harness.make_federation((USUAL, [0, 1, 2, 0, 1, 2, 0]), change=constant)
    algorithm = PFedFDA(training=TRAINING, beta=mode, cov_ridge=0.0, cov_offset=0.0)
    recorder.run(algorithm, federation, rounds=1)
    constants = fda.Constants(ridge=0.0, offset=0.0)
    compare.assert_run(recorder, federation, algorithm, constants, rounds=1, tolerance=1e-9)


def assert_same_bits(first, second):
    """Assert that two trees agree bit for bit."""
    assert all(
        torch.equal(a, b) for a, b in zip(tree.leaves(first), tree.leaves(second), strict=True)
    )


@MODES
def test_a_client_without_training_data_gets_the_global_gaussian(recorder, mode):
    federation = harness.make_federation((*harness.LABELS, []))
    algorithm = PFedFDA(training=TRAINING, beta=mode)
    recorder.run(algorithm, federation)
    assert [event["kind"] for report in recorder.reports for event in report.events] == ["skipped"]
    assert (1, "train", 2) not in recorder.visits
    compare.assert_run(recorder, federation, algorithm)
    personal = recorder.visit(2, "personalize", 2).output[0]
    _, shared = compare.server_of(recorder.visit(2, "personalize", 2).shared)
    weight, bias = fda.discriminant(*shared, np.full(3, 1 / 3), 1e-4)
    assert personal.beta.tolist() == [0.0, 0.0]
    harness.assert_close(personal.head.weight, weight)
    harness.assert_close(personal.head.bias, bias)


@MODES
@pytest.mark.parametrize("labels", [[0, 2, 2, 1, 0, 2, 0, 2], [1]], ids=["usual", "one example"])
def test_a_new_client_runs_the_evaluation_step_only(recorder, labels, mode):
    federation = harness.make_federation((*harness.LABELS, labels), num_new=1)
    algorithm = PFedFDA(training=TRAINING, beta=mode)
    recorder.run(algorithm, federation)
    compare.assert_run(recorder, federation, algorithm)
    visit = recorder.visit(2, "personalize", 2)
    assert visit.plans == [] and (1, "train", 2) not in recorder.visits
    assert_same_bits(visit.output[0].body, visit.shared.body)
    of_new_clients = [one.point for one in recorder.reports[1].evaluations if one.group == "new"]
    assert of_new_clients == ["global", "personalized"]
