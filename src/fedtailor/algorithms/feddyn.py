"""FedDyn: a global model, by clients' objectives whose optima agree with that of all.

Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama 2021, "Federated learning based on
dynamic regularization", ICLR, Algorithm 1. Client i keeps g_i, an estimate of its gradient; the
server h, an estimate of the population's mean gradient. Both start at 0. A round, over a cohort P
of the m clients:

    client:   w_i ~ argmin CE(w) - <g_i, w> + (alpha / 2) |w - w^t|^2      (``dynamic_loss``)
              g_i <- g_i - alpha (w_i - w^t)
    server:   h <- h - (alpha / m) sum_P (w_i - w^t)
              w^(t+1) = mean_P w_i - h / alpha

So h is the mean of all g_i at any time; where clients stand still, h = 0 and the model is
stationary for the mean loss.

Messages: down ``model`` (w^t); up ``model`` (w_i, weight 1): the bytes of FedAvg. The client keeps
g_i, the server h. A new client predicts with the global model.

Deviations: the argmin is approximated by the steps of ``[training]``, from w^t, as in the released
code. That code divides alpha by the client's share of the examples (times m), so that it minimizes
the mean over examples; here, as in the paper, all clients count the same. It reports the average of
the last models of all clients; here ``global`` is w. It also decays weights by 0.001. Buffers of
batch normalization are plain averages. The recorded loss is the objective, up to a constant by
which it starts at the cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses


class ServerState(NamedTuple):
    """The global model w, and h, the mean of the clients' gradients of its trained parameters."""

    model: ft.Params
    gradient: ft.Params


class ClientState(NamedTuple):
    """The client's gradient g_i."""

    gradient: ft.Params


class Regularizer(NamedTuple):
    """The tensors of a client's regularizer: trained parameters of the received w^t, and g_i."""

    received: ft.Params
    gradient: ft.Params


def dynamic_loss(
    task: ft.Task,
    params: ft.Params,
    term: Regularizer,
    batch: ft.Batch,
    key: ft.Key,
    *,
    alpha: float,
) -> ft.LossOutput:
    """Cross-entropy - <g_i, w - w^t> + (alpha / 2) |w - w^t|^2."""
    output = ft.classification_loss(task, params, {}, batch, key)
    at_start = losses.inner_product(term.received, term.gradient)
    linear = losses.inner_product(params, term.gradient) - at_start
    distance = losses.squared_distance(params, term.received)
    return output._replace(loss=output.loss - linear + 0.5 * alpha * distance)


@dataclass(frozen=True, kw_only=True)
class FedDyn(ft.OneGlobalModel, ft.Algorithm[ServerState, ClientState, ft.Params]):
    """Federated learning with dynamic regularization."""

    bounds_examples = True
    requires_upload = True

    alpha: ft.PositiveFloat = 0.01
    """Weight of the squared distance from the received model, halved."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the model."""
        return {"model": ft.Field(kind="model", shapes=task.shapes(*ft.ALL), weight="equal")}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common initialization, with h = 0."""
        return ServerState(task.initial(key), task.zeros(*ft.TRAINED))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start with g_i = 0."""
        return ClientState(task.zeros(*ft.TRAINED))

    def admit(
        self, task: ft.Task, server: ServerState, before: int, population: int, key: ft.Key
    ) -> ServerState:
        """Make h the mean over all clients again: those who join have g_i = 0."""
        share = before / population
        return server._replace(gradient={name: h * share for name, h in server.gradient.items()})

    def broadcast(self, server: ServerState, cohort: ft.Cohort) -> ft.ModelState:
        """Send the model alone."""
        return ft.ModelState(server.model)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model on the regularized objective, and update g_i."""
        received = download.shared.model
        term = Regularizer(task.pick(received, *ft.TRAINED), state.gradient)
        loss = partial(dynamic_loss, alpha=self.alpha)
        trained = ft.train(task, loss, received, context=term, data=data.train, key=key)

        # g_i <- g_i - alpha (w_i - w^t)
        gradient = {
            name: g - self.alpha * (trained.params[name] - received[name])
            for name, g in state.gradient.items()
        }
        new_state = ClientState(gradient)

        upload = {"model": ft.Mean(trained.params, torch.ones(()))}
        return ft.ClientUpdate(new_state, upload, personal=trained.params, metrics=trained.metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Update h, and correct the mean model by it."""
        mean, count = received["model"]

        # h <- h - (alpha / m) sum_P (w_i - w^t), the sum as the mean times the size of the cohort
        rate = self.alpha * count / cohort.population
        gradient = {
            name: h - rate * (mean[name] - server.model[name])
            for name, h in server.gradient.items()
        }

        # w^(t+1) = mean_P w_i - h / alpha; buffers have no h
        corrected = {name: mean[name] - h / self.alpha for name, h in gradient.items()}
        return ServerState({**mean, **corrected}, gradient), ()
