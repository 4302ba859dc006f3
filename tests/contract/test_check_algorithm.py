"""`check_algorithm` finds nothing wrong in sound algorithms, finds what is wrong in others, and
restores settings."""

import inspect
import random
import re
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from fedtailor import check_algorithm
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedavg_ft import FedAvgFT
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.errors import ConfigError
from fedtailor.testing import checks, engine_checks
from fedtailor.testing.runs import Disagreement, assert_close
from marks import quick
from mutants import MUTANTS, Changed, Item, NoSteps, OtherLoss, indexing_loss
from test_documentation import ROOT, blocks, own_algorithm

FOUND_BY = {
    "check_adaptation": "TunesInSecret OnboardsInSecret OnboardsWithFewerSteps",
    "check_attributes": "Remembers",
    "check_buffers": "NoBuffers",
    "check_clients": "EmptyIsNaN FailsIfEmpty OtherOnboarding EqualWeights",
    "check_downloads": "UndeclaredDownload NotSentDown",
    "check_inputs": "InPlace InPlaceAtServer InPlaceAtBroadcast",
    "check_learning": "Stands",
    "check_new_clients": "Untrained",
    "check_own_data": "OthersData",
    "check_padding": "CountsRows CountsTable CountsValidation",
    "check_randomness": "GlobalRandom Counter",
    "check_seed": "SameSeed",
    "check_stacked": "Item Branch Indexing Unweighted TorchRandom",
    "check_steps": "NoSteps HalfSteps FewerSteps",
    "check_storage": "StateOfHiddenType",
    "check_structure": "StateAppears ServerTypeChanges RowsForNobody",
    "check_test_data": "WholeTable",
    "check_weights": "WrongWeight",
}
"""The check that finds a mutant; the others are found before the checks."""


@pytest.fixture
def only(monkeypatch):
    """Return what leaves only some checks, by name: all of them take seconds."""

    def leave(*names):
        for module in (checks, engine_checks):
            chosen = tuple(check for check in module.CHECKS if check.__name__ in names)
            monkeypatch.setattr(module, "CHECKS", chosen)

    return leave


EXAMPLES_NEED = """
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F

from fedtailor import toolkit as ft
from fedtailor.toolkit import tree
from fedtailor.algorithms.fedavg import FedAvg
"""


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(FedAvg, marks=pytest.mark.slow),  # the example of its docstring
        pytest.param(FedAvgFT(finetune_epochs=1), marks=pytest.mark.slow),
        pytest.param("pfedfda", marks=pytest.mark.slow),
    ],
    ids=["class", "one", "name"],
)
def test_sound_algorithms(algorithm):
    assert check_algorithm(algorithm) == []


@pytest.mark.slow  # tests/test_documentation.py runs the check as it is written in the page
def test_the_documented_example_is_sound(tmp_path, monkeypatch):
    own_algorithm(tmp_path, monkeypatch)
    assert check_algorithm("my_method:PersonalBias", onboard_epochs=3) == []


def test_the_shorter_examples_are_sound(tmp_path, monkeypatch, only):
    only("check_clients", "check_weights", "check_stacked")
    loss, momentum = blocks(ROOT / "docs" / "reference" / "methods-from-inside.md", "py")
    (tmp_path / "my_examples.py").write_text(f"{EXAMPLES_NEED}\n{loss}\n{momentum}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_examples", raising=False)
    assert check_algorithm("my_examples:ServerMomentum") == []

    class Smooth(OtherLoss):
        @staticmethod
        def loss(task, params, context, batch, key):
            return sys.modules["my_examples"].smooth_loss(task, params, {}, batch, key)

    assert check_algorithm(Smooth) == []


def test_the_documented_signatures_are_those_of_the_base_class():
    rows = re.findall(
        r"^\| ([`\w, ]+) \| `([\w, ]+)` \|",
        (ROOT / "docs" / "reference" / "methods-from-inside.md").read_text(),
        re.MULTILINE,
    )
    found = {
        name: arguments.split(", ")
        for names, arguments in rows
        for name in re.findall(r"\w+", names)
    }
    expected = {
        name: list(inspect.signature(getattr(Algorithm, name)).parameters)[1:] for name in found
    }
    assert found == expected and found


def test_a_dataclass_that_cannot_be_made_is_explained(tmp_path, monkeypatch):
    imports = "from dataclasses import dataclass\nfrom fedtailor.algorithms.fedavg import FedAvg\n"
    (tmp_path / "my_mistake.py").write_text(f"{imports}@dataclass\nclass Mine(FedAvg): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"my_mistake.py, line 3.*@dataclass\(frozen=True, kw_only=True\)"
    ):
        check_algorithm("my_mistake:Mine")


FIRST = {names.split()[0] for names in FOUND_BY.values()} | {"Closure"}
"""A mutant for each check, and one that is found before them."""


@pytest.mark.parametrize(
    "mutant", quick(MUTANTS, *(one for one in MUTANTS if one.__name__ in FIRST))
)
def test_mutants_are_found_by_the_check_for_them(mutant, monkeypatch, only):
    only(*(check for check, names in FOUND_BY.items() if mutant.__name__ in names.split()))
    sentences_on(mutant, monkeypatch)


