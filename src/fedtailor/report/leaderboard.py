"""The leaderboard from its records: standings of every federation, ranks, figure, page. No torch.

Repetitions are never pooled: a figure of a method is the mean over them, and tests are made in
each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt

from fedtailor.core.atomic import write_whole
from fedtailor.core.metrics import worst_tenth
from fedtailor.experiment.leaderboard import (
    FEDERATIONS,
    LOCAL,
    METHODS,
    REPETITIONS,
    TRIALS,
    Record,
    is_done,
    make_cells,
)
from fedtailor.experiment.paired import holm
from fedtailor.report.charts import (
    CONTRAST,
    INK,
    MAIN,
    QUIET,
    Chart,
    inline,
    labels,
    picture,
    tooltip,
)
from fedtailor.report.comparison import SIGNIFICANT, Estimate
from fedtailor.report.parts import NOTHING, Cell, Figure, Panel, ReportTable, round_figure
from fedtailor.report.statistics import (
    Interval,
    bootstrap_interval,
    critical_difference,
    differences,
    mean,
    mean_ranks,
    wilcoxon,
)

BASELINES = {"own": "own best (scikit-learn)", "pooled": "pooled (scikit-learn)"}
"""Rows that are no methods: the best simple model of each client, and that kind on all data."""
_KINDS = ("a model a client", "one global model", "one exchange", "without a federation")
_SHAPES = ("circle", "square", "diamond", "triangle")
_RESAMPLES = 2_000
_AGREEING = 2
"""Repetitions in which a difference must be significant."""
Accuracies = Sequence[float | None]


@dataclass(frozen=True)
class Standing:
    """A method on a federation."""

    name: str
    kind: str
    repetitions: int
    accuracy: Estimate
    """Mean over clients, by repetition."""
    interval: Interval | None
    """95 % over clients: ends of a repetition, averaged over repetitions."""
    worst_tenth: float
    harmed: float | None
    """Share of clients whose model is less accurate than that of ``local``; None: not known."""
    below_own: float | None
    """Share of clients whose model is less accurate than the best simple one of their own."""
    megabytes: float | None
    """What a client sends and receives in a run."""
    seconds: float | None
    """Of a run with the chosen options."""
    chosen: Mapping[int, Mapping[str, Any]]
    """Options, by repetition."""
    uses_validation: bool
    better_than: tuple[str, ...]
    worse_than: tuple[str, ...]
    unclear: tuple[str, ...]
    """Rows that it cannot be told apart from."""


class _Row(NamedTuple):
    """The accuracies of clients in a row of a table, by repetition, with the records if any."""

    by_repetition: Mapping[int, Accuracies]
    records: Sequence[Record] = ()


def federations_of(records: Mapping[str, Record]) -> list[str]:
    """Return the federations with records, in the order of the leaderboard."""
    there = {record["federation"] for record in records.values()}
    return [name for name in FEDERATIONS if name in there]


def standings(records: Mapping[str, Record], federation: str) -> list[Standing]:
    """Return what the records say of every method on a federation, the highest accuracy first.

    Pairs are tested in every repetition by Wilcoxon's signed-rank test over clients, with Holm's
    correction for all pairs. Two rows are told apart if the test is significant in two repetitions
    or more, and always in the same direction.

    Args:
        records: from :func:`fedtailor.experiment.leaderboard.read_board`.
        federation: its name.
    """
    rows = _rows(records, federation)
    verdicts = _verdicts(rows)
    by_local = rows[LOCAL].by_repetition if LOCAL in rows else {}
    by_own = rows[BASELINES["own"]].by_repetition if BASELINES["own"] in rows else {}

    result = []
    for name, row in rows.items():
        against = {other: verdicts[name, other] for other in rows if other != name}
        result.append(
            Standing(
                name=name,
                kind=_kind(name, row.records),
                repetitions=len(row.by_repetition),
                accuracy=_estimate(row),
                interval=_interval(row),
                worst_tenth=mean(worst_tenth(_known(each)) for each in row.by_repetition.values()),
                harmed=None if name == LOCAL else _share_below(row, by_local),
                below_own=None if name in BASELINES.values() else _share_below(row, by_own),
                megabytes=_mean_or_none([_megabytes(record) for record in row.records]),
                seconds=_mean_or_none([record["seconds"] for record in row.records]),
                chosen={record["repetition"]: record["chosen"] for record in row.records},
                uses_validation=any(record["uses_validation"] for record in row.records),
                better_than=tuple(other for other, sign in against.items() if sign > 0),
                worse_than=tuple(other for other, sign in against.items() if sign < 0),
                unclear=tuple(other for other, sign in against.items() if sign == 0),
            )
        )

    return sorted(result, key=lambda standing: -standing.accuracy.mean)


def _rows(records: Mapping[str, Record], federation: str) -> dict[str, _Row]:
    """Return the rows of a federation: methods, and the baselines beside ``local``."""
    of_method: dict[str, list[Record]] = {}
    for record in records.values():
        if record["federation"] == federation:
            of_method.setdefault(record["method"], []).append(record)

    rows = {}
    for method, there in of_method.items():
        there.sort(key=lambda record: record["repetition"])
        rows[method] = _Row({one["repetition"]: one["accuracies"] for one in there}, there)

    for key, name in BASELINES.items():
        by_repetition = {}
        for record in of_method.get(LOCAL, []):
            if key in record["baselines"]:
                by_repetition[record["repetition"]] = record["baselines"][key]
        if by_repetition:
            rows[name] = _Row(by_repetition)

    return rows


def _kind(name: str, records: Sequence[Record]) -> str:
    if not records or name == LOCAL:
        return "without a federation"
    if records[0]["rounds"] == 1:
        return "one exchange"

    return "one global model" if records[0]["evaluation"] == "global" else "a model a client"


def _known(accuracies: Accuracies) -> list[float]:
    return [accuracy for accuracy in accuracies if accuracy is not None]


def _estimate(row: _Row) -> Estimate:
    by_repetition = {number: mean(_known(each)) for number, each in row.by_repetition.items()}
    estimate = Estimate.of(by_repetition)
    assert estimate is not None, "a row has a record"
    return estimate


def _interval(row: _Row) -> Interval | None:
    """Return the bootstrap interval over clients, its ends averaged over repetitions."""
    intervals = []
    for accuracies in row.by_repetition.values():
        interval = bootstrap_interval(_known(accuracies), resamples=_RESAMPLES)
        if interval is None:
            return None
        intervals.append(interval)

    return Interval(*(mean(ends) for ends in zip(*intervals, strict=True)))


def _mean_or_none(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _megabytes(record: Record) -> float:
    traffic: Mapping[str, int] = record["bytes"]
    return sum(traffic.values()) / len(record["accuracies"]) / 1e6


def _gaps(one: Accuracies, other: Accuracies) -> list[float]:
    """Return the differences of the clients that both have an accuracy of."""
    pairs = []
    for first, second in zip(one, other, strict=True):
        if first is not None and second is not None:
            pairs.append((first, second))

    return differences([first for first, _ in pairs], [second for _, second in pairs])


def _share_below(row: _Row, others: Mapping[int, Accuracies]) -> float | None:
    """Return the share of clients that are below others, over the repetitions of both."""
    shares = []
    for number in row.by_repetition.keys() & others.keys():
        gaps = _gaps(row.by_repetition[number], others[number])
        if gaps:
            shares.append(sum(gap < 0 for gap in gaps) / len(gaps))

    return mean(shares) if shares else None


def _verdicts(rows: Mapping[str, _Row]) -> dict[tuple[str, str], int]:
    """Return for every pair whether the first is better (1), worse (-1), or not told apart (0)."""
    significant: dict[tuple[str, str], list[int]] = {}
    pairs = list(combinations(rows, 2))
    for number in range(REPETITIONS):
        gaps = {}
        for one, other in pairs:
            first = rows[one].by_repetition.get(number)
            second = rows[other].by_repetition.get(number)
            if first is not None and second is not None:
                gaps[one, other] = _gaps(first, second)

        p_values = holm([wilcoxon(of_pair).p_value for of_pair in gaps.values()])
        for pair, p_value in zip(gaps, p_values, strict=True):
            if p_value < SIGNIFICANT:
                sign = 1 if sum(gaps[pair]) > 0 else -1
                significant.setdefault(pair, []).append(sign)

    verdicts = {}
    for one, other in pairs:
        signs = significant.get((one, other), [])
        agree = len(signs) >= _AGREEING and abs(sum(signs)) == len(signs)
        verdicts[one, other] = signs[0] if agree else 0
        verdicts[other, one] = -verdicts[one, other]

    return verdicts


# Ranks over federations.


class Ranks(NamedTuple):
    """Mean ranks of the methods that have all repetitions on all federations of the table."""

    federations: tuple[str, ...]
    mean_rank: Mapping[str, float]
    """By method, the first one first."""
    critical_difference: float | None
    """Nemenyi's; None with fewer than two federations or methods."""


