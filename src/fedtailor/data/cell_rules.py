"""How the cells of a user's tables are read: decimal commas, and values that mean missing.

Training, sites, onboarding and prediction read by the same rules, so a model keeps them in its
inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from fedtailor.core.options import wrong_value
from fedtailor.data.columns import Decimal, read_record, require


@dataclass(frozen=True)
class CellRules:
    """How the cells of a table are read.

    Raises:
        ConfigError: ``missing_values`` does not name lists of numbers or texts.

    Example:
        >>> CellRules(missing_values={"chol": [0, "x"]}).missing_values["chol"]
        (0, 'x')
    """

    decimal: Decimal = "auto"
    """What a comma in a number is: the decimal point (``comma``), or a separator of thousands
    (``point``); auto: what all numbers with a comma in a column can be."""
    missing_values: Mapping[str, Sequence[float | str]] = field(default_factory=dict)
    """By column, the values that mean a missing one."""
    at_sites: Mapping[str, Decimal] = field(default_factory=dict)
    """With ``auto``: what commas were in the tables of each site in training; auto: there were
    none."""

    def __post_init__(self) -> None:
        values = {}
        for column, listed in self.missing_values.items():
            items = tuple(listed) if isinstance(listed, list | tuple) else (listed,)
            are_values = all(type(item) in (int, float, str) for item in items)
            if not are_values or not items:
                allowed = "a list of numbers or texts, such as [0]"
                raise wrong_value(f"data.missing_values.{column}", allowed, listed)

            values[column] = items

        object.__setattr__(self, "missing_values", values)

    @property
    def in_training(self) -> Decimal:
        """What commas were in training, if all sites agree; else auto."""
        marks = set(self.at_sites.values())
        return marks.pop() if len(marks) == 1 else "auto"

    def for_site(self, name: str, decimal: Decimal = "auto") -> CellRules:
        """Return the rules for further tables of one site.

        Args:
            name: of the site.
            decimal: what commas were in its tables; auto: what they were in training.
        """
        if decimal == "auto":
            decimal = self.at_sites.get(name, self.in_training)
        return replace(self, at_sites={} if decimal == "auto" else {name: decimal})

    def to_record(self) -> dict[str, Any]:
        """Return the rules as an object for JSON; :meth:`from_record` reads it."""
        values = {name: list(items) for name, items in self.missing_values.items()}
        record: dict[str, Any] = {"decimal": self.decimal, "missing_values": values}
        if self.at_sites:
            record["at_sites"] = dict(self.at_sites)

        return record

    @classmethod
    def from_record(cls, record: Any) -> CellRules:
        """Return the rules that :meth:`to_record` wrote.

        Args:
            record: from anyone.

        Raises:
            DataError: it is not such an object.
        """
        what = "the rules of cells"
        rules = read_record(cls, record, what, optional=("at_sites",))
        are_known = all(decimal in get_args(Decimal) for decimal in rules.at_sites.values())
        require(are_known, what, "of known decimals", record)
        return rules
