"""FedRoD: one body, a generic head for all classes alike, and a personal head that is added to it.

Chen and Chao 2022, "On bridging generic and personalized federated learning for image
classification", ICLR, Algorithm 1. With z the features, h_G the generic and h_P the personal head,
counts n_c and frequencies pi of a client,

    L_G = CE(h_G(z) + log n_c, y)              (``balanced``) trains the body and h_G
    L_P = CE(sg(h_G(z)) + h_P(sg(z)), y)       trains h_P alone; sg stops gradients

L_G is the balanced softmax of Ren et al. 2020, L_P the plain risk (``joint_loss`` has both). With
the variant ``linear`` every client keeps a linear h_P. With ``hyper`` a network that all clients
share makes it, h_P = H_nu(pi): pi -> ``hyper_hidden`` units, ReLU -> the parameters of a head. The
personal model is h_G + h_P, the global one h_G.

Messages: down and up ``model`` (body and h_G; weight n_i), with ``hyper`` also ``hyper`` (nu;
weight n_i). With ``linear`` the client keeps h_P, with ``hyper`` nothing.

Deviations:
* Both losses are computed in every batch. They reach different parameters, so a joint step is two
  exact ones, unless ``training.clip_norm`` bounds both gradients together. Popular code lets L_P
  train the body, or predicts with h_P alone.
* In L_G a class that the client does not have counts only for examples of that class, as 1. Code
  that counts one epoch without its last batch has an infinite loss there.
* h_P starts at 0 with ``linear``, near 0 with ``hyper`` (paper: unspecified), so a client that
  never trained predicts with h_G. A client without examples has no frequencies: H_nu gets equal
  ones.
* A new client trains h_P alone, or with ``hyper`` nothing. The generic part is trained as in FedAvg
  (paper: or FedDyn).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._hypernetwork import hyper_head, hyper_shapes, init_hyper
from fedtailor.toolkit import gaussian, tree


class ServerState(NamedTuple):
    """The model with the generic head, and the hyper-network nu; empty with ``linear``."""

    model: ft.Params
    hyper: ft.Params


class Parts(NamedTuple):
    """What a client trains: the model, and its personal head or the hyper-network (else {})."""

    model: ft.Params
    head: ft.Params
    hyper: ft.Params


class Personal(NamedTuple):
    """A model with the generic head, and the personal head."""

    model: ft.Params
    head: ft.Params


def balanced(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return logits (n, classes) plus log counts; -inf for absent classes but an example's own."""
    # a class that the client lacks counts for its own examples alone
    own = labels[:, None] == torch.arange(len(counts))
    return (logits + counts.clamp(min=1.0).log()).masked_fill(~(own | (counts > 0)), -torch.inf)


def personal_head(task: ft.Task, head: ft.Params, hyper: ft.Params, counts: Tensor) -> ft.Params:
    """Return h_P: the client's own, or H_nu of its class frequencies."""
    if not hyper:
        return head
    return hyper_head(task, hyper, gaussian.smooth_prior(counts, 0.0))


def joint_loss(
    task: ft.Task, parts: Parts, counts: Tensor, batch: ft.Batch, key: ft.Key
) -> ft.LossOutput:
    """Add the losses of the generic and the personal head, which reach different parameters."""
    z, buffers = task.features(parts.model, batch, key)

    # L_G
    generic = task.model.head(parts.model, z)
    generic_loss = ft.cross_entropy(balanced(generic, batch.y, counts), batch.y, batch.weight)

    # L_P
    head = personal_head(task, parts.head, parts.hyper, counts)
    both = generic.detach() + task.model.head(head, z.detach())
    personal_loss = ft.cross_entropy_of(batch, both)

    by_path = {f"model/{name}": value for name, value in buffers.items()}
    return ft.LossOutput(generic_loss + personal_loss, by_path)


def personal_head_loss(
    task: ft.Task, head: ft.Params, model: ft.Params, batch: ft.Batch, key: ft.Key
) -> ft.LossOutput:
    """L_P of a personal head alone, under a frozen model in evaluation mode."""
    z, _ = task.features(model, batch, key, training=False)
    both = task.model.head(model, z) + task.model.head(head, z)
    return ft.LossOutput(ft.cross_entropy_of(batch, both))


@dataclass(frozen=True, kw_only=True)
class FedRoD(ft.Algorithm[ServerState, ft.Params, Personal]):
    """Robust decoupling of a generic and a personal head."""

    variant: Literal["linear", "hyper"] = "linear"
    """Whether clients keep personal heads, or a shared network makes them of a client's class
    frequencies."""
    hyper_hidden: ft.PositiveInt = 16
    """Hidden units of that network."""
    onboard_epochs: ft.NonNegativeInt = 5
    """Epochs of the personal head of a new client, with ``linear``."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """With ``hyper``, the frequencies that a personal head is made of."""
        if self.variant == "linear":
            return []
        return [ft.CLASS_FREQUENCIES]

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """With ``linear``, training of a personal head."""
        if self.variant == "linear":
            return [ft.FineTuning("head", epochs=self.onboard_epochs)]
        return []

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the model, and the hyper-network if there is one."""
        fields = {"model": ft.Field(kind="model", shapes=task.shapes(*ft.ALL))}
        if self.variant == "hyper":
            fields["hyper"] = ft.Field(kind="model", shapes=self._hyper_shapes(task))
        return fields

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common initialization."""
        hyper = {}
        if self.variant == "hyper":
            hyper = init_hyper(self._hyper_shapes(task), key.common("hyper"))
        return ServerState(task.initial(key), hyper)

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Start from a personal head that adds nothing; with ``hyper`` keep nothing."""
        if self.variant == "hyper":
            return {}
        return task.zeros("head")

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train body, generic head, and personal head or hyper-network at once."""
        counts = data.info.class_counts
        start = Parts(download.shared.model, state, download.shared.hyper)
        trained = ft.train(task, joint_loss, start, context=counts, data=data.train, key=key)
        parts: Parts = trained.params
        upload = {"model": ft.Mean(parts.model, data.info.num_train)}
        if self.variant == "hyper":
            upload["hyper"] = ft.Mean(parts.hyper, data.info.num_train)

        personal = Personal(parts.model, personal_head(task, parts.head, parts.hyper, counts))
        return ft.ClientUpdate(parts.head, upload, personal=personal, metrics=trained.metrics)

    def global_model(self, task: ft.Task, server: ServerState) -> Personal:
        """Return the model with the generic head alone."""
        return Personal(server.model, tree.map(torch.zeros_like, task.pick(server.model, "head")))

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train a personal head, with body and generic head frozen."""
        head = self.init_client(task, info, key)
        if self.variant == "hyper":
            return ft.Onboarded(head, 0)

        trained = ft.train(
            task,
            personal_head_loss,
            head,
            context=download.shared.model,
            data=data.train,
            key=key.fold("head"),
            epochs=self.onboard_epochs,
        )
        return ft.Onboarded(trained.params, trained.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Add the personal head to the generic one."""
        shared = download.shared
        head = personal_head(task, state, shared.hyper, data.info.class_counts)
        return Personal(shared.model, head)

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the sum of both heads' logits."""
        z = self.features(task, personal, x)
        return task.model.head(personal.model, z) + task.model.head(personal.head, z)

    def _hyper_shapes(self, task: ft.Task) -> dict[str, tuple[int, ...]]:
        return hyper_shapes(task, task.num_classes, self.hyper_hidden)
