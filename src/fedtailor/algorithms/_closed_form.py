"""A head in closed form over a body that stays as it starts: what methods of one exchange share.

A client sends sums over its examples once. The server makes the head from the sums of all clients,
which are those of their pool: it does not matter who has which examples. The body is the common
initial one, for example a pretrained one, and is never sent; with the model ``linear`` there is
none, and the features are the inputs.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.toolkit import class_sums, tree


class Linear(NamedTuple):
    """A linear head: weight (classes, d), bias (classes,), -inf for classes that nobody has."""

    weight: Tensor
    bias: Tensor

    def logits(self, z: Tensor) -> Tensor:
        """Return the logits (n, classes) of features (n, d)."""
        return z @ self.weight.T + self.bias


class ServerState(NamedTuple):
    """The body that all start with, and the head."""

    body: ft.Params
    head: Any


S = TypeVar("S")


class Broadcast(NamedTuple):
    """What clients receive: the head."""

    head: Any


class Personal(NamedTuple):
    """The body, and a head with ``logits``."""

    body: ft.Params
    head: Any


def log_known(counts: Tensor) -> Tensor:
    """Return 0 for classes with examples, -inf for those without: nobody can know these."""
    return torch.where(counts > 0, 0.0, -torch.inf)


def as_messages(value: Any) -> Any:
    """Return a tree of numbers in the type of messages."""
    return tree.map(lambda leaf: leaf.to(torch.get_default_dtype()), value)


_ROUNDING = 1e-6
"""By how much long features are shortened further, for the rounding of their numbers."""
UNUSED_TRAINING = tuple(field.name for field in dataclasses.fields(ft.Training))
"""Nothing is trained."""


@dataclass(frozen=True, kw_only=True)
class FrozenBody(ft.OneGlobalModel, ft.Algorithm[S, tuple[()], Personal]):
    """Base of a method that trains nothing; unless it says more, all clients share one head."""

    exchanges: ClassVar[int] = 1
    unused_training: ClassVar[tuple[str, ...]] = UNUSED_TRAINING

    def broadcast(self, server: Any, cohort: ft.Cohort) -> tree.Tree:
        """Send the head; every client makes the body itself."""
        return Broadcast(server.head)

    def frozen_features(self, task: ft.Task, examples: ft.ExampleSet, key: ft.Key) -> ft.ExampleSet:
        """Return a client's examples as a table of features."""
        return ft.cached_features(task, task.initial(key, *ft.BODY), examples, key=key)

    def global_model(self, task: ft.Task, server: Any) -> Any:
        """Return body and head."""
        return Personal(server.body, server.head)

    def personalize(  # type: ignore[override]
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Return body and head: all clients predict alike."""
        return Personal(task.initial(key, *ft.BODY), download.shared.head)

    def features(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the features of the body."""
        return ft.predict_features(task, personal.body, x)

    def predict(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the logits of the head."""
        logits: Tensor = personal.head.logits(self.features(task, personal, x))
        return logits


@dataclass(frozen=True, kw_only=True)
class ClosedForm(FrozenBody[ServerState]):
    """Base of a method whose head follows from sums; it adds which ones, and how."""

    feature_clip: ft.NonNegativeFloat = 0.0
    """Features of a larger norm are shortened to it, those of training examples and those that the
    head predicts from; 0: none are. ``privacy.unit = "example"`` needs it: a public number."""

    @property
    def feature_bound(self) -> float:
        """Return the bound of the norm of features."""
        return self.feature_clip

    @property
    def squares(self) -> class_sums.Squares:
        """Which second moments the head needs."""
        return "pooled"

    @abstractmethod
    def fit(self, sums: class_sums.ClassSums) -> Any:
        """Return the head, a NamedTuple with ``logits``, from the sums of all clients."""

    def head_shapes(self, num_classes: int, d: int) -> Any:
        """Return the shapes of the head, in the same NamedTuple."""
        return linear_shapes(num_classes, d)

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the sums, and the head that follows from them."""
        classes = task.num_classes
        d = task.model.feature_dim
        return {
            **sum_fields(classes, d, self.squares, self.feature_clip),
            "head": head_field(self.head_shapes(classes, d)),
        }

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start with the common body, and a head that knows nothing."""
        shapes = self.head_shapes(task.num_classes, task.model.feature_dim)
        head = type(shapes)(*(torch.zeros(shape) for shape in shapes))
        return ServerState(task.initial(key, *ft.BODY), head)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[Broadcast],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Add up the features of the client's examples."""
        features = self.frozen_features(task, data.train, key)
        features = features._replace(x=self._bounded(features.x))
        sums = class_sums.add_up(
            features, task.num_classes, self.squares, torch.get_default_dtype()
        )

        # Which classes are missing would tell more of examples than a bound allows.
        upload = upload_of(sums, all_rows=self.feature_clip > 0)
        return ft.ClientUpdate((), upload, metrics={"steps": torch.zeros(())})

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Make the head from the sums of the clients."""
        head = self.fit(received_sums(received))
        return server._replace(head=as_messages(head)), ()

    def repaired(self, received: ft.Received, noise: Mapping[str, float]) -> ft.Received:
        """Return sums whose means are within the bound, and whose scatter is above the noise."""
        deviations = class_sums.SumsNoise(**{"squares": 0.0, **noise})
        sums = class_sums.repaired(received_sums(received), deviations, self.feature_clip)
        values = as_messages(sums)._asdict()
        return {name: field._replace(value=values[name]) for name, field in received.items()}

    def features(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the features of the body, bounded as those of training examples are."""
        return self._bounded(super().features(task, personal, x))

    def _bounded(self, z: Tensor) -> Tensor:
        """Return features (n, d) of a norm of at most the bound, if there is one."""
        if not self.feature_clip:
            return z

        norm = z.double().norm(dim=1, keepdim=True)
        longest = self.feature_clip * (1 - _ROUNDING)
        shortened: Tensor = z.double() * (longest / norm.clamp_min(longest))
        return shortened.to(torch.get_default_dtype())


def linear_shapes(num_classes: int, d: int) -> Any:
    """Return the shapes of a linear head."""
    return Linear((num_classes, d), (num_classes,))  # type: ignore[arg-type]  # shapes, not tensors


def head_field(shapes: Any) -> ft.Field:
    """Declare a head, which is only sent down."""
    return ft.Field(kind="statistics", shapes=shapes, reduction="none")


def sum_fields(
    num_classes: int, d: int, squares: class_sums.Squares, feature_clip: float = 0.0
) -> dict[str, ft.Field]:
    """Declare the sums over a client's examples."""
    # Sums grow with the examples of a client, sums of squares also with the scale of features.
    bounds = {"counts": 2.0**20, "sums": 2.0**24, "squares": 2.0**28}
    if feature_clip:
        # With room for noise.
        most = 2.0**22
        bounds = {"counts": most, "sums": most * feature_clip, "squares": most * feature_clip**2}

    field = partial(ft.Field, reduction="sum", down=False)
    by_class = field if feature_clip else partial(field, weight_axes=1)
    fields = {
        "counts": by_class(kind="counts", shapes=(num_classes,), bound=bounds["counts"]),
        "sums": by_class(kind="statistics", shapes=(num_classes, d), bound=bounds["sums"]),
    }
    if squares != "none":
        shape = class_sums.squares_shape(squares, num_classes, d)
        declare = by_class if len(shape) == 2 else field
        fields["squares"] = declare(kind="statistics", shapes=shape, bound=bounds["squares"])
    return fields


def upload_of(sums: class_sums.ClassSums, *, all_rows: bool = False) -> dict[str, ft.Sum]:
    """Return sums as fields of an upload, rounded once to the type of messages.

    Rows of classes without examples are not sent, unless all are.
    """
    rounded = as_messages(sums)
    if all_rows:
        values = rounded._asdict()
        return {name: ft.Sum(value) for name, value in values.items() if value.numel()}

    is_sent = (rounded.counts > 0).to(rounded.counts.dtype)
    upload = {"counts": ft.Sum(rounded.counts, is_sent), "sums": ft.Sum(rounded.sums, is_sent)}
    if rounded.squares.dim() == 2:
        upload["squares"] = ft.Sum(rounded.squares, is_sent)
    elif rounded.squares.shape[0]:
        upload["squares"] = ft.Sum(rounded.squares)
    return upload


def received_sums(received: ft.Received) -> class_sums.ClassSums:
    """Return the sums over all clients of a round, in float64."""
    sums = received["sums"].value
    squares = received["squares"].value if "squares" in received else sums.new_zeros(0)
    counts = received["counts"].value
    return class_sums.ClassSums(counts.double(), sums.double(), squares.double())
