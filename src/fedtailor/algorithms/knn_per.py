"""kNN-Per: the global model of FedAvg, mixed with a client's nearest remembered examples.

Marfoq, Neglia, Kameni and Vidal 2022, "Personalized federated learning through local memorization",
ICML. A client remembers the features z_j and labels y_j of its training examples under the global
model. With N the k examples nearest to the features z of an input (Euclidean distance), it predicts
(their section 3; lambda: ``mixing``)

    lambda p_kNN(c) + (1 - lambda) p_global(c),
    p_kNN(c) ~ sum over j in N with y_j = c of exp(-||z - z_j|| / sigma)     (``kernel_scale``).

The point ``local`` shows the model that a client has just trained, without neighbors.

Messages: down ``model`` (w); up ``model`` (w_i, weight n_i). Features and labels stay in a client's
model file.

Deviations (P: paper, C: released code):
* A client with validation examples (``data.val_fraction``) chooses lambda on them: the value of 0,
  0.1, ..., 1 with the most right predictions, and among equals the one nearest to ``mixing``.
  Validation scores are then optimistic. Otherwise lambda is ``mixing``. P tunes it so, too; C
  scores the whole grid on test examples.
* The kernel decays with the distance, as in P. C's decays with its square over d, and gives 0 / 0
  where it underflows.
* Of examples at the same distance the first count. With fewer than k examples all are neighbors;
  without any, the client predicts with the global model. New clients are treated as known ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft

_GRID = tuple(step / 10 for step in range(11))
"""Values of lambda to choose from."""


class Memory(NamedTuple):
    """Remembered examples."""

    features: Tensor  # (n, d)
    labels: Tensor  # (n,)
    weight: Tensor  # (n,), 0 for padding


class Personal(NamedTuple):
    """The global model, a client's remembered examples, and their share in predictions."""

    model: ft.Params
    memory: ft.PerExample  # of a Memory
    mixing: Tensor  # ()


def neighbor_probabilities(
    memory: Memory, z: Tensor, num_classes: int, neighbors: int, scale: float
) -> Tensor:
    """Return p_kNN (b, classes) of features (b, d); 0 where nothing is remembered."""
    # exact distances (b, n), so that ties are ties
    distance = torch.cdist(z, memory.features, compute_mode="donot_use_mm_for_euclid_dist")
    distance = torch.where(memory.weight > 0, distance, torch.inf)
    nearest = torch.argsort(distance, dim=1, stable=True)[:, :neighbors]  # (b, k)

    # the softmax of infinite distances alone is NaN
    kernel = torch.softmax(-distance.gather(1, nearest) / scale, dim=1)
    kernel = torch.where(memory.weight[nearest] > 0, kernel, 0.0)

    member = memory.labels[nearest][..., None] == torch.arange(num_classes)  # (b, k, classes)
    return (kernel[..., None] * member).sum(1)


def right_by_mixing(
    task: ft.Task,
    personal: Personal,
    context: ft.Params,
    batch: ft.Batch,
    key: ft.Key,
    *,
    neighbors: int,
    scale: float,
) -> Tensor:
    """Return whether predictions are right (b, grid), for every value of lambda on the grid."""
    z = ft.predict_features(task, personal.model, batch.x)
    near = neighbor_probabilities(personal.memory.value, z, task.num_classes, neighbors, scale)
    predicted = task.model.head(personal.model, z).softmax(1)

    mixing = torch.tensor(_GRID)[:, None, None]
    mixture = torch.lerp(predicted, near, mixing)  # (grid, b, classes)
    return (mixture.argmax(2) == batch.y).to(z.dtype).mT


@dataclass(frozen=True, kw_only=True)
class KNNPer(ft.Algorithm[ft.ModelState, tuple[()], Personal]):
    """Federated averaging, personalized by nearest neighbors."""

    bounds_examples = True

    chooses_by_validation = True

    neighbors: ft.PositiveInt = 10
    """Neighbors of a prediction (k)."""
    kernel_scale: ft.PositiveFloat = 1.0
    """Distance of features over which a neighbor's influence falls by a factor of e (sigma)."""
    mixing: Annotated[
        ft.Share, ft.AtZero("this is FedAvg for clients without validation examples.")
    ] = 0.5
    """Share of the neighbors in predictions (lambda) of a client without validation examples."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Remember the training examples."""
        if self.mixing == 0:
            return [ft.OtherAdaptation("nearest neighbors where validation examples favor them")]

        unit = "neighbor" if self.neighbors == 1 else "neighbors"
        return [ft.OtherAdaptation(f"{self.neighbors} nearest {unit}")]

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Train the received model on all layers."""
        trained = ft.train(
            task, ft.classification_loss, download.shared.model, data=data.train, key=key
        )
        upload = {"model": ft.Mean(trained.params, data.info.num_train)}
        personal = _without_memory(task, trained.params)
        return ft.ClientUpdate(state, upload, personal=personal, metrics=trained.metrics)

    def global_model(self, task: ft.Task, server: ft.ModelState) -> Personal:
        """Return the global model, which remembers nothing."""
        return _without_memory(task, server.model)

    def personalize(
        self,
        task: ft.Task,
        download: ft.Download[ft.ModelState],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Remember the training examples; choose lambda on validation examples, if any."""
        model = download.shared.model
        table = ft.cached_features(task, model, data.train, key=key)
        memory = ft.PerExample(Memory(table.x, table.labels(), table.weight))
        personal = Personal(model, memory, torch.zeros(()))

        # right predictions on validation examples, for every lambda of the grid
        count_right = partial(right_by_mixing, neighbors=self.neighbors, scale=self.kernel_scale)
        is_right = ft.forward(task, count_right, personal, data.val, key=key)
        right = data.val.weight @ is_right  # (grid,)

        # among equals the nearest to ``mixing``: less than 1 is taken from whole numbers
        grid = torch.tensor(_GRID)
        best = grid[torch.argmax(right - (grid - self.mixing).abs() / 2)]
        mixing = torch.where(data.val.size() > 0, best, self.mixing)
        return personal._replace(mixing=torch.where(table.size() > 0, mixing, 0.0))

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return logarithms of mixed probabilities, or logits where nothing is remembered."""
        memory: Memory = personal.memory.value
        if len(memory.labels) == 0:
            return ft.predict_logits(task, personal.model, x)

        z = self.features(task, personal, x)
        near = neighbor_probabilities(
            memory, z, task.num_classes, self.neighbors, self.kernel_scale
        )
        mixture = torch.lerp(task.model.head(personal.model, z).softmax(1), near, personal.mixing)
        return mixture.clamp(min=torch.finfo(mixture.dtype).tiny).log()

    def diagnostics(self, task: ft.Task, personal: Personal) -> dict[str, Tensor]:
        """Record the share of the neighbors."""
        return {"mixing": personal.mixing}


def _without_memory(task: ft.Task, model: ft.Params) -> Personal:
    features = torch.zeros(0, task.model.feature_dim)
    empty = Memory(features, torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    return Personal(model, ft.PerExample(empty), torch.zeros(()))
