"""One exchange on a frozen encoder against training on the same features.

    python -m benchmarks.frozen [--data-dir DIR] [--only TEXT ...] [--list]    # what has no record
    python -m benchmarks.frozen --table          # of the page docs/results/one-exchange.md
    python -m benchmarks.frozen --figure FILE    # accuracy against bytes: .html, .pdf, .svg, .png

100 clients of CIFAR-10, CIFAR10-S (half of the clients see corrupted pictures) and Fashion-MNIST,
divided by Dirichlet(0.5) and Dirichlet(0.1), with 50 or all training examples a client. A fifth of
a client's pictures are its test examples. Three seeds, each with a division of its own. Nothing is
chosen on test examples. The encoder is ``benchmarks.efficientnet:lite0``, whose two packages have
to be installed.

Every run adds a line to ``results/frozen.jsonl``, and a run with a line is not repeated.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.records import describe_machine, read_records, save_record

if TYPE_CHECKING:
    import altair as alt

    from fedtailor.report.parts import Figure

ENCODER = "benchmarks.efficientnet:lite0"
SEEDS = (0, 1, 2)

DATA: dict[str, dict[str, Any]] = {
    "cifar10": {"dataset": "cifar10"},
    "cifar10_s": {"dataset": "cifar10", "shift": "cifar_s(clients=50)"},
    "fashion_mnist": {"dataset": "fashion_mnist"},
}
TITLES = {"cifar10": "CIFAR-10", "cifar10_s": "CIFAR10-S", "fashion_mnist": "Fashion-MNIST"}
SIZES = {"50": 50, "all": 0}
"""Largest number of training examples of a client; 0: no limit."""
ALPHAS = (0.5, 0.1)

TRAINED: dict[str, Any] = {
    "model": {"name": "mlp"},
    "federation": {"rounds": 40, "participation": 0.3},
    "training": {"lr": 0.01, "momentum": 0.5, "epochs": 5, "batch_size": 50},
}
"""Methods of many rounds: a hidden layer of 100 units on the features."""
EXCHANGED: dict[str, Any] = {"model": {"name": "linear"}}

HEADS = (
    "fedncm",
    "fed3r",
    "fed3r-tuned",
    "fedcof",
    "fedcgs-naive_bayes",
    "fedcgs-lda",
    "fedcgs-qda",
)
"""Global heads of one exchange."""
IN_ROUNDS = ("fedavg_ft", "pfedfda", "pfedfda-frozen", "local")
"""Methods that train a layer on the features, at each client."""
OURS = "one_shot_fda"
DRAWN = {
    OURS: "a head a client: 2 exchanges",
    "fedcgs-lda": "one global head: 1 exchange",
    "fed3r": "one global head: 1 exchange",
    "fedcof": "one global head: 1 exchange",
    "fedncm": "one global head: 1 exchange",
    "fedavg_ft": "trained: 40 rounds",
    "pfedfda": "trained: 40 rounds",
}
"""The methods of the figure, and what they make."""
METHODS: dict[str, dict[str, Any]] = {
    "one_shot_fda": EXCHANGED | {"algorithm": {"name": "one_shot_fda"}},
    "fed3r": EXCHANGED | {"algorithm": {"name": "fed3r"}},
    "fed3r-tuned": EXCHANGED | {"algorithm": {"name": "fed3r", "preset": "tuned"}},
    "fedncm": EXCHANGED | {"algorithm": {"name": "fedncm"}},
    "fedcgs-lda": EXCHANGED | {"algorithm": {"name": "fedcgs", "head": "lda"}},
    "fedcof": EXCHANGED | {"algorithm": {"name": "fedcof"}},
    "fedcgs-naive_bayes": EXCHANGED | {"algorithm": {"name": "fedcgs", "head": "naive_bayes"}},
    "one_shot_fda-no_offset": EXCHANGED | {"algorithm": {"name": "one_shot_fda", "offset": 0}},
    "one_shot_fda-blend": EXCHANGED | {"algorithm": {"name": "one_shot_fda", "blend": True}},
    "fedavg_ft": TRAINED | {"algorithm": {"name": "fedavg_ft"}},
    "pfedfda": TRAINED | {"algorithm": {"name": "pfedfda"}},
    "local": TRAINED | {"algorithm": {"name": "local"}},
    "pfedfda-frozen": TRAINED | {"algorithm": {"name": "pfedfda", "preset": "frozen"}},
    "fedcgs-qda": EXCHANGED | {"algorithm": {"name": "fedcgs", "head": "qda"}},
}
"""Configurations by name, the most informative first. FedAvg is the global model of FedAvg-FT."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    data: str
    alpha: float
    size: str
    seed: int
    method: str

    @property
    def federation(self) -> str:
        """The name of the federation."""
        return f"{self.data}-{self.alpha:g}-{self.size}"

    @property
    def title(self) -> str:
        """The federation in words."""
        return f"{TITLES[self.data]}, Dirichlet({self.alpha:g}), {self.size} pictures"

    @property
    def name(self) -> str:
        """The name of the record."""
        return f"{self.federation}-{self.method}-seed{self.seed}"

    def config(self, data_dir: str) -> dict[str, Any]:
        """Return the configuration of the run."""
        data = {
            **DATA[self.data],
            "partition": f"dirichlet(alpha={self.alpha:g}, min_size=62.5)",
            "clients": 100,
            "train_size": SIZES[self.size],
            "encoder": ENCODER,
            "seed": "run",
        }
        if data_dir:
            data["dir"] = data_dir

        return METHODS[self.method] | {
            "seed": self.seed,
            "data": data,
            "evaluation": {"every": 0, "baselines": "none"},
            "checkpoint": {"every": 0},
        }


