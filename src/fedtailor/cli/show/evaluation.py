"""The evaluation of a personal model on new data, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtailor.cli.show.console import interval, line_of_note, say, shortened, table
from fedtailor.core.metrics import METRICS
from fedtailor.core.text import counted, round_figure
from fedtailor.report.worth_it import with_interval

_MOST_CLASSES = 50
_TITLES = {
    "ece": "ECE %",
    "ece_calibrated": "ECE after calibration %",
    "auroc": "AUROC",
    "comparison": "comparison with training",
}


def show_evaluation(record: Mapping[str, Any]) -> None:
    """Print all metrics with their intervals, those by class, and how they compare."""
    rows = []
    for name, metric in record["metrics"].items():
        in_percent = name == "ece_calibrated" or METRICS[name].in_percent
        title = _TITLES.get(name, name.replace("_", " ") + (" %" if in_percent else ""))
        cells = [
            round_figure(metric["value"], in_percent),
            interval(metric["interval"], in_percent),
            round_figure(metric["at_training"], in_percent),
        ]
        rows.append([title, *cells, with_interval(record["comparison"].get(name), name)])

    examples = counted(record["examples"], "example")
    if record["groups"] is not None:
        examples += f" of {counted(record['groups'], 'group')}"

    title = f"{record['algorithm']}, the model of {record['client']}: {examples}"
    columns = ["metric", "value", "95 % interval", "at training", "difference (95 % interval)"]
    missing = record["missing"]
    sentences = [_threshold(record)]
    if "ece_calibrated" in record["metrics"]:
        sentences.append("Loss and ECE are those before calibration.")
    if "comparison" not in missing:
        sentences.insert(0, _comparison(record))
    for name, reason in missing.items():
        sentences.append(f"No {_TITLES.get(name, name)}: {reason}.")

    table(title, columns, rows, below=" ".join(filter(None, sentences)))
    _show_classes(record["by_class"])
    for note in record["notes"]:
        say(line_of_note(note))


def _show_classes(classes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print sensitivity, specificity and AUROC of every class."""
    rows = []
    for entry in list(classes.values())[:_MOST_CLASSES]:
        row = [shortened(entry["class"]), f"{entry['positives']:,}"]
        for name in ("sensitivity", "specificity", "auroc"):
            in_percent = name != "auroc"
            row.append(round_figure(entry[name], in_percent))
            row.append(interval(entry[f"{name}_interval"], in_percent))

        rows.append(row)

    columns = ["class", "examples"]
    for heading in ("sensi-\ntivity %", "speci-\nficity %", "AUROC"):
        columns += [heading, "95 %\ninterval"]

    below = "Intervals are about these examples only: they take the model as given."
    if len(classes) > _MOST_CLASSES:
        below = f"and {len(classes) - _MOST_CLASSES:,} more classes, with --json or --out. {below}"

    table("By class", columns, rows, below=below)


def _comparison(record: Mapping[str, Any]) -> str:
    """Say which metrics differ from those at training."""
    if not record["comparison"]:
        return "The scores on test examples at training are not known."

    by_verdict: dict[str, list[str]] = {}
    for name, one in record["comparison"].items():
        title = _TITLES.get(name, name.replace("_", " "))
        by_verdict.setdefault(one["verdict"], []).append(title)

    parts = []
    for verdict in ("lower", "higher"):
        if verdict in by_verdict:
            parts.append(f"{verdict} than at training: {', '.join(by_verdict[verdict])}")
    if "no clear difference" in by_verdict:
        parts.append(f"no clear difference: {', '.join(by_verdict['no clear difference'])}")

    text = "; ".join(parts)
    examples = counted(record["examples_at_training"], "test example")
    return f"{text[0].upper()}{text[1:]} (at training {examples})."


def _threshold(record: Mapping[str, Any]) -> str:
    """Say by which threshold classes are predicted; empty if the model is to have none."""
    point = record["operating_point"]
    if point is None:
        return ""

    name = record["by_class"][str(point["positive"])]["class"]
    if point["log_odds"] is None:
        return f"Classes are the most probable ones, as of predict ({point['problem']})."

    return (
        f"As predict does, an example is taken for {shortened(name)} from a probability of "
        f"{point['probability']:.3g} on, chosen for a sensitivity of {point['sensitivity']:g}: "
        "accuracies, sensitivity and specificity are by this threshold, also those at training."
    )
