"""FedPAC: a shared body whose features align with class means, and heads combined for each client.

Xu, Tong, Huang 2023, "Personalized federated learning with feature alignment and classifier
collaboration", ICLR. With p_c = n_c / n_i, client i measures its class means m_c under the received
body, and what :func:`feature_statistics` computes of them,

    V_i = (1 / n_i) sum_c [p_c E_c |z|^2 - p_c^2 |m_c|^2],   H_i[c] = p_c m_c.

It trains its head h_i, then the body under that head with the loss (``losses.aligned_loss``)

    CE + lambda mean (z - mu^y)^2,   over examples and dimensions.

The server averages bodies, and class means into mu. The next head of client i is ``sum_j a_j
h_j``, where a minimizes an estimate of its error (:func:`mixing_weights`).

Messages: down ``body``, ``class_means`` (mu) with ``known`` (1 for classes that have one), and the
client's ``head``; up ``body`` (weight n_i), ``class_means`` under the trained body (weight n_i^c),
and ``head`` and ``statistics`` (V, how far features spread around their class means; H, the class
means times the classes' shares), which the server sees of every single client. Without
``combine_heads`` these two are not sent.

Deviations:
* Class means are weighted by their counts, as in the paper's code. mu^c is the client's own m_c if
  no client has sent one yet, and is kept if no client of a cohort has the class. In the first round
  nothing is aligned.
* The paper's code prints two accuracies of a round: before local training, which is
  ``personalized`` of the round before here (the new body and the combined head), and after it,
  which is ``local``. They can differ by many points: see "FedPAC's points" in
  results/comparison in the documentation.
* ``finetune_epochs`` tune the combined head at the end, with the head's own rate ``head_lr``. The
  paper's code has no such step; the comparison in FedCR's paper does.
* A new client trains the common head.
* Weights below 0.001 are dropped. A client keeps its own head if its weights cannot be found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._head_mixing import (
    FeatureStatistics,
    feature_statistics,
    mixed,
    mixing_weights,
)
from fedtailor.toolkit import gaussian, losses, tree


class ServerState(NamedTuple):
    """The body, the class means mu (classes, d), and 1 for classes that have one (classes,)."""

    body: ft.Params
    class_means: Tensor
    known: Tensor


class ClientState(NamedTuple):
    """The client's head; where heads are combined, 1 for a new client until it takes part, ()."""

    head: ft.Params
    new: Tensor | tuple[()]


