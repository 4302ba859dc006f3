"""The pages of methods: one per method, from its docstring and declarations, and an index."""

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from docstrings import inline
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.message import Field
from fedtailor.core.task import Task
from fedtailor.core.text import markdown_table
from fedtailor.experiment.algorithm_card import describe_algorithm, kept
from fedtailor.models import build_model
from option_tables import option_table

Card = dict[str, Any]

FOLDER = "reference/algorithms"

MODEL = "cifar_cnn"
SHAPE = (3, 32, 32)
CLASSES = 10
TASK = Task(build_model(MODEL, SHAPE, CLASSES), CLASSES, SHAPE)
OTHER_MODELS = {"fedbn": "wideresnet16"}  # where the usual model would hide what the method does
ROUNDS = {"pfedhn": 200}  # for the examples; its server learns slowly
WEIGHTS = {
    "num_train": "number of training examples",
    "class_counts": "number of training examples of each class",
    "own": "a weight that the client computes",
    "equal": "every client counts the same",
}
SEES = {
    "mean": "mean over clients",
    "sum": "sum over clients",
    "each": "**every single client's**",
    "none": "-",
}
INTRODUCTION = f"""# Algorithms

{{count}} methods. Each follows its paper. Its page lists every difference, and every decision where
the paper leaves something open or its released code differs. The [glossary](../glossary.md)
explains words and symbols. KiB is the largest message of one client in one round, with the model
`{MODEL}` and {CLASSES} classes. A method whose server sees single clients cannot run under secure
aggregation.

{{columns}}
|---|---|---|---|---|---|---|---|
"""
COLUMNS = ("algorithm", "paper", "what it does", "the server sees", "clients keep")
COLUMNS += ("primary evaluation", "KiB down", "KiB up")

NEW_CLIENTS = """
## New clients

This table shows what a method does, with its default options, with the data of a client that took
no part in training, before the client predicts. The budgets differ: take them into account when you
compare new clients of two methods.

| algorithm | first, in `onboard` | then, as for all clients, in `personalize` |
|---|---|---|
"""

TOCTREE = """
```{toctree}
:hidden:
:glob:

*
```
"""


def pages() -> dict[str, str]:
    """Return the text of every page by its path below docs."""
    cards = [describe_algorithm(name, entry, TASK) for name, entry in ALGORITHMS.items()]
    for card in cards:
        card["kept_by_clients"] = kept(load_algorithm(card["name"])(), task_of(card["name"]))

    index = [
        INTRODUCTION.format(count=len(cards), columns=f"| {' | '.join(COLUMNS)} |"),
        *map(line, cards),
        NEW_CLIENTS,
    ]
    index += [f"| {c['name']} | {c['onboarding']} | {c['adaptation']} |\n" for c in cards]
    index.append(TOCTREE)
    texts = {f"{FOLDER}/index.md": "".join(index)}
    for card in cards:
        texts[f"{FOLDER}/{card['name']}.md"] = page(card)

    return texts


def task_of(name: str) -> Task:
    """Return the task of an algorithm's page."""
    if name not in OTHER_MODELS:
        return TASK

    return Task(build_model(OTHER_MODELS[name], SHAPE, CLASSES), CLASSES, SHAPE)


def line(card: Card) -> str:
    """Return an algorithm's line of the index."""
    name = card["name"]
    views = {field: SEES[how].split()[0].strip("*") for field, how in card["uploads"].items()}
    seen = ", ".join(f"{field} ({view})" for field, view in views.items()) or "nothing"
    cells = [
        f"[{name}]({name}.md)",
        card["paper"] or "-",
        ALGORITHMS[name].summary,
        seen,
        keeps(card),
        card["primary_evaluation"],
        f"{card['bytes_down'] / 1024:.0f}",
        f"{card['bytes_up'] / 1024:.0f}",
    ]
    return f"| {' | '.join(cells)} |\n"


