"""FedPer: a shared body under a head of every client's own, both trained together.

Arivazhagan, Aggarwal, Singh, Choudhary 2019, "Federated learning with personalization layers", arXiv:1912.00818,
Algorithms 1 and 2: client i trains (W_B, W_Pi) by SGD on its loss, and the server averages the base layers,
``W_B <- sum_i (n_i / n) W_B,i``. The personalization layers W_P are here the last linear layer.

Messages: down ``body`` (W_B); up ``body`` (W_B,i, weight n_i). The head (W_Pi) is client state and never sent; buffers
of batch normalization belong to the body. A personal model is the new body with the client's own head, however long ago
that was trained: also for clients that were not drawn, which scores of the cohort alone would hide.

Deviations: n is that of the cohort; in the paper all clients take part. Heads start equal; in the paper every client
draws its own. The paper has no clients that come later: here they train the common initial head on the frozen body for
``onboard_epochs``. With ``finetune_epochs``, every client tunes a copy of its head on the final body before it
predicts, as Zhang et al. 2023 (FedCR) do for 10 epochs; a new client does so too, after onboarding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo
from fedtailor.core.message import Field, Mean, Messages
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import FineTuned, in_words, train_head, tune

Server = dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class FedPer(Algorithm[Server, Params, FineTuned]):
    """The body is averaged, heads are personal."""

    finetune_epochs: Annotated[int, Range(ge=0)] = 0
    """Epochs that tune a copy of the head on the final body; 0: predict with the head as it is."""
    onboard_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs that train the head of a client that never took part."""

    @property
    def adaptation(self) -> str:
        """Tuning of the head, if any."""
        return in_words(self.finetune_epochs, "head")

    @property
    def onboarding(self) -> str:
        """Training of the head."""
        return in_words(self.onboard_epochs, "head")

    def warnings(self, task: Task) -> list[str]:
        """Without any epochs, new clients predict at random."""
        untrained = self.finetune_epochs + self.onboard_epochs == 0
        return ["without epochs of onboarding, new clients predict with an untrained head."] if untrained else []

    def messages(self, task: Task) -> Messages:
        """Declare the body."""
        return {"body": Field(kind="model", shapes=task.shapes(*BODY))}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization."""
        return {"body": task.pick(task.model.init(key.common("model")), *BODY)}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the head of the common initialization."""
        return task.pick(task.model.init(key.common("model")), "head")

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train the received body and the own head together."""
        model = {**download.shared["body"], **state}
        trained = train(task, classification_loss, model, data=data.train, key=key, training=self.training)
        body, head = task.pick(trained.params, *BODY), task.pick(trained.params, "head")
        metrics = {"steps": trained.steps, "loss": trained.loss}
        upload = {"body": Mean(body, data.info.num_train)}
        return ClientUpdate(head, upload, personal=FineTuned(trained.params, trained.steps), metrics=metrics)

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train the common head on the frozen body."""
        head, body = self.init_client(task, info, key), download.shared["body"]
        training, epochs = self.training, self.onboard_epochs
        trained = train_head(task, body, head, data.train, key=key, training=training, epochs=epochs)
        return Onboarded(trained.params, trained.steps)

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> FineTuned:
        """Join the received body and the own head, and tune a copy of the head if asked to."""
        model = {**download.shared["body"], **state}
        training, epochs = self.training, self.finetune_epochs
        return tune(task, model, data.train, key=key, training=training, epochs=epochs, layers="head")
