"""Reduction of uploads, their validation, and their bytes."""

from typing import NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from fedtailor.core import tree
from fedtailor.core.message import (
    Each,
    Field,
    Mean,
    Reduced,
    Sum,
    download_bytes,
    spread,
    upload_bytes,
)
from fedtailor.core.reduction import FieldSum, reduce_field
from fedtailor.core.upload_checks import problem_with
from fedtailor.testing.runs import assert_same_bits

pytestmark = pytest.mark.usefixtures("float64")

numbers = st.floats(-100, 100, width=32)
weights = st.floats(0, 50, width=32)
laws = settings(max_examples=40, deadline=None)


def values(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reduce_listed(entries):
    """Reduce the entries of clients 0, 1, 2, ..."""
    return reduce_field(dict(enumerate(entries)))


def test_mean_is_weighted():
    rows = ([1.0, 2.0], 1.0), ([5.0, 6.0], 3.0)
    reduced = reduce_listed(
        [Mean({"w": torch.tensor(row)}, torch.tensor(weight)) for row, weight in rows]
    )
    assert reduced.value["w"].tolist() == [4.0, 5.0] and reduced.total_weight == 4


@laws
@given(st.lists(st.tuples(numbers, weights), min_size=1, max_size=6))
def test_mean_lies_between_and_ignores_weight_zero(rows):
    entries = [Mean(torch.tensor(value), torch.tensor(weight)) for value, weight in rows]
    present = [value for value, weight in rows if weight > 0]
    mean = float(reduce_listed(entries).value)
    if present:
        assert min(present) - 1e-9 <= mean <= max(present) + 1e-9
        kept = {client: entry for client, entry in enumerate(entries) if entry.weight > 0}
        assert mean == float(reduce_field(kept).value)
    else:
        assert mean == 0


@laws
@given(st.lists(st.tuples(numbers, weights), min_size=1, max_size=5), st.floats(0.5, 8, width=32))
def test_mean_does_not_depend_on_the_scale_of_weights(rows, scale):
    one, two = (
        reduce_listed(
            [Mean(torch.tensor(value), torch.tensor(weight * factor)) for value, weight in rows]
        ).value
        for factor in (1.0, scale)
    )
    assert torch.allclose(one, two, rtol=1e-9, atol=1e-9)


def test_class_counts_weigh_every_row_by_itself():
    first = Mean(torch.tensor([[1.0, 1.0], [2.0, 2.0], [9.0, 9.0]]), torch.tensor([1.0, 3.0, 0.0]))
    second = Mean(torch.tensor([[3.0, 3.0], [7.0, 7.0], [9.0, 9.0]]), torch.tensor([1.0, 0.0, 0.0]))
    reduced = reduce_listed([first, second])
    assert reduced.value.tolist() == [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]]
    assert reduced.total_weight.tolist() == [2.0, 3.0, 0.0]
    assert reduced.or_else(torch.full((3, 2), -1.0)).tolist() == [
        [2.0, 2.0],
        [2.0, 2.0],
        [-1.0, -1.0],
    ]


def test_one_weight_serves_leaves_of_every_shape():
    weight = torch.tensor([1.0, 2.0])
    value = {"matrix": values(0, 2, 3), "vector": values(1, 2), "deep": (values(2, 2, 1, 4),)}
    reduced = reduce_listed([Mean(value, weight), Mean(value, weight)])
    for one, two in zip(tree.leaves(reduced.value), tree.leaves(value), strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-15)
    assert spread(weight, value["deep"][0]).shape == (2, 1, 1)


def test_nobody_sent_anything():
    reduced = reduce_listed([Mean({"w": values(0, 3)}, torch.tensor(0.0))] * 2)
    assert reduced.value["w"].tolist() == [0, 0, 0]
    old = {"w": values(1, 3)}
    assert torch.equal(reduced.or_else(old)["w"], old["w"])


def test_or_else_keeps_nothing_where_all_was_sent():
    old = {"w": torch.full((2,), torch.nan)}
    assert torch.isfinite(
        reduce_listed([Mean({"w": values(0, 2)}, torch.tensor(2.0))]).or_else(old)["w"]
    ).all()


