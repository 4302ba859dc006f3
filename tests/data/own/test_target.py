"""Data as what a function of the user's returns: accepted as arrays of files are, refused with what
was returned."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.dataset import Dataset
from fedtailor.data.options import DataOptions
from fedtailor.data.own.findings import Findings
from fedtailor.data.own.target import read_target

COUNTER = itertools.count()
Reader = Callable[[str], tuple[Dataset | None, Findings, str]]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Return a function that reads what a function with the given body returns."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def reader(body: str) -> tuple[Dataset | None, Findings, str]:
        module = f"own_data_{next(COUNTER)}"
        (tmp_path / f"{module}.py").write_text(f"import numpy as np\n\ndef load():\n    {body}\n")
        name, findings = f"{module}:load", Findings()
        return read_target(name, DataOptions(path=name), findings), findings, name

    return reader


def test_sites_with_and_without_a_test_part_are_read(read: Reader) -> None:
    dataset, findings, name = read(
        "x = np.arange(12.0).reshape(4, 3)\n"
        "    return {'a': (x.tolist(), [0, 1, 0, 1]), 'b': ((x + 1, np.ones(4, int)), (x[:1] + 5, np.array([2])))}"
    )
    assert findings.problems == [] and dataset is not None and dataset.domains is not None
    assert dataset.name == name and dataset.x.dtype == np.float32 and dataset.x.shape == (9, 3)
    assert dataset.x[:, 0].tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 5] and dataset.y.tolist() == [
        0,
        1,
        0,
        1,
        1,
        1,
        1,
        1,
        2,
    ]
    assert dataset.domains.tolist() == [0] * 4 + [1] * 5 and dataset.num_official_train == 8
    assert [(site.name, site.train, site.test) for site in findings.sites] == [
        ("a", {"0": 2, "1": 2}, {}),
        ("b", {"1": 4}, {"2": 1}),
    ]


def test_numbers_are_names_of_sites(read: Reader) -> None:
    _, findings, _ = read("return {k: (np.eye(2) + k, [0, 1]) for k in (0, np.int64(1))}")
    assert findings.problems == [] and [site.name for site in findings.sites] == ["0", "1"]


def test_tensors_are_arrays_too(read: Reader) -> None:
    dataset, findings, _ = read(
        "import torch; return {'a': (torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))}"
    )
    assert findings.problems == [] and dataset is not None and dataset.input_shape == (3, 8, 8)


def test_a_data_set_is_used_as_it_is(read: Reader) -> None:
    dataset, findings, _ = read(
        "from fedtailor.data.dataset import Dataset\n"
        "    return Dataset(name='mine', x=np.eye(4, dtype=np.float32), y=np.array([0, 1, 1, 0]), "
        "num_classes=2,\n                   domains=np.array([0, 1, 1, 1]), domain_names=('p', "
        "'q'), num_official_train=3)"
    )
    assert dataset is not None and dataset.name == "mine" and findings.problems == []
    assert [(site.name, site.train, site.test) for site in findings.sites] == [
        ("p", {"0": 1}, {}),
        ("q", {"1": 2}, {"0": 1}),
    ]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("return None", "wrong_return", "nothing (None)"),
        ("return [1, 2, 3]", "wrong_return", "list of length 3"),
        ("return {'a': 3}", "wrong_return", "for site 'a' int"),
        ("return {'a': (1, 2, 3)}", "wrong_return", "for site 'a' tuple of length 3"),
        ("return {'a': ([[1, 2], [3]], [0, 1])}", "wrong_return", "for site 'a'"),
        ("return {'a': (np.array([None, 1]), [0, 1])}", "wrong_type", "type object"),
        ("return {'a': (np.eye(2), np.array([-1, 0]))}", "negative_label", "got -1 at index 0"),
        ("return {}", "no_examples", "No site"),
        ("x = np.eye(2), [0, 1]; return {1: x, '1': x}", "duplicate_site", "printed name '1'"),
        ("return {'': (np.eye(2), [0, 1])}", "wrong_return", "'' of type str"),
        ("return {' ': (np.eye(2), [0, 1])}", "wrong_return", "' ' of type str"),
        ("return {None: (np.eye(2), [0, 1])}", "wrong_return", "'None' of type NoneType"),
        ("return {True: (np.eye(2), [0, 1])}", "wrong_return", "'True' of type bool"),
        ("return {b'a': (np.eye(2), [0, 1])}", "wrong_return", "of type bytes"),
        ("return {('a', 1): (np.eye(2), [0, 1])}", "wrong_return", "of type tuple"),
    ],
)
def test_anything_else_is_an_error_that_says_what_was_returned(
    read: Reader, body: str, kind: str, words: str
) -> None:
    dataset, findings, name = read(body)
    assert dataset is None and [(p.severity, p.kind) for p in findings.problems] == [
        ("error", kind)
    ]
    problem = findings.problems[0]
    assert words in problem.message and (problem.path.startswith(name) or kind == "no_examples")


def test_an_exception_of_the_function_is_an_error_that_names_it(read: Reader) -> None:
    with pytest.raises(
        DataError, match=r"own_data_\d+:load\(\) raised ZeroDivisionError: division by zero\."
    ) as caught:
        read("return 1 / 0")
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and caught.value.key == "data.path"
    with pytest.raises(DataError, match="labels"):
        read(
            "from fedtailor.data.dataset import Dataset\n"
            "    return Dataset(name='m', x=np.eye(2, dtype=np.float32), y=np.array([0, 5]), "
            "num_classes=2)"
        )


@pytest.mark.parametrize("body", ["import sys; sys.exit(3)", "raise SystemExit"])
def test_a_function_that_ends_the_program_is_an_error_that_names_it(
    read: Reader, body: str
) -> None:
    with pytest.raises(DataError, match=r"own_data_\d+:load\(\) raised SystemExit"):
        read(body)


def test_an_interruption_is_not_held_up(read: Reader) -> None:
    with pytest.raises(KeyboardInterrupt):
        read("raise KeyboardInterrupt")


@pytest.mark.parametrize(
    ("kind", "options", "dark"),
    [
        ("np.uint8", "", ["dark_images"]),
        ("np.float32", ", white=65535.0", ["dark_images"]),
        ("np.uint8", ", white=16.0", []),
        ("np.uint8", ", normalize=Normalization((0.01,), (0.02,))", []),
    ],
)
def test_a_data_set_is_looked_at_too(
    read: Reader, kind: str, options: str, dark: list[str]
) -> None:
    _, findings, name = read(
        "from fedtailor.data.dataset import Dataset, Normalization\n"
        f"    x = np.array([5, 6, 5], {kind})[:, None, None, None] * np.ones((1, 4, 4, 1), "
        f"{kind})\n    return Dataset(name='m', x=x, y=np.array([0, 1, 0]), num_classes=2, "
        f"num_official_train=2{options})"
    )
    assert [problem.kind for problem in findings.problems] == ["duplicate_train_test", *dark]
    assert f"'{name}:2' as '{name}:0'" in findings.problems[0].message


@pytest.mark.parametrize("name", ["no_such_module_at_all:load", "math:nothing", "math", ":"])
def test_a_function_that_is_not_there_is_an_error(name: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read_target(name, DataOptions(path=name), Findings())
    assert caught.value.key == "data.path"
