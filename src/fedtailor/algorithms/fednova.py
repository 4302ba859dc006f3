"""FedNova: one global model; clients that take more steps do not count more for it.

Wang, Liu, Liang, Joshi and Poor 2020, "Tackling the objective inconsistency problem in
heterogeneous federated optimization", NeurIPS, section 4, with tau_eff = sum_i p_i |a_i|. With
p_i = n_i / n over the cohort:

    client:   d_i = (w - w_i) / |a_i|, w_i after tau_i steps of SGD from w
              |a_i| = (tau_i - m (1 - m^tau_i) / (1 - m)) / (1 - m), for momentum m
    server:   w <- w - (sum_i p_i |a_i|) (sum_i p_i d_i)

Messages: down ``model`` (w); up ``direction`` (-d_i), ``effective_steps`` (|a_i|) and ``buffers``,
all with weight n_i: one number more than FedAvg. Where all clients take as many steps, it is
FedAvg.

Deviations: none in the equations. Weight decay and clipping are part of the gradients whose sum a
client's change is. The change of Adam is not a sum of gradients, so clients train by SGD, whatever
``training.optimizer`` says. Buffers of batch normalization are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedtailor import toolkit as ft


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """Return |a_i|: how often the gradients of these steps count in the change of the model.

    >>> float(effective_steps(torch.tensor(2), 0.5))
    2.5
    """
    rest = (1.0 - momentum**steps) / (1.0 - momentum)
    return (steps - momentum * rest) / (1.0 - momentum)


@dataclass(frozen=True, kw_only=True)
class FedNova(ft.OneGlobalModel, ft.Algorithm[ft.ModelState, tuple[()], ft.Params]):
    """Federated averaging of changes by step: every client predicts with the global model."""

    unused_training = ("optimizer",)

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the model, its changes by step, how many steps they stand for, and buffers."""
        trained = task.shapes(*ft.TRAINED)
        buffers = task.shapes("buffer")
        return {
            "model": ft.Field(kind="model", shapes=task.shapes(*ft.ALL), reduction="none"),
            "direction": ft.Field(kind="model", shapes=trained, down=False),
            "effective_steps": ft.Field(kind="statistics", shapes=(), low=0.0, down=False),
            "buffers": ft.Field(kind="model", shapes=buffers, down=False),
        }

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model, and divide its change by the steps."""
        model = download.shared.model
        training = replace(task.training, optimizer="sgd")
        trained = ft.train(
            task, ft.classification_loss, model, data=data.train, key=key, training=training
        )

        # -d_i; without steps there is no change
        length = effective_steps(trained.steps, training.momentum)
        divisor = torch.where(length > 0, length, 1.0)
        direction = {
            name: (trained.params[name] - model[name]) / divisor for name in task.names(*ft.TRAINED)
        }

        size = data.info.num_train
        upload = {
            "direction": ft.Mean(direction, size),
            "effective_steps": ft.Mean(length, size),
            "buffers": ft.Mean(task.pick(trained.params, "buffer"), size),
        }
        return ft.ClientUpdate(state, upload, personal=trained.params, metrics=trained.metrics)

    def aggregate(
        self, server: ft.ModelState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ft.ModelState, tuple[()]]:
        """Move the model along the mean direction, by the mean number of steps."""
        # with tau_eff = sum_i p_i |a_i|
        effective = received["effective_steps"].value
        moved = {
            name: server.model[name] + effective * direction
            for name, direction in received["direction"].value.items()
        }
        return ft.ModelState({**server.model, **moved, **received["buffers"].value}), ()
