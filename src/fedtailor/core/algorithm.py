"""The algorithm: the program of one client plus the arithmetic of the server.

No client axis, padding, device, worker, network or loop over clients appears in an algorithm;
engines decide how many clients run at once. Every method is a pure function of its arguments.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

from fedtailor.core.adaptation import Adaptation, FineTuned, describe
from fedtailor.core.errors import find_name
from fedtailor.core.federation import ClientData, ClientInfo, Cohort
from fedtailor.core.message import Field, Messages, Received, Upload
from fedtailor.core.options import AtZero, check_options, marks_of, wrong_value
from fedtailor.core.rng import Key
from fedtailor.core.task import ALL, Params, Task, Training, predict_features, predict_logits
from fedtailor.core.tree import Tree

S = TypeVar("S")
C = TypeVar("C")
P = TypeVar("P")
B = TypeVar("B")


class Download(NamedTuple, Generic[B]):
    """What a client receives."""

    shared: B
    """The broadcast: the same for every client of the cohort, and the server state unless a method
    says otherwise."""
    per_client: Any = ()
    """What the server keeps for this client alone."""


class ClientUpdate(NamedTuple):
    """The results of a client's round."""

    state: Any
    """The client's new state."""
    upload: Upload
    personal: Any = ()
    """The model right after local training, for the evaluation point ``local``; () if there is
    none."""
    metrics: dict[str, Tensor] = {}
    """Numbers (0-d tensors) to record; ``steps`` counts gradient steps."""


class Onboarded(NamedTuple):
    """The result of onboarding: the state of a new client, and the gradient steps that it took."""

    state: Any
    steps: Tensor | int


