"""How a run trains: rounds, who takes part, when models are tested, how a client trains.

Nothing here imports torch, but for drawing a cohort.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.errors import FedtailorError, RunError, find_name, unknown_name
from fedtailor.core.history import Change, read_change
from fedtailor.core.options import (
    Flag,
    NoResult,
    Range,
    check_names,
    check_options,
    hints_of,
    wrong_value,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


_MOST_DRAWS = 10_000
_FORMS = (
    'a probability such as 0.3, "all", "fixed(30)" or "bernoulli(0.3)", '
    "with a probability in (0, 1]"
)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """The rule by which the cohort of a round is drawn. A cohort depends on seed and round only."""

    plan: Literal["bernoulli", "fixed", "all"] = "all"
    """Each client independently with a probability, a fixed number of clients, or all clients."""
    probability: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Of each client, with the plan ``bernoulli``."""
    count: Annotated[int, Range(ge=1)] = 1
    """Clients per round, with the plan ``fixed``."""
    min_clients: Annotated[int, Range(ge=1)] = 1
    """A smaller cohort is drawn again."""
    full_last_round: bool = True
    """Whether all clients take part in the last round."""

    def __post_init__(self) -> None:
        key = "federation.participation"
        check_options(
            self, owner="federation", keys={"plan": key, "probability": key, "count": key}
        )

    def as_value(self) -> float | str:
        """Return the plan as ``federation.participation`` writes it.

        A probability, ``"all"`` or ``"fixed(k)"``.
        """
        if self.plan == "bernoulli":
            return self.probability
        return "all" if self.plan == "all" else f"fixed({self.count})"

    def share(self, population: int) -> float:
        """Return the share of the clients that take part in a round, on average."""
        if self.plan == "fixed":
            return min(1.0, self.count / population)
        return self.probability if self.plan == "bernoulli" else 1.0

    def check(self, population: int) -> None:
        """Check the plan against the number of clients.

        Raises:
            ConfigError: the plan asks for more clients than there are.
        """
        drawn = self.count if self.plan == "fixed" else population
        if drawn > population:
            allowed = f"at most {population}, the number of clients"
            raise wrong_value("federation.participation", allowed, drawn)
        if self.min_clients > drawn:
            allowed = f"at most {drawn}, the clients of a round"
            raise wrong_value("federation.min_clients", allowed, self.min_clients)

    def cohort(
        self,
        seed: int,
        round: int,
        rounds: int,
        population: int,
        attempt: int = 0,
        members: Sequence[int] | None = None,
        trainable: Sequence[int] | None = None,
    ) -> Tensor:
        """Return the ids of a round's clients in increasing order.

        Another attempt at the round is another draw.

        Args:
            seed: of the run.
            round: for which clients are drawn.
            rounds: of the run.
            population: number of clients that have a chance of their own.
            attempt: at the round.
            members: those of them that can be drawn, in increasing order; None: all.
            trainable: those that have training examples, of which ``min_clients`` must be drawn;
                None: all.

        Raises:
            RunError: no draw reached ``min_clients``.
        """
        import numpy as np
        import torch

        from fedtailor.core import rng

        drawable = np.arange(population) if members is None else np.array(members, dtype=np.int64)
        if self.plan == "all" or (round == rounds and self.full_last_round):
            return torch.from_numpy(drawable)

        # Clients without training examples are drawn too, but do not count.
        counts = np.ones(len(drawable), dtype=bool)
        if trainable is not None:
            counts = np.isin(drawable, trainable)

        least = self.min_clients
        if len(drawable) >= least:
            least = min(least, int(counts.sum()))

        for draw in range(_MOST_DRAWS):
            purpose = f"cohort/{draw}" if attempt == 0 else f"cohort/{draw}/attempt/{attempt}"
            key = rng.new_key(seed, round=round, purpose=purpose)
            words = rng.words(rng.plain(key), population)[drawable]
            if self.plan == "fixed":
                lowest = _lowest(words, min(self.count, len(drawable)))
                return torch.from_numpy(drawable[lowest])

            is_drawn = rng.to_unit(words) < self.probability
            if np.count_nonzero(is_drawn & counts) >= least:
                return torch.from_numpy(drawable[is_drawn])

        raise RunError(
            f"federation.participation {self.probability:g} of {len(drawable)} clients did not "
            f"reach federation.min_clients {self.min_clients} in {_MOST_DRAWS} draws of round "
            f"{round}.",
            key="federation.min_clients",
        )


