"""Which method for whom: five sentences, each of them from the records of the leaderboard.

They are about the methods that have all repetitions on all federations that are measured, and name
the first of a list. No torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from fedtailor.experiment.leaderboard import LOCAL
from fedtailor.report.leaderboard import (
    ALONE,
    FEW_EXCHANGES,
    GLOBAL,
    PERSONAL,
    REFERENCE,
    Ranks,
    Standing,
    percent,
)
from fedtailor.report.statistics import mean

_ByFederation = Mapping[str, Mapping[str, Standing]]
"""The rows of the federations of the ranks: methods that are ranked, and baselines."""


def advice_of(ranks: Ranks, rows: Mapping[str, Sequence[Standing]]) -> list[str]:
    """Return the sentences; none while there are no ranks.

    Args:
        ranks: from :func:`fedtailor.report.leaderboard.rank_methods`.
        rows: the standings, by federation.
    """
    if ranks.critical_difference is None:
        return []

    tables = {name: {row.name: row for row in rows[name]} for name in ranks.federations}
    sentences = (
        _for_any_federation(ranks, tables),
        _for_few_exchanges(ranks, tables),
        _for_one_model(ranks, tables),
        _for_harmless(ranks, tables),
        _against_home(ranks, tables),
    )
    return [sentence for sentence in sentences if sentence]


def _for_any_federation(ranks: Ranks, tables: _ByFederation) -> str:
    first, *others = ranks.mean_rank
    best = ranks.mean_rank[first]
    assert ranks.critical_difference is not None
    within = [name for name in others if ranks.mean_rank[name] - best < ranks.critical_difference]
    behind = [name for name, table in tables.items() if _is_beaten(table[first], ranks)]
    return (
        f"**You do not know how your clients differ.** {first} has the best mean rank, {best:.1f}; "
        f"{len(within)} of the {len(others)} others are within the critical difference. Some "
        f"method is told apart as better than it in {_count(behind, tables)}."
    )


def _for_few_exchanges(ranks: Ranks, tables: _ByFederation) -> str:
    few = _first_of(FEW_EXCHANGES, ranks, tables)
    trained = _first_of(PERSONAL, ranks, tables)
    if few is None or trained is None:
        return ""

    gaps = {
        name: _best_mean(table, ranks) - table[few].accuracy.mean for name, table in tables.items()
    }
    farthest = max(gaps, key=lambda name: gaps[name])
    ratios = []
    for table in tables.values():
        ratios.append((table[trained].megabytes or 0.0) / (table[few].megabytes or 1.0))

    return (
        f"**You can exchange once or twice.** Of the methods that need no more, {few} ranks best. "
        f"It is at most {100 * gaps[farthest]:.1f} points behind the highest mean ({farthest}). "
        f"{trained}, which ranks best of those that train a model per client in rounds, sends and "
        f"receives {statistics.median(ratios):.0f} times as much (median)."
    )


def _for_one_model(ranks: Ranks, tables: _ByFederation) -> str:
    shared = _first_of(GLOBAL, ranks, tables)
    personal = _first_of(PERSONAL, ranks, tables)
    if shared is None or personal is None:
        return ""

    better = [name for name, table in tables.items() if shared in table[personal].better_than]
    gaps = {
        name: table[personal].accuracy.mean - table[shared].accuracy.mean
        for name, table in tables.items()
    }
    widest = max(gaps, key=lambda name: gaps[name])
    return (
        f"**You need one model for all.** Of those that train it in rounds, {shared} ranks best. "
        f"{personal}, a model per client, is told apart as better in {_count(better, tables)}; it "
        f"gains at most {100 * gaps[widest]:.1f} points ({widest})."
    )


def _for_harmless(ranks: Ranks, tables: _ByFederation) -> str:
    harmed = {}
    for name in ranks.mean_rank:
        shares = [table[name].harmed for table in tables.values()]
        known = [share for share in shares if share is not None]
        if len(known) == len(tables):
            harmed[name] = mean(known)

    if REFERENCE not in harmed:
        return ""

    fewest = min(harmed, key=lambda name: harmed[name])
    return (
        f"**No client may lose.** {fewest} leaves the fewest clients less accurate than training "
        f"alone ({LOCAL}), {percent(harmed[fewest])} of them on average over federations; "
        f"{REFERENCE} {percent(harmed[REFERENCE])}."
    )


def _against_home(ranks: Ranks, tables: _ByFederation) -> str:
    worth = []
    other = []
    for name, table in tables.items():
        better = [one for one in ranks.mean_rank if ALONE in table[one].better_than]
        if better:
            worth.append(f"{name} ({len(better)})")
        else:
            other.append(name)

    words = ["**You have simple models of your own.**"]
    if worth:
        words.append(
            f"Of {len(ranks.mean_rank)} methods some are told apart as better than the best simple "
            f"model of each client ({ALONE}): {', '.join(worth)}."
        )
    if other:
        words.append(f"No method is told apart as better in {', '.join(other)}.")
    return " ".join(words)


def _first_of(kind: str, ranks: Ranks, tables: _ByFederation) -> str | None:
    """Return the method of a kind with the best mean rank; None without any."""
    table = next(iter(tables.values()))
    return next((name for name in ranks.mean_rank if table[name].kind == kind), None)


def _is_beaten(row: Standing, ranks: Ranks) -> bool:
    return any(name in ranks.mean_rank for name in row.worse_than)


def _best_mean(table: Mapping[str, Standing], ranks: Ranks) -> float:
    return max(table[name].accuracy.mean for name in ranks.mean_rank)


def _count(names: Sequence[str], tables: _ByFederation) -> str:
    """Return in how many federations something holds, and in which."""
    which = f" ({', '.join(names)})" if names else ""
    return f"{len(names)} of {len(tables)} federations{which}"
