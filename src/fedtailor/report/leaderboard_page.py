"""The page of the leaderboard in Markdown, and its figure. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from fedtailor.core.atomic import write_whole
from fedtailor.core.options import wrong_value
from fedtailor.core.text import counted, markdown_table
from fedtailor.experiment.leaderboard import (
    FEDERATIONS,
    LOCAL,
    METHODS,
    REPETITIONS,
    TRIALS,
    Record,
)
from fedtailor.report.charts import (
    CONTRAST,
    INK,
    QUIET,
    Chart,
    inline,
    labels,
    picture,
    tooltip,
)
from fedtailor.report.leaderboard import (
    ALONE,
    BASELINES,
    KINDS,
    Ranks,
    Standing,
    count_older,
    federations_of,
    missing_cells,
    missing_hours,
    rank_methods,
    seconds_of,
    standings,
    table_of,
    whole_percent,
)
from fedtailor.report.leaderboard_advice import advice_of
from fedtailor.report.leaderboard_records import anchor_of, records_page_of
from fedtailor.report.parts import Figure, Panel, ReportTable

_COLORS = ("var(--s0)", "var(--s1)", "var(--s2)", QUIET)
_SHAPES = ("circle", "square", "diamond", "cross")
_FEWEST_MARKS = 3
"""Of a panel of the figure, and of what is said in short."""
_NAME_WIDTH = 0.3
"""Of a name in a panel, as a share of its marks' width."""
_NAME_HEIGHT = 0.08
"""The same for height."""
_MOST_RANKS = 8
"""In a sentence."""

# The figure.

_TITLE = "Accuracy of the models that clients end with, against their cost"
_CAPTION = (
    "A mark is a method, its accuracy the mean over clients and repetitions. Named are methods "
    "that no other one beats at less cost, as far as there is room. Pale marks do not have all "
    "repetitions yet. Dashed: the same model trained "
    "alone (local). Dotted: the best simple model of each client (alone). Where there are two "
    "federations or more, the last panel has mean ranks, with Nemenyi's critical difference as a "
    "bar."
)


def figure_of(records: Mapping[str, Record]) -> Figure:
    """Return accuracy against bytes and against seconds on every federation, and mean ranks."""
    panels = []
    kinds: dict[str, str] = {}
    for federation in federations_of(records):
        rows = standings(records, federation)
        kinds |= {row.name: row.kind for row in rows}
        for field, title in (("megabytes", "MB a client"), ("seconds", "core seconds a trial")):
            drawn = _with_cost(rows, field)
            if len(drawn) >= _FEWEST_MARKS:
                chart = _scatter(rows, drawn, field, title)
                panels.append(Panel(chart=chart, title=federation, subtitle=title))

    ranks = rank_methods(records)
    if ranks.critical_difference is not None:
        subtitle = f"over {', '.join(ranks.federations)}"
        panels.append(Panel(chart=_rank_chart(ranks, kinds), title="Mean rank", subtitle=subtitle))

    return Figure(
        name="leaderboard",
        title=_TITLE,
        caption=_CAPTION,
        panels=panels,
    )


def _with_cost(rows: Sequence[Standing], field: str) -> list[Standing]:
    """Return the methods of which a cost is known that is not 0, without training alone."""
    return [row for row in rows if (getattr(row, field) or 0) > 0 and row.name != LOCAL]


def _scatter(rows: Sequence[Standing], drawn: Sequence[Standing], field: str, title: str) -> Chart:
    """Draw accuracy against a cost, with the names of the methods that none beats at less cost."""
    best = _with_room(_front(drawn, field), drawn, field)
    points = []
    for label, row in zip(labels(row.name for row in drawn), drawn, strict=True):
        points.append(
            {
                "name": label,
                "label": label if row.name in best else "",
                "kind": row.kind,
                "cost": getattr(row, field),
                "accuracy": 100 * row.accuracy.mean,
                "is_complete": row.repetitions == REPETITIONS,
            }
        )

    base = alt.Chart(inline(points), height=230).encode(
        x=alt.X(
            "cost:Q",
            title=title,
            scale=alt.Scale(type="log", nice=False, padding=16),
            axis=alt.Axis(tickCount=5, format="~g", labelOverlap=True),
        ),
        y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False, padding=14)),
    )
    marks = base.mark_point(filled=True, size=70).encode(
        **_look_of_kinds(),
        opacity=alt.condition("datum.is_complete", alt.value(0.85), alt.value(0.3)),
        tooltip=[
            tooltip("name", "method"),
            tooltip("accuracy", "accuracy, %", ".1f"),
            tooltip("cost", title, ".3~g"),
        ],
    )
    names = base.mark_text(align="left", dx=6, dy=-6, fontSize=11, color=INK).encode(text="label:N")
    layers = [marks, names]
    for name, dash, color in ((LOCAL, [6, 3], QUIET), (ALONE, [2, 2], CONTRAST)):
        heights = [{"accuracy": 100 * row.accuracy.mean} for row in rows if row.name == name]
        rule = alt.Chart(inline(heights)).mark_rule(strokeDash=dash, color=color, strokeWidth=1.5)
        layers.append(rule.encode(y="accuracy:Q"))

    return alt.LayerChart(layer=layers)