def rank_methods(records: Mapping[str, Record]) -> Ranks:
    """Rank the methods by their mean accuracy on every federation.

    The federations are those on which ``local`` has all repetitions. A federation is one block, and
    its repetitions are averaged first, because they are not independent.
    """
    complete: dict[str, dict[str, float]] = {}
    for federation in federations_of(records):
        rows = _rows(records, federation)
        means = {
            name: _estimate(row).mean
            for name, row in rows.items()
            if row.records and len(row.records) == REPETITIONS
        }
        if LOCAL in means:
            complete[federation] = means

    if not complete:
        return Ranks((), {}, None)

    shared = set.intersection(*(set(means) for means in complete.values()))
    blocks = [{name: means[name] for name in sorted(shared)} for means in complete.values()]
    ranks = dict(sorted(mean_ranks(blocks).items(), key=lambda pair: pair[1]))
    difference = None
    if len(blocks) > 1 and len(ranks) > 1:
        difference = critical_difference(len(ranks), len(blocks))

    return Ranks(tuple(complete), ranks, difference)


# Tables.


def table_of(federation: str, rows: Sequence[Standing]) -> ReportTable:
    """Return the table of a federation."""
    columns = [
        "method",
        "repetitions",
        "accuracy, %",
        "95 % over clients",
        "worst tenth",
        "harmed",
        "below own best",
        "MB a client",
        "seconds",
        "better than / unclear / worse than",
        "chosen",
    ]
    cells: list[list[Cell]] = []
    for row in rows:
        error = row.accuracy.standard_error
        spread = "" if error is None else f" ± {100 * error:.1f}"
        interval = NOTHING
        if row.interval is not None:
            interval = f"{100 * row.interval.low:.1f} to {100 * row.interval.high:.1f}"

        counts = (row.better_than, row.unclear, row.worse_than)
        cells.append(
            [
                f"{row.name} (v)" if row.uses_validation else row.name,
                row.repetitions,
                f"{100 * row.accuracy.mean:.1f}{spread}",
                interval,
                round_figure(row.worst_tenth, in_percent=True),
                _percent(row.harmed),
                _percent(row.below_own),
                NOTHING if row.megabytes is None else f"{row.megabytes:.3g}",
                NOTHING if row.seconds is None else f"{row.seconds:.1f}",
                " / ".join(str(len(names)) for names in counts),
                _chosen(row) or NOTHING,
            ]
        )

    return ReportTable(
        title=f"{federation}: {FEDERATIONS[federation].what}", columns=columns, rows=cells
    )


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:.0f} %"


