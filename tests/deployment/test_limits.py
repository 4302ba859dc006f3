"""The byte border: random and changed messages of a site cost little, and stop nothing."""

import json
import os
import random
import struct
import time
import tracemalloc

import pytest
import torch

from fedtailor.core.codec import decode, encode
from fedtailor.core.engine import Failure
from fedtailor.core.errors import DataError
from fedtailor.deployment import limits
from fedtailor.deployment.envelope import Envelope, head_from_text
from fedtailor.deployment.remote import RemoteClients
from fedtailor.deployment.server import read_agreement
from fedtailor.deployment.wire import from_blob
from fedtailor.simulation.clients import PersonalizeReply, TrainReply
from fedtailor.simulation.programs import PersonalizeRequest, TrainRequest
from hostile import Once, Tolerant, changed_frames
from sites import VALUES, World, divide_digits, from_bytes, to_bytes, write_arrays

STRANGE = [
    lambda: torch.zeros(2**40, 0),
    lambda: torch.zeros(0, 2**40, dtype=torch.uint8),
    lambda: torch.zeros(()).expand((1,) * 16).contiguous(),
    lambda: torch.tensor(torch.nan),
    lambda: torch.tensor(-(2**62)),
    lambda: torch.zeros(3, dtype=torch.bool),
    lambda: torch.full((5, 5), 1e38),
    lambda: (),
    dict,
    lambda: ((((),),),),
    lambda: {"x" * 3000: torch.zeros(1)},
    lambda: {number: torch.zeros(1) for number in range(200)},
]
"""What takes the place of a part of an answer."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return what two sites and a server have agreed on, and the answers of the first one."""
    path = tmp_path_factory.mktemp("recorded")
    values = {
        **VALUES,
        "algorithm": {"name": "pfedfda"},
        "federation": {"rounds": 1},
        "evaluation": {"every": 1},
    }
    data = divide_digits(rows=12)
    world = World(path, values=values).write(lambda folder, name: write_arrays(folder, *data[name]))
    world.serve()
    answers = [
        answer
        for client, answer in world.transport.received
        if client == 0 and answer.head["kind"] in ("train", "personalize")
    ]
    return read_agreement(path / "server" / "runs" / "0001"), answers


class Border:
    """The server's side of one site."""

    def __init__(self, agreement):
        """Make what reads answers; it keeps nothing of them."""
        stores = {name: {} for name in ("bases", "per_client", "best_bases", "best_per_client")}
        self.exchange = Once(None)
        self.clients = RemoteClients(
            agreement,
            self.exchange,
            needed=1,
            storage=stores.__getitem__,
            conduct=Tolerant(),
        )

    def read(self, answer, kind):
        """Return what becomes of an answer."""
        self.exchange.answer = answer
        if kind == "train":
            request = TrainRequest(evaluate=True, rank=True)
            ((_, reply),) = self.clients.train(request, (), [0], 1)
            assert isinstance(reply, TrainReply | Failure)
            assert not isinstance(reply, Failure) or "unexpected" not in str(reply)
            return not isinstance(reply, Failure) and reply.problem is None

        request = PersonalizeRequest(new=False, validate=False, rank=True)
        ((_, reply),) = self.clients.personalize(request, (), [0], 1)
        assert isinstance(reply, PersonalizeReply | Failure)
        assert not isinstance(reply, Failure) or "unexpected" not in str(reply)
        return not isinstance(reply, Failure)


def with_strange_part(answer, generator):
    """Return an answer in which one part of the tree is something else."""

    def replaced(value):
        is_inner = isinstance(value, dict) and value
        if not is_inner or generator.random() < 0.2:
            return generator.choice(STRANGE)()
        key = generator.choice(sorted(value, key=str))
        return {**value, key: replaced(value[key])}

    out = decode(answer.blobs["out"], modules={"fedtailor"})
    return Envelope(answer.head, {"out": encode(replaced(out))})


