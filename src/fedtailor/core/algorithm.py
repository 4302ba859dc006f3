"""The algorithm: the program of one client plus the arithmetic of the server.

No client axis, padding, device, worker, network or loop over clients appears in an algorithm; engines
decide how many clients run at once. Every method is a pure function of its arguments.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Self, TypeVar

from torch import Tensor

from fedtailor.core.errors import find_name
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Messages, Reduced, Upload
from fedtailor.core.options import check_options
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Task, Training
from fedtailor.core.tree import Tree
from fedtailor.training.blocks import predict_logits
from fedtailor.training.tuning import FineTuned

S = TypeVar("S")
C = TypeVar("C")
P = TypeVar("P")


class Download(NamedTuple):
    """What a client receives: the broadcast, and its own rows stored at the server."""

    shared: Any
    per_client: Any = ()


class ClientUpdate(NamedTuple):
    """What a client's round leaves: new state, upload, its model right after training, metrics."""

    state: Any
    upload: Upload
    personal: Any = ()
    """The model right after local training, for the evaluation point ``local``; () if there is none."""
    metrics: dict[str, Tensor] = {}


class Onboarded(NamedTuple):
    """What onboarding leaves: the state of a client that never took part, and the gradient steps that it took."""

    state: Any
    steps: Tensor | int


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC, Generic[S, C, P]):
    """Base of all algorithms; fields are hyper-parameters, and the only source of options.

    S: server state, C: client state, P: personal model. All are trees of tensors, ``()`` where empty.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}}
    """Named sets of field values; ``reference`` is the default."""
    preset_warnings: ClassVar[Mapping[str, str]] = {}
    """What to say when a preset is chosen."""
    trains: ClassVar[Literal["cohort", "all"]] = "cohort"
    """Who trains in a round, unless the protocol says otherwise: the ``cohort``, or ``all`` while it uploads."""
    requires_upload: ClassVar[bool] = False
    """Whether what a client keeps is wrong unless its upload reaches the server: nobody else may train then."""
    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "personalized"
    """The evaluation point at which the method is meant to be judged."""

    training: Training = field(default_factory=Training)
    """How a client trains."""

    def __post_init__(self) -> None:
        check_options(self)

    @classmethod
    def from_preset(cls, preset: str = "reference", **options: Any) -> Self:
        """Build the algorithm from a preset; ``options`` override its fields.

        Raises:
            ConfigError: unknown preset, or a value out of range.
        """
        preset = find_name(f"preset of {cls.__name__}", preset, cls.presets, key="algorithm.preset")
        return cls(**{**cls.presets[preset], **options})

    @classmethod
    def option_names(cls) -> list[str]:
        """Return the names of the hyper-parameters."""
        return [option.name for option in dataclasses.fields(cls) if option.name != "training"]

    @property
    def adaptation(self) -> str:
        """What ``personalize`` does with a client's data, in words: ``5 epochs of all layers``, ``closed form``."""
        return "none"

    @property
    def onboarding(self) -> str:
        """What ``onboard`` does with the data of a client that never took part, in words; ``none``: nothing."""
        return "none"

    def adaptation_summary(self, *, new: bool) -> str:
        """Return what a client's data are used for before it predicts, in words; ``new``: it never took part."""
        parts = [words for words in (self.onboarding if new else "none", self.adaptation) if words != "none"]
        return ", then ".join(parts) or "none"

    def warnings(self, task: Task) -> list[str]:
        """Return what to say of the options, in sentences: a value that makes the method a simpler one, for example."""
        return []

    def messages(self, task: Task) -> Messages:
        """Declare every field of download and upload; as it stands, a whole model that is averaged by examples."""
        return {"model": Field(kind="model", shapes=task.shapes(*ALL))}

    def init_server(self, task: Task, key: Key) -> S:
        """Return the server state before the first round; as it stands, a dict with the common initial model."""
        return {"model": task.model.init(key.common("model"))}  # type: ignore[return-value]  # S, unless overridden

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> C:
        """Return a client's state before its first round, whenever that is."""
        return ()  # type: ignore[return-value]  # C is the empty tree where a method has no client state

    def init_per_client(self, task: Task, info: ClientInfo, key: Key) -> Tree:
        """Return a client's first row of ``Download.per_client``."""
        return ()

    def broadcast(self, server: S, cohort: Cohort) -> Tree:
        """Return what every client of the cohort receives."""
        return server

    @abstractmethod
    def local_update(self, task: Task, download: Download, state: C, data: ClientData, key: Key) -> ClientUpdate:
        """Run a client's round."""

    def aggregate(self, server: S, received: Mapping[str, Reduced], cohort: Cohort) -> tuple[S, Tree]:
        """Return the new server state, and rows by ``cohort.ids`` for ``Download.per_client`` (() for none).

        Unless overridden, the server state is a dict, and every field that was sent replaces the entry of its name.
        """
        if not (isinstance(server, Mapping) and set(received) <= set(server)):
            raise TypeError(
                f"{type(self).__name__} must define aggregate, or keep a server state that is a dict with an entry for "
                f"each of the fields {sorted(received)}"
            )
        return {**server, **{name: field.or_else(server[name]) for name, field in received.items()}}, ()  # type: ignore[return-value]

    def global_model(self, task: Task, server: S) -> P | None:
        """Return the model that the server itself would predict with; None if the method has none."""
        return None

    def onboard(self, task: Task, download: Download, info: ClientInfo, data: ClientData, key: Key) -> Onboarded:
        """Return the state of a client that never took part, from its own data, and the gradient steps."""
        return Onboarded(self.init_client(task, info, key), 0)

    @abstractmethod
    def personalize(self, task: Task, download: Download, state: C, data: ClientData, key: Key) -> P:
        """Return a client's personal model; never sees test data."""

    def predict(self, task: Task, personal: P, x: Tensor) -> Tensor:
        """Return logits or log-probabilities (n, classes).

        Unless overridden, a personal model is the parameters of a whole model, tuned or not.
        """
        model = personal.model if isinstance(personal, FineTuned) else personal
        if not isinstance(model, Mapping):
            raise TypeError(f"{type(self).__name__} must define predict: its personal model is no dict of parameters")
        return predict_logits(task, dict(model), x)

    def ood_score(self, task: Task, personal: P, x: Tensor) -> Tensor | None:
        """Return how strange inputs are to a personal model (n,), larger for stranger ones; None: it cannot tell."""
        return None

    def diagnostics(self, task: Task, personal: P) -> dict[str, Tensor]:
        """Return numbers (0-d tensors) worth recording about a personal model; ``steps``: those it took to make it."""
        return {"steps": personal.steps} if isinstance(personal, FineTuned) else {}
