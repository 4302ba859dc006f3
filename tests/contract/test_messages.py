"""An algorithm sends, keeps and returns what it declares, and does not change its inputs."""

import math

import pytest
import torch

from contract.cases import ALGORITHMS, FEW, build, cases, oracle, small_federation
from contract.test_any_federation import VARIANTS
from fedtailor.core import tree
from fedtailor.core.adaptation import WithoutTraining, describe
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.codec import decode, encode
from fedtailor.core.federation import Cohort
from fedtailor.core.message import Each, Mean, Sum, download_bytes, tree_bytes, upload_bytes
from fedtailor.core.reduction import reduce_field
from fedtailor.core.rng import new_key
from fedtailor.core.upload_checks import problem_with
from fedtailor.deployment.packing import (
    pack_download,
    pack_upload,
    unpack_download,
    unpack_upload,
)
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.engines import Guarding
from fedtailor.testing.runs import assert_same_bits, run
from fedtailor.testing.spy import spied, structure

REDUCTIONS = {Mean: "mean", Sum: "sum", Each: "each"}


def scalars(kind, leaf):
    """Return how many numbers of a leaf are sent if all are: half a symmetric matrix, with its
    diagonal."""
    return leaf.shape[0] * (leaf.shape[0] + 1) // 2 if kind == "covariance" else leaf.numel()


@cases("uploads")
def test_uploads_are_those_declared(algorithm, model):
    declared = build(algorithm).messages(small_federation(model).common_task)
    for (_, client), output in oracle(algorithm, model).of("train").items():
        _, upload, *_ = output
        assert set(upload) == {
            name for name, field in declared.items() if field.reduction != "none"
        }
        for name, entry in upload.items():
            field = declared[name]
            assert REDUCTIONS[type(entry)] == field.reduction
            expected = {path: (shape, torch.float64) for path, shape in field.leaf_shapes().items()}
            assert {
                path: (shape, dtype) for path, shape, dtype in structure(entry.value)
            } == expected
            if isinstance(entry, Mean) and field.weight != "own":
                info = small_federation(model).info(client)._asdict()
                assert_same_bits(entry.weight, info.get(field.weight, torch.ones(())))


@cases("bytes")
def test_bytes_are_those_of_the_leaves(algorithm, model):
    declared = build(algorithm).messages(small_federation(model).common_task)
    trace = oracle(algorithm, model)
    for report in trace.reports:
        count = 0
        bits = 0
        for client in report.cohort:
            weights = {}
            for name, entry in trace.of("train")[report.round, client][1].items():
                field = declared[name]
                mask = entry.weight if isinstance(entry, Mean) else getattr(entry, "mask", ())
                rows = 1 if isinstance(mask, tuple) else mask.count_nonzero() / mask.numel()
                count += sum(
                    round(float(scalars(field.kind, leaf) * rows))
                    for leaf in tree.leaves(entry.value)
                )
                if isinstance(entry, Mean):
                    assert rows > 0
                if isinstance(entry, Mean) and field.weight != "equal":
                    weights[field.weight] = entry.weight.numel()
                if isinstance(entry, Sum) and not isinstance(mask, tuple):
                    bits += math.ceil(mask.numel() / 8)
            count += sum(weights.values())
        assert report.bytes_up == 4 * count + bits
        down = [
            math.prod(shape)
            for f in declared.values()
            if f.down
            for shape in f.leaf_shapes().values()
        ]
        packed = [
            math.comb(f.shapes[0], 2)
            for f in declared.values()
            if f.down and f.kind == "covariance"
        ]
        assert report.bytes_down == 4 * (sum(down) - sum(packed)) * len(report.cohort)


@cases("travelling")
def test_what_travels_has_the_same_bits_and_the_bytes_that_are_counted(algorithm, model):
    federation = small_federation(model)
    one = build(algorithm)
    messages = one.messages(one.bind(federation.common_task))
    modules = ["fedtailor"]
    trace = oracle(algorithm, model)
    uploads = {
        client: output.upload for (round, client), output in trace.of("train").items() if round == 1
    }
    arrived = {}
    for client, upload in uploads.items():
        packed = pack_upload(upload, messages)
        assert tree_bytes(packed) == upload_bytes(upload, messages)
        received = decode(encode(packed, modules=modules), modules=modules)
        arrived[client] = unpack_upload(received, messages)
        assert (
            problem_with(arrived[client], messages, int(federation.info(client).num_train)) is None
        )
    assert trace.reports[0].bytes_up == sum(
        upload_bytes(upload, messages) for upload in uploads.values()
    )
    for name in next(iter(uploads.values())):
        reduced = [
            reduce_field({client: each[name] for client, each in all.items()})
            for all in (uploads, arrived)
        ]
        assert type(reduced[0].value) is type(reduced[1].value)
        assert_same_bits(*reduced)

    shared = one.broadcast(trace.reports[0].state.server, Cohort(torch.arange(3), 7, 2, 2))
    packed = pack_download(shared, messages)
    per_client = one.init_per_client(federation.common_task, federation.info(0), new_key(0))
    sent = tree_bytes(packed) + tree_bytes(per_client)
    assert sent == download_bytes(messages)
    found = unpack_download(decode(encode(packed, modules=modules), modules=modules), messages)
    assert structure(found) == structure(shared)
    assert_same_bits(found, shared)
    assert [leaf.stride() for leaf in tree.leaves(found)] == [
        leaf.stride() for leaf in tree.leaves(shared)
    ]