def _look_of_kinds() -> dict[str, Any]:
    """Return color and shape of the kinds of methods, the same in all panels."""
    legend = alt.Legend(title=None, columns=len(KINDS), orient="top")
    colors = alt.Scale(domain=list(KINDS), range=list(_COLORS))
    shapes = alt.Scale(domain=list(KINDS), range=list(_SHAPES))
    return {
        "color": alt.Color("kind:N", scale=colors, legend=legend),
        "shape": alt.Shape("kind:N", scale=shapes, legend=legend),
    }


def _front(rows: Sequence[Standing], field: str) -> list[Standing]:
    """Return the methods that no other one beats at the same cost or less."""
    front: list[Standing] = []
    for row in sorted(rows, key=lambda row: (getattr(row, field), -row.accuracy.mean)):
        if not front or row.accuracy.mean > front[-1].accuracy.mean:
            front.append(row)

    return front


def _with_room(front: Sequence[Standing], drawn: Sequence[Standing], field: str) -> list[str]:
    """Return those names that do not overlap the one of a more accurate method."""
    costs = [math.log(getattr(row, field)) for row in drawn]
    accuracies = [row.accuracy.mean for row in drawn]
    width = _NAME_WIDTH * (max(costs) - min(costs))
    height = _NAME_HEIGHT * (max(accuracies) - min(accuracies))

    named: list[Standing] = []
    for row in reversed(front):
        cost = math.log(getattr(row, field))
        near = [other for other in named if math.log(getattr(other, field)) - cost < width]
        if all(other.accuracy.mean - row.accuracy.mean >= height for other in near):
            named.append(row)

    return [row.name for row in named]


def _rank_chart(ranks: Ranks, kinds: Mapping[str, str]) -> Chart:
    """Draw a mark for every method's mean rank, and the critical difference as a bar.

    Args:
        ranks: of the methods.
        kinds: of the methods, by name.
    """
    names = labels(ranks.mean_rank)
    values = list(ranks.mean_rank.values())
    rows = []
    for name, label in zip(ranks.mean_rank, names, strict=True):
        rows.append({"label": label, "rank": ranks.mean_rank[name], "kind": kinds[name]})

    axis = alt.Axis(title=None, labelLimit=170, labelColor=INK)
    y = alt.Y("label:N", axis=axis, scale=alt.Scale(domain=names, paddingInner=0.3))
    x = alt.X("rank:Q", title="mean rank", scale=alt.Scale(zero=False, padding=10))
    base = alt.Chart(inline(rows), height=18 * len(rows))
    tips = [tooltip("label", "method"), tooltip("rank", "mean rank", ".2f")]
    marks = base.mark_point(filled=True, size=60, opacity=1).encode(
        **_look_of_kinds(), x=x, y=y, tooltip=tips
    )

    # From the first method on: those within it are not told apart from it.
    end = values[0] + (ranks.critical_difference or 0.0)
    bar = inline([{"label": names[0], "rank": values[0], "end": end}])
    rule = alt.Chart(bar).mark_rule(strokeWidth=3, color=CONTRAST).encode(x=x, x2="end:Q", y=y)
    return alt.LayerChart(layer=[rule, marks])


# The page.

_HOW = "How all of this is measured: docs/reference/leaderboard.md of fedtailor's repository."