def _chosen(row: Standing) -> str:
    """Return the chosen options, by repetition where they differ."""
    words = []
    for options in row.chosen.values():
        pairs = [f"{key.rpartition('.')[2]} {value}" for key, value in options.items()]
        words.append(", ".join(pairs))

    return words[0] if len(set(words)) == 1 else " | ".join(words)


def missing_cells(records: Mapping[str, Record]) -> dict[str, int]:
    """Return how many cells of the package's methods are missing, by federation."""
    missing: dict[str, int] = {}
    for cell in make_cells():
        missing.setdefault(cell.federation, 0)
        missing[cell.federation] += not is_done(cell, records)

    return missing


# The figure.


def figure_of(records: Mapping[str, Record]) -> Figure:
    """Return accuracy against bytes and against seconds on every federation, and mean ranks."""
    panels = []
    for federation in federations_of(records):
        rows = standings(records, federation)
        for field, title in (("megabytes", "MB a client"), ("seconds", "seconds of a run")):
            panels.append(
                Panel(chart=_scatter(rows, field, title), title=federation, subtitle=title)
            )

    ranks = rank_methods(records)
    if ranks.critical_difference is not None:
        subtitle = f"over {', '.join(ranks.federations)}"
        panels.append(Panel(chart=_rank_chart(ranks), title="Mean rank", subtitle=subtitle))

    return Figure(
        name="leaderboard",
        title="Accuracy of the models that clients end with, against their cost",
        caption="A mark is a method, its accuracy the mean over clients and repetitions. Named are "
        "methods that no other one beats at less cost. Dashed: the same model trained alone "
        "(local). Dotted: the best simple model of each client. Where there are two federations or "
        "more, the last panel has mean ranks, with Nemenyi's critical difference as a bar.",
        panels=panels,
    )


