"""The section ``[privacy]`` of a configuration, and what refuses it. Without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.errors import ConfigError, unknown_name
from fedtailor.core.options import Range, check_options, wrong_value
from fedtailor.core.schedule import Schedule

if TYPE_CHECKING:
    from fedtailor.core.message import Field

Colluding = Annotated[int, Range(ge=0)] | Literal["none", "third"]
"""How many sites may work with the server; see :func:`colluding_of`."""


def colluding_of(sites: int, setting: int | str) -> int:
    """Return how many sites may work with the server, so that it still learns sums only.

    Args:
        sites: of the roster.
        setting: "none", "third" for less than a third, or a number.

    Example:
        >>> [colluding_of(sites, "third") for sites in (3, 4, 10)]
        [0, 1, 3]
    """
    if setting == "third":
        return max(sites - 1, 0) // 3
    return 0 if setting == "none" else int(setting)


def threshold_of(sites: int, colluding: int) -> int:
    """Return how many sites must answer before a sum is opened.

    Two sets of so many sites share more than ``colluding``, so that an honest site is in both.

    Example:
        >>> threshold_of(5, colluding=1)
        4
    """
    return (sites + colluding) // 2 + 1


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """The ``[privacy]`` section."""

    secure_sums: bool = False
    """The server gets sums over clients only, in 64-bit whole numbers. A simulation adds as real
    sites do under masks, and so shows what that costs; it does not mask."""
    smallest_sum: Annotated[int, Range(ge=2)] = 3
    """Clients that a sum is over, at least."""
    colluding: Colluding = "third"
    """How many sites may work with the server, which then still learns sums over two of the others
    at least. third: fewer than a third. A simulation uses it for shares of noise."""
    most_examples: Annotated[int, Range(ge=1, le=2**40)] = 2**20
    """The most training examples of one client in secure sums."""
    rare_classes: Literal["drop", "keep"] = "drop"
    """What becomes of classes that fewer than ``smallest_sum`` clients have, in means that are
    weighted by class: such a mean would be the value of one or two clients."""

    unit: Literal["none", "client", "example"] = "none"
    """What differential privacy protects: nothing, all that a client contributes, or single
    training examples, in steps of training or in sums over features."""
    epsilon: Annotated[float, Range(ge=0)] = 0.0
    """What all rounds may tell of a client or an example at most; 0: ``noise`` says how much noise
    there is."""
    delta: Annotated[float, Range(ge=1e-10, lt=1)] = 1e-5
    """Probability with which they may tell more: far below one over the number of clients, or of
    examples."""
    noise: Annotated[float, Range(ge=0)] = 0.0
    """Standard deviation of the noise over ``clip``, or over the largest norm of what an example
    adds to sums; 0: the least that ``epsilon`` allows."""
    noise_from: Literal["server", "sites"] = "server"
    """Where examples are hidden. server: in the sum over all clients, which has the noise once: in
    training, and at real sites, each client adds a share of it; to sums over features, the server
    of a simulation adds it. sites: in what each client sends, so that nobody has to be trusted."""
    clip: Annotated[float, Range(gt=0)] = 1.0
    """Largest norm of what a client changes in a round, over all fields, or of the gradient of an
    example. Sums over features have ``algorithm.feature_clip`` in its place."""
    scales: dict[str, Any] = field(default_factory=dict)
    """By field: what its changes are divided by before they are bounded, a public number; 1 if it
    is missing. A field of a larger scale gets more of the noise."""
    weights: dict[str, Any] = field(default_factory=dict)
    """By field whose mean is weighted by classes or confidences of the clients: the largest weight
    that counts, a public number."""

    def __post_init__(self) -> None:
        check_options(self, owner="privacy")
        for option in ("scales", "weights"):
            for name, number in getattr(self, option).items():
                if not _is_positive(number):
                    raise wrong_value(f"privacy.{option}.{name}", "a number above 0", number)

        if self.unit != "none" and not (self.epsilon or self.noise):
            hint = "privacy.noise sets the noise itself."
            allowed = f"above 0 with privacy.unit = '{self.unit}'"
            raise wrong_value("privacy.epsilon", allowed, self.epsilon, hint)

        for option in ("scales", "weights"):
            values = getattr(self, option)
            if self.unit == "example" and values:
                allowed = "left out with privacy.unit = 'example'"
                raise wrong_value(f"privacy.{option}", allowed, values)

        if self.unit != "example" and self.noise_from != "server":
            allowed = "'server' unless privacy.unit = 'example'"
            raise wrong_value("privacy.noise_from", allowed, self.noise_from)

    def check_for_sites(self) -> None:
        """Check that real sites can make the noise.

        Raises:
            ConfigError: they cannot.
        """
        if self.unit == "client":
            allowed = "'none' or 'example' at real sites"
            hint = (
                "To hide whole clients takes hundreds of them, and trust in the server, which "
                "would add the noise."
            )
            raise wrong_value("privacy.unit", allowed, self.unit, hint)

        if self.unit == "example" and self.noise_from == "server" and not self.secure_sums:
            allowed = "'sites' at real sites without privacy.secure_sums"
            hint = "The server sees what each of them sends, so each must hide its own examples."
            raise wrong_value("privacy.noise_from", allowed, self.noise_from, hint)

    def check(self, schedule: Schedule, num_trainable: int) -> None:
        """Check the section against the schedule and the clients that can train.

        Raises:
            ConfigError: they do not fit together.
        """
        if self.unit != "none":
            _check_schedule(schedule, self.unit)
        if not self.secure_sums:
            return

        if schedule.robust != "none":
            allowed = "false with federation.robust, which compares single uploads"
            raise wrong_value("privacy.secure_sums", allowed, True)

        drawn = num_trainable
        if schedule.participation.plan == "fixed":
            drawn = min(drawn, schedule.participation.count)
        if drawn < self.smallest_sum:
            raise ConfigError(
                f"privacy.secure_sums needs {self.smallest_sum} clients in a round, got {drawn}: "
                "a sum of fewer tells too much of each.",
                key="privacy.secure_sums",
                got=drawn,
            )

    def check_fields(self, method: str, messages: Mapping[str, Field]) -> None:
        """Check that the server of a method can do with what it may see.

        Args:
            method: its name.
            messages: its declaration.

        Raises:
            ConfigError: it cannot.
        """
        single = [name for name, field in messages.items() if field.reduction == "each"]
        if single and (self.secure_sums or self.unit == "client"):
            key = "privacy.secure_sums = false" if self.secure_sums else "privacy.unit = 'none'"
            raise ConfigError(
                f"{method} shows the server what single clients send ({_quoted(single)}): choose "
                f"another method, or an option of it that needs sums only, or {key}.",
                key="privacy.secure_sums" if self.secure_sums else "privacy.unit",
            )
        if self.unit == "client":
            self._check_fields_of_clients(method, messages)

    def _check_fields_of_clients(self, method: str, messages: Mapping[str, Field]) -> None:
        uploaded = {name: field for name, field in messages.items() if field.reduction != "none"}
        if not uploaded:
            raise ConfigError(
                f"{method} sends nothing to the server, so privacy.unit = 'client' protects "
                "nothing: leave it out.",
                key="privacy.unit",
            )

        weighted = [name for name, field in uploaded.items() if field.has_own_weights]
        for option, known in (("scales", list(uploaded)), ("weights", weighted)):
            for name in getattr(self, option):
                if name not in known:
                    raise unknown_name(f"field in privacy.{option}", name, known)

        missing = [name for name in weighted if name not in self.weights]
        if missing:
            raise ConfigError(
                f"{method} weighs {_quoted(missing)} by numbers of its clients, which "
                "privacy.unit = 'client' must bound: set the largest weight that counts, a public "
                f"number, such as privacy.weights.{missing[0]} = 100.",
                key="privacy.weights",
            )


def _check_schedule(schedule: Schedule, unit: str) -> None:
    """Check that no part of a run looks at single clients."""
    if schedule.robust != "none":
        allowed = "'none' with federation.robust, which compares single uploads"
        raise wrong_value("privacy.unit", allowed, unit)
    if schedule.watches_validation:
        allowed = "'none' with evaluation.select = 'best' or patience, which look at scores"
        raise wrong_value("privacy.unit", allowed, unit)
    if schedule.history and unit == "client":
        allowed = "'none' or 'example' with federation.history, which changes who can be drawn"
        raise wrong_value("privacy.unit", allowed, unit)


def _is_positive(number: Any) -> bool:
    return not isinstance(number, bool) and isinstance(number, int | float) and number > 0


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