def sentences_on(mutant, monkeypatch):
    """Return what is said on a mutant, one sentence of which must have the right words."""
    if hasattr(mutant, "calls"):
        monkeypatch.setattr(mutant, "calls", [])
    sentences = check_algorithm(mutant)
    words = [word.replace("LINE", str(marked_line(mutant))) for word in MUTANTS[mutant]]
    assert any(all(word in sentence for word in words) for sentence in sentences), sentences
    assert all(sentence.endswith(".") and "\n" not in sentence for sentence in sentences)
    return sentences


def marked_line(mutant):
    """Return the line of the file that a mutant marks, or that its loss does."""
    for source in (mutant, indexing_loss):
        lines, start = inspect.getsourcelines(source)
        numbers = [
            start + number
            for number, line in enumerate(lines)
            if line.rstrip().endswith("# the line")
        ]
        if numbers:
            return numbers[0]
    raise AssertionError("no line is marked")


def test_a_failing_check_does_not_silence_the_others(only):
    only("check_stacked", "check_steps")

    class Both(Item):
        def change(self, *arguments):
            return super().change(*arguments)._replace(metrics={})

    found = check_algorithm(Both)
    assert any(".item()" in sentence for sentence in found)
    assert any("metric 'steps'" in sentence for sentence in found)


def test_a_fault_that_all_checks_meet_is_said_once():
    class Second(Changed):
        calls = []

        def change(self, update, task, download, data, key):
            self.calls.append(None)
            if len(self.calls) > 12:  # six clients train in two rounds
                raise ValueError("worked once")
            return update

    (found,) = check_algorithm(Second)
    assert found.count("ValueError: worked once") == 1 and "this could not be checked" in found


def test_what_works_on_one_kind_of_network_only(only):
    only("check_module", "check_images")

    class ByName(Changed):
        def change(self, update, task, download, data, key):
            update.upload["model"].value["hidden.bias"]
            return update

    networks = (
        r"with a (network with batch normalization and dropout|convolutional network on images)"
    )
    found = check_algorithm(ByName)
    assert [
        re.search(networks, sentence) is not None and "'hidden.bias'" in sentence
        for sentence in found
    ] == [True] * 2


class Grid:
    """A helper without an equality of its own."""

    def __init__(self):
        self.steps = [np.ones(2), np.arange(3)]


@dataclass(frozen=True, kw_only=True, eq=False)
class WithValues(FedAvg):
    """Has attributes whose comparison is no truth value."""

    table: np.ndarray = field(default_factory=lambda: np.arange(3))
    grid: Grid = field(default_factory=Grid)


def test_arrays_and_helpers_are_attributes(only):
    only("check_attributes")
    assert check_algorithm(WithValues) == []

    class Writes(WithValues):
        def local_update(self, *arguments):
            self.grid.steps[0] += 1
            return super().local_update(*arguments)

    (found,) = check_algorithm(Writes)
    assert "attribute 'grid'" in found


def test_truth_values_are_compared_as_they_are():
    values = {"seen": torch.tensor([True, False])}
    assert_close(values, values)
    with pytest.raises(Disagreement, match="seen differs"):
        assert_close(values, {"seen": torch.tensor([True, True])})


def test_a_method_that_does_not_train_needs_no_random_numbers(only):
    only("check_seed")
    assert check_algorithm("fedncm") == []


def test_options_are_checked_too():
    found = check_algorithm(FedAvgFT, finetune_epochs=-1)
    assert found == ["FedAvgFT cannot be built: FedAvgFT.finetune_epochs must be >= 0, got -1."]
    assert "unexpected keyword argument 'tune'" in check_algorithm(FedAvgFT(), tune=1)[0]


def test_declarations_are_checked(only):
    only("check_descriptions")

    @dataclass(frozen=True, kw_only=True)
    class Silent(FedAvg):
        adaptation = ""

    assert "adaptation must be a list of what personalize does" in check_algorithm(Silent)[0]


def test_no_algorithm_is_an_error():
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        check_algorithm("fedavgg")
    assert check_algorithm(int) == [
        "The class 'int' is not a subclass of fedtailor.toolkit.Algorithm."
    ]


class Interrupts(Changed):
    """Changes a mode of PyTorch, and is interrupted in the middle of a run."""

    def change(self, *arguments):
        torch.use_deterministic_algorithms(True)
        raise KeyboardInterrupt


@pytest.mark.parametrize("algorithm", [NoSteps, Interrupts])
def test_global_state_is_left_as_it_was(algorithm, only):
    only("check_randomness", "check_seed", "check_threads")

    def state():
        legacy = np.random.get_state()
        words = (legacy[1].tolist(), *legacy[2:])
        settings = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
        settings += (torch.are_deterministic_algorithms_enabled(),)
        return torch.get_rng_state().tolist(), random.getstate(), words, settings

    torch.set_num_threads(2)
    try:
        before = state()
        if algorithm is Interrupts:
            with pytest.raises(KeyboardInterrupt):
                check_algorithm(algorithm)
        else:
            check_algorithm(algorithm)
        assert state() == before
    finally:
        torch.set_num_threads(1)
