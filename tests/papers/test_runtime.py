"""Run times of methods: what is a ratio to what, and which part of pFedFDA is which difference."""

from itertools import repeat
from types import SimpleNamespace

import pytest

from experiments import runtime
from experiments.__main__ import main
from experiments.cells import settings_of
from experiments.paper import FOLDER, load_paper
from experiments.runtime import TABLE_5, TABLE_6, Timing, shares, time_methods


def test_methods_take_turns_and_ratios_are_those_of_a_turn(monkeypatch):
    """The second turn is slow for all; no ratio changes."""
    turns = []

    def rounds(paper, column, method, passes, data_dir):
        seconds = {"fedavg": 2.0, "ditto": 3.0}[method]
        for slow in (100, 1, 10, 1):  # the first round warms up
            turns.append(method)
            yield SimpleNamespace(seconds={"train": slow * seconds})

    monkeypatch.setattr(runtime, "_rounds", rounds)
    first, second = time_methods(load_paper("pfedfda"), "", ["fedavg", "ditto"], passes=3)
    assert turns == ["fedavg", "ditto"] * 4
    assert (first.ratio, second.ratio) == (1.0, 1.5)
    assert second.least == second.largest == 1.5
    assert (first.seconds, second.seconds) == (2.0, 3.0)


def test_parts_of_pfedfda_add_up():
    timings = [
        Timing(method, seconds, 1.0, 1.0, 1.0)
        for method, seconds in {"fedbabu": 6.0, "pfedfda_nb": 7.0, "pfedfda": 10.0}.items()
    ]
    network, moments, search = shares(timings)
    assert (network, moments) == pytest.approx((60.0, 10.0))
    assert search == pytest.approx(30.0)


def test_the_command_times_every_method_of_the_tables(monkeypatch, capsys):
    def rounds(paper, column, method, passes, data_dir):
        settings_of(paper, column, method)
        return repeat(SimpleNamespace(seconds={"train": 1.0}))

    monkeypatch.setattr(runtime, "_rounds", rounds)
    assert main(["runtime", "--passes", "1"], FOLDER) == 0
    printed = capsys.readouterr().out
    assert printed.count("1.00 to 1.00") == len(TABLE_6) + len(TABLE_5) + 2
    assert printed.count("Table 9") == 2
