"""What travels between processes: tensors with their layout, tables as files, programs and models."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from contract.cases import ALGORITHMS, build
from federations import TASKS
from fedtailor.core.engine import ExampleIndices
from fedtailor.core.rng import new_key
from fedtailor.simulation.engines import tables
from fedtailor.simulation.engines.wire import Layout, Unsendable, decode, encode, lay_flat, stand_up
from fedtailor.simulation.programs import personalize_program, score_program, train_program
from simulation.engines.programs import TENSORS, Row, same


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_keep_their_layout(name):
    same(decode(encode(TENSORS[name])), TENSORS[name])


def test_tables_are_written_once_and_removed():
    held = tables.Tables()
    x, y = torch.ones(3), torch.ones(2)
    files = held.put(x, y)
    assert held.put(x, y) is files and held.number == 1
    again = held.put(x.clone(), y)
    assert held.number == 2 and [Path(file.path).exists() for file in (*files, *again)] == [False, False, True, True]
    assert oct(held.folder.stat().st_mode)[-3:] == "700"
    folder = held.folder
    held.remove()
    assert not folder.exists()


def test_structures_and_parameters_travel():
    value = {
        "row": Row(torch.ones(2), ExampleIndices(torch.ones(1), torch.ones(1)), ()),
        "p": nn.Parameter(torch.ones(2), False),
    }
    found = decode(encode(value | {"same": value["p"]}))
    assert isinstance(found["row"].train, ExampleIndices) and found["row"].state == ()
    assert type(found["p"]) is nn.Parameter and not found["p"].requires_grad and found["same"] is found["p"]


@pytest.mark.parametrize(
    "tensor", [torch.ones(2).to_sparse(), torch.empty(2, device="meta"), torch.ones(2).untyped_storage()]
)
def test_other_tensors_do_not(tensor):
    with pytest.raises(Unsendable):
        encode(tensor)


def test_a_layout_says_where_memory_begins():
    layout, values = lay_flat(torch.arange(20.0)[3:9])
    assert layout == Layout(torch.float32, (6,), (1,), 3) and len(values) == 24
    assert stand_up(layout, values).data_ptr() % 64 == 12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_be_sent(name):
    algorithm = build(name)
    for program in (
        partial(train_program, algorithm=algorithm, evaluate=True),
        partial(personalize_program, algorithm=algorithm, new=False, validate=True),
        partial(score_program, algorithm=algorithm),
    ):
        again = decode(encode(program))
        assert again.func is program.func and again.keywords == program.keywords


@pytest.mark.parametrize("kind", TASKS)
def test_every_kind_of_model_can_be_sent(kind):
    task = TASKS[kind]()
    again = decode(encode(task))
    params, x = task.model.init(new_key(1)), torch.ones(2, *task.input_shape)
    arguments = {"weight": torch.ones(2), "key": new_key(2), "training": True}
    one, other = (each.model.features(params, x, **arguments)[0] for each in (task, again))
    assert torch.equal(one, other) and again.model.groups == task.model.groups
