"""The page of the papers' numbers, from the papers' files and our records."""

import math
from collections.abc import Iterable

from experiments.cells import Cell, cells, expand, read_plan
from experiments.paper import FOLDER, Paper, load_paper, paper_names
from experiments.records import (
    Record,
    Row,
    compare,
    count,
    judged_numbers,
    other_shares,
    read_records,
    records_of,
)
from fedtailor.core.text import markdown_table, percent

NAMES = {"pfedfda": "pFedFDA", "fedcr": "FedCR", "pfedvem": "pFedVEM", "fedlda": "FedLDA"}
"""The papers in the order of the page."""
ABSENT = {
    "femnist": "EMNIST by writer (FEMNIST)",
    "emnist_letters10": "EMNIST letters",
    "tiny_imagenet": "TinyImageNet",
    "sun397": "SUN397",
    "digit5": "DIGIT-5 (its parts SVHN and SynDigits)",
}
"""Data sets of the papers that we do not have."""
TEXT_COLUMNS = {
    "table",
    "data",
    "method",
    "methods (seed)",
    "number",
    "our point",
    "verdict",
    "best round",
    "other program",
    "model",
    "averaged",
    "inferred",
    "paper",
    "code",
}
FIGURES = {
    "mean": "mean over clients",
    "pooled": "all test examples",
    "smallest10": "10 % smallest clients",
}

HOW = """
A run is a method on a data set and setting (a column of a table), with one or several seeds. It
counts once, even if several tables print it. A run with several printed numbers is within tolerance
if all of them are: {numbers_within} of {numbers} numbers are. {outside} runs are outside:

* for {found} of them, an experiment points to a cause;
* for {elsewhere}, it shows only that our algorithms and engines are not the cause;
* {unexplained} are not yet explained.

## How to read it

* **Tolerance** is in percentage points, and was stated before the runs, in the papers' files:
  {tolerances}.
* **Model** is the evaluation point that the paper's number belongs to (see
  [running](../howto/running.md)), *averaged* is how it sums up the clients.
  `experiments/PAPER/paper.toml` holds all settings.
* **Ours** is the mean over our seeds, *spread* their standard deviation. The seed drives the
  initial model, the cohorts and the order of the examples. The split is the same in all seeds of
  pFedFDA and FedLDA; in pFedVEM's and FedCR's experiments it varies with the seed.
* **Best round** is the highest accuracy of the rounds in which we scored the models of all clients,
  and how many rounds those are; with several seeds, the mean over them. It is chosen on test
  examples, so *verdict* does not use it. PFLlib, among other tools, reports the best round. The
  released code of pFedVEM prints test accuracies of every fifth round and of the last, and does not
  say which one a table has. There our best round has a verdict of its own, by that protocol.
  {best}
* **Other program** is what the released code has on the same split, or a plain PyTorch loop that
  uses none of our algorithms and engines, and whether our number is within the same tolerance of it
  ([experiments](experiments.md) describes both). {program}
* {few}
* **Minutes** are the sum over the seeds, by the wall clock of a machine with two cores that partly
  did other work or paused the runs, so they are upper bounds. *CPU* is processor time; older
  records do not have it.
* **Inferred** settings are those that neither the paper nor its released code states. A difference
  may be due to them.
* FedAvg's numbers in pFedFDA's and FedCR's tables are those of FedAvg-FT's run before the tuning.
"""

ONE_SEED = """
## One seed is no evidence

On one fixed split (CIFAR-10, Dirichlet(0.5), 25 % of the samples, as divided by the code of
pFedFDA's authors) we ran their code and ours. These are the accuracies over all test examples after
so many rounds, in percent; of the authors' runs there is no record:

{table}

With seeds 1 and 2 our numbers agree with theirs. The initial model of seed 0 learns slowly: its
numbers are 1.5 to 7.3 points lower than those of seed 1 after 100 rounds, and up to 1.7 after 200.
A run of seed 0 alone can therefore be outside tolerance, or behind another method, for no other
reason. So look at the seeds and their spread before you conclude anything from a difference below.
"""
ONE_SEED_ROUNDS = (50, 100, 150, 200)
AUTHORS_RUNS = {
    "pFedFDA": {
        "first": (50.0, 58.3, 61.2, 63.2),
        "second": (54.7, 59.3, 61.9, 63.3),
    },
    "FedAvg-FT": {"first": (50.9, 57.6, 60.7, 62.5)},
    "FedAvg": {"first": (26.8, 35.5, 39.8, 44.0)},
}
"""Accuracies of the authors' code by method and seed, after those rounds."""