def test_sum_adds_the_rows_that_are_sent():
    first = Sum(torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]), torch.tensor([1.0, 0.0, 0.0]))
    second = Sum(
        torch.tensor([[10.0, 10.0], [20.0, 20.0], [40.0, 40.0]]), torch.tensor([1.0, 1.0, 0.0])
    )
    assert reduce_listed([first, second]).value.tolist() == [[11.0, 11.0], [20.0, 20.0], [0.0, 0.0]]
    whole = reduce_listed([Sum({"a": torch.tensor(1.5)}), Sum({"a": torch.tensor(2.5)})])
    assert whole.value["a"] == 4.0


def test_rows_that_any_client_sent_count_as_sent():
    entries = [
        Sum(values(n, 3, 2), rows)
        for n, rows in enumerate(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]))
    ]
    reduced = reduce_listed(entries)
    assert reduced.total_weight.tolist() == [2.0, 1.0, 0.0]
    assert (reduced.or_else(torch.full((3, 2), -9.0)) == -9.0).all(1).tolist() == [
        False,
        False,
        True,
    ]


def test_some_may_send_all_rows_and_some_a_part():
    """A mask of rows, and none (all rows): the sum must not fail on the mixture, which validation
    lets pass."""
    reduced = reduce_listed(
        [Sum(torch.ones(3, 2), torch.tensor([1.0, 0.0, 0.0])), Sum(torch.ones(3, 2))]
    )
    assert reduced.value.tolist() == [[2.0, 2.0], [1.0, 1.0], [1.0, 1.0]]


def test_each_shows_every_client_in_order():
    reduced = reduce_listed([Each({"h": torch.tensor([float(n), n + 0.5])}) for n in range(3)])
    assert reduced.value["h"].tolist() == [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]
    assert reduced.total_weight == 3


@pytest.mark.parametrize("entry", [lambda v: Mean(v, torch.tensor(1.0)), Sum, Each])
def test_leaves_keep_their_dtype_and_sum_in_float64(entry):
    """Float32 numbers of very different size: summing in float32 would lose the small one."""
    entries = [
        entry({"w": torch.tensor([value], dtype=torch.float32)}) for value in (1e8, 1.0, -1e8)
    ]
    reduced = reduce_listed(entries)
    assert reduced.value["w"].dtype == torch.float32
    if not isinstance(entries[0], Each):
        assert float(reduced.value["w"][0]) == pytest.approx(
            1.0 if isinstance(entries[0], Sum) else 1 / 3, rel=1e-6
        )


def test_entries_are_reduced_by_name_whatever_their_order():
    first = Mean({"a": torch.tensor([1.0]), "b": torch.tensor([10.0])}, torch.tensor(1.0))
    second = Mean({"b": torch.tensor([10.0]), "a": torch.tensor([1.0])}, torch.tensor(1.0))
    assert reduce_listed([first, second]).value == {
        "a": torch.tensor([1.0]),
        "b": torch.tensor([10.0]),
    }


def test_inputs_stay_as_they_are():
    entries = [Mean({"w": values(n, 3)}, torch.tensor(2.0)) for n in range(3)]
    before = [entry.value["w"].clone() for entry in entries]
    reduce_listed(entries)
    assert all(
        torch.equal(entry.value["w"], kept) for entry, kept in zip(entries, before, strict=True)
    )


MESSAGES = {
    "model": Field(kind="model", shapes={"w": (2, 3), "b": (2,)}),
    "means": Field(kind="class_means", shapes=(4, 3), weight="class_counts"),
    "covariance": Field(kind="covariance", shapes=(3, 3)),
    "rows": Field(kind="statistics", shapes=(4, 2), reduction="sum", low=0.0, high=1.0),
    "head": Field(kind="model", shapes={"own": {"weight": (2,)}}, reduction="each"),
    "prior": Field(kind="statistics", shapes=(4,), reduction="none"),
}


