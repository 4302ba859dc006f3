"""Data for other processes: tensors with their layout, tables as files, programs and models."""

from pathlib import Path

import pytest
import torch
from torch import nn

from contract.cases import ALGORITHMS, build
from federations import TASKS
from fedtailor.core.engine import ExamplePositions
from fedtailor.core.rng import new_key
from fedtailor.simulation.engines.mapped_tables import MappedTables
from fedtailor.simulation.engines.serialization import (
    SerializationError,
    TensorLayout,
    decode,
    encode,
    tensor_from_bytes,
    tensor_to_bytes,
)
from fedtailor.simulation.programs import (
    PersonalizeRequest,
    ScoreRequest,
    TrainRequest,
    client_program,
)
from simulation.engines.programs import TENSORS, Inputs, same


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_keep_their_layout(name):
    same(decode(encode(TENSORS[name])), TENSORS[name])


def test_tables_are_written_once_and_removed():
    tables = MappedTables()
    x = torch.ones(3)
    y = torch.ones(2)
    files = tables.put(x, y)
    assert tables.put(x, y) is files and tables.version == 1
    again = tables.put(x.clone(), y)
    assert tables.version == 2 and [Path(file.path).exists() for file in (*files, *again)] == [
        False,
        False,
        True,
        True,
    ]
    assert oct(tables.folder.stat().st_mode)[-3:] == "700"
    folder = tables.folder
    tables.remove()
    assert not folder.exists()


def test_structures_and_parameters_travel():
    value = {
        "inputs": Inputs(torch.ones(2), ExamplePositions(torch.ones(1), torch.ones(1)), ()),
        "p": nn.Parameter(torch.ones(2), False),
    }
    sent = encode(value | {"same": value["p"]})
    assert type(sent) is bytes
    found = decode(sent)
    assert isinstance(found["inputs"].train, ExamplePositions) and found["inputs"].state == ()
    assert (
        type(found["p"]) is nn.Parameter
        and not found["p"].requires_grad
        and found["same"] is found["p"]
    )


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(2).to_sparse(), torch.empty(2, device="meta"), torch.ones(2).untyped_storage()],
)
def test_other_tensors_do_not(tensor):
    with pytest.raises(SerializationError):
        encode(tensor)


def test_a_layout_says_where_memory_begins():
    layout, values = tensor_to_bytes(torch.arange(20.0)[3:9])
    assert layout == TensorLayout(torch.float32, (6,), (1,), 3) and len(values) == 24
    assert tensor_from_bytes(layout, values).data_ptr() % 64 == 12


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_be_sent(name):
    algorithm = build(name)
    for request in (
        TrainRequest(evaluate=True),
        PersonalizeRequest(new=False, validate=True),
        ScoreRequest(),
    ):
        program = client_program(algorithm, request)
        again = decode(encode(program))
        assert again.func is program.func and again.keywords == program.keywords


@pytest.mark.parametrize("kind", TASKS)
def test_every_kind_of_model_can_be_sent(kind):
    task = TASKS[kind]()
    again = decode(encode(task))
    params = task.model.init(new_key(1))
    x = torch.ones(2, *task.input_shape)
    arguments = {"weight": torch.ones(2), "key": new_key(2), "training": True}
    one, other = (each.model.features(params, x, **arguments)[0] for each in (task, again))
    assert torch.equal(one, other) and again.model.groups == task.model.groups