LDA = """
## FedLDA

The paper's networks, ResNet18 and WideResNet, are too slow for two cores. `small` is its protocol
on CIFAR-10 (20 clients, 500 samples each) with the small network of pFedFDA. **No paper prints
these numbers**, so they have no verdict: only the order of the methods can be compared with the
paper's. FedLDA is compared at `local`, which is inferred; the reasons, and its number at
`personalized`, are in [experiments](experiments.md).
"""

COST = """
## What it cost

The {count} records took {wall} hours by the wall clock; {cpu} hours of processor time in the
{with_cpu} records that have it.

{table}

These columns cannot be run, because we do not have their data: {absent}.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path relative to docs."""
    papers = {name: load_paper(name) for name in sorted(paper_names(), key=list(NAMES).index)}
    records = {name: read_records(name) for name in papers}
    rows = {name: judged_numbers(paper, records[name]) for name, paper in papers.items()}
    tally = count(row for judged in rows.values() for row in judged)
    outside = tally.runs - tally.runs_within
    program, best, few = other_shares([row for judged in rows.values() for row in judged])

    parts = [f"# The papers' numbers and ours\n\n**{tally}**"]
    parts.append(
        HOW.format(
            numbers_within=tally.numbers_within,
            numbers=tally.numbers,
            outside=outside,
            found=outside - tally.elsewhere - tally.unexplained,
            elsewhere=tally.elsewhere,
            unexplained=tally.unexplained,
            tolerances=tolerances(papers.values()),
            program=program,
            best=best,
            few=few,
        )
    )
    parts.append(ONE_SEED.format(table=seeds_on_one_split(papers["pfedfda"], records["pfedfda"])))
    parts += [verdicts(papers[name], judged) for name, judged in rows.items() if judged]
    parts.append(order_of_methods(papers["fedlda"], records["fedlda"]))
    parts.append(unfinished([record for every in records.values() for record in every]))
    parts.append(costs(papers, records))

    text = "\n\n".join(part.strip("\n") for part in parts)
    return {"results/papers.md": f"{text}\n"}


def seeds_on_one_split(paper: Paper, records: list[Record]) -> str:
    """Return a table of accuracies during the runs: seeds of ours, and of the authors' code."""
    place = ("scarce", "cifar10_dir05_25_release")
    runs = {
        "pFedFDA": ("pfedfda", "personalized"),
        "FedAvg-FT": ("fedavg_ft", "personalized"),
        "FedAvg": ("fedavg_ft", "global"),
    }
    rows = []
    for label, (method, point) in runs.items():
        for record in records_of(expand(paper, *place, method), records):
            after = {
                scored["round"]: scored["pooled"]
                for scored in record["curve"]
                if (scored["point"], scored["clients"]) == (point, "known")
            }
            shares = [percent(after.get(number)) for number in ONE_SEED_ROUNDS]
            rows.append([label, f"ours, seed {record['seed']}", *shares])

        for seed, values in AUTHORS_RUNS[label].items():
            rows.append([label, f"the authors', {seed} seed", *map(str, values)])

    return table(["method", "code", *map(str, ONE_SEED_ROUNDS)], rows)


def tolerances(papers: Iterable[Paper]) -> str:
    """Return the tolerances of the papers in a sentence."""
    texts = []
    for paper in papers:
        stated = [
            f"±{points(tolerance)} from {least} seed{'' if least == 1 else 's'} on"
            for least, tolerance in sorted(paper.tolerance.items())
        ]
        texts.append(f"{NAMES[paper.name]} {', '.join(stated) or 'none'}")

    return "; ".join(texts)


def points(fraction: float) -> str:
    """Return a fraction in percentage points."""
    return f"{100 * fraction:g}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown; columns that hold numbers are aligned to the right."""
    of_numbers = [column for column, name in enumerate(head) if name not in TEXT_COLUMNS]
    return markdown_table(head, rows, of_numbers=of_numbers)


