"""SCAFFOLD: a global model; control variates correct local steps for the drift of clients.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh 2020, "SCAFFOLD: Stochastic controlled averaging
for federated learning", ICML, Algorithm 1 with option II. The server keeps the model x and a
control c, client i a control c_i; controls start at 0 and estimate mean gradients. A round, over
the cohort S of N clients, with K steps at client i:

    client:   y <- y - eta (g_i(y) + c - c_i), K times from y = x      (eq. 3, ``corrected_loss``)
              c_i+ = c_i - c + (x - y) / (K eta)                       (eq. 4, option II)
    server:   x <- x + eta_g mean_S (y - x)                            (eq. 5)
              c <- c + (1 / N) sum_S (c_i+ - c_i)

Messages: down ``model`` (x) and ``control`` (c); up ``delta`` (y - x, weight 1) and ``control``
(c_i+ - c_i, summed): twice the bytes of FedAvg. The client keeps c_i. A new client predicts with
the global model.

Deviations: none in the equations. The correction enters as the linear term <c - c_i, y> of the
loss. Option II reads the mean gradient from the distance, which holds for plain SGD alone:
momentum, weight decay, clipping and Adam are not used, whatever ``[training]`` says (momentum m
would make c_i too large by about 1 / (1 - m)). K counts steps, batches times epochs; some
implementations take one batch per epoch, for this method only. Buffers of batch normalization have
no controls: they are averaged, and ``global_lr`` does not scale them. The recorded loss is the
cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import losses, tree


class ServerState(NamedTuple):
    """The global model x, and the control c of its trained parameters."""

    model: ft.Params
    control: ft.Params


class ClientState(NamedTuple):
    """The client's control c_i."""

    control: ft.Params


def corrected_loss(
    task: ft.Task, params: ft.Params, correction: ft.Params, batch: ft.Batch, key: ft.Key
) -> ft.LossOutput:
    """Cross-entropy, with the correction added to its gradient and nothing to its value."""
    output = ft.classification_loss(task, params, {}, batch, key)
    linear = losses.inner_product(params, correction)
    return output._replace(loss=output.loss + (linear - linear.detach()))


@dataclass(frozen=True, kw_only=True)
class Scaffold(ft.OneGlobalModel, ft.Algorithm[ServerState, ClientState, ft.Params]):
    """Federated averaging with control variates."""

    bounds_examples = True
    requires_upload = True
    unused_training = ("optimizer", "momentum", "weight_decay", "clip_norm")

    global_lr: ft.PositiveFloat = 1.0
    """Step of the server along the mean change of the clients' models (eta_g)."""

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare model, its change, and controls."""
        model = task.shapes(*ft.ALL)
        return {
            "model": ft.Field(kind="model", shapes=model, reduction="none"),
            "delta": ft.Field(kind="model", shapes=model, weight="equal", down=False),
            # Divided by the steps and the learning rate.
            "control": ft.Field(
                kind="statistics",
                shapes=task.shapes(*ft.TRAINED),
                reduction="sum",
                bound=2.0**14,
            ),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the common initialization, with no correction."""
        return ServerState(task.initial(key), task.zeros(*ft.TRAINED))

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ClientState:
        """Start with a control of 0."""
        return ClientState(task.zeros(*ft.TRAINED))

    def admit(
        self, task: ft.Task, server: ServerState, before: int, population: int, key: ft.Key
    ) -> ServerState:
        """Make the control the mean over all clients again: those who join have a control of 0."""
        share = before / population
        return server._replace(control={name: c * share for name, c in server.control.items()})

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ClientState,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Take corrected steps, and measure the mean gradient by how far they led."""
        shared = download.shared

        # eq. 3: K steps, each corrected by c - c_i
        plain = task.training.plain()
        correction = tree.map(torch.sub, shared.control, state.control)
        trained = ft.train(
            task,
            corrected_loss,
            shared.model,
            context=correction,
            data=data.train,
            key=key,
            training=plain,
        )
        delta = tree.map(torch.sub, trained.params, shared.model)

        # eq. 4: the mean gradient is the distance over K eta; without steps c_i stays
        length = trained.steps * plain.lr

        def option_two(c_i: Tensor, c: Tensor, moved: Tensor) -> Tensor:
            return torch.where(length > 0, c_i - c - moved / length, c_i)

        control = tree.map(option_two, state.control, shared.control, task.pick(delta, *ft.TRAINED))
        new_state = ClientState(control)

        change = tree.map(torch.sub, control, state.control)
        upload: dict[str, ft.Mean | ft.Sum] = {
            "delta": ft.Mean(delta, torch.ones(())),
            "control": ft.Sum(change),
        }
        return ft.ClientUpdate(new_state, upload, personal=trained.params, metrics=trained.metrics)

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Move the model by the mean change, and the control by the clients' changes."""
        delta = received["delta"].value
        change = received["control"].value

        # eq. 5; buffers have no control, and take their mean
        rates = {
            **dict.fromkeys(server.model, 1.0),
            **dict.fromkeys(server.control, self.global_lr),
        }
        model = {name: value + rates[name] * delta[name] for name, value in server.model.items()}

        control = {
            name: value + change[name] / cohort.population for name, value in server.control.items()
        }
        return ServerState(model, control), ()