class ModelState(NamedTuple):
    """Server state of a method that shares one whole model."""

    model: Params


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC, Generic[S, C, P]):
    """Base of all algorithms; fields are hyper-parameters, and the only source of options.

    S: server state, C: client state, P: personal model. All are trees of tensors, ``()`` where
    empty.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}}
    """Named sets of field values; ``reference`` is the default."""
    preset_warnings: ClassVar[Mapping[str, str]] = {}
    """Sentences to print when a preset is chosen."""
    trains: ClassVar[Literal["cohort", "all"]] = "cohort"
    """Clients that train in a round, unless the schedule says otherwise: the ``cohort``, or ``all``
    of them while the cohort uploads."""
    requires_upload: ClassVar[bool] = False
    """Whether a client's state is wrong unless its upload reaches the server; then only the cohort
    may train."""
    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "personalized"
    """The evaluation point at which the method is meant to be judged."""
    exchanges: ClassVar[int] = 0
    """Rounds after which the method is done: a run then has as many, in which all clients take
    part. 0: it trains as many rounds as asked for."""
    chooses_by_validation: ClassVar[bool] = False
    """Whether ``personalize`` chooses something on a client's validation examples; scores on them
    are then too high."""

    bounds_examples: ClassVar[bool] = False
    """Whether uploads depend on a client's training examples through ``train`` on losses of single
    examples alone, and through their number. Then ``privacy.unit = "example"`` bounds what each of
    them adds, in as many steps as :meth:`bounded_steps` says. With a :attr:`feature_bound`, they
    may also hold ``counts``, ``sums`` and ``squares`` of features of the examples, once."""

    averages_models: ClassVar[bool] = True
    """Whether the mean of the clients' models is all that the next model is made of. Then a server
    optimizer can take the step towards this mean. A class with an ``aggregate`` of its own says so
    if that only treats what comes beside the models in another way; otherwise it is False there."""

    unused_training: ClassVar[tuple[str, ...]] = ()
    """Names of training options that have no effect on the method."""

    training: Training = field(default_factory=Training)
    """How a client trains."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "aggregate" in vars(cls) and "averages_models" not in vars(cls):
            cls.averages_models = False

    def __post_init__(self) -> None:
        check_options(self)

        # Not a warning: whoever weighs classes would take the result for a weighted one.
        if "class_weights" in self.unused_training and self.training.class_weights != "none":
            allowed = f"'none': {type(self).__name__} has no cross-entropy to weigh"
            raise wrong_value("training.class_weights", allowed, self.training.class_weights)

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

    def bind(self, task: Task) -> Task:
        """Return the task with this algorithm's training options.

        The one that a client's program receives.
        """
        return task._replace(training=self.training)

    @property
    def feature_bound(self) -> float | None:
        """Return the largest norm of features in sums over examples; 0 if none is set.

        None: uploads have no ``counts``, ``sums`` and perhaps ``squares`` of features to which
        noise can be added. A method that does not say :attr:`bounds_examples` uploads nothing else.
        """
        return None

    @property
    def unbounded_options(self) -> Mapping[str, str]:
        """Options with which a method does not bound examples, though it says so; what would."""
        return {}

    def bounded_steps(self, num_train: int) -> int:
        """Return how many steps a client takes in a round whose results reach what it sends.

        It is one phase of ``training``, unless a method has others too.

        Args:
            num_train: its training examples.
        """
        return self.training.num_steps(num_train)

    def for_noise(self, task: Task, noise: Mapping[str, float], num_examples: int) -> Self:
        """Return the method as it should be run with noise on sums over features.

        By default as it is. What decides must be public.

        Args:
            task: the common task.
            noise: its standard deviation on every number of the sums of all clients, by field.
            num_examples: training examples of all clients.
        """
        return self

    def repaired(self, received: Received, noise: Mapping[str, float]) -> Received:
        """Return noisy sums over features as some that examples could have; by default as they are.

        ``noise``: its standard deviation on every number, by field.
        """
        return received

    @property
    def adaptation(self) -> Sequence[Adaptation]:
        """What ``personalize`` does with a client's data, in order; empty: nothing."""
        return ()

    @property
    def onboarding(self) -> Sequence[Adaptation]:
        """What ``onboard`` does with the data of a client that never took part, in order.

        Empty: nothing.
        """
        return ()

    def adaptation_summary(self, *, new: bool) -> str:
        """Put into words how a client's data is used before it predicts.

        ``new``: it never took part.
        """
        onboarding = self.onboarding if new else ()
        return describe([*onboarding, *self.adaptation])

    def warnings(self, task: Task) -> list[str]:
        """Return sentences about the options, such as that a value makes the method a simpler one.

        By default, what the marks :class:`AtZero` say about options that are 0, and which of the
        options of ``unused_training`` are set.
        """
        marks = marks_of(type(self), AtZero)
        sentences = [
            f"with {name} 0, {mark.consequence}"
            for name, mark in marks.items()
            if getattr(self, name) == 0
        ]
        return sentences + self.training.not_used(*self.unused_training)

    def messages(self, task: Task) -> Messages:
        """Declare every field of download and upload.

        By default a whole model, averaged by numbers of examples.
        """
        return {"model": Field(kind="model", shapes=task.shapes(*ALL))}

    def init_server(self, task: Task, key: Key) -> S:
        """Return the server state before the first round; by default the common initial model."""
        return ModelState(task.initial(key))  # type: ignore[return-value]  # S, unless overridden

    def init_federation(self, task: Task, population: int, key: Key) -> S:
        """Return the first server state where it holds something of every client, row by row.

        Rows are those of the clients that can take part, in the order of ids. By default there are
        none, and ``init_server`` makes the state.
        """
        return self.init_server(task, key)

    def admit(self, task: Task, server: S, before: int, population: int, key: Key) -> S:
        """Return the server state when clients have joined during a run.

        It is called before their first round. A state that holds a mean over all clients, or
        something of each, must make room for them. By default the state stays as it is.

        Args:
            task: common to all clients.
            server: the state before.
            before: how many clients could take part then, with those who have left; 0 where a run
                continues another one, whose clients are none of this one's.
            population: how many there are now; the numbers of those who join are the last ones.
            key: with which the first state was made.
        """
        return server

    @property
    def admits(self) -> bool:
        """Whether clients can join during a run: a state with something of each needs ``admit``."""
        cls = type(self)
        has_rows = cls.init_federation is not Algorithm.init_federation
        return not has_rows or cls.admit is not Algorithm.admit

    def init_client(self, task: Task, info: ClientInfo, key: Key) -> C:
        """Return a client's state before its first round, whenever that is."""
        # C is the empty tree where a method has no client state.
        return ()  # type: ignore[return-value]

    def init_per_client(self, task: Task, info: ClientInfo, key: Key) -> Tree:
        """Return the first value of ``Download.per_client`` of a client."""
        return ()

    def broadcast(self, server: S, cohort: Cohort) -> Tree:
        """Return what every client of the cohort receives."""
        return server

    def per_client(self, server: S, cohort: Cohort, key: Key) -> Tree:
        """Return new values of ``Download.per_client``, made when the clients are asked.

        They are in the order of ``cohort.ids``: clients that train, or that make their personal
        models. By default there are none (``()``), and clients keep those that ``aggregate``
        returned last.
        """
        return ()

    @abstractmethod
    def local_update(
        self, task: Task, download: Download[Any], state: C, data: ClientData, key: Key
    ) -> ClientUpdate:
        """Run a client's round."""

    def aggregate(self, server: S, received: Received, cohort: Cohort) -> tuple[S, Tree]:
        """Return the new server state, and new values of ``Download.per_client`` (() for none).

        The values are in the order of ``cohort.ids``.

        By default the server state is a NamedTuple, and every received field replaces its field of
        the same name. If nothing is sent, the state stays as it is.

        Raises:
            TypeError: the server state lacks a received field.
        """
        if not received:
            return server, ()
        if not set(received) <= set(getattr(server, "_fields", ())):
            raise TypeError(
                f"{type(self).__name__} must define aggregate, or keep a server state that is a "
                f"NamedTuple with the fields {sorted(received)}"
            )
        new = {name: field.or_else(getattr(server, name)) for name, field in received.items()}
        return server._replace(**new), ()  # type: ignore[attr-defined]  # a NamedTuple

    def global_model(self, task: Task, server: S) -> P | None:
        """Return the model that the server itself would predict with.

        None if the method has none.
        """
        return None

    def onboard(
        self, task: Task, download: Download[Any], info: ClientInfo, data: ClientData, key: Key
    ) -> Onboarded:
        """Return the state of a client that never took part, and the gradient steps.

        It is made from the client's own data.
        """
        return Onboarded(self.init_client(task, info, key), 0)

    @abstractmethod
    def personalize(
        self, task: Task, download: Download[Any], state: C, data: ClientData, key: Key
    ) -> P:
        """Return a client's personal model; never sees test data."""

    def predict(self, task: Task, personal: P, x: Tensor) -> Tensor:
        """Return logits or log-probabilities (n, classes).

        By default a personal model is the parameters of a whole model, or has them in ``model``.

        Raises:
            TypeError: it is something else.
        """
        return predict_logits(task, self._whole_model(personal, "predict"), x)

    def features(self, task: Task, personal: P, x: Tensor) -> Tensor:
        """Return the features (n, d) of inputs that a personal model predicts from.

        What its head receives.

        By default a personal model is the parameters of a whole model, or has them in ``model``.

        Raises:
            TypeError: the model is something else.
        """
        return predict_features(task, self._whole_model(personal, "features"), x)

    def _whole_model(self, personal: P, method: str) -> Params:
        """Return the parameters of a personal model that is a whole model.

        Raises:
            TypeError: it is something else, so the method must be defined.
        """
        model = getattr(personal, "model", personal)
        if not isinstance(model, Mapping):
            raise TypeError(
                f"{type(self).__name__} must define {method}: its personal model is not a dict of "
                "parameters"
            )
        return dict(model)

    def ood_score(self, task: Task, personal: P, x: Tensor) -> Tensor | None:
        """Return how far inputs lie from what a personal model knows (n,); None: unknown.

        It is larger for stranger inputs.
        """
        return None

    def surprise(self, task: Task, personal: P, x: Tensor) -> Tensor | None:
        """Return the negative log-density of inputs under a personal model (n,); None: unknown.

        In nats, of what the model has a density of, such as features.
        """
        return None

    def diagnostics(self, task: Task, personal: P) -> dict[str, Tensor]:
        """Return numbers (0-d tensors) worth recording about a personal model.

        ``steps``: those it took to make it.
        """
        if isinstance(personal, FineTuned):
            return {"steps": personal.steps}
        return {}


AnyAlgorithm = Algorithm[Any, Any, Any]
"""An algorithm of which nobody needs to know the types of its states."""


class _HasModel(Protocol):
    @property
    def model(self) -> Params:
        """Return the parameters of the server's model."""


class OneGlobalModel:
    """Mixin for methods whose clients all predict with ``model`` of the server state, as it is."""

    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "global"

    def global_model(self, task: Task, server: _HasModel) -> Params:
        """Return the global model."""
        return server.model

    def personalize(
        self, task: Task, download: Download[Any], state: Any, data: ClientData, key: Key
    ) -> Params:
        """Return the global model."""
        model: Params = download.shared.model
        return model
