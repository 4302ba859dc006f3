"""What a site answers at all: ``[policy]`` in ``site.toml``, and the check of a plan against it.

Ranges, fields, study and numbers of plans are checked before any data are read, the sizes of parts
before any answer. What the checks cannot see, such as the models that a server sends, stays a
matter of trust: see ``docs/reference/threat-model.md``. No torch, because ``site.toml`` is read by
several commands that only look at it.
"""

from __future__ import annotations

import dataclasses
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, check_options, show
from fedtailor.core.text import counted
from fedtailor.deployment.mask_kinds import KINDS

if TYPE_CHECKING:
    from fedtailor.core.algorithm import AnyAlgorithm
    from fedtailor.core.message import Messages
    from fedtailor.core.schedule import Training
    from fedtailor.data.columns import Columns
    from fedtailor.experiment.config import Config

LARGEST_SEED = 2**32 - 1
"""Of the division of a site's examples."""

PER_SITE = ("path", "dataset", "dir", "label_column", "group", "seed")
"""Keys of ``[data]`` that every site sets for itself."""
_LEFT_TO_SITES = tuple(f"data.{key}" for key in (*PER_SITE, "test"))
"""Keys of a plan that a site sets for itself, or that follow from its data."""
_WITHOUT_TRAINING = ("engine.", "checkpoint.", "evaluation.")
"""Sections of a plan that do not change how a site trains."""

_RANGES = {"lr": "lr", "epochs": "epochs", "rounds": "epochs", "steps": "steps", "batches": "steps"}
"""Last word of the name of an option of a method -> the range that it must be in."""

Span = Annotated[tuple[float, ...], Range(ge=0)]
"""The smallest and the largest value that a plan may have."""


