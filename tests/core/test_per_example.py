"""Parts of a personal model with a row per example: padding goes last, and is cut off before
anything is kept."""

import json
from typing import NamedTuple

import pytest
import torch

from fedtailor.cli.main import main
from fedtailor.core.engine import (
    ExamplePositions,
    Job,
    PerExample,
    cut,
    holds_examples,
    present_first,
)
from fedtailor.experiment.reader import read_run
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.testing.engines import Padded
from written_runs import model_of


class Model(NamedTuple):
    """A model with marked parts at several depths."""

    head: dict
    memory: PerExample


def model(rows):
    marked = {"z": torch.arange(2.0 * rows).view(rows, 2), "y": torch.arange(rows)}
    return Model(
        {"weight": torch.ones(7, 2), "own": (PerExample(torch.arange(rows) * 10),)},
        PerExample(marked),
    )


def test_padding_goes_last_and_is_cut_off():
    weight = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5, 0.0])
    moved = present_first(model(6), weight)
    assert moved.memory.value["y"].tolist() == [1, 3, 4, 0, 2, 5]
    kept = cut(moved, 3)
    assert type(kept) is Model and kept.memory.value["y"].tolist() == [1, 3, 4]
    assert kept.memory.value["z"].tolist() == [[2, 3], [6, 7], [8, 9]]
    assert kept.head["own"][0].value.tolist() == [10, 30, 40]
    assert torch.equal(kept.head["weight"], torch.ones(7, 2)), "what is not marked stays"


def test_other_things_pass_through():
    odd = {"list": [1, 2], "none": None, "text": "a", "tensor": torch.ones(3)}
    assert cut(odd, 1) == odd and present_first((), torch.ones(2)) == ()
    assert (
        holds_examples(model(2))
        and holds_examples(((), {"a": PerExample(())}))
        and not holds_examples(odd)
    )


class Inputs(NamedTuple):
    """What a program of the test reads."""

    train: ExamplePositions
    val: ExamplePositions
    test: ExamplePositions


def remember(task, common, inputs):
    rows, weight = inputs.train
    return present_first(
        PerExample({"rows": rows, "double": common.y[rows] * 2.0}), weight
    ), weight.sum()


class Common(NamedTuple):
    """The table."""

    x: torch.Tensor
    y: torch.Tensor


class Task(NamedTuple):
    """A task whose model only tells clients apart."""

    model: object


@pytest.mark.parametrize(
    "engine", [Reference(), Workers(2), Batched(), Batched(2)], ids=lambda engine: engine.name
)
@pytest.mark.parametrize("wrap", [lambda engine: engine, Padded])
def test_engines_return_the_rows_of_a_client(engine, wrap):
    table, task = Common(torch.zeros(20, 1), torch.arange(20)), Task(object())
    parts = [
        torch.tensor(rows, dtype=torch.int64) for rows in ([3, 1, 4], [], [9], [5, 2, 6, 8, 7])
    ]
    ragged = [ExamplePositions(rows, torch.ones(len(rows))) for rows in parts]
    jobs = [
        Job(client, task, Inputs(part, part, part), len(part.positions))
        for client, part in enumerate(ragged)
    ]
    for rows, (value, total) in zip(parts, wrap(engine).map(remember, table, jobs), strict=True):
        assert value.value["rows"].tolist() == rows.tolist() and float(total) == len(rows)
        assert value.value["double"].tolist() == [2.0 * row for row in rows.tolist()]


def test_model_files_hold_the_clients_rows_and_their_cards_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["run", "--clients", "4", "--rounds", "1", "--set", "training.epochs=1", "--json"]
    for name in ("knn_per", "fedavg"):
        assert (
            main([*arguments, "-a", name, "--partition", "dirichlet(alpha=0.5)", "--out", name])
            == 0
        )
        assert json.loads(capsys.readouterr().out)["algorithm"] == name
    run = read_run("knn_per")
    for client in range(4):
        tensors, card = model_of(run, client)
        assert card["holds_examples"] is True
        remembered = {path: leaf for path, leaf in tensors.items() if path.startswith("memory/")}
        assert len(remembered) == 3
        assert {len(leaf) for leaf in remembered.values()} == {sum(card["class_counts"])}
        labels = torch.as_tensor(remembered["memory/value/labels"]).long()
        assert torch.bincount(labels, minlength=10).tolist() == card["class_counts"]
        assert read_run("fedavg").model_file(client)[1]["holds_examples"] is False
