"""Participation: the clients that take part in a round. Checking a plan imports no torch.

Drawing a cohort does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.errors import ConfigError, RunError
from fedtailor.core.options import Range, check_options, show

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_MOST_DRAWS = 10_000
_FORMS = 'a probability such as 0.3, "all", "fixed(30)" or "bernoulli(0.3)"'


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
        wanted = {
            "participation": self.count if self.plan == "fixed" else 1,
            "min_clients": self.min_clients,
        }
        for name, number in wanted.items():
            if number > population:
                raise ConfigError(
                    f"federation.{name} asks for {number} clients a round, but there are only "
                    f"{population}.",
                    key=f"federation.{name}",
                    allowed=f"at most {population}",
                    got=number,
                )

        if self.plan == "fixed" and self.count < self.min_clients:
            raise ConfigError(
                f"federation.min_clients is {self.min_clients}, but federation.participation draws "
                f"{self.count}.",
                key="federation.min_clients",
                allowed=f"at most {self.count}",
                got=self.min_clients,
            )

    def cohort(
        self, seed: int, round: int, rounds: int, population: int, attempt: int = 0
    ) -> Tensor:
        """Return the ids of a round's clients in increasing order.

        Another attempt at the round is another draw.

        Raises:
            RunError: no draw reached ``min_clients``.
        """
        import numpy as np
        import torch

        from fedtailor.core import rng

        if self.plan == "all" or (round == rounds and self.full_last_round):
            return torch.arange(population, device="cpu")

        for draw in range(_MOST_DRAWS):
            purpose = f"cohort/{draw}" if attempt == 0 else f"cohort/{draw}/attempt/{attempt}"
            key = rng.new_key(seed, round=round, purpose=purpose)
            words = rng.words(rng.plain(key), population)
            if self.plan == "fixed":
                return torch.from_numpy(_lowest(words, min(self.count, population)))

            ids = np.flatnonzero(rng.to_unit(words) < self.probability)
            if len(ids) >= self.min_clients:
                return torch.from_numpy(ids)

        raise RunError(
            f"federation.participation {self.probability:g} of {population} clients did not reach "
            f"federation.min_clients {self.min_clients} in {_MOST_DRAWS} draws of round {round}.",
            key="federation.min_clients",
        )


def _lowest(words: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the lowest words in increasing order, without sorting all.

    Of equal ones, the first.
    """
    import numpy as np

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
    if isinstance(value, str):
        return _parse_text(value, limits)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise _refused(value)
    return Participation(plan="bernoulli", probability=float(value), **limits)


def _parse_text(text: str, limits: dict[str, Any]) -> Participation:
    if text.strip() == "all":
        return Participation(plan="all", **limits)

    call = re.fullmatch(r"(bernoulli|fixed)\(([^()]+)\)", text.strip())
    number = call.group(2) if call else text
    try:
        if call and call.group(1) == "fixed":
            return Participation(plan="fixed", count=int(number), **limits)

        probability = float(number)
    except ValueError:
        raise _refused(text) from None

    if not 0 < probability <= 1:
        raise _refused(text)

    return Participation(plan="bernoulli", probability=probability, **limits)


def _refused(got: object) -> ConfigError:
    shown = show(got)
    return ConfigError(
        f"federation.participation must be {_FORMS}, with a probability in (0, 1], got {shown}.",
        key="federation.participation",
        allowed=_FORMS,
        got=shown,
    )