def verdicts(paper: Paper, rows: list[Row]) -> str:
    """Return the section of a paper: every number with its verdict, and what is outside."""
    spreads = {paper.tables[row.cell.table].spread for row in rows} - {""}
    kind = ""
    if spreads:
        kind = f" The ± of printed numbers is the {' or the '.join(sorted(spreads))}."

    tally = count(rows)
    head = ["table", "data", "method", "number", "printed", "ours", "difference", "tolerance"]
    head += ["verdict", "best round", "other program", "model", "averaged", "seeds", "spread"]
    head += ["minutes", "CPU", "inferred"]
    parts = [
        f"## {NAMES[paper.name]}",
        f"{tally.runs_within} of {tally.runs} runs are within tolerance. "
        f"Accuracies are in percent.{kind}",
        table(head, [verdict_cells(row) for row in rows]),
    ]
    outside = [row for row in rows if row.verdict == "outside"]
    if outside:
        parts.append("Outside tolerance:")
        parts.append("\n".join(explanations(outside)))

    return "\n\n".join(parts)


def explanations(outside: Iterable[Row]) -> list[str]:
    """Return the explanations of numbers outside tolerance, each with the numbers it covers."""
    numbers: dict[str, dict[str, list[str]]] = {}
    for row in outside:
        assert row.difference is not None
        paper = row.cell.paper
        label = row.printed.score.label
        score = "" if label == "accuracy" else f" {label}"
        method = paper.methods[row.cell.method].label
        column = paper.columns[row.cell.column].label
        by_column = numbers.setdefault(row.explanation, {})
        by_column.setdefault(column, []).append(f"{method}{score} ({100 * row.difference:+.1f})")

    lines = []
    for text, by_column in numbers.items():
        where = "; ".join(f"{column}: {', '.join(words)}" for column, words in by_column.items())
        lines.append(f"* **{where}.** {text}")

    return lines


def verdict_cells(row: Row) -> list[str]:
    """Return the cells of a number that has a verdict of any kind."""
    assert row.tolerance is not None
    paper = row.cell.paper
    score = row.printed.score
    is_complete = score.point.endswith("_complete")
    wall = math.fsum(record["result"]["seconds"]["total"] for record in row.records) / 60
    cpu = [record.get("cpu_seconds") for record in row.records]
    spread = "" if row.printed.spread is None else f" ± {points(row.printed.spread)}"

    return [
        row.cell.table,
        paper.columns[row.cell.column].label,
        paper.methods[row.cell.method].label,
        score.label,
        "-" if row.printed.value is None else f"{points(row.printed.value)}{spread}",
        percent(row.mean),
        "-" if row.difference is None else f"{100 * row.difference:+.1f}",
        points(row.tolerance),
        verdict(row.verdict),
        best_round(row),
        other_program(row),
        score.point,
        "complete test part" if is_complete else FIGURES[score.figure],
        ", ".join(map(str, row.seeds)),
        percent(row.deviation),
        f"{wall:.0f}",
        "-" if None in cpu else f"{math.fsum(cpu) / 60:.0f}",
        ", ".join(f"`{key}`" for key in row.cell.inferred) or "-",
    ]


def best_round(row: Row) -> str:
    """Return the best round's number and how many rounds were scored; a dash for fewer than two."""
    best = row.best_of_rounds
    if best is None:
        return "-"

    text = f"{percent(best)} of {row.scored_rounds}"
    return text if row.best_verdict is None else f"{text}, {verdict(row.best_verdict)}"


def other_program(row: Row) -> str:
    """Return what another program has on our split, and whether ours is within tolerance of it."""
    if row.program_verdict is None:
        return "-"

    kind = row.cell.paper.tables[row.cell.table].program
    return f"{percent(row.printed.program)} ({kind}), {verdict(row.program_verdict)}"


def verdict(name: str | None) -> str:
    """Return a verdict as text; what is outside tolerance is bold."""
    if name is None:
        return "-"

    return f"**{name}**" if name == "outside" else name


