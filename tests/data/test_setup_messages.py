"""What sites exchange before the first round is named, and enough."""

from dataclasses import replace

import pytest

from fedtailor.data.build import build
from fedtailor.data.dataset import EncoderRecord
from fedtailor.data.input_specification import input_specification
from fedtailor.data.options import DataOptions
from fedtailor.data.setup_messages import setup_messages


@pytest.fixture
def hospitals(tmp_path):
    for site in "ab":
        rows = "".join(
            f"{site}{n // 2},{n % 7 or ''},{n},{'uv'[n % 2]},{'xy'[n % 3 == 0]}\n"
            for n in range(30)
        )
        (tmp_path / f"{site}.csv").write_text(f"patient,bmi,age,sex,label\n{rows}")
    return str(tmp_path)


def inputs_of(divided):
    return input_specification(divided, divided.dataset.normalize)


def messages(path, **options):
    divided = build(DataOptions(path=path, **options), run_seed=0)
    return {
        field.name: field for field in setup_messages(inputs_of(divided), divided.division.options)
    }


def test_the_messages_of_a_table(hospitals):
    found = messages(hospitals, group="patient")
    shapes = {name: field.shape for name, field in found.items()}
    assert shapes == {
        "class names": (2,),
        "columns": (3,),
        "filled cells": (3,),
        "empty cells": (3,),
        "medians": (2,),
        "categories": (2,),
        "count": (1,),
        "means": (4,),  # bmi, age, and one for each sex
        "squares": (4,),
    }
    assert all(field.content and not field.content.endswith(".") for field in found.values())


def test_quantiles_need_counts(hospitals):
    assert messages(hospitals, numbers="bins")["counts of intervals"].shape == (2, 4096)


def test_there_is_a_message_only_for_what_is_used(hospitals):
    assert not {"count", "means", "squares"} & set(
        messages(hospitals, normalize="dataset", group="patient")
    )
    assert not {"count", "means", "squares"} & set(
        messages(hospitals, mean=(0.0,), std=(1.0,), group="patient")
    )
    digits = inputs_of(build(DataOptions(clients=2), run_seed=0))
    assert setup_messages(digits, DataOptions()) == []
    fields = setup_messages(digits, DataOptions(normalize="training"))
    assert [field.shape for field in fields] == [(1,), (1,), (1,)]


def test_the_encoder_of_features_is_named():
    digits = inputs_of(build(DataOptions(clients=2), run_seed=0))
    encoder = EncoderRecord("package:function", "digest", "", digits.to_record())
    features = replace(digits, kind="table", shape=(3,), encoder=encoder)
    fields = setup_messages(features, DataOptions(encoder="package:function"))
    assert [field.name for field in fields] == ["encoder"]