@dataclass(frozen=True, kw_only=True)
class SitePolicy:
    """The ``[policy]`` section of ``site.toml``."""

    split_seed: Annotated[int, Range(ge=0, le=LARGEST_SEED)] | Literal["secret"] = "secret"
    """Seed by which the site divides its examples. secret: a random number that the site draws for
    itself, as it does for the order of its batches. With a number, a simulation with this
    ``data.seed`` divides them in the same way, and others know the order of batches."""
    least_examples: Annotated[int, Range(ge=1)] = 10
    """Fewest training examples of a round and of a batch, and fewest test examples of a score."""
    least_share: Annotated[float, Range(ge=0, le=1)] = 0.1
    """Smallest share of all examples of the site that a round trains on."""
    whole_epochs: bool = True
    """Whether a round must use every training example equally often, and weigh no class of few
    examples. Else two rounds can differ by one example."""
    batch_size: Span = (10, 10_000)
    """Range of batch sizes; 0, all examples in one batch, is always allowed."""
    epochs: Span = (1, 50)
    """Range of epochs of a round."""
    steps: Span = (1, 1000)
    """Range of steps of a round."""
    lr: Span = (1e-4, 1.0)
    """Range of learning rates."""
    plans_a_day: Annotated[int, Range(ge=1)] = 10
    """Most plans a day."""
    plans: Annotated[int, Range(ge=1)] = 100
    """Most plans in all."""
    rounds_a_day: Annotated[int, Range(ge=1)] = 2000
    """Most answers a day to requests to train, to score or to make a personal model."""
    rounds: Annotated[int, Range(ge=1)] = 20_000
    """Most of them in all."""
    purposes: Annotated[int, Range(ge=1)] = 1
    """For how many purposes the site describes its data: ways to read and to encode them."""
    counts: bool = False
    """Whether the site says how many cells of a column lie in intervals, which ``data.numbers``
    needs. A server can ask until it knows all values of a column, though not whose they are."""
    fields: tuple[str, ...] = ()
    """Fields of messages that the site sends; empty: all."""
    single_fields: tuple[str, ...] = ()
    """Of these, fields of which the server uses the value of every single site, not a sum or mean
    over sites."""
    study: dict[str, Any] = field(default_factory=dict)
    """Settings that a plan must have, by key, as ``fedtailor site policy --from`` writes them;
    empty: any."""

    def __post_init__(self) -> None:
        check_options(self, owner="policy")
        for name in ("batch_size", "epochs", "steps", "lr"):
            span = getattr(self, name)
            if len(span) != 2 or span[0] > span[1]:
                allowed = "the smallest and the largest value, such as [1, 5]"
                message = f"policy.{name} must be {allowed}, got {show(list(span))}."
                raise ConfigError(message, key=f"policy.{name}", allowed=allowed, got=list(span))

    def describe(self) -> list[str]:
        """Return what the policy means, in sentences."""
        seed = "a secret number of this site"
        order = "another one"
        if self.split_seed != "secret":
            seed = f"the number {self.split_seed}, which others may know"
            order = "numbers that the server knows"

        amount = "every training example equally often"
        if not self.whole_epochs:
            amount = "training examples, perhaps some of them more often than others"
        intervals = "counted in intervals" if self.counts else "not counted in intervals"
        fields = ", ".join(self.fields) or "all"
        single = ", ".join(self.single_fields) or "none"

        sentences = [
            f"Examples are divided into training, validation and test once, by {seed}. The order "
            f"of batches follows from {order}.",
            f"Its data are described for {counted(self.purposes, 'purpose')}: the same question "
            f"gets the same answer, another one gets none. Values of columns are {intervals}.",
            f"A round uses {amount}, at least {self.least_examples} and {self.least_share:.0%} of "
            f"all; in batches of {_span(self.batch_size)} or of all, and of at least "
            f"{self.least_examples}, for {_span(self.epochs)} epochs, with learning rates of "
            f"{_span(self.lr)}.",
            f"At most {self.plans_a_day:,} plans a day and {self.plans:,} in all; "
            f"{self.rounds_a_day:,} answers of rounds a day and {self.rounds:,} in all.",
            f"Fields of messages that may be sent: {fields}; of these, fields that the server uses "
            f"site by site, not as a mean or sum: {single}.",
        ]
        if self.study:
            sentences.append(f"One study only: its {len(self.study)} settings must be as agreed.")
        return sentences

    def check_training(self, algorithm: AnyAlgorithm) -> None:
        """Check how the method of a plan trains, with its defaults and presets.

        Raises:
            ConfigError: a value is outside of what the policy allows.
        """
        partial = leaves_examples_out(algorithm)
        if self.whole_epochs and partial:
            raise _refusal("whole epochs only", f"the plan has {partial}")

        for key, kind, value in rates_and_amounts(algorithm):
            low, high = getattr(self, kind)
            if not low <= value <= high:
                raise _refusal(f"{key} from {low:g} to {high:g}", f"the plan has {value:g}")

    def check_messages(self, messages: Messages) -> None:
        """Check which fields the messages of a plan's method have.

        Raises:
            ConfigError: one is not allowed.
        """
        for name, declared in messages.items():
            if declared.reduction == "none":
                continue

            problem = f"this method sends '{name}'"
            if self.fields and name not in self.fields:
                raise _refusal(f"the fields {', '.join(self.fields)} of messages", problem)
            if declared.reduction == "each" and name not in self.single_fields:
                named = ", ".join(self.single_fields) or "none"
                allowed = f"these fields of which a server uses single values: {named}"
                raise _refusal(allowed, problem)

    def check_study(self, settings: Mapping[str, Any]) -> None:
        """Check that a plan is the study that was agreed on, if there is one.

        Args:
            settings: of the plan, as :func:`study_settings` returns them.

        Raises:
            ConfigError: it is another one.
        """
        if not self.study:
            return

        for key in sorted({*self.study, *settings}):
            agreed = self.study.get(key)
            value = settings.get(key)
            if value != agreed:
                problem = f"this plan has {key} = {show(value)}"
                raise _refusal(f"one study, with {key} = {show(agreed)}", problem)

    def check_counts(self) -> None:
        """Check that cells may be counted in intervals.

        Raises:
            ConfigError: they may not.
        """
        if not self.counts:
            problem = "data.numbers of the plan needs them ('counts' in [policy])"
            raise _refusal("no counts of values in intervals", problem)

    def check_columns(self, columns: Columns | None) -> None:
        """Check how a plan makes features of the columns of a table.

        The mean of a feature between two knots says how many cells lie between them.

        Raises:
            ConfigError: it has knots, and cells may not be counted.
        """
        if columns is not None and any(column.knots for column in columns.columns):
            self.check_counts()

    def check_weights(self, training: Training, class_counts: Sequence[int]) -> None:
        """Check how much single training examples count in a round.

        Two rounds in another order differ by the examples of their smallest batches, and two with
        other weights of classes by the examples of the smallest class.

        Args:
            training: of the plan.
            class_counts: training examples of each class.

        Raises:
            ConfigError: some stand out.
        """
        sizes = training.batch_sizes(sum(class_counts))
        fewest = self.least_examples
        if sizes and min(sizes) < fewest:
            # A last batch can join the one before it; others are too small by choice.
            option = "smallest_batch" if min(sizes) < sizes[0] else "batch_size"
            remedy = f"training.{option} must be {fewest} or more"
            problem = f"this plan has a smaller one, so {remedy}"
            raise _refusal(f"batches of {fewest} or more examples", problem)

        # The number of examples of a class is the site's own business.
        has_rare_class = any(0 < count < fewest for count in class_counts)
        if self.whole_epochs and has_rare_class and training.class_weights != "none":
            allowed = f"weights of classes that all have {fewest} or more training examples"
            problem = f"the plan has training.class_weights = {show(training.class_weights)}"
            raise _refusal(allowed, problem)

    def check_parts(self, parts: Mapping[str, int]) -> None:
        """Check how many examples the division of a site leaves for each purpose.

        The server reads the reason, so it has no number of examples.

        Args:
            parts: number of examples for training, validation and test (train, val, test), and all.

        Raises:
            ConfigError: too few are used to hide each of them among the others.
        """
        names = {"train": "training", "val": "validation", "test": "test"}
        for part, name in names.items():
            if 0 < parts[part] < self.least_examples:
                allowed = f"{self.least_examples} or more {name} examples"
                raise _refusal(allowed, "this plan uses fewer")

        if 0 < parts["train"] < self.least_share * parts["all"]:
            allowed = f"training on {self.least_share:.0%} or more of all examples"
            raise _refusal(allowed, "this plan uses fewer")