def page_of(
    records: Mapping[str, Record], picture: str, records_page: str, more: Sequence[str] = ()
) -> str:
    """Return the page in Markdown.

    Args:
        records: from :func:`fedtailor.experiment.leaderboard.read_board`.
        picture: address of the figure, from the page.
        records_page: address of the page of :func:`records_page_of`.
        more: sections that stand before that on what is missing.
    """
    federations = federations_of(records)
    parts = ["# Leaderboard", _what_is_there(records)]
    last = [*more, "## What is missing", *_what_is_missing(records)]
    if not federations:
        return "\n\n".join([*parts, *last])

    rows = {federation: standings(records, federation) for federation in federations}
    parts.append(f"![{_TITLE}]({picture})\n\n{_CAPTION}")
    ranks = rank_methods(records)
    advice = advice_of(ranks, rows)
    if advice:
        parts.append("## Which method for whom")
        parts.append("\n".join(f"* {sentence}" for sentence in advice))

    parts.append(_ranks_in_words(ranks))
    parts.append("## In short")
    parts.append("\n".join(_in_short(name, rows[name]) for name in federations))
    for federation in federations:
        table = table_of(federation, rows[federation])
        parts.append(f"## {table.title[0].upper()}{table.title[1:]}")
        parts.append(_markdown(_with_links(table, federation, rows[federation], records_page)))
        parts.append(_apart_in_words(rows[federation]))

    return "\n\n".join([*parts, *last])


def _with_links(
    table: ReportTable, federation: str, rows: Sequence[Standing], records_page: str
) -> ReportTable:
    """Return a table in which name and accuracy of every row lead to its records."""
    linked = []
    for row, cells in zip(rows, table.rows, strict=True):
        address = f"{records_page}#{anchor_of(federation, row.name)}"
        links = [f"[{cell}]({address})" for cell in cells[:2]]
        linked.append([*links, *cells[2:]])

    return ReportTable(title=table.title, columns=table.columns, rows=linked)


def standing_of(records: Mapping[str, Record], method: str) -> list[tuple[str, ReportTable, str]]:
    """Return where a method stands, by federation: its name, the table, and a sentence."""
    result = []
    for federation in federations_of(records):
        rows = standings(records, federation)
        methods = [row for row in rows if row.name not in BASELINES]
        names = [row.name for row in methods]
        if method in names:
            place = names.index(method) + 1
            row = methods[place - 1]
            some = ""
            if row.repetitions < REPETITIONS:
                some = f", after {row.repetitions} of {REPETITIONS} repetitions,"
            sentence = (
                f"{federation}: place {place} of {len(names)}{some} with "
                f"{100 * row.accuracy.mean:.1f} %, told apart as better than "
                f"{len(row.better_than)} rows and as worse than {len(row.worse_than)}."
            )
            result.append((federation, table_of(federation, rows), sentence))

    return result


def _what_is_there(records: Mapping[str, Record]) -> str:
    """Return what is compared, and how many of the cells there are."""
    missing = missing_cells(records)
    total = len(METHODS) * REPETITIONS * len(FEDERATIONS)
    there = total - sum(sum(methods.values()) for methods in missing.values())
    measured = f"**{there:,} of {total:,} cells are measured so far**: [what is missing]"
    if there == total:
        measured = f"**All {total:,} cells are measured**: [what they took]"
    return (
        f"{len(METHODS)} methods on the same federations, {REPETITIONS} repetitions each, with "
        f"options that validation examples choose among at most {TRIALS} combinations. "
        f"{measured}(#what-is-missing)."
    )


def _what_is_missing(records: Mapping[str, Record]) -> Iterator[str]:
    """Yield how long the missing cells take, and which they are."""
    spent = sum(map(seconds_of, records.values()))
    missing = missing_cells(records)
    if not any(missing.values()):
        yield (
            f"Nothing. All cells took {spent / 3600:.1f} hours of one core. "
            "`make leaderboard DATA=FOLDER` runs those that have no record."
        )
        return

    hours = missing_hours(records)
    text = f"The cells that are there took {spent / 3600:.1f} hours of one core."
    if hours:
        text += f" The missing ones will take about {sum(hours.values()):.1f} hours"
        unknown = [name for name in FEDERATIONS if name not in hours]
        text += f", without those of {', '.join(unknown)}: not measured." if unknown else "."
    yield f"{text} `make leaderboard DATA=FOLDER` runs them."

    older = count_older(records)
    if older:
        yield (
            f"{older} of the missing cells have a record of another protocol. The tables show it "
            "until the cell is run again."
        )

    words = []
    in_federation = len(METHODS) * REPETITIONS
    for federation, methods in missing.items():
        number = in_federation - sum(methods.values())
        start = f"* **{federation}**, {number} of {in_federation} cells"
        if methods and federation in hours:
            start += f", about {hours[federation]:.1f} hours for the others"
        words.append(f"{start}. Missing: {_missing_in_words(methods)}.")
    yield "\n".join(words)