@dataclass(frozen=True, kw_only=True)
class FedPAC(ft.Algorithm[ServerState, ClientState, ft.FineTuned]):
    """Feature alignment and classifier collaboration."""

    averages_models = True  # of bodies; heads and class means are combined beside them

    penalty: Annotated[
        ft.NonNegativeFloat,
        ft.AtZero("features are not aligned; with personal heads, this is FedRep."),
    ] = 1.0
    """Weight of the distance of features from the global means of their classes (lambda)."""
    head_epochs: Annotated[ft.NonNegativeInt, ft.AtZero("all heads keep their initial values.")] = 1
    """Epochs of the head on the received body, before those of the body."""
    head_lr: ft.PositiveFloat = 0.1
    """Learning rate of the head: in a round, in its tuning at the end, and for a new client."""
    combine_heads: bool = True
    """Whether a client receives a combination of all heads, or keeps its own."""
    finetune_epochs: ft.NonNegativeInt = 0
    """Epochs that tune a copy of the head on the final body; 0: predict with the head as it is."""
    onboard_epochs: ft.NonNegativeInt = 5
    """Epochs of a new client's head."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Tuning of the head."""
        return [ft.FineTuning("head", epochs=self.finetune_epochs)]

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Training of the head."""
        return [ft.FineTuning("head", epochs=self.onboard_epochs)]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the body, the class means, and what a combination of heads needs."""
        classes = task.num_classes
        means = (classes, task.model.feature_dim)
        fields = {
            "body": ft.Field(kind="model", shapes=task.shapes(*ft.BODY)),
            "class_means": ft.Field(kind="class_means", shapes=means, weight="class_counts"),
            "known": ft.Field(kind="counts", shapes=(classes,), reduction="none"),
        }

        if self.combine_heads:
            statistics = FeatureStatistics._make([(), means])
            fields["head"] = ft.Field(kind="model", shapes=task.shapes("head"), reduction="each")
            fields["statistics"] = ft.Field(
                kind="statistics", shapes=statistics, reduction="each", down=False
            )

        return fields

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common body, without class means."""
        means = torch.zeros(task.num_classes, task.model.feature_dim)
        return ServerState(task.initial(key, *ft.BODY), means, torch.zeros(task.num_classes))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start from the common head."""
        head = task.initial(key, "head")
        return ClientState(head, torch.zeros(()) if self.combine_heads else ())

    def init_per_client(
        self, task: ft.Task, info: ft.ClientInfo, key: ft.Key
    ) -> ft.Params | tuple[()]:
        """Start from the common head."""
        if self.combine_heads:
            return task.initial(key, "head")
        return ()

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Measure the features, train head and body, and measure the class means again."""
        shared = download.shared
        dtype = shared.class_means.dtype

        # m_c, V and H, under the received body
        features, before = gaussian.measure(task, shared.body, data.train, key=key.fold("before"))

        # the head on the received body, then the body under the new head
        head = ft.train_head(
            task,
            shared.body,
            self._head(download, state),
            data.train,
            key=key.fold("head"),
            epochs=self.head_epochs,
            training=self._head_training(task),
            features=features,
        )
        body = self._train_body(
            task, shared, head.params, before.means.to(dtype), data.train, key.fold("body")
        )

        # class means are uploaded under the trained body
        _, after = gaussian.measure(task, body.params, data.train, key=key.fold("after"))
        upload: dict[str, ft.Mean | ft.Each] = {
            "body": ft.Mean(body.params, data.info.num_train),
            "class_means": ft.Mean(after.means.to(dtype), data.info.class_counts),
        }
        new_state = ClientState(head.params, ())

        # the next head comes from the server, so this one need not stay
        if self.combine_heads:
            upload["head"] = ft.Each(head.params)
            upload["statistics"] = ft.Each(feature_statistics(before, dtype))
            new_state = ClientState(state.head, torch.zeros(()))

        steps = head.steps + body.steps
        metrics = {"steps": steps, "loss": body.loss, "head_loss": head.loss}
        personal = ft.FineTuned({**body.params, **head.params}, steps)
        return ft.ClientUpdate(new_state, upload, personal=personal, metrics=metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, ft.Params | tuple[()]]:
        """Average bodies and class means, and combine the heads."""
        body = received["body"].or_else(server.body)
        means = received["class_means"]
        sent = (means.total_weight > 0).to(server.known.dtype)
        known = torch.maximum(server.known, sent)
        new = ServerState(body, means.or_else(server.class_means), known)
        if not self.combine_heads:
            return new, ()

        # sum_j a_j h_j, the next head of every client of the cohort
        weights = mixing_weights(received["statistics"].value)
        return new, mixed(received["head"].value, weights)

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train the common head on the received body."""
        start = self.init_client(task, info, key)
        head = ft.train_head(
            task,
            download.shared.body,
            start.head,
            data.train,
            key=key.fold("head"),
            epochs=self.onboard_epochs,
            training=self._head_training(task),
        )
        new = torch.ones(()) if self.combine_heads else ()
        return ft.Onboarded(ClientState(head.params, new), head.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Join the received body with the client's head, and tune a copy of it if asked to."""
        model = {**download.shared.body, **self._head(download, state)}
        return ft.fine_tune(
            task,
            model,
            data.train,
            key=key,
            epochs=self.finetune_epochs,
            layers="head",
            training=self._head_training(task),
        )

    def _train_body(
        self,
        task: ft.Task,
        shared: ServerState,
        head: ft.Params,
        class_means: Tensor,
        data: ft.ExampleSet,
        key: ft.Key,
    ) -> ft.Trained:
        """Train the body under a head, with features that align with the means of their classes."""
        # mu^y is the client's own m_c where there is no global mean yet: (classes, d)
        has_mean = shared.known[:, None] > 0
        targets = torch.where(has_mean, shared.class_means, class_means)

        penalty = self.penalty * shared.known.amax()  # 0 in the first round
        return ft.train(
            task,
            losses.aligned_loss,
            shared.body,
            context=(head, targets, penalty),
            data=data,
            key=key,
        )

    def _head_training(self, task: ft.Task) -> ft.Training:
        """Return the training of the task with the head's own learning rate."""
        return replace(task.training, lr=self.head_lr)

    def _head(self, download: ft.Download[ServerState], state: ClientState) -> ft.Params:
        """Return the combined head, or the client's own if it is new or heads are not combined."""
        if isinstance(state.new, tuple):
            return state.head
        head: ft.Params = tree.where(state.new > 0, state.head, download.per_client)
        return head
