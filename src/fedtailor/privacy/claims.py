"""What noise promises, in words: one sentence for clients, and one for examples. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_BEFORE_TRAINING = (
    "numbers of examples",
    "names of classes and columns",
    "medians, means and deviations of inputs (unless the configuration gives them)",
)
"""What clients tell before the first round."""
_NOT_COVERED = (
    "scores",
    "training metrics",
    *_BEFORE_TRAINING,
    "the clients' own model files (made from their own data)",
)
"""What is seen beside the noisy sums."""
_OF_SUMS = ("scores", *_BEFORE_TRAINING, "options chosen on the same data")
"""The same for sums over features, of which the clients' models are made."""
_OF_EXAMPLES = "several examples of one person (they add up)"
_WHO = {
    "server": "whoever sees the global model, but for the server, which adds the noise",
    "sites": "whoever sees uploads or the global model",
}
"""To whom noise on sums over features promises something, by who adds it."""
_WHO_OF_STEPS = {
    "server": "whoever sees sums over at least {fewest} clients and the global models, if {shares} "
    "clients of every sum keep their noise to themselves",
    "sites": "whoever sees uploads or the global models, the largest of all clients",
}
"""The same of noise in steps of training."""
_WHO_AT_SITES = {**_WHO_OF_STEPS, "sites": "whoever sees uploads or the global models"}
_NOT_COVERED_AT_SITES = (
    "scores",
    "numbers of examples",
    "names of classes and columns",
    "medians of columns",
    "texts of errors",
    "the sites' own model files (made from their own data)",
    "options chosen on the same data",
)
"""What a real site shows beside what noise hides; it sends no training metrics then."""
_SEED = "and whoever knows the seed (the noise of a simulation follows from it)"


def claim_of(record: Mapping[str, Any]) -> str:
    """Return what a record promises, to whom, and what it does not cover, in one sentence.

    Args:
        record: ``unit``, ``epsilon`` (None: there is no bound) and ``delta``; of clients also
            ``epsilon_known_cohort``, of examples ``noise_from`` and what is bounded, ``gradients``,
            ``features`` or both, perhaps ``epsilon_of_sums``, and ``at_sites`` if real sites have
            added noise that is a secret; of several runs ``runs``.

    Example:
        >>> record = {"unit": "client", "epsilon": 2.0, "epsilon_known_cohort": 4.0, "delta": 1e-5}
        >>> claim_of(record).split("; ")[1]
        '4.00 for whoever also knows who took part in which round'
    """
    budget = budget_of(record)
    runs = record.get("runs", 1)
    if runs > 1:
        budget += f" in each of {runs} runs (they add up)"

    claim = f"{budget}, for whoever sees the global models"
    not_covered = [*_NOT_COVERED, _SEED]
    if record.get("at_sites"):
        claim = f"{budget}, for {_WHO_AT_SITES[record['noise_from']].format_map(record)}"
        not_covered = [*_NOT_COVERED_AT_SITES, _OF_EXAMPLES]
    elif record["unit"] == "example" and record["bounds"] != "features":
        who = _WHO_OF_STEPS[record["noise_from"]].format_map(record)
        claim = f"{budget}, for {who}"
        not_covered = [*_NOT_COVERED, _OF_EXAMPLES, _SEED]
    elif record["unit"] == "example":
        claim = f"{budget}, for {_WHO[record['noise_from']]}"
        not_covered = [*_OF_SUMS, _OF_EXAMPLES, _SEED]

    return f"{'; '.join([claim, *_others(record)])}; not covered: {', '.join(not_covered)}."


def promise_of(record: Mapping[str, Any]) -> str:
    """Return the numbers of a claim in words; see :func:`claim_of`."""
    return "; ".join([budget_of(record), *_others(record)])


def budget_of(record: Mapping[str, Any]) -> str:
    """Return epsilon, delta and unit of a record in words; see :func:`claim_of`.

    Example:
        >>> budget_of({"unit": "client", "epsilon": 1.231, "delta": 1e-5})
        'epsilon 1.24 (delta 1e-05) per client'
    """
    epsilon = round_up(record["epsilon"])
    return f"epsilon {epsilon} (delta {record['delta']:g}) per {record['unit']}"


def claims_of(result: Mapping[str, Any]) -> list[str]:
    """Return what the result of a run claims; nothing without noise."""
    return [claim_of(result["privacy"])] if "privacy" in result else []


def with_claim(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record that says in words, too, what it promises."""
    return {**record, "claim": claim_of(record)}


def of_card(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model card says of the noise of the run that made the model."""
    if "privacy" not in result:
        return {}

    record = with_claim(result["privacy"])
    return {"privacy": {key: record[key] for key in ("unit", "epsilon", "delta", "claim")}}


def promises_of(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what runs on the same data promise: the record of the run that tells most."""
    records: list[Mapping[str, Any]] = [one["privacy"] for one in results if "privacy" in one]
    if not records:
        return {}

    runs = sum(record.get("runs", 1) for record in records)
    most = max(records, key=_tells)
    return {"privacy": with_claim({**most, "runs": runs})}


def _tells(record: Mapping[str, Any]) -> tuple[float, float]:
    """Return how much a record tells, for whoever does not know the cohorts, and who does."""
    epsilon = math.inf if record["epsilon"] is None else float(record["epsilon"])
    known = record.get("epsilon_known_cohort")
    return epsilon, math.inf if known is None else float(known)


def _others(record: Mapping[str, Any]) -> list[str]:
    """Return the epsilons for whoever knows more or sees less, in words."""
    others = []
    known = record.get("epsilon_known_cohort", record["epsilon"])
    if known != record["epsilon"]:
        others.append(f"{round_up(known)} for whoever also knows who took part in which round")

    if "epsilon_of_sums" in record:
        of_sums = round_up(record["epsilon_of_sums"])
        others.append(f"{of_sums} for whoever sees sums only, if no client gives its noise away")
    return others


def round_up(epsilon: float | None) -> str:
    """Return an epsilon with two decimals, never below itself; JSON has null for infinity."""
    if epsilon is None or math.isinf(epsilon):
        return "without a bound"
    return f"{math.ceil(100 * epsilon - 1e-9) / 100:.2f}"
