"""FedProx: federated averaging whose local training is held near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith 2020, "Federated optimization in heterogeneous
networks", MLSys, Algorithm 2. A client takes steps down

    CE(w) + (mu / 2) |w - w^t|^2     (eq. 2, ``penalty`` is mu),

where the model w^t that it received is constant in the round. The server averages, w <- sum_i (n_i
/ n) w_i over the cohort. With ``penalty`` 0 this is FedAvg.

Messages: down ``model`` (w^t); up ``model`` (w_i, weight n_i). Nothing is kept by the client; a new
client predicts with the global model.

Deviations: clients are drawn with equal chances and weighted by their examples, as in FedAvg
(paper: drawn by their examples, weighted equally). Partial work of slow clients is left out.
Buffers of batch normalization are averaged, not penalized. The recorded loss is the objective
above; some implementations record the distance without its square, and several default to a penalty
of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses


@dataclass(frozen=True, kw_only=True)
class FedProx(ft.OneGlobalModel, ft.Algorithm[ft.ModelState, tuple[()], ft.Params]):
    """Federated averaging with a proximal term."""

    bounds_examples = True

    penalty: Annotated[ft.NonNegativeFloat, ft.AtZero("this is FedAvg.")] = 0.1
    """Weight of the squared distance from the received model (mu), halved."""

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model on all layers, near where it was."""
        received = download.shared.model

        # eq. 2; the center has no buffers, so that these are not penalized
        loss = partial(losses.proximal_loss, penalty=self.penalty)
        center = task.pick(received, *ft.TRAINED)
        trained = ft.train(task, loss, received, context=center, data=data.train, key=key)
        upload = {"model": ft.Mean(trained.params, data.info.num_train)}
        return ft.ClientUpdate(state, upload, personal=trained.params, metrics=trained.metrics)
