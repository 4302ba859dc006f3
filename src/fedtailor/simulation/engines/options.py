"""The options of engines, and the choice of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, check_options

if TYPE_CHECKING:
    from fedtailor.core.engine import Engine


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The ``[engine]`` section."""

    name: Literal["auto", "batched", "processes", "ray", "reference", "workers"] = "auto"
    """Engine; the resolved configuration names the engine that ``auto`` chose."""
    workers: Annotated[int, Range(ge=0)] = 0
    """Threads of ``workers``, processes of ``processes`` or actors of ``ray``; 0: one per physical core, or per CPU of
    the Ray cluster. Does not change results."""
    block: Annotated[int, Range(ge=1)] = 32
    """Largest number of clients that ``batched`` stacks."""
    ray_address: str = ""
    """Ray cluster of ``ray``: ``auto`` (the one on this machine) or ``host:port``; empty: one of its own."""

    def __post_init__(self) -> None:
        check_options(self, owner="engine")
        if self.ray_address and self.name != "ray":
            raise ConfigError(
                f"engine.ray_address is for engine.name = 'ray' only, got '{self.name}'.",
                key="engine.ray_address",
                allowed="",
                got=self.ray_address,
            )


class EngineChoice(NamedTuple):
    """An engine and the reason for choosing it."""

    engine: Engine
    reason: str = ""
    """A sentence if ``auto`` chose; otherwise empty."""
    seconds: float | None = None
    """The measured duration of a training step, if it was measured."""