def _scatter(rows: Sequence[Standing], field: str, title: str) -> Chart:
    """Draw accuracy against a cost, with the names of the methods that none beats at less cost."""
    drawn = [row for row in rows if (getattr(row, field) or 0) > 0 and row.name != LOCAL]
    best = set(_front(drawn, field))
    points = []
    for label, row in zip(labels(row.name for row in drawn), drawn, strict=True):
        points.append(
            {
                "name": label,
                "label": label if row.name in best else "",
                "kind": row.kind,
                "cost": getattr(row, field),
                "accuracy": 100 * row.accuracy.mean,
            }
        )

    kinds = list(_KINDS[:-1])
    colors = [f"var(--s{number})" for number in range(len(kinds))]
    base = alt.Chart(inline(points), height=230).encode(
        x=alt.X(
            "cost:Q",
            title=title,
            scale=alt.Scale(type="log", nice=False, padding=16),
            axis=alt.Axis(tickCount=5, format="~g", labelOverlap=True),
        ),
        y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False, padding=14)),
    )
    marks = base.mark_point(filled=True, size=70, opacity=0.85).encode(
        color=alt.Color(
            "kind:N",
            scale=alt.Scale(domain=kinds, range=colors),
            legend=alt.Legend(title=None, columns=3),
        ),
        shape=alt.Shape(
            "kind:N",
            scale=alt.Scale(domain=kinds, range=list(_SHAPES[:-1])),
            legend=alt.Legend(title=None, columns=3),
        ),
        tooltip=[
            tooltip("name", "method"),
            tooltip("accuracy", "accuracy, %", ".1f"),
            tooltip("cost", title, ".3~g"),
        ],
    )
    names = base.mark_text(align="left", dx=6, dy=-6, fontSize=11, color=INK).encode(text="label:N")
    layers = [marks, names]
    for name, dash, color in ((LOCAL, [6, 3], QUIET), (BASELINES["own"], [2, 2], CONTRAST)):
        heights = [{"accuracy": 100 * row.accuracy.mean} for row in rows if row.name == name]
        rule = alt.Chart(inline(heights)).mark_rule(strokeDash=dash, color=color, strokeWidth=1.5)
        layers.append(rule.encode(y="accuracy:Q"))

    return alt.LayerChart(layer=layers)


def _front(rows: Sequence[Standing], field: str) -> Iterator[str]:
    """Yield the methods that no other one beats at the same cost or less."""
    highest = -math.inf
    for row in sorted(rows, key=lambda row: (getattr(row, field), -row.accuracy.mean)):
        if row.accuracy.mean > highest:
            highest = row.accuracy.mean
            yield row.name


