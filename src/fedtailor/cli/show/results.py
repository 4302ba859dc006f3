"""What a person sees: tables on stdout, sentences on stderr."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_MOST_SITES = 30
_WIDE = 90  # columns of a terminal from which on the list of algorithms has bytes
_EXPLAINED = {
    "local": "trained alone",
    "fedavg": "one global model",
    "fedavg_ft": "global model, fine-tuned",
    "pfedfda": "shared body, own classifier",
}
_SAME = (  # the demo's own settings, so that what comes out can be compared with it and with docs/demo.md
    "--rounds 20 --seeds 0,1,2 --set data.fraction=0.25 --set training.momentum=0.5 --set training.weight_decay=5e-4"
)
_NEXT = (
    "",
    "Which method wins depends on data and training; docs/demo.md has the numbers. Next:",
    f"  fedtailor run -a pfedfda {_SAME} --set algorithm.cov_ridge=0.01",
    f"  fedtailor run -a fedavg_ft {_SAME} --set training.lr=0.1",
    "  fedtailor list algorithms        (or datasets, models, partitions, engines)",
    "  fedtailor run --help",
)


def printable(text: str) -> str:
    """Return text without control characters, which could rewrite what the terminal shows."""
    return "".join(character if character.isprintable() else " " for character in text)


def say(text: str, *, style: str = "") -> None:
    """Print a line to stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(printable(text), style=style))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, below: str = "") -> None:
    """Print a table to stdout; the first ``left`` columns hold text, the others numbers; ``below`` says more."""
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    lines = [[Text(printable(cell)) for cell in row] for row in rows]
    for number, name in enumerate(columns):
        widths = [*map(len, name.split("\n")), *(line[number].cell_len for line in lines)]
        if 0 < number < left:
            grid.add_column(name, overflow="fold")
        else:  # names and numbers are never cut
            grid.add_column(name, justify="right" if number >= left else "left", min_width=max(widths))
    for line in lines:
        grid.add_row(*line)
    console = Console(highlight=False)
    wide = console.options.update(max_width=500)
    least = Measurement.get(console, wide, grid).minimum
    console.width = max(console.width if console.is_terminal else 120, least)
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
    console.print(grid)
    if below:
        console.print(Text(printable(below)), soft_wrap=True)


