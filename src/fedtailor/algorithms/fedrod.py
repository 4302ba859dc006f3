"""FedRoD: one body, a generic head for all classes alike, and a personal head that is added to it.

Chen and Chao 2022, "On bridging generic and personalized federated learning for image classification", ICLR,
Algorithm 1. With z the features, h_G the generic and h_P the personal head, counts n_c and frequencies pi of a client,

    L_G = CE(h_G(z) + log n_c, y)                 balanced softmax (Ren et al. 2020): trains the body and h_G,
    L_P = CE(sg(h_G(z)) + h_P(sg(z)), y)          plain risk: trains h_P alone; sg stops gradients.

Variant ``linear`` keeps a linear h_P at every client; ``hyper`` makes it, h_P = H_nu(pi), by a network that all share:
pi -> ``hyper_hidden`` units, ReLU -> the numbers of a head. The personal model is h_G + h_P, the global one h_G.

Messages: down and up ``model`` (body and h_G; weight n_i), with ``hyper`` also ``hyper`` (nu; weight n_i). ``linear``
keeps h_P at the client, ``hyper`` nothing.

Deviations:
* Both losses are in every batch: they reach other parameters, so that a joint step is two exact ones, unless
  ``training.clip_norm`` bounds both gradients together. Popular code lets L_P train the body, or predicts by h_P alone.
* A class that a client does not have counts in L_G for examples of its own alone, as 1: code that counts one epoch
  without its last batch has an infinite loss there.
* h_P starts at 0 with ``linear``, near 0 with ``hyper`` (paper: unspecified), so that a client that never trained
  predicts with h_G. A client without examples has no frequencies: H_nu gets equal ones.
* A new client trains h_P alone, or with ``hyper`` nothing. The generic part is FedAvg's (paper: or FedDyn's).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.algorithms._hypernetwork import hyper_head, hyper_shapes, init_hyper
from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo
from fedtailor.core.message import Field, Mean, Messages
from fedtailor.core.options import Range
from fedtailor.core.prediction import predict_features
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Batch, LossOutput, Params, Task
from fedtailor.statistics.gaussian import smooth_prior
from fedtailor.training.blocks import train
from fedtailor.training.losses import cross_entropy
from fedtailor.training.tuning import in_words

Server = dict[str, Params]
State = Params | tuple[()]


class Personal(NamedTuple):
    """A model with the generic head, and the personal head; in training, with ``hyper``, the network that makes it."""

    model: Params
    head: Params


def balanced(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return logits (n, classes) plus log counts; -inf for absent classes, but for an example's own."""
    own = labels[:, None] == torch.arange(len(counts))
    return (logits + counts.clamp(min=1.0).log()).masked_fill(~(own | (counts > 0)), -torch.inf)


def joint_loss(task: Task, parts: Personal, counts: Tensor, batch: Batch, key: Key, *, hyper: bool) -> LossOutput:
    """Add the losses of the generic and the personal head, which reach other parameters."""
    z, buffers = task.model.features(parts.model, batch.x, weight=batch.weight, key=key, training=True)
    generic = task.model.head(parts.model, z)
    head = hyper_head(task, parts.head, smooth_prior(counts, 0.0)) if hyper else parts.head
    residual = generic.detach() + task.model.head(head, z.detach())
    losses = [cross_entropy(scores, batch.y, batch.weight) for scores in (balanced(generic, batch.y, counts), residual)]
    return LossOutput(losses[0] + losses[1], {f"model/{name}": value for name, value in buffers.items()})


def personal_loss(task: Task, head: Params, model: Params, batch: Batch, key: Key) -> LossOutput:
    """L_P of a personal head alone, under a frozen model."""
    z, _ = task.model.features(model, batch.x, weight=batch.weight, key=key, training=False)
    return LossOutput(cross_entropy(task.model.head(model, z) + task.model.head(head, z), batch.y, batch.weight))


@dataclass(frozen=True, kw_only=True)
class FedRoD(Algorithm[Server, State, Personal]):
    """Robust decoupling of a generic and a personal head."""

    variant: Literal["linear", "hyper"] = "linear"
    """Whether clients keep personal heads, or a shared network makes them of a client's class frequencies."""
    hyper_hidden: Annotated[int, Range(ge=1)] = 16
    """Hidden units of that network."""
    onboard_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of the personal head of a new client, with ``linear``."""

    @property
    def adaptation(self) -> str:
        """What a personal head is made of."""
        return "none" if self.variant == "linear" else "class frequencies"

    @property
    def onboarding(self) -> str:
        """Training of a personal head that the client keeps."""
        return in_words(self.onboard_epochs, "head") if self.variant == "linear" else "none"

    def messages(self, task: Task) -> Messages:
        """Declare the model, and the hyper-network if there is one."""
        model = Field(kind="model", shapes=task.shapes(*ALL))
        hyper = Field(kind="model", shapes=hyper_shapes(task, task.num_classes, self.hyper_hidden))
        return {"model": model, **({"hyper": hyper} if self.variant == "hyper" else {})}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization."""
        fields = self.messages(task)
        hyper = {"hyper": init_hyper(fields["hyper"].shapes, key.common("hyper"))} if "hyper" in fields else {}
        return {"model": task.model.init(key.common("model")), **hyper}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start from a personal head that adds nothing."""
        return {n: torch.zeros(s) for n, s in task.shapes("head").items()} if self.variant == "linear" else ()

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Train body, generic head and personal head or hyper-network at once."""
        server, (size, counts), hyper = download.shared, data.info, self.variant == "hyper"
        parts, loss = Personal(server["model"], server.get("hyper", state)), partial(joint_loss, hyper=hyper)
        trained = train(task, loss, parts, context=counts, data=data.train, key=key, training=self.training)
        model, personal = trained.params
        upload = {"model": Mean(model, size), **({"hyper": Mean(personal, size)} if hyper else {})}
        head = hyper_head(task, personal, smooth_prior(counts, 0.0)) if hyper else personal
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ClientUpdate(() if hyper else personal, upload, personal=Personal(model, head), metrics=metrics)

    def global_model(self, task: Task, server: Server) -> Personal:
        """Return the model with the generic head alone."""
        return Personal(server["model"], tree.map(torch.zeros_like, task.pick(server["model"], "head")))

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train a personal head, body and generic head frozen."""
        head, model, key = self.init_client(task, info, key), download.shared["model"], key.fold("head")
        if isinstance(head, tuple):
            return Onboarded(head, 0)
        plan, epochs = self.training, self.onboard_epochs
        own = train(task, personal_loss, head, context=model, data=data.train, key=key, training=plan, epochs=epochs)
        return Onboarded(own.params, own.steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Personal:
        """Add the client's head to the generic one."""
        server, frequencies = download.shared, smooth_prior(data.info.class_counts, 0.0)
        head = hyper_head(task, server["hyper"], frequencies) if isinstance(state, tuple) else state
        return Personal(server["model"], head)

    def predict(self, task: Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the sum of both heads' logits."""
        z = predict_features(task, personal.model, x)
        return task.model.head(personal.model, z) + task.model.head(personal.head, z)
