"""Pages of docs/algorithms: one per algorithm, from its docstring and its declarations, and an
index.
"""

import dataclasses
import inspect
import json
import re
import typing

from docstrings import field_docstrings, inline
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core.message import Field
from fedtailor.core.options import Range
from fedtailor.core.task import Task
from fedtailor.experiment.algorithm_card import describe_algorithm, kept
from fedtailor.models import build_model

MODEL = "cifar_cnn"
SHAPE = (3, 32, 32)
CLASSES = 10
TASK = Task(build_model(MODEL, SHAPE, CLASSES), CLASSES, SHAPE)
OTHER_MODELS = {"fedbn": "wideresnet16"}  # where the usual model would hide what the method does
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

{{count}} methods. Each follows its paper. Its page lists every difference, and every decision where the paper leaves
something open or its released code differs. The [glossary](#glossary) explains words and symbols. KiB is the largest
message of one client in one round, with the model `{MODEL}` and {CLASSES} classes. A method whose server sees single
clients cannot run under secure aggregation.

| algorithm | paper | what it does | the server sees | clients keep | primary evaluation | KiB down | KiB up |
|---|---|---|---|---|---|---|---|
"""

NEW_CLIENTS = """
## New clients

This table shows what a method does, with its default options, with the data of a client that took no part in training,
before the client predicts. The budgets differ: take them into account when you compare new clients of two methods.

| algorithm | first, in `onboard` | then, as for all clients, in `personalize` |
|---|---|---|
"""

GLOSSARY = """
## Glossary

* **n_i**: the number of training examples of client i; n: that of the whole cohort. **cohort**: the clients of a round.
* Symbols are those of the paper. Unless a page says otherwise, **w** (w^t in round t) is the model that the server
  sends to the cohort, **phi** or **theta** is a body, **mu** and **Sigma** are the class means and the covariance of
  features. With an index i they belong to client i. **d**: the number of features; **CE**: the cross-entropy;
  `a <- b`: a becomes b.
* **head**: the last, linear layer, from features to logits; **body**: the layers below it.
* **buffer**: numbers of a model that are not trained, such as running statistics of batch normalization; **extra**:
  trained parameters that belong to neither body nor head. What a page says about the body holds for both.
* **down, up**: from the server to a client, and from a client to the server.
* Accuracies are measured at three points, always on the test examples of each client. **global**: the model of the
  server. **local**: the model of a client right after its training in a round. **personalized**: the model that
  `personalize` makes from the final server state, the client state and the training examples of the client.
* **primary evaluation**: the point that the method is about. Compare methods at these points.
"""


def pages() -> dict[str, str]:
    """Return the text of every page by its path below docs."""
    cards = [describe_algorithm(name, entry, TASK) for name, entry in ALGORITHMS.items()]
    for card in cards:
        card["kept_by_clients"] = kept(load_algorithm(card["name"])(), task_of(card["name"]))
    index = INTRODUCTION.format(count=len(cards)) + "".join(line(card) for card in cards)
    index += NEW_CLIENTS + "".join(
        f"| {c['name']} | {c['onboarding']} | {c['adaptation']} |\n" for c in cards
    )
    index += GLOSSARY
    found = {"algorithms/README.md": index}
    for card in cards:
        found[f"algorithms/{card['name']}.md"] = page(card)
    return found


def task_of(name: str) -> Task:
    """Return the task of an algorithm's page."""
    return (
        Task(build_model(OTHER_MODELS[name], SHAPE, CLASSES), CLASSES, SHAPE)
        if name in OTHER_MODELS
        else TASK
    )


def line(card: dict) -> str:
    """Return an algorithm's line of the index."""
    name = card["name"]
    summary = ALGORITHMS[card["name"]].summary
    seen = ", ".join(
        f"{field} ({SEES[how].split()[0].strip('*')})" for field, how in card["uploads"].items()
    )
    cells = [f"[{name}]({name}.md)", card["paper"] or "-", summary, seen or "nothing", keeps(card)]
    numbers = [f"{card[key] / 1024:.0f}" for key in ("bytes_down", "bytes_up")]
    return "| " + " | ".join([*cells, card["primary_evaluation"], *numbers]) + " |\n"


def page(card: dict) -> str:
    """Return an algorithm's page."""
    cls = load_algorithm(card["name"])
    title, text = inspect.getmodule(cls).__doc__.strip().split("\n", 1)
    link = "Words and symbols: [glossary](README.md#glossary)."
    paragraphs = [
        f"# {card['name']}",
        method_text(title),
        method_text(text.strip()),
        link,
        facts(card, cls),
    ]
    return (
        "\n\n".join(
            [*paragraphs, messages(cls, card["name"]), options(cls), example(cls, card["name"])]
        )
        + "\n"
    )


def method_text(docstring: str) -> str:
    """Turn the docstring of a method's module into Markdown."""
    text = re.sub(
        r"^(Messages|Deviations)( [^\n:]*)?:", r"**\1**\2:", docstring, flags=re.MULTILINE
    )
    return inline(text).replace("*<", r"\*<")


def facts(card: dict, cls: type) -> str:
    """Return the most important facts about an algorithm."""
    rows = [
        f"* primary evaluation: `{card['primary_evaluation']}`; use of a client's data in `personalize`: "
        f"{card['adaptation']}",
        f"* what a new client does first, in `onboard`: {card['onboarding']}",
        f"* a client keeps: {keeps(card)}; clients that train in a round: {card['who_trains']}",
        f"* secure aggregation: {'works' if card['secure_aggregation'] else 'no, the server sees single clients'}",
    ]
    if len(cls.presets) > 1:
        rows.append(
            "* presets: "
            + "; ".join(f"`{name}`: {settings(of)}" for name, of in cls.presets.items())
        )
    return "## At a glance\n\n" + "\n".join(rows)


def keeps(card: dict) -> str:
    """Return what a client keeps, and the model if it is not that of the other pages."""
    model = OTHER_MODELS.get(card["name"])
    return (", ".join(card["kept_by_clients"]) or "nothing") + (
        f" (with `{model}`)" if model else ""
    )


def settings(preset: typing.Mapping[str, typing.Any]) -> str:
    """Return the values that a preset sets."""
    values = [f"`{name} = {json.dumps(value)}`" for name, value in preset.items()]
    return ", ".join(values) or "the defaults"


def messages(cls: type, name: str) -> str:
    """Return the table of messages."""
    declared = cls().messages(task_of(name))
    if not declared:
        return "## Messages\n\nNone: nothing is sent."
    rows = ["| field | down | up: the server sees | weight | numbers |", "|---|---|---|---|---|"]
    for entry, field in declared.items():
        weight = WEIGHTS[field.weight] if field.reduction == "mean" else "-"
        down = "yes" if field.down else "-"
        numbers = f"{field.scalars():,}" + (sent_rows(field) if field.rows else "")
        rows.append(f"| `{entry}` | {down} | {SEES[field.reduction]} | {weight} | {numbers} |")
    model = OTHER_MODELS.get(name, MODEL)
    return f"## Messages\n\nNumbers are for `{model}` and {CLASSES} classes.\n\n" + "\n".join(rows)


def sent_rows(field: Field) -> str:
    """Return how many numbers go up where a client sends only some of the rows."""
    count = next(iter(field.leaf_shapes().values()))[0]
    return f"; up {field.scalars() * field.rows // count:,} ({field.rows} of {count})"


def options(cls: type) -> str:
    """Return the table of options."""
    words = field_docstrings(cls)
    rows = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if field.name != "training":
            value = f'"{field.default}"' if isinstance(field.default, str) else field.default
            shown = str(value).lower() if isinstance(value, bool) else value
            cells = [allowed(hints[field.name]), cell(words[field.name])]
            rows.append(f"| `{field.name}` | `{shown}` | {' | '.join(cells)} |")
    return "## Options\n\n" + ("\n".join(rows) if len(rows) > 2 else "Only those of `[training]`.")


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("*<", r"\*<").replace("|", r"\|")


def allowed(hint: typing.Any) -> str:
    """Return the allowed values of an option, in words."""
    base = hint
    extras = []
    if typing.get_origin(hint) is typing.Annotated:
        base, *extras = typing.get_args(hint)
    if typing.get_origin(base) is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in typing.get_args(base))
    names = {int: "whole number", float: "number", bool: "true, false", str: "text"}
    ranges = [str(extra) for extra in extras if isinstance(extra, Range)]
    return " ".join([names.get(base, str(base)), *ranges])


def example(cls: type, name: str) -> str:
    """Return the commands that run it: with its defaults, and with every preset that differs."""
    line = f"fedtailor run --algorithm {name} --dataset digits --clients 20 --rounds 20"
    others = [
        f"{line} --set algorithm.preset={preset}"
        for preset, values in cls.presets.items()
        if values
    ]
    return "\n".join(["## Try it\n", "```console", line, *others, "```"])
