"""Every algorithm gives the same results on every engine."""

from dataclasses import replace

import pytest
import torch

from contract.cases import ALGORITHMS, FEW, FULL, build, cases, oracle, small_federation, stacked
from federations import TASKS, make_federation
from fedtailor.core import tree
from fedtailor.core.task import Task
from fedtailor.models import build_model
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.engines import Padded, Shuffled
from fedtailor.testing.isolation import seed_globally
from fedtailor.testing.runs import (
    assert_close_runs,
    assert_same_bits,
    assert_same_runs,
    run,
    scores_of,
)
from fedtailor.training import replay
from fedtailor.training.recording import StepGraph


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_stacked_clients_agree_with_the_loop(name):
    federation = make_federation(TASKS["mlp"](), sizes=(2, 5), new_sizes=())
    alone = run(build(name), Reference(), federation, rounds=1)
    assert_close_runs(alone, run(build(name), Batched(2), federation, rounds=1))


@cases("stacked", few=FEW, block=[1, 2, 3, 32] if FULL else [3])
def test_stacked_clients_agree_with_the_loop(algorithm, model, block):
    one = oracle(algorithm, model)
    other = stacked(algorithm, model, block)
    assert_close_runs(one, other)
    for first, second in zip(one.reports, other.reports, strict=True):
        assert (first.cohort, first.events, first.steps) == (
            second.cohort,
            second.events,
            second.steps,
        )
        assert (first.bytes_up, first.bytes_down) == (second.bytes_up, second.bytes_down)
        assert _headings(first) == _headings(second)


def _headings(report):
    """Return the descriptions of a report's evaluations."""
    return [(e.point, e.adaptation, e.group, list(e.scores)) for e in report.evaluations]


def test_stacked_clients_and_threads_agree_on_series():
    task = Task(build_model("series_cnn", (2, 10), 3), 3, (2, 10))
    federation = make_federation(task, sizes=(2, 5), new_sizes=())
    for algorithm in ALGORITHMS if FULL else ("pfedfda",):
        alone = run(build(algorithm), Reference(), federation)
        assert_close_runs(alone, run(build(algorithm), Batched(32), federation))
        assert_same_runs(alone, run(build(algorithm), Workers(2), federation))


IRRELEVANT = ("threads", "order", "random state", "test labels")


@cases("irrelevant", few=FEW, what=IRRELEVANT if FULL else [IRRELEVANT])
def test_what_is_irrelevant_changes_no_bit(algorithm, model, what):
    """Threads, the order of clients, what others draw, and test labels: all at once.

    Choosing epochs, clusters or variants on test data makes any method look better; and seeding
    PyTorch alone leaves the sampling of clients, and other libraries, to chance.
    ``FEDTAILOR_FULL=1`` tries one after the other.
    """
    engine = Workers(2) if "threads" in what else Reference()
    if "order" in what:
        engine = Shuffled(engine)
    federation = small_federation(model)
    if "test labels" in what:
        federation = with_other_test_labels(federation)

    expected = oracle(algorithm, model)
    if "random state" in what:
        seed_globally(2)
    found = run(build(algorithm), engine, federation)

    assert [report.cohort for report in expected.reports] == [
        report.cohort for report in found.reports
    ]
    assert_same_bits(of_training(expected), of_training(found))
    assert_same_bits(expected.reports[-1].personal, found.reports[-1].personal)


def with_other_test_labels(federation):
    y = federation.y.clone()
    for split in federation.splits:
        y[split.test] = (y[split.test] + 1) % federation.common_task.num_classes
    return replace(federation, y=y)


def of_training(trace):
    """Return what clients computed in their rounds, but for scores of test examples."""
    return {
        f"{round}, {client}": output._replace(scores=())
        for (round, client), output in trace.of("train").items()
    }


@pytest.mark.parametrize("model", ["cnn", "module"])
def test_threads_give_the_same_bits_with_convolutions_and_dropout(model):
    assert_same_runs(
        oracle("fedavg_ft", model), run(build("fedavg_ft"), Workers(2), small_federation(model))
    )


@cases("padding_stacked", few=("fedrep", "pfedfda"))
def test_padding_is_inert(algorithm, model):
    assert_close_runs(
        oracle(algorithm, model), run(build(algorithm), Padded(Batched(3)), small_federation(model))
    )


@cases("order", few=FEW)
def test_order_of_stacked_clients_does_not_matter(algorithm, model):
    shuffled = run(build(algorithm), Shuffled(Batched(3)), small_federation(model))
    assert_same_runs(stacked(algorithm, model, 3), shuffled)


@cases("seed", few=FEW)
def test_another_seed_gives_other_bits(algorithm, model):
    federation = small_federation(model)
    first = oracle(algorithm, model).of("personalize")
    other = run(build(algorithm), Reference(), federation, rounds=1, seed=4).of("personalize")
    for client in federation.roster.known:
        pairs = zip(
            tree.leaves(first[1, client].personal),
            tree.leaves(other[1, client].personal),
            strict=True,
        )
        assert not all(torch.equal(one, two) for one, two in pairs), f"client {client}"


def test_scores_of_the_global_model_are_those_of_its_predictions():
    trace = oracle("fedavg", "mlp")
    personalized = scores_of(trace, "personalized")
    global_scores = scores_of(trace, "global")
    for one, two in zip(personalized, global_scores, strict=True):
        assert_same_bits(one, two)


@cases("recorded", few=("fedavg", "fedrep", "scaffold"))
def test_recorded_steps_give_the_same_bits(algorithm, model, monkeypatch):
    plain = oracle(algorithm, model)  # takes every step as it is
    monkeypatch.setattr(replay, "_OFTEN", 0)
    replays = []
    original = StepGraph.replay
    monkeypatch.setattr(StepGraph, "replay", lambda recording: replays.append(original(recording)))
    assert_same_runs(plain, run(build(algorithm), Workers(1), small_federation(model)))
    if model != "cnn":  # steps with convolutions are as fast without a recording
        assert len(replays) > replay._TRIALS  # some were not trials