def cells() -> Iterator[Cell]:
    """Yield all runs: one seed of all federations before the next seed."""
    for seed in SEEDS:
        for alpha in ALPHAS:
            for size in SIZES:
                for data in DATA:
                    for method in METHODS:
                        yield Cell(data, alpha, size, seed, method)


def run_cell(cell: Cell, data_dir: str) -> dict[str, Any]:
    """Run a cell and return its record: scores of every client at every evaluation point."""
    import fedtailor
    from fedtailor.experiment.reader import read_provenance, read_run

    record = describe_machine()
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "run"
        result = fedtailor.run(fedtailor.make_config(cell.config(data_dir)), out=folder)
        commit = read_provenance(folder)["commit"]
        last = result["rounds"]
        accuracies: dict[str, list[float]] = {}
        for line in read_run(folder).iterate_clients():
            if line["round"] == last and "accuracy" in line and line["test_set"] == "clients":
                accuracies.setdefault(line["point"], []).append(round(line["accuracy"], 5))

    points = {
        point: {metric: scores[metric] for metric in ("accuracy", "loss", "ece")}
        for point, scores in result["metrics"].items()
    }
    return record | {
        "federation": cell.federation,
        "method": cell.method,
        "seed": cell.seed,
        "rounds": last,
        "points": points,
        "client_accuracies": accuracies,
        "bytes": result["bytes"],
        "seconds": result["seconds"],
        "split_sha256": result["split_sha256"],
        "commit": commit,
    }


def accuracies_of(record: dict[str, Any]) -> list[float]:
    """Return the accuracy of every client's model: personalized, or the global one."""
    points: dict[str, list[float]] = record["client_accuracies"]
    return points.get("personalized") or points["global"]


Place = tuple[str, str]
"""A federation and a method."""
BySeed = dict[int, dict[str, Any]]


def records_by_place() -> dict[Place, BySeed]:
    """Return the records of every federation and method by seed."""
    by_place: dict[Place, BySeed] = {}
    for record in read_records("frozen").values():
        place = (record["federation"], record["method"])
        by_place.setdefault(place, {})[record["seed"]] = record

    return by_place


def megabytes(record: dict[str, Any]) -> float:
    """Return what a client sends and receives in the whole run, on average."""
    clients = len(accuracies_of(record))
    return float(sum(record["bytes"].values())) / clients / 1e6


def print_table() -> None:
    """Print the tables of docs/results/one-exchange.md, and how far ours is ahead."""
    by_place = records_by_place()
    for size in SIZES:
        print("\n".join(_table(size, by_place)), end="\n\n")

    for federation in dict.fromkeys(cell.federation for cell in cells()):
        for others in (HEADS, IN_ROUNDS):
            line = _difference(federation, others, by_place)
            if line:
                print(f"{federation}: {line}")


def _table(size: str, by_place: dict[Place, BySeed]) -> Iterator[str]:
    """Yield a table in Markdown: a row for every method, a column for every federation."""
    columns = [(data, alpha) for alpha in ALPHAS for data in DATA]
    names = [f"{TITLES[data]}, {alpha:g}" for data, alpha in columns]
    pictures = f"{size} training pictures a client"
    yield f"| {pictures} | {' | '.join(names)} | MB a client, both ways |"
    yield f"|---|{'---|' * (len(columns) + 1)}"

    rows = [(method, method, "") for method in METHODS]
    rows.append(("fedavg", "fedavg_ft", "global"))
    for label, method, point in rows:
        places = [(f"{data}-{alpha:g}-{size}", method) for data, alpha in columns]
        found = [by_place.get(place, {}) for place in places]
        records = [record for by_seed in found for record in by_seed.values()]
        cells_of_row = [_accuracy(by_seed, point) for by_seed in found]
        if records:
            sent = statistics.fmean(map(megabytes, records))
            yield f"| `{label}` | {' | '.join(cells_of_row)} | {sent:.1f} |"


def _accuracy(by_seed: BySeed, point: str) -> str:
    """Return the mean over clients in percent, and its standard deviation over seeds."""
    means = []
    for record in by_seed.values():
        accuracies = record["client_accuracies"][point] if point else accuracies_of(record)
        means.append(100 * statistics.fmean(accuracies))

    if not means:
        return ""

    mean = f"{statistics.fmean(means):.1f}"
    if len(means) < len(SEEDS):
        return f"{mean} ({len(means)} of {len(SEEDS)} seeds)"

    return f"{mean} ± {statistics.stdev(means):.1f}"


