"""FedBABU: only the body is trained and averaged, under one random head that nobody trains until the end.

Oh, Kim, Yun 2022, "FedBABU: Toward enhanced representation for federated image classification", ICLR, Algorithm 1:
the head stays at its initialization during federated training, the body is averaged with weights n_i; every client
then fine-tunes the model that results, and that is the method: the model before is recorded as the global one.

Messages: down ``body``; up ``body`` (weight n_i). The head is that of the common initialization, which every client
makes for itself from the seed and keeps: no bytes are sent for it. Buffers of batch normalization belong to the body.

Deviations: the head is left out of training, where zeroing its gradient would let momentum and decay move it. The paper
compares fine-tuning of body, head and both; McLaughlin and Su 2024 (pFedFDA) tune the head for 5 epochs, the default
here. Code that came with Zhang et al. 2023 (FedCR) trains and keeps heads under this name, which is FedPer. A client
that never took part is treated as the others are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Mean, Messages
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import FineTuned, Layers, in_words, tune, untuned

Server = dict[str, Params]


@dataclass(frozen=True, kw_only=True)
class FedBABU(Algorithm[Server, Params, FineTuned]):
    """A body trained under a fixed random head, tuned at the end."""

    finetune: Layers = "head"
    """Layers that are tuned."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of fine-tuning."""

    @property
    def adaptation(self) -> str:
        """Fine-tuning on the client's training data."""
        return in_words(self.finetune_epochs, self.finetune)

    def warnings(self, task: Task) -> list[str]:
        """Without epochs nothing is tuned."""
        without = "without epochs of fine-tuning, all clients predict with one model, whose head is random."
        return [] if self.finetune_epochs else [without]

    def messages(self, task: Task) -> Messages:
        """Declare the body."""
        return {"body": Field(kind="model", shapes=task.shapes(*BODY))}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization, whose head is kept for the global model."""
        model = task.model.init(key.common("model"))
        return {"body": task.pick(model, *BODY), "head": task.pick(model, "head")}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Make the head that all have in common."""
        return task.pick(task.model.init(key.common("model")), "head")

    def broadcast(self, server: Server, cohort: Cohort) -> Server:
        """Send the body alone."""
        return {"body": server["body"]}

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train the received body under the fixed head."""
        body: Params = download.shared["body"]
        training = self.training
        trained = train(task, classification_loss, body, context=state, data=data.train, key=key, training=training)
        upload = {"body": Mean(trained.params, data.info.num_train)}
        personal = FineTuned({**trained.params, **state}, trained.steps)
        return ClientUpdate(state, upload, personal=personal, metrics={"steps": trained.steps, "loss": trained.loss})

    def global_model(self, task: Task, server: Server) -> FineTuned:
        """Return the body with the fixed head, not tuned."""
        return untuned({**server["body"], **server["head"]})

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> FineTuned:
        """Fine-tune a copy of the body with the fixed head."""
        return tune(
            task,
            {**download.shared["body"], **state},
            data.train,
            key=key,
            training=self.training,
            epochs=self.finetune_epochs,
            layers=self.finetune,
        )