def page(card: Card) -> str:
    """Return an algorithm's page."""
    name = card["name"]
    cls = load_algorithm(name)
    title, text = (inspect.getmodule(cls).__doc__ or "").strip().split("\n", 1)
    parts = [
        f"# {name}",
        method_text(title),
        method_text(text.strip()),
        "Words and symbols: [glossary](../glossary.md).",
        facts(card, cls),
        messages(cls, name),
        options(cls),
        example(cls, name),
    ]
    return "\n\n".join(parts) + "\n"


def method_text(docstring: str) -> str:
    """Turn the docstring of a method's module into Markdown."""
    text = re.sub(
        r"^(Messages|Deviations)( [^\n:]*)?:", r"**\1**\2:", docstring, flags=re.MULTILINE
    )
    return inline(text).replace("*<", r"\*<")


def facts(card: Card, cls: type) -> str:
    """Return the most important facts about an algorithm."""
    secure = "works" if card["secure_aggregation"] else "no, the server sees single clients"
    rows = [
        f"* primary evaluation: `{card['primary_evaluation']}`; use of a client's data in "
        f"`personalize`: {card['adaptation']}",
        f"* what a new client does first, in `onboard`: {card['onboarding']}",
        f"* a client keeps: {keeps(card)}; clients that train in a round: {card['who_trains']}",
        f"* secure aggregation: {secure}",
    ]
    if cls.exchanges:
        rows.append(f"* rounds: {cls.exchanges}, with all clients, whatever is asked for")
    if len(cls.presets) > 1:
        presets = [f"`{name}`: {settings(values)}" for name, values in cls.presets.items()]
        rows.append(f"* presets: {'; '.join(presets)}")

    return "## At a glance\n\n" + "\n".join(rows)


def keeps(card: Card) -> str:
    """Return what a client keeps, and the model if it is not that of the other pages."""
    model = OTHER_MODELS.get(card["name"])
    states = ", ".join(card["kept_by_clients"]) or "nothing"
    return f"{states} (with `{model}`)" if model else states


def settings(preset: Mapping[str, Any]) -> str:
    """Return the values that a preset sets."""
    values = [f"`{name} = {json.dumps(value)}`" for name, value in preset.items()]
    return ", ".join(values) or "the defaults"


def messages(cls: type, name: str) -> str:
    """Return the table of messages."""
    fields = cls().messages(task_of(name))
    if not fields:
        return "## Messages\n\nNone: nothing is sent."

    rows = []
    for field_name, field in fields.items():
        weight = WEIGHTS[field.weight] if field.reduction == "mean" else "-"
        down = "yes" if field.down else "-"
        numbers = f"{field.scalars():,}{sent_rows(field) if field.rows else ''}"
        rows.append([f"`{field_name}`", down, SEES[field.reduction], weight, numbers])

    model = OTHER_MODELS.get(name, MODEL)
    about = f"Numbers are for `{model}` and {CLASSES} classes."
    columns = ["field", "down", "up: the server sees", "weight", "numbers"]
    return "\n\n".join(["## Messages", about, markdown_table(columns, rows)])


def sent_rows(field: Field) -> str:
    """Return how many numbers go up where a client sends only some of the rows."""
    count = next(iter(field.leaf_shapes().values()))[0]
    return f"; up {field.scalars() * field.rows // count:,} ({field.rows} of {count})"


def options(cls: type) -> str:
    """Return the table of options."""
    names = [field.name for field in dataclasses.fields(cls) if field.name != "training"]
    if not names:
        return "## Options\n\nOnly those of `[training]`."

    return f"## Options\n\n{option_table(cls, names)}"


def example(cls: type, name: str) -> str:
    """Return the commands that run it: with its defaults, and with every preset that differs."""
    command = f"fedtailor run --algorithm {name} --dataset digits --clients 20"
    if not cls.exchanges:
        command += f" --rounds {ROUNDS.get(name, 20)}"
    presets = [preset for preset, values in cls.presets.items() if values]
    others = [f"{command} --set algorithm.preset={preset}" for preset in presets]
    return "\n".join(["## Try it\n", "```console", command, *others, "```"])
