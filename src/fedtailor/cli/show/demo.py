"""The comparison of the demo, and what to type next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.cli.show.console import say, table
from fedtailor.cli.show.results import scored_clients, warn
from fedtailor.core.text import percent

_EXPLAINED = {
    "local": "trained alone",
    "fedavg": "one global model",
    "fedavg_ft": "global model, fine-tuned",
    "pfedfda": "shared body, personal classifier",
}
_GLOBAL_EXPLAINED = {"pfedfda": "its global model"}
"""Methods whose global model has a row too, because no other row shows it."""

# The demo's own settings, so that results can be compared with it and with docs/tutorials/demo.md.
_SAME_SETTINGS = (
    "--rounds 20 --seeds 0,1,2 --set data.fraction=0.25 --set training.momentum=0.5 "
    "--set training.weight_decay=5e-4"
)
NEXT_STEPS = (
    "",
    "Which method is best depends on the data and the training: see the demo's tutorial.",
    "Next:",
    f"  fedtailor run -a pfedfda {_SAME_SETTINGS} --set algorithm.cov_ridge=0.01",
    f"  fedtailor run -a fedavg_ft {_SAME_SETTINGS} --set training.lr=0.1",
    "  fedtailor list algorithms        (or datasets, models, partitions, engines, metrics)",
    "  fedtailor run --help",
)


def show_demo(results: Sequence[Mapping[str, Any]], seconds: float) -> None:
    """Print the accuracy of the clients' models, and the gradient steps that they took."""
    first = results[0]
    baseline = first["metrics"]["personalized"]["accuracy"]["mean"]
    rows = []
    for result in results:
        name = result["algorithm"]
        personalized = result["metrics"]["personalized"]
        model = _EXPLAINED.get(name, personalized["adaptation"])
        rows.append(_row(result, model, personalized, None if result is first else baseline))
        if name in _GLOBAL_EXPLAINED:
            model = _GLOBAL_EXPLAINED[name]
            rows.append(_row(result, model, result["metrics"]["global"], baseline))

    # A client whose evaluation failed has no accuracy, so the numbers may differ.
    counts = {scored_clients(result["metrics"]["personalized"]) for result in results}
    clients = " to ".join(sorted(counts, key=float))
    below = (
        f"After round {first['rounds']}; {clients} clients, seed {first['seeds'][0]}; "
        f"{seconds:.0f} s. Runs: {Path(first['run']).parent}"
    )
    columns = ["algorithm", "model", "mean", "worst 10 %", "gain over\nlocal", "gradient\nsteps"]
    table("Accuracy on each client's own test examples, in %", columns, rows, left=2, below=below)
    warn(results)
    report = f"  fedtailor report {shlex.quote(str(Path(first['run']).parent))}/*"
    for line in [*NEXT_STEPS, report]:
        say(line.replace("  fedtailor ", f"  {_program()} "))


def _row(
    result: Mapping[str, Any], model: str, metrics: Mapping[str, Any], baseline: float | None
) -> Sequence[str]:
    """Return the cells of a model; no gain if there is no baseline."""
    accuracy = metrics["accuracy"]
    gain = "" if baseline is None else f"{100 * (accuracy['mean'] - baseline):+.1f}"
    figures = [
        percent(accuracy["mean"]),
        percent(accuracy["worst10"]),
        gain,
        f"{result['steps']:,}",
    ]

    return [result["algorithm"], model, *figures]


def _program() -> str:
    """Return how to call fedtailor from here. It may be in an environment that is not activated."""
    if shutil.which("fedtailor"):
        return "fedtailor"
    return sys.argv[0] if Path(sys.argv[0]).name == "fedtailor" else "python -m fedtailor"
