"""The options of engines, and the choice of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from fedtailor.core.options import Range, check_options

if TYPE_CHECKING:
    from fedtailor.core.engine import Engine


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The ``[engine]`` section."""

    name: Literal["auto", "batched", "processes", "reference", "workers"] = "auto"
    """Engine; the resolved configuration names the engine that ``auto`` chose."""
    workers: Annotated[int, Range(ge=0)] = 0
    """Threads of ``workers`` or processes of ``processes``; 0: one per physical core. Does not change results."""
    block: Annotated[int, Range(ge=1)] = 32
    """Largest number of clients that ``batched`` stacks."""

    def __post_init__(self) -> None:
        check_options(self, owner="engine")


class EngineChoice(NamedTuple):
    """An engine and the reason for choosing it."""

    engine: Engine
    reason: str = ""
    """A sentence if ``auto`` chose; otherwise empty."""
    seconds: float | None = None
    """The measured duration of a training step, if it was measured."""
