"""Which method for whom: sentences that the records of the leaderboard support.

They are about the methods that have all repetitions on all federations of the ranks, and name the
first of a list. No torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedtailor.experiment.leaderboard import LOCAL
from fedtailor.report.leaderboard import (
    ALONE,
    FEW_EXCHANGES,
    PERSONAL,
    REFERENCE,
    Ranks,
    Standing,
    whole_percent,
)
from fedtailor.report.statistics import mean

_Table = Mapping[str, Standing]
"""The rows of a federation by name."""
_MOST_NAMES = 3
"""In a sentence."""


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
        _for_the_least_harm(ranks, tables),
        _against_home(ranks, tables),
        _without_verdicts(tables),
    )
    return [sentence for sentence in sentences if sentence]


def _for_any_federation(ranks: Ranks, tables: Mapping[str, _Table]) -> str:
    first, *others = ranks.mean_rank
    best = ranks.mean_rank[first]
    assert ranks.critical_difference is not None
    within = 0
    for name in others:
        within += ranks.mean_rank[name] - best < ranks.critical_difference

    words = [
        f"**You do not know how your clients differ.** {first} ranks best on average (place "
        f"{best:.1f} of {len(ranks.mean_rank)})."
    ]
    if within == len(others):
        words.append(
            f"{len(tables)} federations are too few to say that it is better on average than any "
            "other method."
        )
    else:
        words.append(f"{within} of the other {len(others)} may be as good on average.")

    behind = []
    for name, table in tables.items():
        if any(other in ranks.mean_rank for other in table[first].worse_than):
            behind.append(name)
    if behind:
        words.append(f"Some method is told apart as better in {', '.join(behind)}.")
    else:
        words.append("In no federation is a method told apart as better.")
    return " ".join(words)


def _for_few_exchanges(ranks: Ranks, tables: Mapping[str, _Table]) -> str:
    few = _first(ranks, tables, lambda row: row.kind == FEW_EXCHANGES)
    trained = _first(ranks, tables, lambda row: row.kind == PERSONAL)
    if few is None or trained is None:
        return ""

    gaps = {}
    ratios = []
    for name, table in tables.items():
        highest = max(table[method].accuracy.mean for method in ranks.mean_rank)
        gaps[name] = highest - table[few].accuracy.mean
        once = table[few].megabytes
        in_rounds = table[trained].megabytes
        if once and in_rounds:
            ratios.append(in_rounds / once)

    words = [
        f"**You can exchange once or twice.** Of the methods that need no more, {few} ranks best."
    ]
    farthest = max(gaps, key=lambda name: gaps[name])
    if gaps[farthest] > 0:
        words.append(
            f"It is {100 * gaps[farthest]:.1f} points behind the highest mean in {farthest}, and "
            "less elsewhere."
        )
    else:
        words.append("No mean is higher.")

    if ratios:
        least = f"{min(ratios):.2g}"
        most = f"{max(ratios):.2g}"
        times = least if least == most else f"{least} to {most}"
        words.append(
            f"A run of {trained}, which ranks best of those that train a model per client in "
            f"rounds, moves {times} times as many bytes."
        )
    return " ".join(words)


def _for_one_model(ranks: Ranks, tables: Mapping[str, _Table]) -> str:
    shared = _first(ranks, tables, lambda row: row.is_one_model)
    personal = _first(ranks, tables, lambda row: not row.is_one_model and row.name != LOCAL)
    if shared is None or personal is None:
        return ""

    better = [name for name, table in tables.items() if shared in table[personal].better_than]
    worse = [name for name, table in tables.items() if shared in table[personal].worse_than]
    gaps = []
    for table in tables.values():
        gaps.append(100 * (table[personal].accuracy.mean - table[shared].accuracy.mean))

    return (
        f"**You need one model for all.** Of the methods that give one, {shared} ranks best. "
        f"Against it, {personal}, which ranks best of those with a model per client, has "
        f"{min(gaps):+.1f} to {max(gaps):+.1f} points; it is told apart as better in "
        f"{_listed(better)}, as worse in {_listed(worse)}."
    )


def _for_the_least_harm(ranks: Ranks, tables: Mapping[str, _Table]) -> str:
    harmed = {}
    for name in ranks.mean_rank:
        shares = [table[name].harmed for table in tables.values()]
        known = [share for share in shares if share is not None]
        if len(known) == len(tables):
            harmed[name] = mean(known)

    fewest = min(harmed, key=lambda name: harmed[name], default=REFERENCE)
    if fewest == REFERENCE or REFERENCE not in harmed:
        return ""

    words = []
    for name in (fewest, REFERENCE):
        below = [table[name].below_alone for table in tables.values()]
        below_alone = mean(share for share in below if share is not None)
        words.append(f"{whole_percent(harmed[name])} and {whole_percent(below_alone)}")

    return (
        f"**As few clients as possible may lose.** With {fewest}, {words[0]} of the clients are "
        f"less accurate, however little, than with their own network ({LOCAL}) and with their best "
        f"simple model ({ALONE}); with {REFERENCE}, {words[1]} (means over federations). It is the "
        f"first of {len(harmed)} such shares, partly by chance."
    )


def _against_home(ranks: Ranks, tables: Mapping[str, _Table]) -> str:
    methods = [name for name in ranks.mean_rank if name != LOCAL]
    parts = []
    for name, table in tables.items():
        if not _tells_apart(table):
            continue

        better = [method for method in methods if ALONE in table[method].better_than]
        worse = [method for method in methods if ALONE in table[method].worse_than]
        better.sort(key=lambda method: -table[method].accuracy.mean)
        parts.append(f"in {name} {_counted(better)} better and {len(worse)} worse")

    if not parts:
        return ""

    return (
        f"**You have simple models of your own.** Compared with the best of each client ({ALONE}), "
        f"{'; '.join(parts)}, of {len(methods)} methods."
    )


def _without_verdicts(tables: Mapping[str, _Table]) -> str:
    silent = [name for name, table in tables.items() if not _tells_apart(table)]
    if not silent:
        return ""

    return f"In {', '.join(silent)} no two methods are told apart."


def _tells_apart(table: _Table) -> bool:
    return any(row.better_than for row in table.values())


def _first(
    ranks: Ranks, tables: Mapping[str, _Table], condition: Callable[[Standing], bool]
) -> str | None:
    """Return the method with the best mean rank that meets a condition; None without any."""
    table = next(iter(tables.values()))
    return next((name for name in ranks.mean_rank if condition(table[name])), None)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _counted(names: Sequence[str]) -> str:
    """Return how many names there are, and the first of them."""
    if not names:
        return "0 are"

    more = ", ..." if len(names) > _MOST_NAMES else ""
    verb = "is" if len(names) == 1 else "are"
    return f"{len(names)} ({', '.join(names[:_MOST_NAMES])}{more}) {verb}"