def order_of_methods(paper: Paper, records: list[Record]) -> str:
    """Return the section about FedLDA's small table: our numbers, and the order of the methods."""
    recorded = [row for row in compare(paper, "small", records) if row.mean is not None]
    recorded.sort(key=lambda row: -(row.mean or 0.0))
    ours = {row.cell.method: row.mean or 0.0 for row in recorded}
    printed = {
        column: {cell.method: cell.printed[0].value for cell in cells(paper, "1", column=column)}
        for column in ("cifar10_resnet18_500", "cifar10_wrn_500")
    }

    labels = [paper.columns[column].label for column in ("cifar10_cnn_500", *printed)]
    body = []
    for row in recorded:
        name = row.cell.method
        numbers = [percent(printed[column].get(name)) for column in printed]
        seeds = ", ".join(map(str, row.seeds))
        point = f"`{row.printed.score.point}`"
        body.append([paper.methods[name].label, percent(row.mean), point, *numbers, seeds])

    sentences = []
    for column, numbers_of in printed.items():
        theirs = {name: value for name, value in numbers_of.items() if value is not None}
        pairs = pairs_in_order(ours, theirs)
        sentences.append(
            f"{sum(pairs)} of {len(pairs)} pairs of methods are in the order of "
            f"{paper.columns[column].label}."
        )

    head = ["method", labels[0], "our point", *labels[1:], "our seeds"]
    return "\n\n".join([LDA.strip("\n"), table(head, body), " ".join(sentences)])


def pairs_in_order(ours: dict[str, float], theirs: dict[str, float]) -> list[bool]:
    """Return for every pair of methods whose numbers differ, in both, whether the order agrees."""
    names = [name for name in ours if name in theirs]
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    differences = [(ours[one] - ours[other], theirs[one] - theirs[other]) for one, other in pairs]
    return [(left > 0) == (right > 0) for left, right in differences if left and right]


def unfinished(records: list[Record]) -> str:
    """Return the section about the runs of the plan that have no record, in their order."""
    planned = read_plan(FOLDER / "plan.toml")
    left = []
    for cell in planned:
        seeds = [record["seed"] for record in records_of(cell, records)]
        if cell.seed not in seeds:
            left.append(cell)

    if not left:
        return "## Planned and not run\n\nEvery run of the plan has a record."

    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in left:
        groups.setdefault((cell.paper.name, cell.table, cell.column), []).append(cell)

    body = []
    for (name, number, column), group in groups.items():
        paper = group[0].paper
        runs = ", ".join(f"{paper.methods[cell.method].label} ({cell.seed})" for cell in group)
        body.append([NAMES[name], number, paper.columns[column].label, runs])

    head = ["paper", "table", "data", "methods (seed)"]
    text = f"{len(left)} of the {len(planned)} runs of `experiments/plan.toml` have no record yet."
    return "\n\n".join(["## Planned and not run", text, table(head, body)])


def costs(papers: dict[str, Paper], records: dict[str, list[Record]]) -> str:
    """Return the section about hours."""
    every = [record for of_paper in records.values() for record in of_paper]
    cpu = [record["cpu_seconds"] for record in every if record.get("cpu_seconds") is not None]
    body = []
    for name, paper in papers.items():
        printed = printed_runs(paper)
        done = [cell for cell in printed if records_of(cell, records[name])]
        spent = hours(record["result"]["seconds"]["total"] for record in records[name])
        body.append([NAMES[name], f"{len(done)} of {len(printed)}", str(len(records[name])), spent])

    head = ["paper", "runs with a printed number that have a record", "records", "hours spent"]
    return COST.format(
        count=len(every),
        wall=hours(record["result"]["seconds"]["total"] for record in every),
        cpu=hours(cpu),
        with_cpu=len(cpu),
        table=table(head, body),
        absent="; ".join(absent_columns(papers)),
    )


def hours(seconds: Iterable[float]) -> str:
    """Return seconds together as hours."""
    return f"{math.fsum(seconds) / 3600:.1f}"


def printed_runs(paper: Paper) -> list[Cell]:
    """Return the cells of which the paper prints a number, one for each run."""
    runs: dict[str, Cell] = {}
    for number in paper.tables:
        for cell in cells(paper, number):
            if any(printed.value is not None for printed in cell.printed):
                runs.setdefault(cell.digest, cell)

    return list(runs.values())


def absent_columns(papers: dict[str, Paper]) -> list[str]:
    """Return the columns of each data set that we do not have, in words."""
    texts = []
    for dataset, title in ABSENT.items():
        columns = [
            f"{NAMES[name]} {column.label}"
            for name, paper in papers.items()
            for column in paper.columns.values()
            if column.data.get("dataset") == dataset
        ]
        texts.append(f"{title}: {', '.join(columns)}")

    return texts
