"""A record of inputs comes back as it was, or is refused: it may come from a peer."""

import numpy as np
import pytest

from fedtailor.data.input_specification import InputSpecification, specification_of

ARRAYS = {"mean": np.zeros(1), "std": np.ones(1)}


def gray_digits():
    return InputSpecification(
        kind="images",
        shape=(1, 8, 8),
        stored="uint8",
        white=16.0,
        num_classes=3,
        class_names=("a", "b", "c"),
        **ARRAYS,
    )


def test_a_record_comes_back_as_it_was():
    inputs = gray_digits()
    assert specification_of(inputs.to_record(), ARRAYS).digest == inputs.digest


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shape", [1] * 1_000_000, "too many axes"),
        ("shape", [1, 8], "the shape of images"),
        ("shape", [1, 0, 8], "inputs.shape must be"),
        ("class_names", ["a"] * 1_000_000, "the number of class names"),
        ("class_names", ["a", 1, "c"], "inputs.class_names must be a list of text"),
        ("kind", "sounds", "inputs.kind must be"),
        ("white", 0.0, "inputs.white must be"),
        ("num_classes", 100_001, "inputs.num_classes must be"),
        ("image_size", True, "inputs.image_size must be"),
    ],
)
def test_what_cannot_be_is_refused(key, value, message):
    record = gray_digits().to_record() | {key: value}
    with pytest.raises(Exception, match=message):
        specification_of(record, ARRAYS)
