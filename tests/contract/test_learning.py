"""Every algorithm learns, and personalizes clients that it has never seen."""

from dataclasses import replace

import torch

from contract.cases import FEW, TRAINING, build, cases, oracle, small_federation
from federations import TASKS, make_federation, perceptron
from fedtailor.core import tree
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import accuracy, run, scores_of

NEW = (7, 8)
"""Ids of the clients that never take part; the second has no training examples."""


@cases("learns", models=("mlp",), few=FEW)
def test_beats_the_majority_class(algorithm, model):
    separable = make_federation(TASKS[model](), (24, 36, 30, 40), (), distance=3.0, test_size=40)
    training = replace(TRAINING, epochs=3, lr=0.1, batch_size=10)
    one = replace(build(algorithm), training=training)
    majority = sum(_majority(separable, client) for client in range(4)) / 4
    rounds = (2, 12 if model == "module" else 6)  # many methods need fewer
    found = accuracy_after(one, separable, rounds, majority + 0.05)
    assert found > majority + 0.05  # 8 of 160 examples


def accuracy_after(algorithm, federation, rounds, enough, group="known"):
    """Return the accuracy after the first number of rounds that gives enough, or after the last."""
    for number in rounds:
        trace = run(
            algorithm,
            Reference(),
            federation,
            rounds=number,
            evaluate_every=0,
            personalized_every=0,
        )
        found = accuracy(scores_of(trace, "personalized", group))
        if found > enough:
            break
    return found


def _majority(federation, client):
    """Return the accuracy of always guessing a client's most frequent class."""
    guess = federation.info(client).class_counts.argmax()
    return float((federation.test(client).labels() == guess).double().mean())


@cases("new_clients_learn", models=("mlp",), few=("fedrep", "pfedfda"))
def test_new_clients_get_a_model_that_was_trained(algorithm, model):
    """One generic fine-tuning for all methods evaluates, for some, a model that nothing trained."""
    separable = make_federation(
        perceptron(), (24, 36, 30, 40), (30, 24), distance=3.0, test_size=40
    )
    one = replace(build(algorithm), training=replace(TRAINING, epochs=5, lr=0.1, batch_size=5))
    majority = sum(_majority(separable, client) for client in separable.roster.new) / 2
    assert accuracy_after(one, separable, (3, 8), majority + 0.05, "new") > majority + 0.05


@cases("new_clients")
def test_new_clients_are_onboarded_and_personalized(algorithm, model):
    trace = oracle(algorithm, model)
    found = {
        client: output for (round, client), output in trace.of("personalize").items() if round == 2
    }
    assert set(NEW) <= set(found) and not {client for _, client in trace.of("train")} & set(NEW)
    for client in NEW:
        output = found[client]
        assert all(torch.isfinite(leaf).all() for leaf in tree.leaves(output))
        assert output.scores["clients"].class_total.sum() == len(
            small_federation(model).test(client).positions
        )


@cases("no_examples")
def test_clients_without_examples_do_not_train_but_are_personalized(algorithm, model):
    trace = oracle(algorithm, model)
    empty = 5
    assert {client for _, client in trace.of("train")} == {0, 1, 2, 3, 4, 6}
    output = trace.of("personalize")[2, empty]
    assert all(torch.isfinite(leaf).all() for leaf in tree.leaves((output.personal, output.scores)))
    skipped = {
        "kind": "skipped",
        "round": 1,
        "client": empty,
        "reason": "no training examples: does not train",
    }
    assert trace.reports[0].events == [skipped] and trace.reports[1].events == []