def _rank_chart(ranks: Ranks) -> Chart:
    """Draw a mark for every method's mean rank, and the critical difference as a bar."""
    names = labels(ranks.mean_rank)
    values = list(ranks.mean_rank.values())
    rows = [{"label": label, "rank": rank} for label, rank in zip(names, values, strict=True)]
    axis = alt.Axis(title=None, labelLimit=170, labelColor=INK)
    y = alt.Y("label:N", axis=axis, scale=alt.Scale(domain=names, paddingInner=0.3))
    x = alt.X("rank:Q", title="mean rank", scale=alt.Scale(zero=False, padding=10))
    base = alt.Chart(inline(rows), height=18 * len(rows))
    tips = [tooltip("label", "method"), tooltip("rank", "mean rank", ".2f")]
    marks = base.mark_circle(size=60, color=MAIN, opacity=1).encode(x=x, y=y, tooltip=tips)

    # From the first method on: those within it are not told apart from it.
    end = values[0] + (ranks.critical_difference or 0.0)
    bar = inline([{"label": names[0], "rank": values[0], "end": end}])
    rule = alt.Chart(bar).mark_rule(strokeWidth=3, color=CONTRAST).encode(x=x, x2="end:Q", y=y)
    return alt.LayerChart(layer=[rule, marks])


# The page.

_HOW = """## How it is measured

* A **cell** is a method on a federation in one repetition. It tries up to {trials} combinations
  of options, each in a run of its own, and takes the one with the highest mean accuracy on
  validation examples, a fifth of every client's training examples. Only then are its test scores
  read. Every repetition chooses for itself, on its own division, so no test example is among
  those that chose. Permuted labels of test examples change no choice, which a test shows.
* **Accuracy** is the mean over clients of the models that clients end with, on their own test
  examples, with the standard error over repetitions. The interval is over clients: bootstrap
  percentiles, averaged over repetitions.
* **harmed**: the share of clients whose model is less accurate than the same network trained
  alone (`local`). **below own best**: than the best of the simple models of scikit-learn that a
  client trains alone, chosen by cross-validation on its training examples.
* **Told apart** are two rows whose accuracies differ over clients by Wilcoxon's signed-rank test,
  corrected by Holm's method for all pairs, in two repetitions or more, in the same direction.
  With four clients that is never so.
* **Seconds** are those of one run with the chosen options, by the engine and on the machine of the
  record, which was not idle.
* **(v)**: the method also personalizes with the validation examples, so its options are chosen by
  scores that are too high.
* A record has the name `FEDERATION/METHOD/REPETITION`. `fedtailor leaderboard run METHOD --only
  FEDERATION/ --only /REPETITION` makes it again, to the bit on the same processor and versions,
  in a file that does not have it yet.
* **Your own method**: `fedtailor leaderboard add package.module:Class` runs its cells within the
  same number of trials.
"""


def page_of(records: Mapping[str, Record], picture: str) -> str:
    """Return the page in Markdown.

    Args:
        records: from :func:`fedtailor.experiment.leaderboard.read_board`.
        picture: address of the figure, from the page.
    """
    federations = federations_of(records)
    parts = ["# Leaderboard", _what_is_there(records)]
    if not federations:
        return "\n\n".join([*parts, _HOW.format(trials=TRIALS)])

    figure = figure_of(records)
    rows = {federation: standings(records, federation) for federation in federations}
    parts.append(f"![{figure.title}]({picture})\n\n{figure.caption}")
    parts.append("## In short")
    parts.append("\n".join(f"* {_in_short(name, rows[name])}" for name in federations))
    parts.append(_ranks_in_words(rank_methods(records)))
    for federation in federations:
        table = table_of(federation, rows[federation])
        parts.append(f"## {table.title[0].upper()}{table.title[1:]}")
        parts.append(_markdown(table))
        parts.append(_apart_in_words(rows[federation]))

    parts.append(_HOW.format(trials=TRIALS).rstrip())
    return "\n\n".join(parts) + "\n"


def standing_of(records: Mapping[str, Record], method: str) -> list[tuple[str, ReportTable, str]]:
    """Return where a method stands, by federation: its name, the table, and a sentence."""
    result = []
    for federation in federations_of(records):
        rows = standings(records, federation)
        methods = [row for row in rows if row.name not in BASELINES.values()]
        names = [row.name for row in methods]
        if method in names:
            place = names.index(method) + 1
            row = methods[place - 1]
            sentence = (
                f"{federation}: place {place} of {len(names)} with "
                f"{100 * row.accuracy.mean:.1f} %, told apart as better than "
                f"{len(row.better_than)} rows and as worse than {len(row.worse_than)}."
            )
            result.append((federation, table_of(federation, rows), sentence))

    return result


