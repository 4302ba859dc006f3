"""Messages that were changed on their way, or made to harm: they are refused in words, and nothing
is imported."""

import codecs
import json
import os
import random
import sys

import pytest
import torch

from fedtailor.core.codec import encode
from fedtailor.core.engine import Failure
from fedtailor.core.errors import DataError
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.plan import read_plan
from fedtailor.deployment.remote import RemoteClients
from fedtailor.deployment.server import read_agreement
from fedtailor.simulation.clients import PersonalizeReply, TrainReply
from fedtailor.simulation.programs import PersonalizeRequest, TrainRequest
from hostile import Once, Tolerant, changed_frames
from sites import VALUES, World, divide_digits, from_bytes, to_bytes, write_arrays

FULL = bool(os.environ.get("FEDTAILOR_FULL"))
COUNT = 10_000 if FULL else 150
"""Changed messages in each direction, or both together."""
DATA = divide_digits(rows=12)
NO_PLAN = "it is not what a server writes"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a finished world, and the requests and answers of its run."""
    path = tmp_path_factory.mktemp("recorded")
    values = {**VALUES, "algorithm": {"name": "pfedfda"}, "federation": {"rounds": 2}}
    world = World(path, values=values).write(lambda folder, name: write_arrays(folder, *DATA[name]))
    world.serve()
    return world


def test_no_changed_request_harms_a_site(recorded):
    frames = [to_bytes(request) for client, request in recorded.transport.sent if client == 0]
    site = recorded.open()[0]
    codecs.lookup("ascii")  # a site reads texts with it
    before = set(sys.modules)
    answered = 0
    for frame in changed_frames(frames, COUNT):
        try:
            request = from_bytes(frame)
        except DataError:
            continue
        answer = site.answer(request)
        answered += 1

        # A method may fail on a model that was changed, and nothing else fails.
        runs_method = answer.head.get("kind") in ("train", "score", "personalize")
        assert "failed" not in answer.head or runs_method, answer.head
        json.dumps(answer.head, allow_nan=False)
    assert answered > COUNT / 10
    assert not {
        name
        for name in set(sys.modules) - before
        if not name.startswith(("fedtailor", "torch", "numpy"))
    }


def test_no_changed_answer_harms_the_server(recorded):
    kinds = {
        "train": (TrainRequest(), TrainReply),
        "personalize": (PersonalizeRequest(False, False), PersonalizeReply),
    }
    agreement = read_agreement(recorded.path / "server" / "runs" / "0001")
    frames = [
        to_bytes(answer)
        for client, answer in recorded.transport.received
        if client == 0 and answer.head.get("kind") in kinds and answer.blobs
    ]
    generator = random.Random(3)
    before = set(sys.modules)
    read = 0
    for frame in changed_frames(frames, COUNT):
        try:
            answer = from_bytes(frame)
        except DataError:
            continue
        request, kind = kinds[generator.choice(sorted(kinds))]
        ((_, reply),) = ask(agreement, request, answer)
        assert isinstance(reply, kind | Failure)
        read += 1
    assert read > COUNT / 10
    assert not {
        name
        for name in set(sys.modules) - before
        if not name.startswith(("fedtailor", "torch", "numpy"))
    }


def ask(agreement, request, answer):
    """Return what the server reads from an answer of the first site."""
    stores = {name: {} for name in ("bases", "per_client", "best_bases", "best_per_client")}
    clients = RemoteClients(
        agreement,
        Once(answer),
        needed=1,
        storage=stores.__getitem__,
        conduct=Tolerant(),
    )
    ask_them = clients.train if isinstance(request, TrainRequest) else clients.personalize
    return list(ask_them(request, (), [0], 1))


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"),
    reason="the system does not tell the peak of memory",
)
def test_an_answer_takes_at_most_twice_its_memory(recorded):
    agreement = read_agreement(recorded.path / "server" / "runs" / "0001")
    out = {"upload": {"values": {"body": {"x": torch.zeros(2**24)}}}, "metrics": {}, "scores": ()}
    answer = Envelope(
        {"kind": "train", "run": agreement.plan.run, "round": 1, "attempt": 0}, {"out": encode(out)}
    )
    del out
    size = len(answer.blobs["out"])
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = memory("VmRSS")
    ((_, reply),) = ask(agreement, TrainRequest(), answer)
    assert isinstance(reply, Failure)
    assert memory("VmHWM") - before < 2.05 * size


def memory(name):
    """Return a number of bytes that the system knows of this process."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return 1024 * int(lines[name].split()[0])


@pytest.mark.parametrize("key", ["algorithm", "model"])
def test_a_site_imports_no_method_or_model_that_it_does_not_allow(
    recorded, tmp_path, monkeypatch, key
):
    (tmp_path / "evil_method.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = read_agreement(recorded.path / "server" / "runs" / "0001").plan
    record = json.loads(plan.raw)
    config = record["config"]
    name = "pfedfda" if key == "algorithm" else "mlp"
    assert f'name = "{name}"' in config
    record["config"] = config.replace(f'name = "{name}"', 'name = "evil_method:Evil"')
    raw = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
    site = recorded.open()[0]
    answer = site.answer(Envelope({"kind": "begin", "client": 0}, {"plan": raw}))
    assert "'evil_method:Evil'" in answer.head["refused"]
    assert "evil_method" not in sys.modules


def test_a_site_with_a_list_of_methods_runs_no_other(recorded):
    site = recorded.open()[0]
    object.__setattr__(site.options, "algorithms", ("fedavg", "pfedfd"))
    plan = read_agreement(recorded.path / "server" / "runs" / "0001").plan
    answer = site.answer(Envelope({"kind": "begin", "client": 0}, {"plan": plan.raw}))
    assert "'pfedfda'" in answer.head["refused"] and "fedavg, pfedfd" in answer.head["refused"]


def test_a_plan_survives_as_it_is(recorded):
    plan = read_agreement(recorded.path / "server" / "runs" / "0001").plan
    again = read_plan(plan.raw)
    assert again.digest == plan.digest
    assert again.config == plan.config
    assert again.inputs.digest == plan.inputs.digest


def written(**values):
    """Return how a plan is written with other values."""
    return lambda record: compact({**record, **values})


def compact(record):
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (written(run="../x"), NO_PLAN),
        (written(run=""), NO_PLAN),
        (written(run=7), "damaged"),
        (written(lineage=["a", "../x"]), NO_PLAN),
        (written(lineage=["a"] * 1001), NO_PLAN),
        (written(lineage="abc"), NO_PLAN),
        (written(leader="oslo"), NO_PLAN),
        (written(sites="4"), "whole number from 0 to 1000000 in .sites."),
        (written(sites=4.0), "whole number from 0 to 1000000 in .sites."),
        (written(new_sites=True), "whole number from 0 to 2 in .new_sites."),
        (written(new_sites=10**7), "whole number from 0 to 2 in .new_sites."),
        (written(mean="0"), "damaged"),
        (written(config=3), "damaged"),
        (written(fedtailor="0.0.1"), "both sides need the same"),
        (json.dumps, NO_PLAN),
        (lambda record: compact(record) + "\n", NO_PLAN),
        (lambda record: compact([record]), "both sides need the same"),
    ],
)
def test_what_no_server_writes_is_no_plan(recorded, write, problem):
    raw = read_agreement(recorded.path / "server" / "runs" / "0001").plan.raw
    record = json.loads(raw)
    assert compact(record).encode() == raw
    assert read_plan(compact({**record, "lineage": ["a"] * 1000}).encode())
    with pytest.raises(DataError, match=problem):
        read_plan(write(record).encode())
