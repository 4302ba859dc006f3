"""What programs and scripts change around them: settings, timers, handlers, modes."""

from contextlib import contextmanager

import pytest
import torch

from fedtailor.core.torch_private import float32_precisions, set_float32_precisions
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from simulation.engines.programs import job


@contextmanager
def precisions_afterwards_as_before():
    before = float32_precisions()
    try:
        yield
    finally:
        set_float32_precisions(before)
        torch.set_float32_matmul_precision("highest")


def all_tf32():
    torch.backends.fp32_precision = "tf32"


def mkldnn_bf16():
    torch.backends.mkldnn.set_flags(_fp32_precision="bf16")


def products_bf16():
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"


def usual():
    pass


def old_medium():
    torch.set_float32_matmul_precision("medium")


SETTINGS = [usual, old_medium, all_tf32, mkldnn_bf16, products_bf16]


@pytest.mark.parametrize("engine", [Reference(), Workers(2)], ids=["reference", "workers"])
@pytest.mark.parametrize("by_client", SETTINGS)
@pytest.mark.parametrize("by_user", SETTINGS)
def test_the_precision_that_a_user_set_stays_whatever_a_client_sets(by_user, by_client, engine):
    def program(task, common, inputs):
        if int(inputs.client) == 0:
            by_client()
        return inputs.client

    with precisions_afterwards_as_before():
        by_user()
        precisions = float32_precisions()
        outputs = engine.map(program, None, [job(0)])
        assert [int(output) for output in outputs] == [0]
        assert float32_precisions() == precisions