def _lowest(words: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the lowest words in increasing order; of equal ones, the first."""
    import numpy as np

    # A partition takes less time than sorting all words.
    limit = np.partition(words, count - 1)[count - 1]
    below = np.flatnonzero(words < limit)
    equal = np.flatnonzero(words == limit)[: count - len(below)]
    return np.sort(np.concatenate([below, equal]))


def parse_participation(value: Any, **limits: Any) -> Participation:
    """Read ``federation.participation``.

    A probability, ``"all"``, ``"fixed(k)"`` or ``"bernoulli(q)"``.

    Args:
        value: what the configuration holds.
        limits: ``min_clients`` and ``full_last_round`` of :class:`Participation`.

    Raises:
        ConfigError: the value is none of these, or a number is out of range.
    """
    if isinstance(value, str) and value.strip() == "all":
        return Participation(plan="all", **limits)

    def refused() -> FedtailorError:
        return wrong_value("federation.participation", _FORMS, value)

    probability = value
    if isinstance(value, str):
        call = re.fullmatch(r"(bernoulli|fixed)\(([^()]+)\)", value.strip())
        number = call.group(2) if call else value
        try:
            if call and call.group(1) == "fixed":
                return Participation(plan="fixed", count=int(number), **limits)

            probability = float(number)
        except ValueError:
            raise refused() from None

    is_number = isinstance(probability, int | float) and not isinstance(probability, bool)
    if not is_number or not 0 < probability <= 1:
        raise refused()
    return Participation(plan="bernoulli", probability=float(probability), **limits)


BASELINE_NAMES = ("majority", "logistic_regression", "random_forest", "gradient_boosting")
"""Models that a site would use without a federation, the simplest first: see
:mod:`fedtailor.baselines`."""


def split_baselines(text: str) -> tuple[str, ...]:
    """Return the names of baselines in a text, in the order of :data:`BASELINE_NAMES`.

    >>> split_baselines("random_forest, majority"), split_baselines("none")
    (('majority', 'random_forest'), ())
    """
    names = [name.strip() for name in text.split(",")]
    return tuple(name for name in BASELINE_NAMES if name in names)


def names_of_baselines(text: str) -> tuple[str, ...]:
    """Return the names of baselines in a text, where ``auto`` means all."""
    return BASELINE_NAMES if text == "auto" else split_baselines(text)


def spell_baselines(text: str, key: str) -> str:
    """Return a text with names of baselines as they are usually spelled.

    Args:
        text: ``auto``, ``none``, or names with commas.
        key: of the option.

    Raises:
        ConfigError: one is unknown.
    """
    parts = [part.strip() for part in text.split(",")]
    choices = BASELINE_NAMES if len(parts) > 1 else (*BASELINE_NAMES, "auto", "none")
    return ",".join(find_name(f"name in {key}", part, choices, key=key) for part in parts)


Measure = Literal["accuracy", "balanced_accuracy", "auroc"]
"""By which the verdicts of sites compare two models."""
RobustRule = Literal["none", "norm_clip", "median", "trimmed_mean", "krum"]
"""How means over clients are protected, see :mod:`fedtailor.core.robust`."""

ServerOptimizerName = Literal["none", "sgd", "adagrad", "adam", "yogi"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """The ``[evaluation]`` section: when models are evaluated, what decides, and by what."""

    evaluate_every: Annotated[int | Literal["auto"], Range(ge=0)] = "auto"
    """Rounds between evaluations of the global model and of local models; 0: after the last round
    only; auto: every tenth of the rounds, or fewer where that would take over 5 % of the time."""
    personalized_every: Annotated[int | Literal["auto"], Range(ge=0)] = "auto"
    """Rounds between evaluations of personalized models; 0: after the last round only; auto: as
    ``every``, unless personalization trains."""
    select: Literal["last", "best"] = "last"
    """Which round gives the final models: the last one, or the one whose personalized models have
    the best mean accuracy on the clients' validation examples (the first of equal ones)."""
    patience: Annotated[int, Range(ge=0)] = 0
    """The run stops after this many evaluations of personalized models in a row whose mean accuracy
    on validation examples is not better than before; 0: it does not stop."""
    baselines: Annotated[
        str,
        NoResult(),
        Flag(
            "--baselines",
            "NAMES",
            "Models that sites would use alone: auto, none, or names such as "
            "majority,random_forest.",
        ),
    ] = "auto"
    """What sites would use without a federation, which is trained too: names with commas, or
    ``none``; auto: all for own data and for tables whose clients are sites."""
    verdict: Annotated[
        Measure,
        NoResult(),
        Flag(
            "--verdict",
            "MEASURE",
            "What the verdicts of sites compare: accuracy, balanced_accuracy or auroc.",
        ),
    ] = "accuracy"
    """By which measure the verdicts of sites compare the personalized model with the site's own
    one. Choose it before you see results."""
    sensitivity: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Of two classes, the share of the examples of the positive one that models should find: their
    threshold is chosen for it on validation examples; 0: models predict the most probable
    class."""
    positive: Annotated[
        str,
        Flag(
            "--positive",
            "CLASS",
            "Of two classes, the one to find, such as disease (default: the last by name).",
        ),
    ] = ""
    """Of two classes, the one to find: sensitivity and operating points are of it; empty: the last
    one by name."""

    @property
    def watches_validation(self) -> bool:
        """Whether scores on validation examples decide which round is selected, or the end."""
        return self.select == "best" or self.patience > 0

    @property
    def _watching_option(self) -> str:
        return "evaluation.select = 'best'" if self.select == "best" else "evaluation.patience"

    def positive_of(self, classes: Sequence[str]) -> int:
        """Return the number of the positive class of data with these classes.

        Raises:
            ConfigError: there are other than two, or none has the name.
        """
        if len(classes) != 2:
            allowed = f"left out unless data have two classes, and these have {len(classes)}"
            raise wrong_value("evaluation.positive", allowed, self.positive)
        if not self.positive:
            return 1
        if self.positive in classes:
            return list(classes).index(self.positive)

        raise unknown_name("class", self.positive, classes, key="evaluation.positive")

    def check_validation(self, validates: bool, classes: Sequence[str]) -> None:
        """Check that there are validation examples if they are to decide something.

        Args:
            validates: whether any client has some.
            classes: names of those of the data.

        Raises:
            ConfigError: there are none, or a sensitivity or a positive class is wanted of more than
                two classes, or the positive class is none of them.
        """
        if self.sensitivity and len(classes) != 2:
            allowed = f"0 unless data have two classes, and these have {len(classes)}"
            raise wrong_value("evaluation.sensitivity", allowed, self.sensitivity)

        if self.positive:
            self.positive_of(classes)

        deciding = self._watching_option if self.watches_validation else "evaluation.sensitivity"
        if (self.watches_validation or self.sensitivity) and not validates:
            allowed = f"more than 0, such as 0.2, for {deciding}"
            hint = "No client has validation examples, and test examples never decide."
            raise wrong_value("data.val_fraction", allowed, 0, hint)


@dataclass(frozen=True, kw_only=True)
class Schedule(EvaluationOptions):
    """The ``[federation]`` section, with that of evaluation: how long a run is, and who trains."""

    rounds: Annotated[int, Range(ge=1), Flag("--rounds", "NUMBER", "Number of rounds.")] = 30
    """Rounds."""
    participation: Annotated[
        Participation,
        Flag(
            "--participation", "TEXT", "Clients per round: all, 0.3, fixed(10) or bernoulli(0.3)."
        ),
    ] = field(default_factory=Participation)
    """How the cohort of a round is drawn."""
    train: Literal["auto", "cohort", "all"] = "auto"
    """Who trains: the cohort, or all clients in every round while the cohort uploads; auto: as the
    method does."""
    history: tuple[str, ...] = ()
    """Clients that come and go, such as ``"4 pause Oslo"``: from round 4 on, nothing is asked of
    Oslo. Lines are in the order of rounds: round; join, pause, resume or leave; client."""
    client_timeout: Annotated[float, Range(ge=0)] = 0.0
    """Seconds that a client's program may take, on the engine ``processes``; 0: any time."""
    robust: RobustRule = "none"
    """How the server protects means over clients from wrong or hostile uploads."""
    robust_share: Annotated[float, Range(gt=0, lt=0.5)] = 0.25
    """Share of the clients of a round whose uploads may be wrong; ``trimmed_mean`` and ``krum``
    leave out that share of the uploads."""
    server_optimizer: ServerOptimizerName = "none"
    """What the server does with the mean of the clients' models: ``none`` takes it as the next
    model; the others take a step towards it, see :mod:`fedtailor.core.server_optimizer`."""
    server_lr: Annotated[float, Range(gt=0)] = 1.0
    """Learning rate of the server optimizer (eta)."""
    server_momentum: Annotated[float, Range(ge=0, lt=1)] = 0.9
    """Momentum of the server optimizer (b1)."""
    server_beta2: Annotated[float, Range(ge=0, lt=1)] = 0.99
    """How slowly the second moment of ``adam`` and ``yogi`` changes (b2)."""
    server_epsilon: Annotated[float, Range(gt=0)] = 0.001
    """What the adaptive server optimizers add to the root of the second moment (tau): the smaller,
    the more alike all steps are."""

    def __post_init__(self) -> None:
        keys = {name: ".".join(_section_and_key(name)) for name in hints_of(EvaluationOptions)}
        check_options(self, owner="federation", keys=keys)
        baselines = spell_baselines(self.baselines, "evaluation.baselines")
        object.__setattr__(self, "baselines", baselines)
        self.changes()
        if self.watches_validation and self.personalized_every in (0, "auto"):
            key = "evaluation.personalized_every"
            allowed = f"1 or more with {self._watching_option}"
            raise wrong_value(key, allowed, self.personalized_every, "Set it, such as 10.")

    def everybody_trains(self, by_default: Literal["cohort", "all"]) -> bool:
        """Return whether all clients train in every round.

        Args:
            by_default: who trains by the method, which decides with ``auto``.
        """
        return (by_default if self.train == "auto" else self.train) == "all"

    @property
    def fewest_uploads(self) -> int:
        """How many uploads the robust rule needs to tell a bad client from the others."""
        if self.robust == "none":
            return 1
        if self.robust not in ("trimmed_mean", "krum"):
            return 3

        # They leave out robust_share of the uploads, rounded down: one at least.
        leaves_one_out = math.ceil(1 / self.robust_share)
        # Krum compares an upload with all but itself, those left out, and one more. Of three, none
        # would be left to compare with; of four or more, at least one is.
        return max(4 if self.robust == "krum" else 3, leaves_one_out)

    def check(self, num_trainable: int) -> None:
        """Check the schedule against the clients that can train.

        Raises:
            ConfigError: a robust rule needs more clients in a round than there are, or than are
                drawn.
        """
        drawn = num_trainable
        if self.participation.plan == "fixed":
            drawn = min(drawn, self.participation.count)

        if self.robust != "none" and self.fewest_uploads > drawn:
            fewest = f"fewer than {self.fewest_uploads} clients in a round, and there are {drawn}"
            raise wrong_value("federation.robust", f"'none' with {fewest}", self.robust)

    def changes(self) -> list[Change]:
        """Return the changes of the history.

        Raises:
            ConfigError: a line has another form.
        """
        return [read_change(line) for line in self.history]

    @property
    def late(self) -> tuple[str, ...]:
        """The names of the clients that join during the run, in their order."""
        return tuple(change.client for change in self.changes() if change.kind == "join")

    @property
    def fewest_members(self) -> int:
        """How many clients that can train every round needs."""
        return max(self.fewest_uploads, self.participation.min_clients)

    def evaluation_is_due(self, round: int, every: int | Literal["auto"]) -> bool:
        """Return whether an evaluation is due after a round; ``auto`` counts as 0."""
        if round == self.rounds:
            return True
        return every != "auto" and every > 0 and round % every == 0

    def sections(self) -> dict[str, dict[str, Any]]:
        """Return the sections of a configuration that :func:`read_schedule` reads back."""
        sections: dict[str, dict[str, Any]] = {"federation": {}, "evaluation": {}}
        for option in fields(self):
            section, key = _section_and_key(option.name)
            sections[section][key] = getattr(self, option.name)

        sections["federation"]["participation"] = self.participation.as_value()
        for name in _LIMITS:
            sections["federation"][name] = getattr(self.participation, name)
        return sections


_LIMITS = ("min_clients", "full_last_round")
"""Fields of ``participation`` that ``[federation]`` has beside it."""


def _section_and_key(name: str) -> tuple[str, str]:
    """Return section and key of a field."""
    if name not in hints_of(EvaluationOptions):
        return "federation", name
    return "evaluation", "every" if name == "evaluate_every" else name


SCHEDULE_KEYS: Mapping[str, tuple[str, ...]] = {
    section: tuple(keys) for section, keys in Schedule().sections().items()
}
"""The two sections of a configuration that hold a schedule, and their keys."""


def schedule_annotations() -> dict[str, Any]:
    """Return the annotations of the options of a schedule, by key: ``federation.rounds``."""
    hints = dict(hints_of(Schedule))
    limits = hints_of(Participation)
    hints |= {name: limits[name] for name in _LIMITS}
    annotations = {".".join(_section_and_key(name)): hint for name, hint in hints.items()}
    return dict(sorted(annotations.items(), key=lambda item: item[0].startswith("evaluation.")))


def read_schedule(federation: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Schedule:
    """Read a schedule from the sections ``[federation]`` and ``[evaluation]`` of a configuration.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value out of range.
    """
    tables = {"federation": federation, "evaluation": evaluation}
    for section, table in tables.items():
        check_names(table, SCHEDULE_KEYS[section], section=section)

    values: dict[str, Any] = {}
    for option in fields(Schedule):
        section, key = _section_and_key(option.name)
        if key in tables[section]:
            values[option.name] = tables[section][key]

    limits = {name: federation[name] for name in _LIMITS if name in federation}
    values["participation"] = parse_participation(federation.get("participation", "all"), **limits)
    return Schedule(**values)


@dataclass(frozen=True, kw_only=True)
class Training:
    """The ``[training]`` section: how a client trains. An algorithm may override fields."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    """Optimizer; its state is reset in every phase."""
    lr: Annotated[float, Range(gt=0)] = 0.01
    """Learning rate."""
    momentum: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""
    weight_decay: Annotated[float, Range(ge=0)] = 0.0
    """Weight decay, coupled (added to the gradient)."""
    epochs: Annotated[int, Range(ge=0)] = 5
    """Local epochs per round."""
    steps: Annotated[int, Range(ge=0)] = 0
    """Local steps per round in place of epochs; 0: use epochs."""
    batch_size: Annotated[int, Range(ge=0)] = 50
    """Examples per batch; a client with fewer uses one batch of what it has. 0: all examples."""
    drop_last: bool = False
    """Leave out a last, shorter batch of an epoch (never the only one)."""
    smallest_batch: Annotated[int, Range(ge=1)] = 1
    """A last batch of fewer examples joins the batch before it. With 1, as in the papers, a last
    batch of one example counts as much as a full one."""
    clip_norm: Annotated[float, Range(ge=0)] = 0.0
    """Bound of the gradient's norm over all trained parameters; 0: none."""
    crop_padding: Annotated[int, Range(ge=0)] = 0
    """Augmentation: images are shifted by up to this many pixels each way and filled with black; 0:
    none."""
    flip: bool = False
    """Augmentation: each image is mirrored, left to right, with probability 1/2."""
    class_weights: Literal["none", "balanced", "effective"] = "none"
    """Weights of the classes in the cross-entropy, from the client's own counts of training
    examples: balanced, every class weighs the same in all; effective, by the effective number of
    examples, which weighs rare classes a little less; none."""
    precision: Literal["full", "bfloat16"] = "full"
    """Precision of products and convolutions in training steps. bfloat16 changes results, and is
    refused where the processor does not compute in it (help: results/performance)."""

    def __post_init__(self) -> None:
        check_options(self, owner="training")

    def batch_sizes(self, count: int) -> list[int]:
        """Return the sizes of the batches into which an epoch divides so many examples.

        Example:
            >>> Training(batch_size=50).batch_sizes(109)
            [50, 50, 9]
            >>> Training(batch_size=50, smallest_batch=10).batch_sizes(109)
            [50, 59]
        """
        if count == 0:
            return []

        size = min(self.batch_size or count, count)
        sizes = [size] * (count // size)
        remaining = count % size
        if remaining == 0 or self.drop_last:
            return sizes

        if remaining < self.smallest_batch:
            sizes[-1] += remaining
        else:
            sizes.append(remaining)
        return sizes

    def num_steps(self, count: int) -> int:
        """Return how many steps a client with so many examples takes in a round.

        Example:
            >>> Training(batch_size=50, epochs=2).num_steps(109)
            6
        """
        return self.steps or self.epochs * len(self.batch_sizes(count))

    def plain(self) -> Training:
        """Return the section without what plain SGD leaves out.

        Momentum, weight decay, clipping, Adam.
        """
        return replace(self, optimizer="sgd", momentum=0.0, weight_decay=0.0, clip_norm=0.0)

    def not_used(self, *names: str) -> list[str]:
        """Return a sentence that names the options that were set and that a method ignores."""
        default = Training()
        unused = [name for name in names if getattr(self, name) != getattr(default, name)]
        if not unused:
            return []
        return [f"this method does not use {', '.join(f'training.{name}' for name in unused)}."]

    @property
    def augments(self) -> bool:
        """Whether images are moved or mirrored: then features cannot be computed once and kept."""
        return self.flip or self.crop_padding > 0
