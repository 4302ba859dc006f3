"""The cases of the contract: every algorithm of the table, on every kind of model."""

import os
from functools import cache

import pytest
import torch

from federations import TASKS, make_federation
from fedtailor import algorithms
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.case import TRAINING
from fedtailor.testing.isolation import seed_globally
from fedtailor.testing.runs import run

FULL = os.environ.get("FEDTAILOR_FULL") == "1"
"""Whether to run the full product of algorithms, engines, models and checks."""

ALGORITHMS = {name: algorithms.load_algorithm(name) for name in algorithms.ALGORITHMS}


_ADAM = (
    "Adam makes full steps of rounding errors in gradients that are 0: biases before batch "
    "normalization"
)
_SLOW = (
    "it has learning rates of its own, for Adam: the few steps of the check barely change the "
    "weights"
)
_SLOW_STEPS = (
    "its steps are small, as its own rate and penalty set them: in the few rounds of the check it "
    "does not get far"
)
_STARTS = (
    "a client keeps the model from which it trained, or has no model to keep: in the first round, "
    "statistics in its state are those of the initial model"
)
_FACTORIZES = "its steps factorize matrices, which no recording does: they look at values"
_FROZEN = (
    "it trains nothing: its features are those of the body that all start with, here a random one"
)
_ONE_EXCHANGE = ("fed3r", "fedcgs", "fedcof", "fedncm", "one_shot_fda")
EXEMPTIONS: dict[tuple[str, str], str] = {
    **{("pfedbayes", f"{check}-module"): _ADAM for check in ("stacked", "padding_stacked")},
    ("pfedbayes", "new_clients_learn"): _SLOW,
    ("pfedbayes", "learns-cnn"): _SLOW,
    ("pfedbayes", "learns-module"): _SLOW,
    ("pfedme", "learns-cnn"): _SLOW_STEPS,
    **{("pfedgp", f"recorded-{model}"): _FACTORIZES for model in ("mlp", "module")},
    **{(name, "small_clients"): _FROZEN for name in _ONE_EXCHANGE},
    **{(name, "learns-mlp"): _FROZEN for name in _ONE_EXCHANGE if name != "one_shot_fda"},
    **{(name, "recorded-module"): _FROZEN for name in _ONE_EXCHANGE},
    ("fedfomo", "moving_buffers-module"): _STARTS,
    ("pfedhn", "moving_buffers-module"): _STARTS,
}
"""(algorithm, check), or (algorithm, check-model) for one kind of model; an exemption whose check
passes is wrong."""

USUAL = "module"
"""The kind of model of most tests, whose layers, dropout and batch normalization show most."""
USUAL_BUT = {"pfedbayes": "mlp"}
"""Methods for which the usual kind is exempted from many checks."""


def cases(check, models=None, few=(), **varied):
    """Return the parameters of a check: algorithms and models; those with an exemption are expected
    to fail.

    Args:
        check: the name of the check.
        models: the kinds of models; None: the usual one. If ``FULL``, all kinds.
        few: the names of the algorithms; none: all. If ``FULL``, all.
        varied: one more parameter, with its values. A case has one of the values, in turn. If
            ``FULL``, it has all.
    """

    def case(algorithm, model, *more):
        exemption = EXEMPTIONS.get((algorithm, check)) or EXEMPTIONS.get(
            (algorithm, f"{check}-{model}")
        )
        marks = [pytest.mark.xfail(strict=True, reason=exemption)] if exemption else []
        words = [algorithm, model, *(str(getattr(value, "name", value)) for value in more)]
        return pytest.param(algorithm, model, *more, marks=marks, id="-".join(words))

    values = next(iter(varied.values()), ())
    parameters = []
    for turn, algorithm in enumerate(ALGORITHMS if FULL or not few else few):
        for model in TASKS if FULL else models or (usual(algorithm),):
            if not varied:
                parameters.append(case(algorithm, model))
            else:
                parameters += [case(algorithm, model, value) for value in in_turn(values, turn)]
    return pytest.mark.parametrize(["algorithm", "model", *varied], parameters)


def usual(algorithm):
    """Return the kind of model with which a method is tested."""
    return USUAL_BUT.get(algorithm, USUAL)


def in_turn(values, turn):
    """Return all values if ``FULL``, else the one whose turn it is."""
    return values if FULL else [values[turn % len(values)]]


FEW = ("fedavg", "fedlda", "fedrep", "ifca", "one_shot_fda", "pfedfda", "pfedvem", "scaffold")
"""Methods of all kinds of state and messages: where a test of each takes long, the quick ones."""


def small_federation(model):
    """Return the uneven federation of a kind of model, in the dtype of the test that asks."""
    return _small_federation(model, torch.get_default_dtype())


@cache
def _small_federation(model, dtype):
    """Make a federation once for each dtype: tests of both run in one process, in any order."""
    return make_federation(TASKS[model]())


FEWER = {
    "fedavg_ft": {"finetune_epochs": 2},
    "fedcr": {"samples": 4, "prediction_samples": 4, "head_epochs": 3},
    "pfedgp": {"gibbs_steps": 2, "training_chains": 3, "chains": 4},
    "pfedhn": {"server_lr": 0.2},
    "pfedme": {"inner_steps": 2, "solve_batches": 3},
    "pfedvem": {"head_steps": 4},
}
"""Options that make slow methods fast enough to run about forty times, or learn enough in few
rounds."""


def build(algorithm, **options):
    """Return an algorithm with the contract's training options."""
    return ALGORITHMS[algorithm](training=TRAINING, **{**FEWER.get(algorithm, {}), **options})


@cache
def oracle(algorithm, model):
    """Return the run on the reference engine; seeds of other random generators are 1."""
    seed_globally(1)
    return run(build(algorithm), Reference(), small_federation(model))


@cache
def stacked(algorithm, model, block):
    """Return the run with clients stacked in blocks."""
    return run(build(algorithm), Batched(block), small_federation(model))