def sound():
    """Return an upload that fits ``MESSAGES``."""
    n = torch.tensor(5.0)
    return {
        "model": Mean({"w": values(0, 2, 3), "b": values(1, 2)}, n),
        "means": Mean(values(2, 4, 3), torch.tensor([3.0, 0.0, 2.0, 0.0])),
        "covariance": Mean(torch.eye(3), n),
        "rows": Sum(torch.full((4, 2), 0.5), torch.tensor([1.0, 0.0, 0.0, 1.0])),
        "head": Each({"own": {"weight": values(3, 2)}}),
    }


def test_a_sound_upload_has_no_problem():
    assert problem_with(sound(), MESSAGES) is None
    assert problem_with({}, {}) is None


def model(**changes):
    return Mean({**sound()["model"].value, **changes}, torch.tensor(5.0))


NAN, INF = float("nan"), float("inf")
SKEW = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
BAD = {
    "field missing": (
        lambda u: u.pop("head"),
        "fields",
        "the upload has fields ['covariance', 'means', 'model', 'rows'] instead of",
    ),
    "field too many": (lambda u: u.update(more=Each(torch.zeros(1))), "fields", "'more'"),
    "field only sent down": (lambda u: u.update(prior=Each(torch.zeros(4))), "fields", "'prior'"),
    "reduction": (
        lambda u: u.update(model=Each(u["model"].value)),
        "reduction",
        "field 'model': sent as Each, declared as mean",
    ),
    "no entry": (
        lambda u: u.update(model=torch.zeros(2)),
        "reduction",
        "field 'model': sent as Tensor, declared as mean",
    ),
    "leaf missing": (
        lambda u: u["model"].value.pop("b"),
        "leaves",
        "field 'model': leaves ['w'] instead of ['b', 'w']",
    ),
    "leaf too many": (
        lambda u: u["model"].value.update(c=torch.zeros(1)),
        "leaves",
        "field 'model': leaves ['b', 'c', 'w']",
    ),
    "leaf is a tree": (
        lambda u: u.update(model=model(b=(torch.zeros(2),))),
        "leaves",
        "field 'model': leaves ['b/0', 'w']",
    ),
    "shape": (
        lambda u: u.update(model=model(b=torch.zeros(3))),
        "shape",
        "field 'model': 'b' has shape (3,) instead of (2,)",
    ),
    "axis": (
        lambda u: u.update(model=model(b=torch.zeros(1, 2))),
        "shape",
        "field 'model': 'b' has shape (1, 2) instead of (2,)",
    ),
    "nan": (
        lambda u: u["model"].value["w"].fill_(NAN),
        "not finite",
        "field 'model': 'w' has values that are not finite",
    ),
    "inf": (
        lambda u: u["head"].value["own"]["weight"][:1].fill_(INF),
        "not finite",
        "field 'head': 'own/weight' has values that are not finite",
    ),
    "weight nan": (
        lambda u: u["model"].weight.fill_(NAN),
        "weight",
        "field 'model': weight is negative or not finite",
    ),
    "weight inf": (
        lambda u: u["model"].weight.fill_(INF),
        "weight",
        "field 'model': weight is negative or not finite",
    ),
    "weight negative": (
        lambda u: u["means"].weight[:1].fill_(-1),
        "weight",
        "field 'means': weight is negative or not finite",
    ),
    "too low": (
        lambda u: u["rows"].value[0].fill_(-0.1),
        "range",
        "field 'rows': it has values outside [0, 1]",
    ),
    "too high": (
        lambda u: u["rows"].value[0].fill_(1.1),
        "range",
        "field 'rows': it has values outside [0, 1]",
    ),
    "skew": (
        lambda u: u["covariance"].value.copy_(SKEW),
        "covariance",
        "field 'covariance': it is not a symmetric positive semi-definite matrix",
    ),
    "indefinite": (
        lambda u: u["covariance"].value[0, 0].fill_(-0.01),
        "covariance",
        "is not a symmetric positive semi-definite matrix",
    ),
}
"""Case -> (what is done to the upload, kind of the problem, part of its sentence)."""


@pytest.mark.parametrize(("spoil", "kind", "words"), BAD.values(), ids=list(BAD))
def test_every_kind_of_bad_upload_is_named(spoil, kind, words):
    upload = sound()
    spoil(upload)
    found = problem_with(upload, MESSAGES)
    assert found is not None and found.kind == kind and words in str(found)
    assert (found.field == "") == (kind == "fields") and found.field in {"", *MESSAGES}


