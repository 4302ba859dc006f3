"""LG-FedAvg: upper layers are shared, lower ones are every client's own; the mirror image of FedPer.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency 2020, "Think locally, act globally: federated learning
with local and global representations", arXiv:2001.01523, Algorithm 1: client i trains its local representation and the
global model on top of it together, and the server averages the global part with weights n_i.

Messages: down ``shared`` (the last ``shared_layers`` layers); up ``shared`` (weight n_i). Layers below are client state
and never sent. Buffers of batch normalization are with their layer: averaged if it is shared, else private. A personal
model is the client's own lower layers under the new shared ones.

Deviations: training starts from scratch, as in most reproductions; the paper's starts from a model that FedAvg trained.
Its auxiliary losses of the representation (adversarial, self-supervised) are left out. It shares the last layers, where
some code shares the first: the head alone by default, as in McLaughlin and Su 2024 (pFedFDA), the last two layers in
Zhang et al. 2023 (FedCR). A client that never took part predicts with an ensemble of the others' models in the paper;
here it trains lower layers from the common initialization for ``onboard_epochs``, under the shared layers as received:
its model keeps these, so they do not move with the rest. With ``finetune_epochs``, every client tunes a copy of its
head before it predicts, as in FedCR's experiments; a new client does so too, after onboarding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, ClientUpdate, Download, Onboarded
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import ClientData, ClientInfo
from fedtailor.core.message import Field, Mean, Messages
from fedtailor.core.options import Range
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, BODY, Params, Task
from fedtailor.training.blocks import train
from fedtailor.training.losses import classification_loss
from fedtailor.training.tuning import FineTuned, in_words, tune

Server = dict[str, Params]
V = TypeVar("V")


def layer_numbers(task: Task) -> dict[str, int]:
    """Return the number of every parameter's layer, from 0; the head is the last one.

    Parameters of one layer have all of the name before the last dot in common. A normalization is not counted: it goes
    with the layer before it.
    """
    layers: list[str] = []
    numbers: dict[str, int] = {}
    for name in [*task.names(*BODY), *task.names("head")]:
        layer = name.rpartition(".")[0]
        if layer not in layers and name not in task.model.norm:
            layers.append(layer)
        numbers[name] = layers.index(layer) if layer in layers else max(len(layers) - 1, 0)
    return numbers


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Algorithm[Server, Params, FineTuned]):
    """Upper layers are averaged, lower ones are personal."""

    shared_layers: Annotated[int, Range(ge=1)] = 1
    """Layers that are shared, from the top: 1 is the head alone. A normalization goes with the layer before it."""
    finetune_epochs: Annotated[int, Range(ge=0)] = 0
    """Epochs that tune a copy of the head at the end; 0: predict with the head as it is."""
    onboard_epochs: Annotated[int, Range(ge=0)] = 20
    """Epochs that train the lower layers of a client that never took part."""

    @property
    def adaptation(self) -> str:
        """Tuning of the head, if any."""
        return in_words(self.finetune_epochs, "head")

    @property
    def onboarding(self) -> str:
        """Training of the lower layers."""
        return in_words(self.onboard_epochs, "the lower layers")

    def warnings(self, task: Task) -> list[str]:
        """With all layers shared nothing is personal."""
        everything = len(self._shared(task)) == len(task.model.groups)
        return ["all layers are shared: this is FedAvg."] if everything else []

    def messages(self, task: Task) -> Messages:
        """Declare the shared layers."""
        return {"shared": Field(kind="model", shapes=self._split(task, task.shapes(*ALL))[0])}

    def init_server(self, task: Task, key: Key) -> Server:
        """Start from the common initialization."""
        return {"shared": self._split(task, task.model.init(key.common("model")))[0]}

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> Params:
        """Start from the lower layers of the common initialization."""
        return self._split(task, task.model.init(key.common("model")))[1]

    def local_update(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> ClientUpdate:
        """Train the own lower layers and the received upper ones together."""
        model = {**state, **download.shared["shared"]}
        trained = train(task, classification_loss, model, data=data.train, key=key, training=self.training)
        shared, own = self._split(task, trained.params)
        metrics = {"steps": trained.steps, "loss": trained.loss}
        upload = {"shared": Mean(shared, data.info.num_train)}
        return ClientUpdate(own, upload, personal=FineTuned(trained.params, trained.steps), metrics=metrics)

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Train the lower layers of the common initialization under the received ones."""
        own, shared = self.init_client(task, info, key), download.shared["shared"]
        if not own:
            return Onboarded(own, 0)
        plan, epochs = self.training, self.onboard_epochs
        trained = train(
            task, classification_loss, own, context=shared, data=data.train, key=key, training=plan, epochs=epochs
        )
        return Onboarded(trained.params, trained.steps)

    def personalize(self, task: Task, download: Download, state: Params, data: ClientData, key: Key) -> FineTuned:
        """Join the own lower layers and the received upper ones, and tune a copy of the head if asked to."""
        model = {**state, **download.shared["shared"]}
        training, epochs = self.training, self.finetune_epochs
        return tune(task, model, data.train, key=key, training=training, epochs=epochs, layers="head")

    def _shared(self, task: Task) -> set[str]:
        """Return the names of the shared parameters and buffers.

        Raises:
            ConfigError: the model has fewer layers than are to be shared.
        """
        numbers = layer_numbers(task)
        count = 1 + max(numbers.values())
        if self.shared_layers > count:
            allowed = f"at most {count}, the layers of the model"
            message = f"algorithm.shared_layers must be {allowed}, got {self.shared_layers}."
            raise ConfigError(message, key="algorithm.shared_layers", allowed=allowed, got=self.shared_layers)
        return {name for name, number in numbers.items() if number >= count - self.shared_layers}

    def _split(self, task: Task, params: Mapping[str, V]) -> tuple[dict[str, V], dict[str, V]]:
        """Return what belongs to shared parameters, and to own ones."""
        shared = self._shared(task)
        return tree.split(params, lambda name: name in shared)
