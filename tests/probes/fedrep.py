"""FedRep: a shared body under a head of every client's own.

Collins et al. 2021, "Exploiting shared representations for personalized federated learning", ICML. A client trains
its head on the received body, then the body under that head, and uploads the body.

Messages: down ``body``; up ``body`` (weight n_i). The head is client state and never sent.
"""

from dataclasses import dataclass
from typing import Annotated

from fedtailor.core.algorithm import Algorithm, ClientUpdate
from fedtailor.core.local import cached_features, classification_loss, head_loss, predict_logits, train
from fedtailor.core.message import Field, Mean
from fedtailor.core.options import Range
from fedtailor.core.task import BODY, Params


@dataclass(frozen=True, kw_only=True)
class FedRep(Algorithm[Params, Params, Params]):
    """Heads are personal, the body is averaged."""

    head_epochs: Annotated[int, Range(ge=0)] = 2
    """Epochs on the head, body fixed."""
    body_epochs: Annotated[int, Range(ge=0)] = 1
    """Epochs on the body, head fixed."""

    @property
    def adaptation(self):
        return "none"

    def messages(self, task):
        return {"body": Field(kind="model", shapes=task.shapes(*BODY))}

    def init_server(self, task, key):
        return task.pick(task.model.init(key.common("model")), *BODY)

    def init_client(self, task, info, key):
        return task.pick(task.model.init(key.common("model")), "head")

    def local_update(self, task, download, state, data, key):
        head = self._head_phase(task, download.shared, state, data, key)
        body = train(
            task, classification_loss, download.shared, context=head.params, data=data.train, key=key.fold("body"),
            training=self.training, epochs=self.body_epochs,
        )  # fmt: skip
        upload = {"body": Mean(body.params, data.info.num_train)}
        metrics = {"steps": head.steps + body.steps, "loss": body.loss}
        return ClientUpdate(head.params, upload, personal={**body.params, **head.params}, metrics=metrics)

    def aggregate(self, server, received, cohort):
        return received["body"].or_else(server), ()

    def onboard(self, task, download, info, data, key):
        head = self.init_client(task, info, key)
        return self._head_phase(task, download.shared, head, data, key).params

    def personalize(self, task, download, state, data, key):
        return {**download.shared, **state}

    def predict(self, task, personal, x):
        return predict_logits(task, personal, x)

    def _head_phase(self, task, body, head, data, key):
        features = cached_features(task, body, data.train, key=key)
        return train(
            task, head_loss, head, data=features, key=key.fold("head"), training=self.training, epochs=self.head_epochs
        )