def _what_is_there(records: Mapping[str, Record]) -> str:
    """Return how many cells there are and which are missing, in sentences."""
    missing = missing_cells(records)
    total = len(METHODS) * REPETITIONS
    words = []
    for name, number in missing.items():
        words.append(f"{name} {total - number} of {total}")

    hours = sum(record["trial_seconds"] for record in records.values()) / 3600
    there = sum(total - number for number in missing.values())
    return (
        f"{len(METHODS)} methods on the same federations, {REPETITIONS} repetitions each, with "
        f"options that validation examples choose among at most {TRIALS} combinations.\n\n"
        f"**Of {total * len(missing)} cells, {there} are there** ({', '.join(words)}); their "
        f"trials took {hours:.1f} hours. `make leaderboard DATA=FOLDER` runs the others."
    )


def _in_short(federation: str, rows: Sequence[Standing]) -> str:
    """Return what a table says, in sentences."""
    methods = [row for row in rows if row.name not in BASELINES.values()]
    # Those with fewer repetitions were measured on fewer divisions.
    most = max(row.repetitions for row in methods)
    methods = [row for row in methods if row.repetitions == most]
    first = methods[0]
    words = [
        f"**{federation}**: {first.name} has the highest mean, {100 * first.accuracy.mean:.1f} %"
    ]
    others = [row.name for row in methods[1:] if row.name in first.unclear]
    words.append(f"; {len(others)} of the other {len(methods) - 1} cannot be told apart from it.")
    local = next((row for row in methods if row.name == LOCAL), None)
    if local is not None:
        above = [row for row in methods if LOCAL in row.better_than]
        below = [row for row in methods if LOCAL in row.worse_than]
        words.append(
            f" Training alone has {100 * local.accuracy.mean:.1f} %: {len(above)} methods are told "
            f"apart as better, {len(below)} as worse."
        )

    if first.harmed is not None:
        words.append(f" {first.name} harms {_percent(first.harmed)} of the clients.")

    return "".join(words)


def _ranks_in_words(ranks: Ranks) -> str:
    """Return the ranks in a sentence."""
    if ranks.critical_difference is None:
        return (
            "There are no ranks yet: they need two methods with all repetitions on two federations."
        )

    names = ", ".join(f"{name} {rank:.1f}" for name, rank in list(ranks.mean_rank.items())[:8])
    text = (
        f"**Mean ranks** of {len(ranks.mean_rank)} methods over {', '.join(ranks.federations)}: "
        f"{names}"
    )
    if len(ranks.mean_rank) > 8:
        text += ", and so on"

    return (
        f"{text}. The critical difference is {ranks.critical_difference:.1f} "
        f"(Nemenyi, 5 %, {len(ranks.federations)} federations): methods nearer than that are not "
        "told apart."
    )


def _apart_in_words(rows: Sequence[Standing]) -> str:
    """Return which rows cannot be told apart from the first."""
    first = rows[0]
    if not first.unclear:
        return f"{first.name} is told apart from all others."

    return f"Not told apart from {first.name}: {', '.join(first.unclear)}."


def _markdown(table: ReportTable) -> str:
    lines = [_markdown_row(table.columns)]
    lines.append(f"|---|{'---:|' * (len(table.columns) - 2)}---|")
    lines += map(_markdown_row, table.rows)
    return "\n".join(lines)


def _markdown_row(cells: Sequence[Any]) -> str:
    texts = [str(cell).replace("|", "/").replace("\n", " ") for cell in cells]
    return f"| {' | '.join(texts)} |"


def write_page(records: Mapping[str, Record], path: Path) -> Path:
    """Write the page in Markdown, and its figure beside it, and return the path of the page.

    Raises:
        RunError: a file cannot be written.
    """
    image = path.with_suffix(".png")
    write_whole(image, picture(figure_of(records), "png"))
    write_whole(path, page_of(records, image.name))
    return path
