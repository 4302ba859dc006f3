"""What a client's program may leave behind in its thread and in its process."""

import torch

from fedtailor.simulation.engines.surroundings import Settings, thread_restored


def autocast_level():
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def test_a_program_that_stays_in_autocast_leaves_no_cache_of_rounded_parameters():
    weight = torch.nn.Parameter(torch.full((2, 2), 1.0))
    with thread_restored():
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        torch.mm(weight, weight)
    assert autocast_level() == 0
    with torch.no_grad():
        weight.fill_(3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.mm(weight, weight).float().unique().tolist() == [18.0]


def test_settings_come_back_as_they_were():
    """Setting the precision of products also sets that of mkldnn, from "none" to "ieee"."""
    before = Settings.current()
    torch.set_float32_matmul_precision("high")
    assert Settings.current() != before
    before.apply()
    assert Settings.current() == before
