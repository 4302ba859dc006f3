"""Alarms on recent inputs, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedtailor.cli.show.console import line_of_note, say, shortened, table
from fedtailor.core.text import counted, percent
from fedtailor.serving.watch import advice

_TITLES = {
    "unusual": "unusual inputs, %",
    "surprise": "surprise: shift of ranks, -1 to 1",
    "doubt": "doubt: shift of ranks, -1 to 1",
    "class_mix": "gain of another class mix, nats an input",
}
_FORMATS = {"unusual": ".1f", "surprise": "+.2f", "doubt": "+.2f", "class_mix": ".3f"}
_MOST_CLASSES = 20


def show_watched(record: Mapping[str, Any]) -> None:
    """Print the alarms, and the class mix of held-out examples and recent inputs."""
    rows = []
    for name, alarm in record["alarms"].items():
        factor = 100 if name == "unusual" else 1
        value = format(factor * alarm["value"], _FORMATS[name])
        threshold = format(factor * alarm["threshold"], _FORMATS[name].removeprefix("+"))
        state = "ALARM" if alarm["rings"] else "ok"
        p_value = "< 0.001" if alarm["p_value"] < 0.001 else f"{alarm['p_value']:.3f}"
        rows.append([_TITLES[name], state, value, threshold, p_value])

    inputs = counted(record["inputs"], "recent input")
    held_out = counted(record["held_out"], "held-out example")
    title = f"{record['algorithm']}, the model of {record['client']}: {inputs}, {held_out}"
    below = (
        f"Each alarm rings with a chance of at most {100 * record['rate']:g} % on independent "
        "inputs like the held-out examples."
    )
    columns = ["alarm", "", "recent", "rings\nbeyond", "p"]
    table(title, columns, rows, left=2, conclusion=advice(record), below=below)
    condition = "Estimated from probabilities, if inputs of a class look as before."
    _show_class_mix(record["class_mix"], below=condition)
    for note in record["notes"]:
        say(note)
    if record["unreadable"]:
        pictures = counted(len(record["unreadable"]), "picture")
        say(f"{pictures} left out, the first: {record['unreadable'][0]['reason']}")


def _show_class_mix(
    class_mix: Mapping[str, Mapping[str, float]],
    columns: tuple[str, str] = ("held_out", "recent"),
    below: str = "",
) -> None:
    """Print the classes whose shares differ most, in their order."""
    before, now = columns
    by_change = sorted(
        class_mix, key=lambda name: -abs(class_mix[name][now] - class_mix[name][before])
    )
    most = by_change[:_MOST_CLASSES]
    rows = []
    for name, shares in class_mix.items():
        if name in most:
            cells = [percent(shares[before]), percent(shares[now])]
            rows.append([shortened(name), *cells])

    if len(class_mix) > len(most):
        below = f"The {len(most)} of {len(class_mix)} classes that changed most. {below}"
    titles = [f"{name.replace('_', '-')} %" for name in columns]
    table("Class mix", ["class", *titles], rows, below=below)


def show_adapted(record: Mapping[str, Any]) -> None:
    """Print what was adapted, and the class prior before and after."""
    facts = record["adapted"]
    inputs = counted(facts["inputs"], "recent input")
    what = f"The class prior follows {inputs} without labels."
    if facts["to"] == "labels":
        loss = f"{facts['loss']['before']:.3f} to {facts['loss']['after']:.3f}"
        what = f"Adapted to {inputs} with labels: in a cross-validation the loss of its "
        what += f"probabilities fell from {loss}."

    _show_class_mix(facts["class_mix"], ("before", "now"))
    for note in record["notes"]:
        say(line_of_note(note))

    say(what)
    if "version" in record:
        say(f"It is version {record['version']}, in use. To take it back: fedtailor site restore")
    else:
        say(f"The new model is in {record['run']}; the run stays as it is.")
