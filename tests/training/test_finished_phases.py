"""What a training phase leaves behind: nothing that only a collection of cycles would free."""

import gc

import pytest
import torch

from both_ways import key_of
from federations import make_federation, perceptron
from fedtailor.core.task import Training
from fedtailor.training import one_client
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss
from fedtailor.training.one_client import PLAIN, StepBuffers, steps_run_by
from fedtailor.training.replay import ReplayRunner


@pytest.mark.parametrize("runner", [PLAIN, ReplayRunner()], ids=["plain", "replay"])
def test_a_finished_phase_keeps_no_steps_alive(runner, monkeypatch):
    alive = []

    class Counted(one_client.GradientSteps):
        def __init__(self, phase, buffers: StepBuffers):
            super().__init__(phase, buffers)
            alive.append(self)

        def __del__(self):
            freed.append(1)

    freed = []
    monkeypatch.setattr(one_client, "GradientSteps", Counted)
    clients = make_federation(perceptron())
    task = clients.common_task
    params = task.model.init(key_of(0))
    gc.collect()
    gc.disable()
    try:
        with steps_run_by(runner), torch.no_grad():
            for _ in range(3):
                train(
                    task,
                    classification_loss,
                    params,
                    data=clients.data(4).train,
                    key=key_of(1),
                    training=Training(),
                )
                alive.clear()
        assert len(freed) == 3
    finally:
        gc.enable()
