"""FedProx: federated averaging whose local training is held near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith 2020, "Federated optimization in heterogeneous
networks", MLSys, Algorithm 2. A client takes steps down

    CE(w) + (mu / 2) |w - w^t|^2     (eq. 2, ``penalty`` is mu),   w^t the model it received, constant in the round;

the server averages, w <- sum_i (n_i / n) w_i over the cohort. With ``penalty`` 0 this is FedAvg.

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
from typing import Annotated, ClassVar

from fedtailor.toolkit import (
    TRAINED,
    Algorithm,
    ClientData,
    ClientUpdate,
    Download,
    Key,
    Mean,
    ModelState,
    OneGlobalModel,
    Params,
    Range,
    Task,
    losses,
    train,
)


@dataclass(frozen=True, kw_only=True)
class FedProx(OneGlobalModel, Algorithm[ModelState, tuple[()], Params]):
    """Federated averaging with a proximal term."""

    only_for_training: ClassVar[frozenset[str]] = frozenset({"penalty"})

    penalty: Annotated[float, Range(ge=0)] = 0.1
    """Weight of the squared distance from the received model (mu), halved."""

    def warnings(self, task: Task) -> list[str]:
        """Without a penalty nothing is left of the method."""
        if self.penalty:
            return []
        return ["with penalty 0, this is FedAvg."]

    def local_update(
        self,
        task: Task,
        download: Download[ModelState],
        state: tuple[()],
        data: ClientData,
        key: Key,
    ) -> ClientUpdate:
        """Train the received model on all layers, near where it was."""
        received = download.shared.model
        loss = partial(losses.proximal_loss, penalty=self.penalty)
        center = task.pick(received, *TRAINED)
        trained = train(task, loss, received, context=center, data=data.train, key=key)
        upload = {"model": Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(state, upload, personal=trained.params, metrics=metrics)
