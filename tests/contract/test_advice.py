"""Advice depends on the kind of a problem and on the field, not on the words of its sentence."""

import pytest

from fedtailor.core.message import Field
from fedtailor.core.upload_checks import Problem
from fedtailor.testing.advice import FEW, FLOAT64, advice, advice_on_error

MESSAGES = {
    "model": Field(kind="model", shapes=(2,)),
    "means": Field(kind="class_means", shapes=(3, 2), weight="class_counts"),
    "share": Field(kind="confidence", shapes=(), weight="own"),
    "head": Field(kind="model", shapes=(2,), reduction="each"),
    "total": Field(kind="counts", shapes=(3,), reduction="sum"),
    "prior": Field(kind="statistics", shapes=(4,), reduction="none"),
}
UPLOAD = (
    '{"model": Mean(value, data.info.num_train), "means": Mean(value, data.info.class_counts), '
    '"share": Mean(value, weight), "head": Each(value), "total": Sum(value)}'
)


@pytest.mark.parametrize(
    ("kind", "field", "expected"),
    [
        ("not finite", "model", f" {FEW}."),
        ("not finite", "", f" {FEW}."),
        ("type", "model", f" {FLOAT64}."),
        ("fields", "", f" Send upload={UPLOAD}, or declare what is sent in messages."),
        (
            "shape",
            "model",
            " Send Mean(value, data.info.num_train), as declared, or change the declaration.",
        ),
        (
            "weight",
            "means",
            " Send Mean(value, data.info.class_counts), as declared, or change the declaration.",
        ),
        ("weight", "share", " Send Mean(value, weight), as declared, or change the declaration."),
        ("reduction", "head", " Send Each(value), as declared, or change the declaration."),
        ("leaves", "total", " Send Sum(value), as declared, or change the declaration."),
        ("range", "model", ""),
        ("metric", "", ""),
    ],
)
@pytest.mark.parametrize("text", ["it is broken", "values that are not finite, dtype, weight"])
def test_advice_by_kind(kind, field, expected, text):
    assert advice(Problem(kind, field, text), MESSAGES) == expected


def test_a_problem_reads_as_a_sentence():
    assert str(Problem("shape", "model", "it is broken")) == "field 'model': it is broken"
    assert str(Problem("fields", "", "the upload is broken")) == "the upload is broken"


@pytest.mark.parametrize(
    "text",
    ["expected scalar type Double but found Float", "mat1 and mat2 must have the same dtype"],
)
def test_tensors_of_different_types_are_known_by_the_words_of_pytorch(text):
    assert advice_on_error(RuntimeError(text)) == f" {FLOAT64}."
    assert advice_on_error(RuntimeError("out of memory")) == ""
