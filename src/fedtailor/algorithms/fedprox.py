"""FedProx: federated averaging whose local training is held near the received model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith 2020, "Federated optimization in heterogeneous networks", MLSys,
Algorithm 2. A client takes steps down

    CE(w) + (mu / 2) |w - w^t|^2     (eq. 2, ``penalty`` is mu),   w^t the model it received, constant in the round;

the server averages, w <- sum_i (n_i / n) w_i over the cohort. With ``penalty`` 0 this is FedAvg.

Messages: down ``model`` (w^t); up ``model`` (w_i, weight n_i). Nothing is kept by the client; a new client predicts
with the global model.

Deviations: clients are drawn with equal chances and weighted by their examples, as in FedAvg (paper: drawn by their
examples, weighted equally). Partial work of slow clients is left out. Buffers of batch normalization are averaged, not
penalized. The recorded loss is the objective above; some implementations record the distance without its square, and
several default to a penalty of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData
from fedtailor.core.message import Mean
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import TRAINED, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import proximal_loss

Server = dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm[Server, tuple[()], Params]):
    """Federated averaging with a proximal term."""

    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "global"

    penalty: Annotated[float, Range(ge=0)] = 0.1
    """Weight of the squared distance from the received model (mu), halved."""

    def warnings(self, task: Task) -> list[str]:
        """Without a penalty nothing is left of the method."""
        return [] if self.penalty else ["with penalty 0, this is FedAvg."]

    def local_update(
        self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key
    ) -> ClientUpdate:
        """Train the received model on all layers, not far from where it was."""
        received: Params = download.shared["model"]
        trained = train(
            task,
            partial(proximal_loss, penalty=self.penalty),
            received,
            context=task.pick(received, *TRAINED),
            data=data.train,
            key=key,
            training=self.training,
        )
        upload = {"model": Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(state, upload, personal=trained.params, metrics=metrics)

    def global_model(self, task: Task, server: Server) -> Params:
        """Return the global model."""
        return server["model"]

    def personalize(self, task: Task, download: Download, state: tuple[()], data: ClientData, key: Key) -> Params:
        """Return the global model."""
        params: Params = download.shared["model"]
        return params