def with_made_header(answer, generator):
    """Return an answer whose tree has a header made by hand."""
    axes = generator.choice((1, 5, 40, 20_000))
    count = generator.choice((1, 3, 500, 20_000))
    if axes * count > 10**5:
        count = min(count, 2)
    tensors = {f"t{number}": {"dtype": "F32", "shape": [1] * axes} for number in range(count)}
    for number, entry in enumerate(tensors.values()):
        entry["data_offsets"] = [4 * number, 4 * number + 4]
    depth = generator.choice((1, 100, 900))
    tree = "[" * depth + "]" * depth
    text = json.dumps({"version": 1, "tree": {"dict": json.loads(tree)}})
    raw = json.dumps({"__metadata__": {"fedtailor": text}, **tensors}).encode()
    blob = struct.pack("<Q", len(raw)) + raw + bytes(4 * len(tensors))
    return Envelope(answer.head, {"out": blob})


def strange_answers(answers, count, seed=11):
    """Yield the kind of a request and an answer to it, changed in one of four ways."""
    generator = random.Random(seed)
    frames = [to_bytes(answer) for answer in answers]
    changed = changed_frames(frames, 10 * count)
    produced = 0
    while produced < count:
        answer = generator.choice(answers)
        way = produced % 4
        if way == 0:
            yield answer.head["kind"], with_strange_part(answer, generator)
        elif way == 1 and produced % 40 == 1:
            yield answer.head["kind"], with_made_header(answer, generator)
        elif way == 2:
            blob = generator.randbytes(generator.choice((0, 7, 8, 9, 100, 5000)))
            yield answer.head["kind"], Envelope(answer.head, {"out": blob})
        else:
            try:
                message = from_bytes(next(changed))
            except DataError:
                message = Envelope({}, {})
            yield generator.choice(("train", "personalize")), message
        produced += 1


def feed(recorded, count):
    """Read many strange answers, and print what they cost."""
    agreement, answers = recorded
    border = Border(agreement)
    worst = {"seconds": 0.0, "traced": 0, "accepted": 0}
    resident = memory("VmRSS")
    accepted = 0
    begun = time.monotonic()
    for number, (kind, answer) in enumerate(strange_answers(answers, count)):
        size = sum(map(len, answer.blobs.values()))
        is_traced = number % 20 == 0
        if is_traced:
            tracemalloc.start()
        start = time.process_time()
        is_accepted = border.read(answer, kind)
        if is_traced:
            worst["traced"] = max(worst["traced"], tracemalloc.get_traced_memory()[1] - 40 * size)
            tracemalloc.stop()
        else:
            worst["seconds"] = max(worst["seconds"], time.process_time() - start)
        if is_accepted:
            accepted += 1
            worst["accepted"] = max(worst["accepted"], size)

    grown = max(memory("VmRSS") - resident, 0)
    seconds = time.monotonic() - begun
    print(f"{count} answers, {accepted} accepted, {seconds:.0f} s, {worst}, grown {grown}")
    assert worst["seconds"] < 10
    assert worst["traced"] < 8 * 2**20
    assert grown < 200 * 2**20
    assert accepted < count / 2


def memory(name):
    """Return a number of bytes that the system knows of this process; 0 where it does not."""
    if not os.path.exists("/proc/self/status"):
        return 0
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return 1024 * int(lines[name].split()[0])


def test_strange_answers_cost_little_and_stop_nothing(recorded):
    feed(recorded, 80)


@pytest.mark.slow
def test_a_hundred_thousand_strange_answers_cost_little_and_stop_nothing(recorded):
    feed(recorded, 100_000)


@pytest.mark.slow
def test_the_largest_head_takes_bounded_memory():
    """The text that becomes most values."""
    text = b'{"a":[' + b"[]," * (limits.MOST_HEAD_VALUES // 2 - 8) + b"1]}"
    tracemalloc.start()
    head_from_text(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"head of {len(text)} bytes: {peak} bytes")
    assert peak < 100 * 2**20


def test_larger_heads_and_headers_are_refused_unread():
    with pytest.raises(DataError, match="more than"):
        head_from_text(b'{"a":[' + b"[]," * limits.MOST_HEAD_VALUES + b"1]}")

    for axes, count in ((40_000, 1), (1, limits.MOST_LEAVES + 1)):
        shape = {"dtype": "F32", "shape": [0] * axes, "data_offsets": [0, 0]}
        tensors = {f"t{number}": shape for number in range(count)}
        raw = json.dumps({"__metadata__": {"fedtailor": "{}"}, **tensors}).encode()
        start = time.process_time()
        with pytest.raises(DataError, match=r"axes, more|leaves"):
            from_blob(struct.pack("<Q", len(raw)) + raw, ())
        assert time.process_time() - start < 5
