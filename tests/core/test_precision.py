"""Training in bfloat16: an option that changes steps and nothing else."""

import pytest
import torch

from fedtailor.algorithms import TABLE, load_algorithm
from fedtailor.contract.runs import run
from fedtailor.core import tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.task import Training
from fedtailor.engines.batched import Batched
from fedtailor.engines.reference import Reference
from worlds import federation, perceptron


def models(name, precision, engine):
    training = Training(lr=0.1, epochs=2, batch_size=5, precision=precision)
    record = run(load_algorithm(name)(training=training), engine, federation(perceptron()), rounds=1)
    assert [event["kind"] for report in record.reports for event in report.events] == ["skipped"]
    return record.reports[-1].personal


@pytest.mark.parametrize("engine", [Reference(), Batched(3)], ids=lambda engine: engine.name)
@pytest.mark.parametrize("name", TABLE)
def test_every_algorithm_trains_in_it_and_keeps_its_numbers_as_they_were(name, engine):
    full, rough = (models(name, precision, engine) for precision in ("full", "bfloat16"))
    differs = False
    for client, model in full.items():
        one, other = tree.paths(model), tree.paths(rough[client])
        assert [leaf.dtype for leaf in one.values()] == [leaf.dtype for leaf in other.values()]
        for path, leaf in one.items():
            assert torch.isfinite(other[path]).all()
            differs |= not torch.equal(leaf, other[path])
            if path.endswith(("weight", "bias")) and name != "fedcr":  # whose products of experts amplify
                assert torch.allclose(leaf, other[path], rtol=0.1, atol=0.1), path
    assert differs


def test_other_precisions_are_refused():
    with pytest.raises(ConfigError, match=r"training\.precision must be one of 'full', 'bfloat16'"):
        Training(precision="float16")
