"""The table of algorithms. Listing them imports no torch."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fedtailor.core.errors import unknown_name
from fedtailor.core.targets import find_target, refuse_target

if TYPE_CHECKING:
    from fedtailor.core.algorithm import Algorithm

TABLE = {
    "fedavg": ("fedtailor.algorithms.fedavg:FedAvg", "one global model, the mean of the clients' (McMahan 2017)"),
    "fedavg_ft": (
        "fedtailor.algorithms.fedavg_ft:FedAvgFT",
        "FedAvg, and every client fine-tunes a copy of the final model",
    ),
    "fedcr": (
        "fedtailor.algorithms.fedcr:FedCR",
        "shared body with Gaussian features aligned by class, private heads (Zhang 2023)",
    ),
    "fedlda": (
        "fedtailor.algorithms.fedlda:FedLDA",
        "shared body and Gaussian classifier, a class prior per client (McLaughlin 2023)",
    ),
    "local": ("fedtailor.algorithms.local:Local", "every client trains alone; nothing is sent"),
    "pfedfda": (
        "fedtailor.algorithms.pfedfda:PFedFDA",
        "shared body, a Gaussian classifier per client, blended with the global one (McLaughlin 2024)",
    ),
    "pfedvem": (
        "fedtailor.algorithms.pfedvem:PFedVEM",
        "shared body, Gaussian heads around a latent global one, weighted by confidence (Zhu 2023)",
    ),
}
"""Name -> (``module:Class``, one line for lists)."""


def load_algorithm(name: str) -> type[Algorithm[Any, Any, Any]]:
    """Return the class of an algorithm: a name of the table, or a user's ``package.module:Class``.

    Raises:
        ConfigError: the name is unknown, the module cannot be imported, or the class is no algorithm that can be run.
    """
    if ":" not in name and name not in TABLE:
        raise unknown_name("algorithm", name, TABLE, key="algorithm.name")
    from fedtailor.core.algorithm import Algorithm

    target = TABLE[name][0] if name in TABLE else name
    found = find_target(target, what="algorithm", key="algorithm.name")
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise refuse_target(
            f"algorithm '{target}' is not a subclass of fedtailor.Algorithm", name, key="algorithm.name"
        )
    problem = _problem_with(found, [base for base in found.__mro__ if issubclass(base, Algorithm)][:-1])
    if problem:
        raise refuse_target(f"algorithm '{target}' {problem}", name, key="algorithm.name")
    return found


def _problem_with(cls: type[Any], classes: list[type[Any]]) -> str:
    """Return why an algorithm cannot be run, or nothing; ``classes`` are it and its bases below ``Algorithm``."""
    if inspect.isabstract(cls):
        return f"lacks {', '.join(sorted(cls.__abstractmethods__))}"
    for base in classes:
        own = [name for name, kind in inspect.get_annotations(base).items() if "ClassVar" not in str(kind)]
        if own and "__dataclass_params__" not in vars(base):
            return f"has fields, but '{base.__name__}' lacks the decorator @dataclass(frozen=True, kw_only=True)"
        taken = sorted({"name", "preset", "training"} & set(own))
        if taken:
            return f"has a field '{taken[0]}', a name that [algorithm] needs itself: choose another one"
    expected = [field.name for field in dataclasses.fields(cls) if field.init]
    if list(inspect.signature(cls).parameters) != expected:
        return "has an __init__ of its own: leave it out, and declare options as fields of a frozen dataclass"
    return ""