@cases("steps")
def test_gradient_steps_are_reported(algorithm, model):
    """Tables print the steps spent, which come from the metric ``steps``: two epochs of batches of
    5 at least, unless nothing is trained."""
    epochs = 0 if build(algorithm).exchanges else 2
    sizes = {
        client: len(split.train) for client, split in enumerate(small_federation(model).splits)
    }
    for report in oracle(algorithm, model).reports:
        steps = report.metrics["steps"]
        assert set(steps) == set(report.cohort) == {0, 1, 2, 3, 4, 6}
        assert all(count >= epochs * -(-sizes[client] // 5) for client, count in steps.items())
        assert report.steps >= sum(steps.values())


@cases("downloads")
def test_downloads_are_those_declared(algorithm, model):
    task = small_federation(model).common_task
    info = small_federation(model).info(0)
    key = new_key(0)
    for options in ({}, *VARIANTS.get(algorithm, [])):
        one = build(algorithm, **options)
        fields = [field for field in one.messages(task).values() if field.down]
        sent = (
            one.broadcast(one.init_federation(task, 7, key), Cohort(torch.arange(3), 7, 1, 2)),
            one.init_per_client(task, info, key),
        )
        declared = [shape for field in fields for shape in field.leaf_shapes().values()]
        assert sorted(tuple(leaf.shape) for leaf in tree.leaves(sent)) == sorted(declared)


@cases("steps_of_new_clients")
def test_steps_of_new_clients_count_what_onboarding_says(algorithm, model):
    """Diagnostics of the personal model alone separate the steps of personalization from those of
    onboarding."""
    one = build(algorithm)
    task = small_federation(model).common_task
    trace = oracle(algorithm, model)
    without_steps = [part for part in one.onboarding if isinstance(part, WithoutTraining)]
    takes_steps = describe(one.onboarding) != "none" and not without_steps
    for (_, client), (personal, numbers, _) in trace.of("personalize").items():
        if client in small_federation(model).roster.new:
            steps = numbers["steps"] - one.diagnostics(task, personal).get("steps", 0)
            assert (steps > 0) == (takes_steps and client == 7), "client 8 has no examples"
    last = trace.reports[-1]
    sums = {}
    for evaluation in last.evaluations:
        if evaluation.point == "personalized":
            sums[evaluation.group] = sum(evaluation.diagnostics.get("steps", {}).values())
            assert evaluation.adaptation == one.adaptation_summary(new=evaluation.group == "new")
    assert last.steps == sum(last.metrics["steps"].values()) + sums["known"] + sums["new"]


@cases("structure", few=FEW, engine=[Reference(), Batched(3)])
def test_structures_are_stable_over_rounds_and_inputs_are_not_modified(algorithm, model, engine):
    one, observed = spied(build(algorithm))
    federation = small_federation(model)
    run(one, Guarding(engine), federation)
    task = federation.common_task
    info = federation.info(0)
    key = new_key(0)
    initial = {
        "server_state": one.init_federation(task, federation.roster.population, key),
        "client_state": one.init_client(task, info, key),
        "per_client": one.init_per_client(task, info, key),
        "personal": next(value for value in observed.values["personal"] if value != ()),
    }
    for kind, first in initial.items():
        assert observed.values[kind] or first == (), kind
        for value in observed.values[kind]:
            if kind == "personal" and value == ():
                continue  # there is no model right after training
            assert structure(value) == structure(first), kind


@cases("broadcast")
def test_broadcast_is_a_tree_and_pure(algorithm, model):
    one = build(algorithm)
    task = small_federation(model).common_task
    server = one.init_federation(task, 7, new_key(0))
    before = tree.map(torch.clone, server)
    cohort = Cohort(torch.arange(3), 7, 1, 2)
    first = one.broadcast(server, cohort)
    again = one.broadcast(server, cohort)
    assert_same_bits(first, again)
    assert_same_bits(before, server)


@pytest.mark.parametrize("cls", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_says_what_it_is(cls):
    one = cls()
    assert isinstance(one, Algorithm) and one.trains in ("cohort", "all")
    for words in (describe(one.adaptation), describe(one.onboarding)):
        assert words and "; " not in words and "new client" not in words
    assert describe(one.onboarding) == "none" or cls.onboard is not Algorithm.onboard
    assert (
        "reference" in cls.presets
        and cls() == cls.from_preset("reference")
        and hash(one) == hash(cls())
    )
    for preset in cls.presets:
        cls.from_preset(preset)
    assert set(cls.preset_warnings) <= set(cls.presets)
