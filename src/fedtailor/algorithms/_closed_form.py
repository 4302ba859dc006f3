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
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._feature_sums import (
    as_messages,
    finite_rows,
    received_sums,
    repaired_sums,
    shortened,
    sum_fields,
    upload_of,
)
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

    @property
    def sent_squares(self) -> class_sums.Squares:
        """Which second moments clients send."""
        return self.squares

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
            **sum_fields(classes, d, self.sent_squares, self.feature_clip),
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
        features = features._replace(x=shortened(features.x, self.feature_clip))
        if self.feature_clip:
            features = features._replace(x=finite_rows(features.x))

        sums = class_sums.add_up(
            features, task.num_classes, self.sent_squares, torch.get_default_dtype()
        )

        # Which classes are missing would tell more of examples than a bound allows.
        upload = upload_of(sums, all_rows=self.feature_clip > 0)
        return ft.ClientUpdate((), upload, metrics={"steps": torch.zeros(())})

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Make the head from the sums of the clients."""
        sums = received_sums(received)
        if self.sent_squares != self.squares:
            sums = class_sums.with_equal_variances(sums, self.squares, self.feature_clip)
        head = self.fit(sums)
        return server._replace(head=as_messages(head)), ()

    def for_noise(self, task: ft.Task, noise: Mapping[str, float], num_examples: int) -> Self:
        """Return the method without second moments where the noise would hide them.

        Then no part of the budget is spent on them.
        """
        deviations = class_sums.SumsNoise(**{"squares": 0.0, **noise})
        d = task.model.feature_dim
        is_hidden = class_sums.hides_squares(
            deviations, self.squares, num_examples, d, self.feature_clip
        )
        return self.of_means() if is_hidden else self

    def of_means(self) -> Self:
        """Return the method without second moments."""
        return self

    def repaired(self, received: ft.Received, noise: Mapping[str, float]) -> ft.Received:
        """Return sums whose means are within the bound, and whose scatter is above the noise."""
        return repaired_sums(received, noise, self.feature_clip)

    def features(self, task: ft.Task, personal: Personal, x: Tensor) -> Tensor:
        """Return the features of the body, bounded as those of training examples are."""
        return shortened(super().features(task, personal, x), self.feature_clip)


@dataclass(frozen=True, kw_only=True)
class SecondMoments(ClosedForm):
    """Base of a method whose head needs second moments, but can do without them."""

    means_only: bool = False
    """Whether no second moments are sent: of features, only class means count then, and variances
    are equal. ``privacy.unit = "example"`` turns it on where noise would hide second moments."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.means_only and not self.feature_clip:
            raise ft.ConfigError(
                "algorithm.means_only needs algorithm.feature_clip above 0, got 0.0: variances "
                "follow from it.",
                key="algorithm.feature_clip",
                got=self.feature_clip,
            )

    @property
    def sent_squares(self) -> class_sums.Squares:
        """Which second moments clients send."""
        return "none" if self.means_only else self.squares

    def of_means(self) -> Self:
        """Return the method without second moments."""
        return dataclasses.replace(self, means_only=True)


def linear_shapes(num_classes: int, d: int) -> Any:
    """Return the shapes of a linear head."""
    return Linear((num_classes, d), (num_classes,))  # type: ignore[arg-type]  # shapes, not tensors


def head_field(shapes: Any) -> ft.Field:
    """Declare a head, which is only sent down."""
    return ft.Field(kind="statistics", shapes=shapes, reduction="none")