HOSTILE = {
    "weight of a wrong shape": lambda u: u.update(model=Mean(u["model"].value, torch.ones(7))),
    "weight of too many axes": lambda u: u.update(means=Mean(u["means"].value, torch.ones(4, 3, 1))),
    "weight that is no tensor": lambda u: u.update(model=Mean(u["model"].value, 5.0)),
    "rows of a wrong shape": lambda u: u.update(rows=Sum(u["rows"].value, torch.ones(3))),
    "rows that are not finite": lambda u: u.update(rows=Sum(u["rows"].value, torch.tensor([NAN, 0, 0, 0]))),
    "rows that scale": lambda u: u.update(rows=Sum(u["rows"].value, torch.tensor([1e6, 0, 0, 0]))),
    "value that is no tree": lambda u: u.update(model=Mean({"w": None, "b": 1.0}, torch.tensor(5.0))),
    "list": lambda u: u.update(model=Mean([torch.zeros(2)], torch.tensor(5.0))),
    "complex numbers": lambda u: u.update(model=model(b=torch.zeros(2, dtype=torch.complex64))),
    "whole numbers": lambda u: u.update(model=model(b=torch.zeros(2, dtype=torch.int64))),
    "weight of another kind": lambda u: u.update(means=Mean(u["means"].value, torch.tensor(5.0))),
    "weight by row of a model": lambda u: u.update(model=Mean(u["model"].value, torch.ones(2))),
    "complex weight": lambda u: u.update(model=Mean(u["model"].value, torch.tensor(1j))),
    "half precision": lambda u: u.update(model=model(b=torch.zeros(2, dtype=torch.float16))),
    "other precision": lambda u: u.update(model=model(b=torch.zeros(2, dtype=torch.float32))),
    "names that are no text": lambda u: u.update({1: Each(torch.zeros(1))}),
    "names that look like paths": lambda u: u.update(head=Each({"own/weight": torch.zeros(2), **u["head"].value})),
    "no mapping": lambda u: [u],
}  # fmt: skip