def _difference(federation: str, others: Sequence[str], by_place: dict[Place, BySeed]) -> str:
    """Return by how much ours is ahead of the best other, over the same seeds and clients.

    The best one has the highest mean on test examples, so the difference is not in our favor. Empty
    if there are no records.
    """
    from fedtailor.report.statistics import bootstrap_interval

    ours = by_place.get((federation, OURS), {})
    found = {other: by_place.get((federation, other), {}) for other in others}
    tried = {other: records for other, records in found.items() if records}
    seeds = [seed for seed in ours if all(seed in records for records in tried.values())]
    if not seeds or not tried:
        return ""

    means = {
        other: statistics.fmean(statistics.fmean(accuracies_of(records[seed])) for seed in seeds)
        for other, records in tried.items()
    }
    best = max(means, key=lambda other: means[other])
    gaps = []
    for seed in seeds:
        pairs = zip(accuracies_of(ours[seed]), accuracies_of(tried[best][seed]), strict=True)
        gaps += [100 * (one - other) for one, other in pairs]

    interval = bootstrap_interval(gaps)
    assert interval is not None
    count = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return (
        f"{OURS} - {best}: {statistics.fmean(gaps):+.1f} "
        f"({interval.low:+.1f} to {interval.high:+.1f}; {count}, 100 clients)"
    )


def figure() -> Figure:
    """Return the figure of accuracy against bytes: a panel for every federation with records."""
    from fedtailor.report.parts import Figure, Panel, ReportTable

    by_place = records_by_place()
    panels = []
    rows: list[list[Any]] = []
    for federation, title in {cell.federation: cell.title for cell in cells()}.items():
        points = _points(federation, by_place)
        rows += [[federation, *point.values()] for point in points]
        if points:
            panels.append(Panel(chart=_chart(points), title=title))

    columns = ["federation", "method", "kind", "MB a client", "accuracy, %", "rounds", "seeds"]
    return Figure(
        name="frozen",
        title="One exchange on a frozen encoder against rounds on the same features",
        caption="Accuracy of the models that clients end with, mean over clients and seeds, "
        "against what a client sends and receives in the whole run.",
        panels=panels,
        table=ReportTable(columns=columns, rows=rows),
    )


def _points(federation: str, by_place: dict[Place, BySeed]) -> list[dict[str, Any]]:
    """Return a point for every method that is drawn; none unless all of them have all seeds."""
    points = []
    for method, kind in DRAWN.items():
        records = list(by_place.get((federation, method), {}).values())
        if len(records) < len(SEEDS):
            return []

        means = [100 * statistics.fmean(accuracies_of(record)) for record in records]
        size = statistics.fmean(map(megabytes, records))
        point = {"method": method, "kind": kind, "megabytes": round(size, 3)}
        point |= {"accuracy": round(statistics.fmean(means), 2)}
        points.append(point | {"rounds": records[0]["rounds"], "seeds": len(records)})

    return points


def _chart(points: list[dict[str, Any]]) -> alt.Chart:
    """Draw a point for every method."""
    import altair as alt

    from fedtailor.report.charts import inline, tooltip

    colors = [f"var(--s{number})" for number in range(len(DRAWN))]
    kinds = list(dict.fromkeys(DRAWN.values()))
    return (
        alt.Chart(inline(points), height=220)
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=alt.X(
                "megabytes:Q",
                title="MB a client",
                scale=alt.Scale(type="log", domain=[0.05, 20]),
                axis=alt.Axis(values=[0.1, 1, 10], format="~g"),
            ),
            y=alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False, padding=12)),
            color=alt.Color(
                "method:N",
                scale=alt.Scale(domain=list(DRAWN), range=colors),
                legend=alt.Legend(title=None),
            ),
            shape=alt.Shape(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=["diamond", "circle", "square"]),
                legend=alt.Legend(title=None),
            ),
            tooltip=[
                tooltip("method", "method"),
                tooltip("accuracy", "accuracy, %", ".1f"),
                tooltip("megabytes", "MB a client", ".2f"),
                tooltip("rounds", "rounds"),
            ],
        )
    )


def main() -> None:
    """Run what is missing, or print or draw what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of runs")
    parser.add_argument("--list", action="store_true", help="only list what is missing")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    parser.add_argument("--figure", type=Path, help="only draw what there is")
    options = parser.parse_args()
    if options.table:
        print_table()
        return

    if options.figure:
        from fedtailor.report.page.files import write_figure

        write_figure(figure(), options.figure)
        return

    done = read_records("frozen")
    wanted = [cell for cell in cells() if all(text in cell.name for text in options.only)]
    missing = [cell for cell in wanted if cell.name not in done]
    for number, cell in enumerate(missing, 1):
        print(f"{number} of {len(missing)}: {cell.name}", flush=True)
        if not options.list:
            save_record("frozen", cell.name, run_cell(cell, options.data_dir))


if __name__ == "__main__":
    main()
