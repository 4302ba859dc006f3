"""LG-FedAvg: upper layers are shared, lower ones are personal; the mirror image of FedPer.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency 2020, "Think locally, act
globally: federated learning with local and global representations", arXiv:2001.01523, Algorithm 1.
Client i trains its local representation and the global model on top of it together. The server
averages the global part with weights n_i.

Messages: down ``shared`` (the last ``shared_layers`` layers); up ``shared`` (weight n_i). Layers
below are client state and never sent. Buffers of batch normalization go with their layer: averaged
if it is shared, else personal. A personal model is the client's own lower layers under the new
shared ones.

Deviations:
* Training starts from scratch, as in most reproductions. The paper starts from a model that FedAvg
  trained.
* The paper's auxiliary losses of the representation (adversarial, self-supervised) are left out.
* The last layers are shared, as in the paper; some code shares the first ones. By default this is
  the head alone, as in McLaughlin and Su 2024 (pFedFDA). Zhang et al. 2023 (FedCR) share the last
  two layers.
* In the paper a client that never took part predicts with an ensemble of the others' models. Here
  it trains lower layers from the common initialization for ``onboard_epochs``. Its model keeps the
  shared layers as received, so these stay frozen.
* With ``finetune_epochs``, every client tunes a copy of its lower layers under the frozen shared
  ones before it predicts, as in the final round of FedCR's released code. A new client does so too,
  after onboarding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from fedtailor import toolkit as ft
from fedtailor.toolkit import tree

V = TypeVar("V")


class ServerState(NamedTuple):
    """The shared upper layers."""

    shared: ft.Params


def layer_numbers(task: ft.Task) -> dict[str, int]:
    """Return the number of every parameter's layer, from 0; the head is the last one.

    The names of the parameters of one layer are equal up to the last dot. A normalization is not
    counted: it goes with the layer before it.
    """
    layers: list[str] = []
    numbers: dict[str, int] = {}
    # bottom up; a normalization below every layer goes with the first one
    for name in [*task.names(*ft.BODY), *task.names("head")]:
        layer = name.rpartition(".")[0]
        if layer not in layers and name not in task.model.norm:
            layers.append(layer)
        numbers[name] = layers.index(layer) if layer in layers else max(len(layers) - 1, 0)
    return numbers


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(ft.Algorithm[ServerState, ft.Params, ft.FineTuned]):
    """Upper layers are averaged, lower ones are personal."""

    bounds_examples = True

    shared_layers: ft.PositiveInt = 1
    """Layers that are shared, from the top: 1 is the head alone. A normalization goes with the
    layer before it."""
    finetune_epochs: ft.NonNegativeInt = 0
    """Epochs that tune a copy of the lower layers at the end, under the shared ones; 0: predict
    without tuning."""
    onboard_epochs: ft.NonNegativeInt = 20
    """Epochs that train the lower layers of a client that never took part."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Tuning of the lower layers."""
        return [ft.FineTuning("lower", epochs=self.finetune_epochs)]

    @property
    def onboarding(self) -> list[ft.Adaptation]:
        """Training of the lower layers."""
        return [ft.FineTuning("lower", epochs=self.onboard_epochs)]

    def warnings(self, task: ft.Task) -> list[str]:
        """Warn where nothing is personal."""
        if len(self._shared_names(task)) < len(task.model.groups):
            return []
        return ["all layers are shared: this is FedAvg."]

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the shared layers."""
        upper, _ = self._split(task, task.shapes(*ft.ALL))
        return {"shared": ft.Field(kind="model", shapes=upper)}

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start from the upper layers of the common initialization."""
        upper, _ = self._split(task, task.initial(key))
        return ServerState(upper)

    def init_client(self, task: ft.Task, info: ft.ClientInfo, key: ft.Key) -> ft.Params:
        """Start from the lower layers of the common initialization."""
        _, lower = self._split(task, task.initial(key))
        return lower

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the client's lower layers and the received upper ones together."""
        model = {**state, **download.shared.shared}
        trained = ft.train(task, ft.classification_loss, model, data=data.train, key=key)

        upper, lower = self._split(task, trained.params)
        upload = {"shared": ft.Mean(upper, data.info.num_train)}
        personal = ft.FineTuned(trained.params, trained.steps)
        return ft.ClientUpdate(lower, upload, personal=personal, metrics=trained.metrics)

    def onboard(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        info: ft.ClientInfo,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.Onboarded:
        """Train the lower layers of the common initialization under the received ones."""
        lower = self.init_client(task, info, key)
        trained = self._train_lower(
            task, lower, download.shared.shared, data, key, self.onboard_epochs
        )
        return ft.Onboarded(trained.model, trained.steps)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ServerState],
        state: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.FineTuned:
        """Join lower and received upper layers, and tune a copy of the lower ones if asked to."""
        shared = download.shared.shared
        tuned = self._train_lower(
            task, state, shared, data, key.fold("finetune"), self.finetune_epochs
        )
        return ft.FineTuned({**tuned.model, **shared}, tuned.steps)

    def _train_lower(
        self,
        task: ft.Task,
        lower: ft.Params,
        shared: ft.Params,
        data: ft.ClientData,
        key: ft.Key,
        epochs: int,
    ) -> ft.FineTuned:
        """Train a copy of the lower layers under the shared ones, which stay as they are."""
        if not lower or epochs == 0:
            return ft.untuned(lower)

        trained = ft.train(
            task,
            ft.classification_loss,
            lower,
            context=shared,
            data=data.train,
            key=key,
            epochs=epochs,
        )

        return ft.FineTuned(trained.params, trained.steps)

    def _shared_names(self, task: ft.Task) -> set[str]:
        """Return the names of the shared parameters and buffers.

        Raises:
            ConfigError: the model has fewer layers than are to be shared.
        """
        numbers = layer_numbers(task)
        count = 1 + max(numbers.values())
        if self.shared_layers > count:
            allowed = f"at most {count}, the layers of the model"
            message = f"algorithm.shared_layers must be {allowed}, got {self.shared_layers}."
            raise ft.ConfigError(
                message, key="algorithm.shared_layers", allowed=allowed, got=self.shared_layers
            )

        return {name for name, number in numbers.items() if number >= count - self.shared_layers}

    def _split(self, task: ft.Task, params: Mapping[str, V]) -> tuple[dict[str, V], dict[str, V]]:
        """Return the entries of shared parameters, and the others."""
        shared = self._shared_names(task)
        return tree.split(params, lambda name: name in shared)
