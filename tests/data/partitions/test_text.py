"""Partitions as text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import ConfigError
from fedtailor.data import PARTITIONS
from fedtailor.data.partitions.base import Partition
from fedtailor.data.partitions.classes import Classes, CyclicClasses
from fedtailor.data.partitions.dirichlet import Dirichlet
from fedtailor.data.partitions.domains import DomainLabels, Domains, Natural
from fedtailor.data.partitions.iid import Iid
from fedtailor.data.partitions.quota import DirichletQuota
from fedtailor.data.partitions.slices import LabelSlices, SubclassSlices
from fedtailor.data.partitions.text import parse_partition, read_expression


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("iid", Iid()),
        ("iid()", Iid()),
        (" dirichlet( alpha = 0.5 ) ", Dirichlet(alpha=0.5)),
        ("dirichlet(alpha=1, min_size=62.5)", Dirichlet(alpha=1.0, min_size=62.5)),
        ("classes(k=2)", Classes(k=2)),
        ("cyclic_classes", CyclicClasses(k=5)),
        ("dirichlet_quota(alpha=0.5)", DirichletQuota(alpha=0.5, quota=0)),
        ("label_slices", LabelSlices(k=0, shared_cuts=True)),
        (
            "subclass_slices(equal=True)",
            SubclassSlices(homogeneous=False, equal=True, shared_cuts=True),
        ),
        ("natural", Natural()),
        ("domains", Domains(per_domain=4, alpha=0.5, min_size=10)),
        ("domain_labels()", DomainLabels(k=5)),
    ],
)
def test_text_is_read(text: str, value: Partition) -> None:
    assert parse_partition(text) == value


def test_all_names_of_the_table_are_read() -> None:
    for name, entry in PARTITIONS.items():
        cls = entry.resolve()
        assert issubclass(cls, Partition) and cls.name == name
        assert cls.__doc__


POSITIVE, WHOLE = st.floats(1e-9, 1e9), st.integers(1, 10**6)
PARTITION = st.one_of(
    st.builds(Dirichlet, alpha=POSITIVE, min_size=st.floats(0, 1e6)),
    st.builds(DirichletQuota, alpha=POSITIVE, quota=WHOLE),
    st.builds(CyclicClasses, k=WHOLE),
    st.builds(LabelSlices, k=WHOLE, shared_cuts=st.booleans()),
    st.builds(
        SubclassSlices, homogeneous=st.booleans(), equal=st.booleans(), shared_cuts=st.booleans()
    ),
    st.builds(Domains, per_domain=WHOLE, alpha=POSITIVE, min_size=st.floats(0, 1e6)),
    st.builds(Iid),
)


@settings(deadline=None, max_examples=80)
@given(PARTITION)
def test_text_is_given_back(partition: Partition) -> None:
    assert parse_partition(str(partition)) == partition


def test_text_shows_all_options() -> None:
    assert str(LabelSlices()) == "label_slices(k=0, shared_cuts=True)"
    assert str(Dirichlet(alpha=0.5)) == "dirichlet(alpha=0.5, min_size=10)"
    assert str(Natural()) == "natural"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirichlett(alpha=1)", "unknown partition 'dirichlett'; did you mean 'dirichlet'?"),
        ("dirichlet(aplha=1)", "unknown option 'dirichlet.aplha'; did you mean 'alpha'?"),
        ("dirichlet(alpha=1, sizes=2)", "unknown option 'dirichlet.sizes'"),
        ("dirichlet", "dirichlet.alpha must be given, got 'dirichlet'."),
        ("dirichlet_quota(quota=500)", "dirichlet_quota.alpha must be given"),
        ("classes()", "classes.k must be given"),
        ("dirichlet(alpha=0)", "dirichlet.alpha must be > 0, got 0."),
        ("dirichlet(alpha=-0.5)", "dirichlet.alpha must be > 0, got -0.5."),
        ("dirichlet(alpha=1e999)", "dirichlet.alpha must be a finite number"),
        ("dirichlet(alpha='1')", "dirichlet.alpha must be a number, got '1'."),
        ("dirichlet(alpha=1, min_size=-1)", "dirichlet.min_size must be >= 0, got -1."),
        ("classes(k=1.5)", "classes.k must be a whole number, got 1.5."),
        ("classes(k=True)", "classes.k must be a whole number, got True."),
        ("cyclic_classes(k=0)", "cyclic_classes.k must be >= 1, got 0."),
        ("label_slices(shared_cuts=1)", "label_slices.shared_cuts must be true or false, got 1."),
        ("natural(clients=3)", "unknown option 'natural.clients'"),
    ],
)
def test_wrong_options_are_named(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_partition(text)
    assert sentence in caught.value.message


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
        "dirichlet(alpha=-'1')",
        "dirichlet(alpha=-True)",
        "dirichlet(alpha=None)",
        "dirichlet(alpha=1j)",
        "dirichlet(alpha=b'1')",
        "dirichlet(alpha=...)",
        "dirichlet(alpha=[1])",
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
    with pytest.raises(
        ConfigError, match="must be a name with named options, such as dirichlet"
    ) as caught:
        parse_partition(text)
    assert caught.value.key == "data.partition"


def test_expressions_hold_numbers_texts_and_truth_values() -> None:
    text = "cifar_s(clients=50, pairing='release', strength=-0.5, all=True)"
    name, options = read_expression(text, key="data.shift")
    assert name == "cifar_s"
    assert options == {"clients": 50, "pairing": "release", "strength": -0.5, "all": True}
    with pytest.raises(ConfigError) as caught:
        read_expression("cifar_s(50)", key="data.shift", example="cifar_s(clients=50)")
    assert caught.value.message.startswith(
        "data.shift must be a name with named options, such as cifar_s(clients=50)"
    )
