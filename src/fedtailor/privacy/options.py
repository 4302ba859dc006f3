"""The section ``[privacy]`` of a configuration, and what refuses it. Without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, check_options, wrong_value
from fedtailor.core.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class PrivacyOptions:
    """The ``[privacy]`` section."""

    secure_sums: bool = False
    """The server gets sums over clients only, in 64-bit whole numbers. A simulation adds as real
    sites do under masks, and so shows what that costs; it does not mask."""
    smallest_sum: Annotated[int, Range(ge=2)] = 3
    """Clients that a sum is over, at least."""
    most_examples: Annotated[int, Range(ge=1, le=2**40)] = 2**20
    """The most training examples of one client in secure sums."""
    rare_classes: Literal["drop", "keep"] = "drop"
    """What becomes of classes that fewer than ``smallest_sum`` clients have, in means that are
    weighted by class: such a mean would be the value of one or two clients."""

    def __post_init__(self) -> None:
        check_options(self, owner="privacy")

    def check(self, schedule: Schedule, num_trainable: int) -> None:
        """Check the section against the schedule and the clients that can train.

        Raises:
            ConfigError: they do not fit together.
        """
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

    def check_fields(self, method: str, single: Iterable[str]) -> None:
        """Check that the server of a method can do with sums.

        Args:
            method: its name.
            single: the fields of which its server needs every client's own value.

        Raises:
            ConfigError: there are such fields.
        """
        names = ", ".join(f"'{name}'" for name in single)
        if self.secure_sums and names:
            raise ConfigError(
                f"{method} shows the server what single clients send ({names}): choose another "
                "method, or an option of it that needs sums only, or privacy.secure_sums = false.",
                key="privacy.secure_sums",
            )