@pytest.mark.parametrize("spoil", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_uploads_are_refused_and_do_not_raise(spoil):
    upload = sound()
    upload = spoil(upload) or upload
    assert problem_with(upload, MESSAGES)


def test_a_weight_must_be_that_of_the_declaration():
    """A client that sends a million examples as a class count, or weighs a plain mean, is no sound
    client."""
    plain = {"delta": Field(kind="model", shapes=(2,), weight="equal")}
    assert problem_with({"delta": Mean(torch.zeros(2), torch.tensor(1.0))}, plain) is None
    assert problem_with({"delta": Mean(torch.zeros(2), torch.tensor(1e6))}, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_semi_definite_matrices_pass(dtype):
    torch.set_default_dtype(dtype)
    field = {"c": Field(kind="covariance", shapes=(3, 3))}
    rank_one = torch.ones(3, 3) * 1e-12
    for matrix in (
        torch.zeros(3, 3),
        rank_one,
        rank_one * 1e20,
        torch.diag(torch.tensor([1.0, 1e-9, 0.0])),
    ):
        assert problem_with({"c": Mean(matrix, torch.tensor(1.0))}, field) is None


def test_a_covariance_per_class_is_checked_matrix_by_matrix():
    field = {"c": Field(kind="covariance", shapes=(2, 3, 3), weight="class_counts")}
    stack = torch.stack([torch.eye(3), torch.eye(3)])
    assert problem_with({"c": Mean(stack, torch.ones(2))}, field) is None
    stack[1, 0, 0] = -1
    assert "positive semi-definite" in str(problem_with({"c": Mean(stack, torch.ones(2))}, field))


def test_bytes_of_an_upload():
    """Rows of weight 0 are not sent; a symmetric matrix is half; each kind of weight is sent once.

    Bits say which rows of a sum are there.
    """
    model, means, covariance, rows, head = 8, 2 * 3, 6, 2 * 2, 2
    bits = 1
    assert (
        upload_bytes(sound(), MESSAGES)
        == 4 * (model + means + covariance + rows + head + 1 + 4) + bits
    )


def test_bytes_of_weights():
    shapes = {"w": (3,)}
    for weight, numbers in (("equal", 0), ("num_train", 1), ("own", 2)):
        fields = {name: Field(kind="model", shapes=shapes, weight=weight) for name in "ab"}
        upload = {name: Mean({"w": torch.zeros(3)}, torch.ones(())) for name in "ab"}
        assert upload_bytes(upload, fields) == 4 * (6 + numbers), weight


def test_bytes_of_a_download():
    fields = {**MESSAGES, "up": Field(kind="model", shapes=(100,), down=False)}
    assert download_bytes(fields) == 4 * (8 + 12 + 6 + 8 + 2 + 4)
    assert download_bytes({}) == upload_bytes({}, {}) == 0


def test_leaf_shapes_by_path():
    nested = Field(kind="model", shapes={"a": {"b": (2,), "c": ()}, "d": (3, 4)})
    assert nested.leaf_shapes() == {"a/b": (2,), "a/c": (), "d": (3, 4)} and nested.scalars() == 15
    assert Field(kind="counts", shapes=()).leaf_shapes() == {"": ()}
    assert Field(kind="covariance", shapes=(5, 4, 4)).scalars() == 50


@laws
@given(st.permutations(range(7)), st.sets(st.integers(0, 6), max_size=6))
def test_the_order_of_arrival_changes_no_bit_and_who_is_absent_is_skipped(order, absent):
    entries = {
        client: Mean(values(client, 50) * 10.0 ** (client - 3), torch.rand(50) + 1e-3)
        for client in range(7)
    }
    present = {client: entry for client, entry in entries.items() if client not in absent}
    shuffled = {client: present[client] for client in order if client in present}
    nothing = {client: entries[client]._replace(weight=torch.zeros(50)) for client in absent}
    expected = reduce_field(present)
    for reduced in (reduce_field(shuffled), reduce_field({**nothing, **shuffled})):
        assert torch.equal(reduced.value, expected.value) and torch.equal(
            reduced.total_weight, expected.total_weight
        )


@laws
@given(st.permutations(range(7)), st.sets(st.integers(0, 6), max_size=6))
def test_a_field_is_reduced_while_it_arrives(order, absent):
    entries = {
        client: Mean({"a": values(client, 5), "b": values(client, 5, 2)}, torch.rand(5))
        for client in range(7)
    }
    total = FieldSum(range(7))
    for client in order:
        if client in absent:
            total.skip(client)
        else:
            total.add(client, entries[client])
    expected = reduce_field(
        {client: entry for client, entry in entries.items() if client not in absent}
    )
    assert len(total.parts()) == 1
    assert_same_bits(total.reduced(), expected)


def test_a_sum_without_clients_is_refused():
    total = FieldSum([1])
    with pytest.raises(ValueError, match="may still come"):
        total.reduced()
    total.skip(1)
    with pytest.raises(ValueError, match="no client sent the field"):
        total.reduced()


def test_own_weights_may_be_for_fewer_axes():
    rows = torch.tensor([1.0, 3.0, 0.0])
    entries = {
        0: Mean(values(0, 3, 2), rows),
        1: Mean(values(1, 3, 2), torch.tensor(2.0)),
        5: Mean(values(2, 3, 2), rows),
    }
    whole = {
        client: entry._replace(weight=entry.weight.expand(3)) for client, entry in entries.items()
    }
    assert_same_bits(reduce_field(entries), reduce_field(whole))


def test_numbers_are_added_in_the_tree_of_client_ids():
    """Clients 1, 2, 6 and 7: (1 + 2) + (6 + 7), where an order by id gives another rounding."""
    small, big = torch.tensor(2.0**-53), torch.tensor(1.0)
    entries = {1: Sum(big), 2: Sum(small), 6: Sum(small), 7: Sum(small)}
    assert float(reduce_field(entries).value) == (1.0 + 2.0**-53) + (2.0**-53 + 2.0**-53) > 1.0
    assert ((1.0 + 2.0**-53) + 2.0**-53) + 2.0**-53 == 1.0


def test_results_lie_in_memory_the_same_way_whoever_comes_first():
    plain = values(0, 4, 3, 5, 5)
    channels_last = plain.contiguous(memory_format=torch.channels_last)
    for order in ([plain, channels_last], [channels_last, plain]):
        reduced = reduce_listed([Mean(value, torch.tensor(1.0)) for value in order])
        assert reduced.value.stride() == plain.stride() and torch.equal(reduced.value, plain)


def test_a_zero_has_one_sign():
    """Minus zero times a weight: the sum of who sent nothing must not show in the result."""
    alone = reduce_listed([Sum(torch.tensor([-0.0]))])
    beside = reduce_listed(
        [Sum(torch.tensor([-0.0])), Sum(torch.tensor([5.0]), torch.tensor([0.0]))]
    )
    assert torch.signbit(alone.value).tolist() == torch.signbit(beside.value).tolist() == [False]


def test_reduced_is_a_value():
    assert Reduced(torch.ones(2), torch.tensor(1.0)).or_else(torch.zeros(2)).tolist() == [1.0, 1.0]


def deep(levels):
    value = torch.ones(1)
    for _ in range(levels):
        value = {"a": value}
    return Mean(value, torch.tensor(1.0))


class Unreadable(dict):
    """An upload that exits when it is looked at."""

    def __iter__(self):
        raise SystemExit(0)


class Impostor(NamedTuple):
    value: object
    weight: object


Impostor.__name__ = "Mean"


@pytest.mark.parametrize(
    "upload",
    [
        Unreadable(a=1),
        {**sound(), "model": deep(3000)},
        {**sound(), "model": Mean({"w": torch.ones(3).to("meta")}, torch.tensor(1.0))},
    ],
    ids=["exits", "deep", "without values"],
)
def test_an_upload_that_cannot_be_checked_is_a_problem(upload):
    found = problem_with(upload, MESSAGES)
    assert found is not None and str(found)


COUNTED = {
    "model": Field(kind="model", shapes=(2,)),
    "means": Field(kind="class_means", shapes=(3, 2), weight="class_counts"),
    "labels": Field(kind="counts", shapes=(3,), reduction="sum"),
}


def counted(weight=5.0, counts=(3.0, 0.0, 2.0), labels=(3.0, 0.0, 2.0), value=0.0):
    """Return an upload of a client with five training examples."""
    return {
        "model": Mean(torch.full((2,), value), torch.tensor(weight)),
        "means": Mean(torch.zeros(3, 2), torch.tensor(counts)),
        "labels": Sum(torch.tensor(labels)),
    }


def test_weights_and_counts_agree_with_what_the_server_knows():
    assert problem_with(counted(), COUNTED, num_train=5) is None
    assert problem_with(counted(weight=6.0), COUNTED) is None, "the number of examples is not known"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"weight": 6.0}, "model", "weight is 6, but the client has 5 training examples"),
        ({"weight": 0.0}, "model", "weight is 0, but the client has 5 training examples"),
        ({"counts": (3.0, 0.0, 3.0)}, "means", "weight is for 6 examples, but the client has 5"),
        ({"counts": (2.5, 0.0, 2.5)}, "means", "weight is not the number of examples by class"),
        ({"labels": (3.0, -1.0, 2.0)}, "labels", "it has values that are not counts"),
        ({"labels": (2.5, 0.5, 2.0)}, "labels", "it has values that are not counts"),
        ({"value": -1e31}, "model", "has values beyond 1e+30"),
    ],
)
def test_a_client_cannot_claim_other_numbers_of_examples(change, field, words):
    found = problem_with(counted(**change), COUNTED, num_train=5)
    assert found.field == field and words in str(found)


def test_large_numbers_of_examples_are_compared_as_float32_holds_them():
    count = 2**24 + 1
    upload = {"model": Mean(torch.zeros(2), torch.tensor(float(count)))}
    assert problem_with(upload, {"model": COUNTED["model"]}, num_train=count) is None


def test_a_class_of_the_same_name_is_no_mean():
    upload = {
        name: Impostor(*entry) if isinstance(entry, Mean) else entry
        for name, entry in sound().items()
    }
    assert problem_with(upload, MESSAGES).kind == "reduction"
