"""FedPAC: a shared body whose features align with global class means, and heads combined anew for every client.

Xu, Tong, Huang 2023, "Personalized federated learning with feature alignment and classifier collaboration", ICLR. Under
the received body client i measures its class means m_c, ``V_i = (1 / n_i) sum_c [p_c E_c |z|^2 - p_c^2 |m_c|^2]`` and
``H_i[c] = p_c m_c``, where p_c = n_c / n_i. It trains its head h_i, then the body under that head with the loss
``CE + lambda mean (z - mu^y)^2`` over examples and dimensions. The server averages bodies, and class means into mu; the
next head of client i is ``sum_j a_j h_j``, where a minimizes an estimate of its error (:func:`mixing_weights`).

Messages: down ``body``, ``class_means`` (mu) with ``known`` (1 for classes that have one), the client's ``head``; up
``body`` (weight n_i), ``class_means`` under the trained body (weight n_i^c), and ``head`` and ``statistics`` (V, H),
which the server sees of every single client. Without ``combine_heads`` these two are not sent.

Deviations:
* Class means weigh their counts (paper's code: no; FedCR's: running halves). The head has its own rate and epochs.
* mu^c is the client's own m_c where nobody has sent one; in the first round nothing is aligned.
* A personal model has new body and combined head; the code's is ``local`` here. A new client trains the common head.
* Weights below 0.001 are dropped. A client whose weights cannot be found keeps its own head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch

from fedtailor.algorithms._head_mixing import feature_statistics, measured, mixed, mixing_weights
from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Each, Field, Mean, Messages, Reduced
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import BODY, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import aligned_loss
from fedtailor.training.tuning import FineTuned, in_words, train_head, tune

Server = dict[str, tree.Tree]  # body, class_means (classes, d), and known: 1 for classes that have one (classes,)


class State(NamedTuple):
    """Client state: its own head; where heads are combined, that of a ``new`` client, 1 until it takes part, ()."""

    head: Params
    new: torch.Tensor | tuple[()]


@dataclass(frozen=True, kw_only=True)
class FedPAC(Algorithm[Server, State, FineTuned]):
    """Feature alignment and classifier collaboration."""

    penalty: Annotated[float, Range(ge=0)] = 1.0
    """Weight of the distance of features from the global means of their classes (lambda)."""
    head_epochs: Annotated[int, Range(ge=0)] = 1
    """Epochs of the head on the received body, before those of the body."""
    head_lr: Annotated[float, Range(gt=0)] = 0.1
    """Learning rate of the head."""
    combine_heads: bool = True
    """Whether a client receives a combination of all heads, or keeps its own."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 0
    """Epochs that tune a copy of the head on the final body; 0: predict with the head as it is."""
    onboard_epochs: Annotated[int, Range(ge=0)] = 5
    """Epochs of a new client's head."""

    @property
    def adaptation(self) -> str:
        """Tuning of the head, if any."""
        return in_words(self.finetune_epochs, "head")

    @property
    def onboarding(self) -> str:
        """Training of the head."""
        return in_words(self.onboard_epochs, "head")

    def warnings(self, task: Task) -> list[str]:
        """Without alignment, or without epochs of the head, this is a simpler method."""
        simpler = "features are not aligned" if self.combine_heads else "and own heads, this is FedRep"
        found = [] if self.penalty else [f"with penalty 0, {simpler}."]
        return found if self.head_epochs else [*found, "without epochs of the head, all heads stay as they start."]

    def messages(self, task: Task) -> Messages:
        """Declare body, class means, and what a combination of heads takes."""
        means = (task.num_classes, task.model.feature_dim)
        fields = {"body": Field(kind="model", shapes=task.shapes(*BODY))}
        fields["class_means"] = Field(kind="class_means", shapes=means, weight="class_counts")
        fields["known"] = Field(kind="counts", shapes=means[:1], reduction="none")
        if self.combine_heads:
            fields["head"] = Field(kind="model", shapes=task.shapes("head"), reduction="each")
            shapes = {"variance": (), "prior_means": means}
            fields["statistics"] = Field(kind="statistics", shapes=shapes, reduction="each", down=False)
        return fields

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common body, without class means."""
        body, means = task.pick(task.model.init(key.common("model")), *BODY), self.messages(task)["class_means"].shapes
        return {"body": body, "class_means": torch.zeros(means), "known": torch.zeros(means[:1])}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start from the common head."""
        head = task.pick(task.model.init(key.common("model")), "head")
        return State(head, torch.zeros(()) if self.combine_heads else ())

    def init_per_client(self, task: Task, info: ClientInfo, key: Key) -> tree.Tree:
        """Start from the common head."""
        return self.init_client(task, info, key).head if self.combine_heads else ()

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Measure the features, train the head, then the body, and measure the class means again."""
        body, known, means = (download.shared[name] for name in ("body", "known", "class_means"))
        features, before = measured(task, body, data.train, key=key.fold("before"))
        head, how, rate = self._head(download, state), self.training, replace(self.training, lr=self.head_lr)
        part, epochs = key.fold("head"), self.head_epochs
        tuned = train_head(task, body, head, data.train, key=part, training=rate, epochs=epochs, features=features)
        targets = torch.where(known[:, None] > 0, means, before.means.to(means.dtype))
        context = tuned.params, targets, self.penalty * known.amax()
        trained = train(task, aligned_loss, body, context=context, data=data.train, key=key.fold("body"), training=how)
        after = measured(task, trained.params, data.train, key=key.fold("after"))[1].means.to(means.dtype)
        upload: dict[str, Mean | Each] = {"body": Mean(trained.params, data.info.num_train)}
        upload["class_means"] = Mean(after, data.info.class_counts)
        if self.combine_heads:
            upload |= {"head": Each(tuned.params), "statistics": Each(feature_statistics(before, means.dtype))}
        metrics = {"steps": tuned.steps + trained.steps, "loss": trained.loss, "head_loss": tuned.loss}
        state = State(state.head, torch.zeros(())) if self.combine_heads else State(tuned.params, ())
        return ClientUpdate(state, upload, FineTuned({**trained.params, **tuned.params}, metrics["steps"]), metrics)

    def aggregate(self, server: Server, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[Server, tree.Tree]:
        """Average bodies and class means, and combine the heads."""
        means, known, combine = received["class_means"], server["known"], self.combine_heads
        new = {name: received[name].or_else(server[name]) for name in ("body", "class_means")}
        new["known"] = torch.maximum(known, (means.total_weight > 0).to(known.dtype))
        return new, mixed(received["head"].value, mixing_weights(received["statistics"].value)) if combine else ()

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train the common head on the received body."""
        head, body = self.init_client(task, info, key).head, download.shared["body"]
        rate, epochs = replace(self.training, lr=self.head_lr), self.onboard_epochs
        tuned = train_head(task, body, head, data.train, key=key.fold("head"), training=rate, epochs=epochs)
        return Onboarded(State(tuned.params, torch.ones(()) if self.combine_heads else ()), tuned.steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> FineTuned:
        """Join the received body with the combined head, or the client's own, and tune a copy of it if asked to."""
        full = {**download.shared["body"], **self._head(download, state)}
        return tune(task, full, data.train, key=key, training=self.training, epochs=self.finetune_epochs, layers="head")

    def _head(self, download: Download, state: State) -> Params:
        own, new = state
        return own if isinstance(new, tuple) else tree.where(new > 0, own, download.per_client)
