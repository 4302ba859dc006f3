"""What to do about a reason for which a client's work cannot be used."""

from __future__ import annotations

import re

from fedtailor.core.message import Field, Messages

FEW = (
    "Clients may have 0, 1 or 2 examples, or a single class: divide by counts that are clamped (`clamp(min=1)`), take "
    "`weighted_mean`, and leave everything as received where there is nothing to learn from"
)
FLOAT64 = (
    "The check runs in float64: leave out `.half()`, `.float()` and `dtype=`, and keep the type of what is received"
)
_WEIGHTS = {"num_train": "data.info.num_train", "class_counts": "data.info.class_counts", "equal": "torch.ones(())"}


def advice(reason: str, messages: Messages) -> str:
    """Return what to do about a reason, as sentences to put behind it, or nothing."""
    if "not finite" in reason and "weight is negative" not in reason:
        return f" {FEW}."
    if re.search(r"torch\.\w*float\d+ instead of|dtype|Half|Float but|Double", reason):
        return f" {FLOAT64}."
    found = re.search(r"field '([^']*)': (sent as|weight|rows|no |leaves|shape)", reason)
    if found and found[1] in messages:
        return f" Send {_entry(messages[found[1]])}, as declared, or change the declaration."
    if re.search(r"fields \[.*\] instead of|no mapping but", reason):
        sent = (f'"{name}": {_entry(field)}' for name, field in messages.items() if field.reduction != "none")
        return f" Send upload={{{', '.join(sent)}}}, or declare what is sent in messages."
    return ""


def _entry(field: Field) -> str:
    """Return how an entry of an upload is written."""
    if field.reduction == "mean":
        return f"Mean(value, {_WEIGHTS.get(field.weight, 'weight')})"
    return f"{field.reduction.capitalize()}(value)"
