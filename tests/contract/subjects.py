"""What the contract holds for: every algorithm of the table and every probe, on every kind of model."""

import os
from functools import cache

import pytest

from contract.runs import run
from fedtailor.algorithms import TABLE, load_algorithm
from fedtailor.core.task import Training
from fedtailor.engines.reference import Reference
from probes import PROBES
from worlds import TASKS, federation

FULL = os.environ.get("FEDTAILOR_FULL") == "1"
"""Whether to run the full product of algorithms, engines, models and checks."""

ALGORITHMS = {**{name: load_algorithm(name) for name in TABLE}, **PROBES}

TRAINING = Training(epochs=2, batch_size=5, lr=0.05, momentum=0.5, weight_decay=0.01, clip_norm=3.0)
"""Shorter last batches, momentum, decay and clipping: whatever padding and stacking could spoil."""

EXEMPTIONS: dict[tuple[str, str], str] = {}
"""(algorithm, check) -> why the check cannot hold. An exemption whose check passes is an error."""


def cases(check, models=("mlp",)):
    """Return the parameters of a check: algorithms and models, exempted ones expected to fail."""

    def case(algorithm, model):
        reason = EXEMPTIONS.get((algorithm, check))
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        return pytest.param(algorithm, model, marks=marks, id=f"{algorithm}-{model}")

    names = [case(algorithm, model) for algorithm in ALGORITHMS for model in (TASKS if FULL else models)]
    return pytest.mark.parametrize(("algorithm", "model"), names)


@cache
def world(model):
    """Return the uneven federation of a kind of model."""
    return federation(TASKS[model]())


def build(algorithm, **options):
    """Return an algorithm, trained as the contract does."""
    return ALGORITHMS[algorithm](training=TRAINING, **options)


@cache
def oracle(algorithm, model):
    """Return the run on the reference engine."""
    return run(build(algorithm), Reference(), world(model))
