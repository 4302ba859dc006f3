"""The protocol: how long a run is, who takes part, who trains, and when what is evaluated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedtailor.core.algorithm import Algorithm
from fedtailor.core.options import Range, check_options
from fedtailor.core.participation import Participation


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How long a run is, who takes part, and when what is evaluated."""

    rounds: Annotated[int, Range(ge=1)]
    participation: Participation = field(default_factory=Participation)
    train: Literal["auto", "cohort", "all"] = "auto"
    """Who trains in a round: the cohort, all clients while the cohort uploads, or as the algorithm does by itself."""
    evaluate_every: Annotated[int, Range(ge=0)] = 10
    """Rounds between evaluations at ``global`` and ``local``; 0: after the last round only."""
    personalized_every: Annotated[int, Range(ge=0)] = 0
    """Rounds between evaluations at ``personalized``; 0: after the last round only."""

    def __post_init__(self) -> None:
        check_options(self, owner="federation")

    def everybody_trains(self, algorithm: Algorithm[Any, Any, Any]) -> bool:
        """Return whether all clients train in every round."""
        return (algorithm.trains if self.train == "auto" else self.train) == "all"

    def due(self, round: int, every: int) -> bool:
        """Return whether an evaluation is due after a round."""
        return round == self.rounds or (every > 0 and round % every == 0)
