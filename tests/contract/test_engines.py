"""Every algorithm gives the same results on every engine."""

import torch

from contract.cases import FULL, build, cases, oracle, small_federation, stacked
from fedtailor.core import tree
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.engines import Padded, Shuffled
from fedtailor.testing.runs import (
    assert_close_runs,
    assert_same_bits,
    assert_same_runs,
    run,
    scores_of,
)
from fedtailor.training import replay
from fedtailor.training.recording import StepGraph


@cases("stacked", models=("module",), some=("mlp", "cnn"))
def test_stacked_clients_agree_with_the_loop(algorithm, model):
    assert_close_runs(oracle(algorithm, model), stacked(algorithm, model, 32))


@cases("regrouped", every=2, block=[1, 2, 3, 32] if FULL else [1, 3])
def test_grouping_of_clients_does_not_matter(algorithm, model, block):
    assert_close_runs(oracle(algorithm, model), stacked(algorithm, model, block))


@cases("workers", workers=[1, 2])
def test_threads_give_the_same_bits(algorithm, model, workers):
    assert_same_runs(
        oracle(algorithm, model), run(build(algorithm), Workers(workers), small_federation(model))
    )


def test_threads_give_the_same_bits_with_convolutions_and_dropout():
    for model in ("cnn", "module"):
        assert_same_runs(
            oracle("fedavg_ft", model), run(build("fedavg_ft"), Workers(2), small_federation(model))
        )


@cases("padding", models=("module",), every=2)
def test_padding_is_inert(algorithm, model):
    assert_close_runs(
        oracle(algorithm, model),
        run(build(algorithm), Padded(Reference()), small_federation(model)),
    )


@cases("padding_stacked", every=2)
def test_padding_is_inert_when_stacked(algorithm, model):
    assert_close_runs(
        oracle(algorithm, model), run(build(algorithm), Padded(Batched(3)), small_federation(model))
    )


@cases("order", engine=[Reference(), Batched(3), Workers(2)])
def test_order_of_the_cohort_does_not_matter(algorithm, model, engine):
    straight = (
        stacked(algorithm, model, 3) if engine.name == "batched" else oracle(algorithm, model)
    )
    shuffled = run(build(algorithm), Shuffled(engine), small_federation(model))
    assert_same_runs(straight, shuffled)


@cases("seed", engine=[Reference(), Batched(3)])
def test_same_seed_same_bits_other_seed_other_bits(algorithm, model, engine):
    first = stacked(algorithm, model, 3) if engine.name == "batched" else oracle(algorithm, model)
    again = run(build(algorithm), engine, small_federation(model), seed=3)
    other = run(build(algorithm), engine, small_federation(model), seed=4)
    assert_same_runs(first, again)
    for client, personal in first.reports[-1].personal.items():
        pairs = zip(
            tree.leaves(personal), tree.leaves(other.reports[-1].personal[client]), strict=True
        )
        assert not all(torch.equal(one, two) for one, two in pairs), f"client {client}"


@cases("reports")
def test_engines_report_the_same(algorithm, model):
    expected = oracle(algorithm, model).reports
    found = stacked(algorithm, model, 32).reports
    for one, two in zip(expected, found, strict=True):
        assert (one.cohort, one.events, one.steps) == (two.cohort, two.events, two.steps)
        assert (one.bytes_up, one.bytes_down) == (two.bytes_up, two.bytes_down)
        assert _headings(one) == _headings(two)


def test_scores_of_the_global_model_are_those_of_its_predictions():
    trace = oracle("fedavg", "mlp")
    personalized = scores_of(trace, "personalized")
    global_scores = scores_of(trace, "global")
    for one, two in zip(personalized, global_scores, strict=True):
        assert_same_bits(one, two)


def _headings(report):
    """Return the descriptions of a report's evaluations."""
    return [(e.point, e.adaptation, e.group, e.ids) for e in report.evaluations]


@cases("recorded", models=("module",), every=2)
def test_recorded_steps_give_the_same_bits(algorithm, model, monkeypatch):
    plain = oracle(algorithm, model)  # takes every step as it is
    monkeypatch.setattr(replay, "_OFTEN", 0)
    replays = []
    original = StepGraph.replay
    monkeypatch.setattr(StepGraph, "replay", lambda recording: replays.append(original(recording)))
    assert_same_runs(plain, run(build(algorithm), Workers(1), small_federation(model)))
    if model != "cnn":  # steps with convolutions are as fast without a recording
        assert len(replays) > replay._TRIALS  # some were not trials
