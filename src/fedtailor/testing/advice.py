"""Advice on problems with what a client's program returns or raises."""

from __future__ import annotations

from fedtailor.core.message import Field, Messages
from fedtailor.core.upload_checks import Problem

FEW = (
    "Clients may have 0, 1 or 2 examples, or a single class: divide by clamped counts "
    "(`clamp(min=1)`), use `weighted_mean`, and return what was received if there is nothing to "
    "learn from"
)
FLOAT64 = (
    "The check runs in float64: do not use `.half()`, `.float()` or `dtype=`; keep the type of "
    "received tensors"
)
_WEIGHTS = {
    "num_train": "data.info.num_train",
    "class_counts": "data.info.class_counts",
    "equal": "torch.ones(())",
}
_WORDS_OF_TYPE_ERRORS = ("dtype", "Half", "Float but", "Double")


def advice(problem: Problem, messages: Messages) -> str:
    """Return what to do about a problem, as a sentence to append; empty if there is no advice."""
    if problem.kind == "not finite":
        return f" {FEW}."
    if problem.kind == "type":
        return f" {FLOAT64}."

    if problem.kind == "fields":
        entries = [
            f'"{name}": {_entry(field)}'
            for name, field in messages.items()
            if field.reduction != "none"
        ]

        return f" Send upload={{{', '.join(entries)}}}, or declare what is sent in messages."

    if problem.kind in ("reduction", "leaves", "shape", "weight"):
        return f" Send {_entry(messages[problem.field])}, as declared, or change the declaration."

    return ""


def advice_on_error(error: BaseException) -> str:
    """Return what to do about an exception, as a sentence to append; empty if there is no advice.

    PyTorch raises a RuntimeError for tensors of different types, as for much else: only its words
    tell them apart.
    """
    if any(word in str(error) for word in _WORDS_OF_TYPE_ERRORS):
        return f" {FLOAT64}."
    return ""


def _entry(field: Field) -> str:
    """Return how to write an entry of an upload."""
    if field.reduction == "mean":
        return f"Mean(value, {_WEIGHTS.get(field.weight, 'weight')})"
    return f"{field.reduction.capitalize()}(value)"
