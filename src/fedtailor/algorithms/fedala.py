"""FedALA: before training, a client mixes the received model into its old one, number by number.

Zhang, Hua, Wang, Song, Xue, Ma and Guan 2023, "FedALA: Adaptive local aggregation for personalized federated
learning", AAAI, Algorithm 1. With the received model g and the client's old one l, local training starts from

    theta = l + (g - l) * W   in the last ``layers`` layers (p; * is elementwise),   theta = g   below them,

where W starts at 1 and steps down the client's loss, W <- clip(W - eta * dL/dtheta * (g - l), 0, 1), on a new sample
of the training examples each time (s): to convergence when a client first has an old model, later for one epoch.

Messages: down ``model`` (g); up ``model`` (the trained model, weight n_i). The client keeps that model, and W.

Deviations (P: paper, C: released code):
* "To convergence" is ``first_epochs`` epochs; C stops once ten successive losses deviate by less than 0.1, or never.
* The sample is drawn without replacement and rounded down, so that a single example is none. C takes successive ones.
* Layers are counted by parameter names up to the last dot; C counts tensors, usually two to a layer.
* A personal model mixes the current g and l by the current W (P and C evaluate where local training starts, too, but
  after one more epoch for W); without l it is g. A new client trains g for a round, which is its l, then learns W.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.federation import ClientData, ClientInfo
from fedtailor.core.message import Mean
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import TRAINED, Batch, Params, Task
from fedtailor.training.blocks import Trained, train
from fedtailor.training.losses import classification_loss
from fedtailor.training.phase import StepOutput
from fedtailor.training.tuning import in_words

Server = dict[str, Params]


class State(NamedTuple):
    """Client state: its old model, W of the mixed parameters, and the rounds in which it trained, ()."""

    model: Params
    weights: Params
    rounds: Tensor


class Ends(NamedTuple):
    """What is mixed."""

    received: Params
    old: Params


def mixed(weights: Params, ends: Ends) -> Params:
    """Return the received model, in which the parameters that have weights lie between both ends."""
    between = {name: torch.lerp(ends.old[name], ends.received[name], weight) for name, weight in weights.items()}
    return {**ends.received, **between}


def weight_step(task: Task, weights: Params, ends: Ends, batch: Batch, key: Key, *, lr: float) -> StepOutput:
    """Step down the loss of the mixed model, then clip to [0, 1]."""

    def loss(values: Params) -> Tensor:
        return classification_loss(task, mixed(values, ends), (), batch, key).loss

    slopes = torch.func.grad(loss)(weights)
    return StepOutput({name: (w - lr * slopes[name]).clamp(0.0, 1.0) for name, w in weights.items()})


@dataclass(frozen=True, kw_only=True)
class FedALA(Algorithm[Server, State, Params]):
    """Adaptive local aggregation of the received and the old local model."""

    layers: Annotated[int, Range(ge=1)] = 1
    """Last layers that are mixed (p); the received model replaces those below."""
    weight_lr: Annotated[float, Range(ge=0)] = 1.0
    """Learning rate of the weights (eta)."""
    sample_share: Annotated[float, Range(ge=0, le=1)] = 0.8
    """Share of the training examples that the weights are learned on (s)."""
    first_epochs: Annotated[int, Range(ge=0)] = 10
    """Epochs on the weights when a client first has an old model; later it is one epoch."""

    @property
    def onboarding(self) -> str:
        """Training of a first old model, and of the weights."""
        return f"a round's training of all layers, then {in_words(self.first_epochs, 'mixing weights')}"

    def warnings(self, task: Task) -> list[str]:
        """Weights that are not learned stay 1, and the model may have fewer layers."""
        idle = [name for name in ("weight_lr", "sample_share") if not getattr(self, name)]
        notes = [f"with {name} 0, the received model replaces the old one: this is FedAvg." for name in idle]
        few = [f"the model has fewer than {self.layers} layers: all are mixed."]
        return notes + few * (self.layers > len(self._layers(task)))

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> State:
        """Start without an old model, and with weights of 1."""
        model = task.model.init(key.common("model"))
        names = [name for name in task.names(*TRAINED) if name.rpartition(".")[0] in self._layers(task)[-self.layers :]]
        return State(model, {name: torch.ones_like(model[name]) for name in names}, torch.zeros((), dtype=torch.int64))

    def local_update(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> ClientUpdate:
        """Learn the weights, mix, and train the result."""
        ends = self._ends(download, state)
        epochs = torch.where(state.rounds == 1, self.first_epochs, (state.rounds > 1).long())
        weights = self._learn(task, state.weights, ends, data, key, epochs)
        start = mixed(weights.params, ends)
        trained = train(task, classification_loss, start, data=data.train, key=key, training=self.training)
        upload = {"model": Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps + weights.steps, "loss": trained.loss}
        new = State(trained.params, weights.params, state.rounds + (trained.steps > 0).long())
        return ClientUpdate(new, upload, personal=trained.params, metrics=metrics)

    def global_model(self, task: Task, server: Server) -> Params:
        """Return the global model."""
        return server["model"]

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train the received model for a round, then learn the weights to convergence."""
        update = self.local_update(task, download, self.init_client(task, info, key), data, key)
        first: State = update.state
        ends, epochs = self._ends(download, first), torch.where(first.rounds > 0, self.first_epochs, 0)
        weights = self._learn(task, first.weights, ends, data, key, epochs)
        return Onboarded(first._replace(weights=weights.params), update.metrics["steps"] + weights.steps)

    def personalize(self, task: Task, download: Download, state: State, data: ClientData, key: Key) -> Params:
        """Mix the received and the old model by the current weights."""
        return mixed(state.weights, self._ends(download, state))

    def _layers(self, task: Task) -> list[str]:
        """Return the names of the model's layers, from below."""
        return list(dict.fromkeys(name.rpartition(".")[0] for name in task.names(*TRAINED)))

    def _ends(self, download: Download, state: State) -> Ends:
        """Return what is mixed; a client without an old model has the received one at both ends."""
        received: Params = download.shared["model"]
        return Ends(received, tree.where(state.rounds > 0, state.model, received))

    def _learn(self, task: Task, weights: Params, ends: Ends, data: ClientData, key: Key, epochs: Tensor) -> Trained:
        """Learn the weights on a sample of the training examples."""
        key = key.fold("weights")
        sample = data.train.sample(self.sample_share, key.fold("sample"))
        step = partial(weight_step, lr=self.weight_lr)
        return train(
            task, None, weights, step=step, context=ends, data=sample, key=key, training=self.training, epochs=epochs
        )
