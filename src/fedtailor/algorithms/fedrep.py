"""FedRep: a shared body under a head of every client's own, trained one after the other.

Collins, Hassani, Mokhtari, Shakkottai 2021, "Exploiting shared representations for personalized federated learning",
ICML, Algorithm 1. Client i first makes tau steps on its head h_i under the received representation phi, then updates
phi under that head, and the server averages: ``phi <- (1 / rn) sum_i phi_i``.

Messages: down ``body`` (phi); up ``body`` (phi_i, weight n_i). The head is client state and never sent; buffers of
batch normalization belong to the body. A personal model is the new body with the client's own head, however long ago
that was trained.

Deviations: bodies weigh n_i, not 1, as in FedAvg. A phase of the head has ``head_epochs``, and the body
trains *as well* for the epochs (or steps) of ``training``, 1 or 5 in the paper: some libraries take the epochs of the
head from those of the body, which halves the work. Each phase has an optimizer of its own, so no momentum goes from one
to the other. Features of the head's phase are those of evaluation mode (without dropout), computed once unless images
are augmented. A client that never took part runs the head's phase alone, from the common initial head.
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
from fedtailor.training.blocks import Trained, train
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import FineTuned, in_words, train_head, tune

Server = dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class FedRep(Algorithm[Server, Params, FineTuned]):
    """The body is averaged, heads are personal and trained first."""

    head_epochs: Annotated[int, Range(ge=0)] = 10
    """Epochs of the head on the received body, before those of the body (tau)."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 0
    """Epochs that tune a copy of the head on the final body; 0: predict with the head as it is."""

    @property
    def adaptation(self) -> str:
        """Tuning of the head, if any."""
        return in_words(self.finetune_epochs, "head")

    @property
    def onboarding(self) -> str:
        """The phase of the head."""
        return in_words(self.head_epochs, "head")

    def warnings(self, task: Task) -> list[str]:
        """Without epochs, heads stay as they are."""
        return [] if self.head_epochs else ["without epochs of the head, this is FedBABU without fine-tuning."]

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
        """Train the own head on the received body, then the body under that head."""
        received: Params = download.shared["body"]
        head = self._train_head(task, received, state, data, key)
        body = train(
            task,
            classification_loss,
            received,
            context=head.params,
            data=data.train,
            key=key.fold("body"),
            training=self.training,
        )
        upload = {"body": Mean(body.params, data.info.num_train)}
        steps = head.steps + body.steps
        metrics = {"steps": steps, "loss": body.loss, "head_loss": head.loss}
        personal = FineTuned({**body.params, **head.params}, steps)
        return ClientUpdate(head.params, upload, personal=personal, metrics=metrics)

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train the common head on the received body."""
        head = self._train_head(task, download.shared["body"], self.init_client(task, info, key), data, key)
        return Onboarded(head.params, head.steps)

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> FineTuned:
        """Join the received body and the own head, and tune a copy of the head if asked to."""
        model = {**download.shared["body"], **state}
        training, epochs = self.training, self.finetune_epochs
        return tune(task, model, data.train, key=key, training=training, epochs=epochs, layers="head")

    def _train_head(self, task: Task, body: Params, head: Params, data: ClientData, key: Key) -> Trained:
        training, epochs = self.training, self.head_epochs
        return train_head(task, body, head, data.train, key=key.fold("head"), training=training, epochs=epochs)