def shortened(name: str, most: int = 40) -> str:
    """Return a name that does not make a table too wide."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def percent(value: float) -> str:
    """Show a fraction as a percentage, without the sign."""
    return f"{100 * value:.1f}"


def duration(seconds: float) -> str:
    """Show seconds for people."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def show_result(result: Mapping[str, Any]) -> None:
    """Print the result of a run: one row per evaluation point."""
    columns = ["model", "clients", "mean", "worst\n10 %", "smallest\n10 %", "pooled", "loss", "ECE"]
    groups = [("", result["metrics"]), (", new clients", result.get("new_clients", {}))]
    rows = [_result_row(point + suffix, metrics) for suffix, points in groups for point, metrics in points.items()]
    for metrics in result.get("new_clients", {}).values():
        rows += [_result_row(f"- {condition}", part) for condition, part in metrics.get("conditions", {}).items()]
    seeds = result["seeds"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of {len(seeds)} seeds ± standard error"
    title = f"{result['algorithm']} on {result['dataset']}: accuracy in %, {which}"
    below = f"After round {result['rounds']}, on each client's own test examples."
    if "validation" in result["metrics"]:
        below += " validation: the personalized models on validation examples."
    if "personalized" in result["metrics"]:
        words = result["metrics"]["personalized"]["adaptation"]
        below += f" personalized: {'as trained, without adaptation' if words == 'none' else words}."
    if "personalized" in result.get("new_clients", {}):
        words = result["new_clients"]["personalized"]["adaptation"]
        below += f" New clients: {'no training' if words == 'none' else words}."
    table(title, columns, rows, below=below)
    _show_sites(result.get("sites", {}))
    say(f"Scores and a model for every client are in {result['run']}")
    _warn([result])


def _show_sites(sites: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line per site, if the clients have names."""
    columns = ["site", "training\nexamples", "test\nexamples", "accuracy"]
    rows = [
        [
            shortened(name),
            f"{site['num_train']:,}",
            f"{site['num_test']:,}",
            percent(site["accuracy"]) if "accuracy" in site else "-",
        ]
        for name, site in sites.items()
    ]
    if sites:
        more = f"and {len(rows) - _MOST_SITES:,} more, in clients.jsonl" if len(rows) > _MOST_SITES else ""
        table("Personalized models by site: accuracy in %", columns, rows[:_MOST_SITES], below=more)


def _result_row(name: str, metrics: Mapping[str, Any]) -> list[str]:
    accuracy = metrics.get("accuracy")
    if accuracy is None:
        return [f"{name} (no test examples)", "0", *["-"] * 6]
    errors = accuracy.get("sem", {})
    cells = [
        percent(accuracy[figure]) + (f" ± {100 * errors[figure]:.1f}" if figure in errors else "")
        for figure in ("mean", "worst10", "smallest10", "pooled")
    ]
    return [name, _scored(metrics), *cells, f"{metrics['loss']['mean']:.3f}", percent(metrics["ece"]["mean"])]


def _scored(metrics: Mapping[str, Any]) -> str:
    """Say how many clients the figures are over: a mean over seeds need not be whole."""
    return f"{metrics['clients']['evaluated']:.1f}".removesuffix(".0")


def _warn(results: Sequence[Mapping[str, Any]]) -> None:
    """Say in one line if clients were left out or failed, and where to read about it."""
    odd = [result for result in results if result["events"]["quarantine"] or result["events"]["failed"]]
    if odd:
        left_out, failed = (sum(result["events"][kind] for result in odd) for kind in ("quarantine", "failed"))
        where = ", ".join(f"{result['run']}" for result in odd)
        reasons = "events.jsonl says why"
        say(f"warning: uploads left out: {left_out}, failures: {failed}; {reasons}, in {where}", style="yellow")


def show_demo(results: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Print the comparison of the demo: what each client's own model reaches, at what cost, and what to type next."""
    local = _own_accuracy(results[0])["mean"]
    rows = []
    for result in results:
        accuracy, personal = _own_accuracy(result), result["metrics"]["personalized"]
        gain = "" if result is results[0] else f"{100 * (accuracy['mean'] - local):+.1f}"
        cells = [percent(accuracy["mean"]), percent(accuracy["worst10"]), gain, f"{result['steps']:,}"]
        rows.append([result["algorithm"], _EXPLAINED.get(result["algorithm"], personal["adaptation"]), *cells])
    first = results[0]
    clients = " to ".join(sorted({_scored(result["metrics"]["personalized"]) for result in results}, key=float))
    table(
        "Accuracy of each client's model on its own test examples, in %",
        ["algorithm", "model of a client", "mean", "worst 10 %", "gain over\nlocal", "gradient\nsteps"],
        rows,
        left=2,
        below=f"Evaluation point: personalized, after round {first['rounds']}; {clients} clients, "
        f"seed {first['seeds'][0]}; {seconds:.0f} s. Runs: {Path(first['run']).parent}",
    )
    _warn(results)
    for line in _NEXT:
        say(line.replace("  fedtailor ", f"  {_program()} "))


def _program() -> str:
    """Return how to call fedtailor from here: it may be in an environment that is not activated."""
    if shutil.which("fedtailor"):
        return "fedtailor"
    return sys.argv[0] if Path(sys.argv[0]).name == "fedtailor" else "python -m fedtailor"


def _own_accuracy(result: Mapping[str, Any]) -> Mapping[str, Any]:
    accuracy: Mapping[str, Any] = result["metrics"]["personalized"]["accuracy"]
    return accuracy


def show_list(kind: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the entries of a table."""
    table(kind.capitalize(), ["name", "description"], [[e["name"], e["description"]] for e in entries], left=2)


def show_algorithms(entries: Sequence[Mapping[str, Any]], model: str) -> None:
    """Print the table of algorithms: what is sent, what is kept, and the bytes of a round for one client."""
    console = Console()
    wide = not console.is_terminal or console.width >= _WIDE
    columns = ["name", "what it does", "clients send", "clients keep", "judged at", "KiB\ndown", "KiB\nup"]
    rows = [
        [
            entry["name"],
            entry["description"],
            _sent(entry),
            ", ".join(entry["kept_by_clients"]) or "-",
            entry["judged_at"],
            f"{entry['bytes_down'] / 1024:.0f}",
            f"{entry['bytes_up'] / 1024:.0f}",
        ]
        for entry in entries
    ]
    kib = f"KiB: per client and round, at most, of the model {model} with 10 classes. "
    below = (
        f"{kib if wide else ''}*: the server sees it of every "
        "single client, so there is no secure aggregation; of the rest it needs but means or sums over clients. "
        "judged at: which model the method is about, the server's (global) or every client's own (personalized)."
    )
    shown = len(columns) if wide else 5
    table("Algorithms", columns[:shown], [row[:shown] for row in rows], left=5, below=below)


def _sent(entry: Mapping[str, Any]) -> str:
    """Name the fields of an upload, with a star at those that the server sees one by one."""
    return ", ".join(f"{field}*" if how == "each" else field for field, how in entry["uploads"].items()) or "-"


def show_report(report: Mapping[str, Any]) -> None:
    """Print what ``doctor`` found: one line per fact."""
    rows = [[f"version of {name}", found] for name, found in report["versions"].items()]
    facts = {**report["machine"], **{name: fact for name, fact in report.items() if not isinstance(fact, Mapping)}}
    rows += [[name.replace("_", " "), "-" if fact is None else str(fact)] for name, fact in facts.items()]
    rows += [[f"data set {name}", state] for name, state in report["datasets"].items()]
    table("This machine", ["what", "found"], rows, left=2)
