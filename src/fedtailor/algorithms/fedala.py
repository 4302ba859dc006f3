"""FedALA: before training, a client mixes the received model into its old one, by learned weights.

Zhang, Hua, Wang, Song, Xue, Ma and Guan 2023, "FedALA: Adaptive local aggregation for personalized
federated learning", AAAI, Algorithm 1. Let g be the received model and l the client's old model.
Local training starts from

    theta = l + (g - l) * W   in the last p layers (``layers``; * is elementwise)
    theta = g                 below them

where W (``weights``, one per parameter) starts at 1 and steps down the client's loss,

    W <- clip(W - eta dL/dtheta * (g - l), 0, 1),

on a new sample of the training examples each time (s): to convergence when a client first has an
old model, later for one epoch.

Messages: down ``model`` (g); up ``model`` (the trained model, weight n_i). The client keeps that
model, and W.

Deviations (P: paper, C: released code):
* "To convergence" is ``first_epochs`` epochs. C stops when the standard deviation of the last ten
  losses is below 0.1, which may never happen.
* The sample is drawn without replacement and its size is rounded down, so a single example gives an
  empty sample. C takes successive examples.
* Layers are counted by parameter names up to the last dot. C counts tensors, usually two to a
  layer.
* A personal model mixes the current g and l by the current W. P and C also evaluate the start of
  local training, but after one more epoch for W. A client without l has g. A new client trains g
  for a round, which gives its l, then learns W.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import tree


class ClientState(NamedTuple):
    """The client's old model, W of the mixed parameters, and the rounds in which it trained, ()."""

    model: ft.Params
    weights: ft.Params
    rounds: Tensor


class Ends(NamedTuple):
    """The two models that are mixed."""

    received: ft.Params
    old: ft.Params


def mixed(weights: ft.Params, ends: Ends) -> ft.Params:
    """Return theta: parameters that have weights lie between both ends, others are received."""
    between = {
        name: torch.lerp(ends.old[name], ends.received[name], weight)
        for name, weight in weights.items()
    }
    return {**ends.received, **between}


def weight_step(
    task: ft.Task, weights: ft.Params, ends: Ends, batch: ft.Batch, key: ft.Key, *, lr: float
) -> ft.StepOutput:
    """Step down the loss of the mixed model, then clip to [0, 1]."""

    def loss(values: ft.Params) -> Tensor:
        return ft.classification_loss(task, mixed(values, ends), {}, batch, key).loss

    slopes = torch.func.grad(loss)(weights)
    moved = {name: (weight - lr * slopes[name]).clamp(0.0, 1.0) for name, weight in weights.items()}
    return ft.StepOutput(moved)


def layer_of(name: str) -> str:
    """Return the layer of a parameter: its name up to the last dot."""
    return name.rpartition(".")[0]


def layer_names(task: ft.Task) -> list[str]:
    """Return the names of the model's layers, from the bottom up."""
    return list(dict.fromkeys(layer_of(name) for name in task.names(*ft.TRAINED)))


@dataclass(frozen=True, kw_only=True)
class FedALA(ft.Algorithm[ft.ModelState, ClientState, ft.Params]):
    """Adaptive local aggregation of the received and the old local model."""

    layers: ft.PositiveInt = 1
    """Last layers that are mixed (p); the received model replaces those below."""
    weight_lr: Annotated[
        ft.NonNegativeFloat, ft.AtZero("the received model stays: this is FedAvg.")
    ] = 1.0
    """Learning rate of the weights (eta)."""
    sample_share: Annotated[ft.Share, ft.AtZero("the received model stays: this is FedAvg.")] = 0.8
    """Share of the training examples that the weights are learned on (s)."""
    first_epochs: ft.NonNegativeInt = 10
    """Epochs on the weights when a client first has an old model; later it is one epoch."""

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Training of a first old model, then of the weights."""
        return [ft.RoundOfTraining(), ft.FineTuning("mixing_weights", epochs=self.first_epochs)]

    def warnings(self, task: ft.Task) -> list[str]:
        """Warn where the model has fewer layers, too."""
        sentences = super().warnings(task)
        if self.layers > len(layer_names(task)):
            sentences.append(f"the model has fewer than {self.layers} layers: all are mixed.")
        return sentences

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start without an old model, and with weights of 1."""
        model = task.initial(key)
        mixed_layers = layer_names(task)[-self.layers :]
        names = [name for name in task.names(*ft.TRAINED) if layer_of(name) in mixed_layers]
        weights = {name: torch.ones_like(model[name]) for name in names}
        return ClientState(model, weights, torch.zeros((), dtype=torch.int64))

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Learn the weights, mix, and train the result."""
        # W: for long in the second round, when there first is an old model; later for an epoch.
        ends = self._ends(download, state)
        epochs = torch.where(state.rounds == 1, self.first_epochs, (state.rounds > 1).long())
        weights = self._learn(task, state.weights, ends, data, key, epochs)

        start = mixed(weights.params, ends)
        trained = ft.train(task, ft.classification_loss, start, data=data.train, key=key)
        # the trained model is the old one of the next round, if there were examples
        rounds = state.rounds + (trained.steps > 0).long()
        new_state = ClientState(trained.params, weights.params, rounds)

        upload = {"model": ft.Mean(trained.params, data.info.num_train)}
        metrics = {"steps": trained.steps + weights.steps, "loss": trained.loss}
        return ft.ClientUpdate(new_state, upload, personal=trained.params, metrics=metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> ft.Params:
        """Return the global model."""
        return server.model

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train the received model for a round, then learn the weights to convergence."""
        # the first round gives an old model, the second would learn W
        update = self.local_update(task, download, self.init_client(task, info, key), data, key)
        first: ClientState = update.state

        ends = self._ends(download, first)
        epochs = torch.where(first.rounds > 0, self.first_epochs, 0)
        weights = self._learn(task, first.weights, ends, data, key, epochs)
        steps = update.metrics["steps"] + weights.steps
        return ft.Onboarded(first._replace(weights=weights.params), steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Params:
        """Mix the received and the old model by the current weights."""
        return mixed(state.weights, self._ends(download, state))

    def _ends(self, download: ft.Download[ft.ModelState], state: ClientState) -> Ends:
        """Return the models to mix; without an old model, both are the received one."""
        received = download.shared.model
        return Ends(received, tree.where(state.rounds > 0, state.model, received))

    def _learn(
        self,
        task: ft.Task,
        weights: ft.Params,
        ends: Ends,
        data: ft.ClientData,
        key: ft.Key,
        epochs: Tensor,
    ) -> ft.Trained:
        """Learn the weights on a sample of the training examples."""
        key = key.fold("weights")
        sample = data.train.sample(self.sample_share, key.fold("sample"))
        step = partial(weight_step, lr=self.weight_lr)
        return ft.train(
            task, None, weights, step=step, context=ends, data=sample, key=key, epochs=epochs
        )
