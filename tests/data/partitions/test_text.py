"""Partitions as text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import ConfigError
from fedtailor.data.partitions import PARTITIONS, parse_partition, read_expression
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.classes import CyclicClasses
from fedtailor.data.partitions.dirichlet import Dirichlet, DirichletQuota, Iid
from fedtailor.data.partitions.slices import LabelSlices, SubclassSlices


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("iid()", Iid()),
        (" dirichlet( alpha = 0.5 ) ", Dirichlet(alpha=0.5)),
        ("dirichlet(alpha=1, min_size=62.5)", Dirichlet(alpha=1.0, min_size=62.5)),
        ("subclass-slices(equal=True)", SubclassSlices(equal=True)),
    ],
)
def test_text_is_read(text: str, value: Partition) -> None:
    assert parse_partition(text) == value


def test_all_names_of_the_table_are_read() -> None:
    for name, entry in PARTITIONS.items():
        assert issubclass(entry.load(), Partition) and entry.load().name == name


POSITIVE = st.floats(1e-9, 1e9)
PARTITION = st.one_of(
    st.builds(Dirichlet, alpha=POSITIVE, min_size=st.floats(0, 1e6)),
    st.builds(DirichletQuota, alpha=POSITIVE, quota=st.integers(1, 10**6)),
    st.builds(CyclicClasses, k=st.integers(1, 10**6)),
    st.builds(LabelSlices, k=st.integers(1, 10**6), shared_cuts=st.booleans()),
)


@settings(deadline=None, max_examples=40)
@given(PARTITION)
def test_text_is_given_back(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition


def test_truth_is_written_as_in_python_or_as_in_a_configuration_file() -> None:
    for text in ("label_slices(k=2, shared_cuts=false)", "label_slices(k=2, shared_cuts=False)"):
        assert parse_partition(text) == LabelSlices(k=2, shared_cuts=False)


def test_text_shows_all_options() -> None:
    assert str(Dirichlet(alpha=0.5)) == "dirichlet(alpha=0.5, min_size=10)"
    assert str(Iid()) == "iid"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("dirichlett(alpha=1)", "'dirichlet'?"),
        ("dirichlet(aplha=1)", "'alpha'?"),
        ("dirichlet(alpha=1, sizes=2)", "'sizes' of dirichlet"),
        ("dirichlet", "dirichlet.alpha must be given"),
        ("dirichlet(alpha=0)", "dirichlet.alpha"),
        ("dirichlet(alpha=1e999)", "dirichlet.alpha"),
        ("dirichlet(alpha='1')", "dirichlet.alpha"),
        ("dirichlet(alpha=None)", "dirichlet.alpha"),
        ("dirichlet(alpha=1j)", "dirichlet.alpha"),
        ("dirichlet(alpha=[1])", "dirichlet.alpha"),
        ("dirichlet(alpha={[1]})", "dirichlet"),
        ("dirichlet(alpha=1, min_size=-1)", "dirichlet.min_size"),
        ("classes(k=True)", "classes.k"),
        ("label_slices(shared_cuts=1)", "label_slices.shared_cuts"),
    ],
)
def test_wrong_options_are_named(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_partition(text)
    assert key in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dirichlet(0.5)",
        "dirichlet(alpha=0.5",
        "dirichlet(alpha=0.5, alpha=0.6)",
        "dirichlet(**{'alpha': 1})",
        "dirichlet(alpha=1+1)",
        "dirichlet(alpha=print(1))",
        "dirichlet(alpha=-True)",
        "dirichlet(alpha='\\d')",  # Python itself would only warn
        "a.b(c=1)",
        "iid; iid",
        "0.5",
        "iid\0",
        "-" * 150 + "1",
        "(" * 10_000,
    ],
)
def test_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_partition(text)
    assert caught.value.key == "data.partition" and len(caught.value.message) < 500


def test_expressions_hold_numbers_texts_and_truth_values() -> None:
    text = "cifar_s(clients=50, pairing='release', strength=-0.5, all=True)"
    assert read_expression(text, key="data.shift") == (
        "cifar_s",
        {"clients": 50, "pairing": "release", "strength": -0.5, "all": True},
    )