def leaves_examples_out(algorithm: AnyAlgorithm) -> str:
    """Return the setting by which rounds use some training examples more often than others.

    It is an empty string if every round uses all of them equally often.
    """
    training = algorithm.training
    if training.steps and training.batch_size:
        return f"training.steps = {training.steps}"
    if training.drop_last and training.batch_size:
        return "training.drop_last = true"

    # FedALA searches its weights on a part of the examples.
    share = getattr(algorithm, "sample_share", 1.0)
    return f"algorithm.sample_share = {share:g}" if 0 < share < 1 else ""


def rates_and_amounts(algorithm: AnyAlgorithm) -> list[tuple[str, str, float]]:
    """Return key, range of the policy, and value of all that says how much a method trains.

    What is 0 switches a part of a method off, and is left out.
    """
    training = algorithm.training
    amount = "steps" if training.steps else "epochs"
    values = [(f"training.{name}", name, getattr(training, name)) for name in ("lr", amount)]
    values.append(("training.batch_size", "batch_size", training.batch_size))

    # Parts of a method have rates and amounts of their own.
    for option in dataclasses.fields(algorithm):
        kind = _RANGES.get(option.name.rpartition("_")[2])
        if kind is not None:
            values.append((f"algorithm.{option.name}", kind, getattr(algorithm, option.name)))

    return [entry for entry in values if entry[2]]


def study_settings(config: Config) -> dict[str, Any]:
    """Return the settings of a configuration, by key, that make a study what it is."""
    from fedtailor.experiment.config import flatten, to_toml

    settings = flatten(tomllib.loads(to_toml(config)))
    return {
        key: value
        for key, value in settings.items()
        if key not in _LEFT_TO_SITES and not key.startswith(_WITHOUT_TRAINING)
    }


SENT_AGAIN = "an answer, sent again"
"""What the log says is in an answer that the site had given before."""


class Tally:
    """How much a site has answered: what its log says, by day."""

    def __init__(self) -> None:
        self._plans: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._rounds: Counter[str] = Counter()

    def count(self, line: Mapping[str, Any]) -> None:
        """Count a line of the log, if it is an answer."""
        kind = str(line.get("kind"))
        if line.get("way") != "sent" or not line.get("plan") or line.get("refused"):
            return
        # The server learns nothing new from it.
        if SENT_AGAIN in line.get("sizes", {}):
            return

        day = str(line.get("time"))[:10]
        stage = _stage(kind)
        self._plans[stage, day].add(str(line["plan"]))
        self._rounds[day] += stage == "round"

    @property
    def rounds(self) -> int:
        """How many answers of rounds there were in all."""
        return self._rounds.total()

    @property
    def plans(self) -> int:
        """How many plans the site has answered, of the stage with the most."""
        by_stage: dict[str, set[str]] = defaultdict(set)
        for (stage, _), plans in self._plans.items():
            by_stage[stage] |= plans

        return max(map(len, by_stage.values()), default=0)

    def check(self, policy: SitePolicy, kind: str, plan: str) -> None:
        """Check that a request may still be answered today.

        Args:
            policy: of the site.
            kind: of the request.
            plan: digest of its plan.

        Raises:
            ConfigError: the site has answered as much as it allows.
        """
        day = time.strftime("%Y-%m-%d")
        stage = _stage(kind)
        today = self._plans[stage, day]
        ever = set().union(*(plans for key, plans in self._plans.items() if key[0] == stage))
        if plan not in today and len(today) >= policy.plans_a_day:
            raise _refusal(f"{policy.plans_a_day} plans a day", "this is one more")
        if plan not in ever and len(ever) >= policy.plans:
            raise _refusal(f"{policy.plans} plans in all", "this is one more")

        if stage == "round" and self._rounds[day] >= policy.rounds_a_day:
            raise _refusal(f"{policy.rounds_a_day} answers of rounds a day", "this is one more")
        if stage == "round" and self.rounds >= policy.rounds:
            raise _refusal(f"{policy.rounds} answers of rounds in all", "this is one more")


def _stage(kind: str) -> str:
    """Return when a request comes: the plan of the first one lacks what its answers decide."""
    if kind in KINDS:
        return "masks"
    return "begin" if kind == "begin" else "round"


def _refusal(allowed: str, problem: str) -> ConfigError:
    message = f"its policy allows {allowed}: {problem}."
    return ConfigError(message, key="site.policy", allowed=allowed, got=problem)


def _span(span: tuple[float, ...]) -> str:
    return f"{span[0]:g} to {span[1]:g}"