def _missing_in_words(methods: Mapping[str, int]) -> str:
    """Return which methods lack cells, and how many where not all are missing."""
    if not methods:
        return "none"
    if len(methods) == len(METHODS) and set(methods.values()) == {REPETITIONS}:
        return "all"

    by_number: dict[int, list[str]] = {}
    for method, number in methods.items():
        by_number.setdefault(number, []).append(method)

    words = []
    for number, names in sorted(by_number.items(), reverse=True):
        some = "" if number == REPETITIONS else f" ({number} of {REPETITIONS} repetitions)"
        words.append(f"{', '.join(names)}{some}")

    return "; ".join(words)


def _in_short(federation: str, rows: Sequence[Standing]) -> str:
    """Return what a table says, as an item of a list."""
    methods = [row for row in rows if row.name not in BASELINES]
    # Those with fewer repetitions were measured on fewer divisions.
    most = max(row.repetitions for row in methods)
    methods = [row for row in methods if row.repetitions == most]
    if most < REPETITIONS or len(methods) < _FEWEST_MARKS:
        return f"* **{federation}**: too few cells yet."

    first = methods[0]
    words = [
        f"* **{federation}**: {first.name} has the highest mean, {100 * first.accuracy.mean:.1f} %"
    ]
    others = [row.name for row in methods[1:] if row.name in first.unclear]
    number = len(methods) - 1
    if len(others) == number:
        words.append(f"; none of the other {number} can be told apart from it.")
    elif not others:
        words.append(f"; all of the other {number} are told apart from it.")
    else:
        words.append(f"; {len(others)} of the other {number} cannot be told apart from it.")
    local = next((row for row in methods if row.name == LOCAL), None)
    if local is not None:
        above = [row for row in methods if LOCAL in row.better_than]
        below = [row for row in methods if LOCAL in row.worse_than]
        words.append(
            f" Training alone has {100 * local.accuracy.mean:.1f} %; methods told apart as better: "
            f"{len(above)}, as worse: {len(below)}."
        )

    alone = next(row for row in rows if row.name == ALONE)
    words.append(f" The simple models of each client have {100 * alone.accuracy.mean:.1f} %.")
    if first.verdicts:
        better, unclear, worse = first.verdicts.values()
        words.append(
            f" Compared with them, {first.name} is better for {counted(better, 'client')} of all "
            f"repetitions, unclear for {unclear}, worse for {worse}."
        )
    if first.harmed is not None:
        words.append(f" {first.name} harms {whole_percent(first.harmed)} of the clients.")

    return "".join(words)


def _ranks_in_words(ranks: Ranks) -> str:
    """Return the ranks in a sentence."""
    if ranks.critical_difference is None:
        return (
            f"There are no ranks yet: they need `{LOCAL}` and another method with all repetitions "
            "on two federations."
        )

    first = list(ranks.mean_rank.items())[:_MOST_RANKS]
    names = ", ".join(f"{name} {rank:.1f}" for name, rank in first)
    text = (
        f"**Mean ranks** of {len(ranks.mean_rank)} methods over {', '.join(ranks.federations)}: "
        f"{names}"
    )
    if len(ranks.mean_rank) > _MOST_RANKS:
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
    columns, *rows = map(_markdown_cells, [table.columns, *table.rows])
    return markdown_table(columns, rows, of_numbers=range(1, len(columns) - 1))


def _markdown_cells(cells: Sequence[Any]) -> list[str]:
    return [str(cell).replace("|", "/").replace("\n", " ") for cell in cells]


def write_page(records: Mapping[str, Record], path: Path) -> Path:
    """Write the page in Markdown, its figure and its records beside it, and return its path.

    Raises:
        ConfigError: the name is that of a picture.
        RunError: a file cannot be written.
    """
    if path.suffix.lower() == ".png":
        raise wrong_value("--out", "a file of Markdown, such as leaderboard.md", str(path))

    image = path.with_suffix(".png")
    records_page = path.with_name(f"{path.stem}-records.md")
    write_whole(image, picture(figure_of(records), "png"))
    write_whole(records_page, records_page_of(records))
    write_whole(path, page_of(records, image.name, records_page.name, more=[_HOW]))
    return path
