"""The temperature of a model that rules classes out."""

import pytest
import torch

from fedtailor.simulation.calibration import fit_temperature


def test_examples_that_the_model_rules_out_do_not_count():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40, 3, generator=generator)
    labels = torch.randint(2, (40,), generator=generator)
    logits[:, 2] = -torch.inf
    alone = fit_temperature(logits, labels)
    more = torch.cat([logits, logits[:5]])
    assert alone == fit_temperature(more, torch.cat([labels, torch.full((5,), 2)])) < 10


@pytest.mark.parametrize("wrong", [-torch.inf, torch.nan])
def test_without_other_examples_the_temperature_is_one(wrong):
    logits = torch.zeros(30, 2)
    logits[:, 1] = wrong
    assert fit_temperature(logits, torch.ones(30, dtype=torch.int64)) == 1.0
