"""The transport with a grid that the test answers by hand: whose replies count, and what damaged
ones become."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import SiteFailure
from fedtailor.deployment.flower.goodbyes import Goodbyes
from fedtailor.deployment.flower.records import pack, unpack
from fedtailor.deployment.flower.transport import GridTransport

NODES = {0: 100, 1: 101}


class HandGrid:
    """Keeps what was sent; replies are put there by the test."""

    def __init__(self):
        self.sent = {}
        self.replies = []
        self.refuse = set()
        self.broken = set()
        self.down = False

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            if message.metadata.dst_node_id in self.refuse:
                numbers.append(None)
                continue
            number = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers):
        if self.down:
            raise httpx.ConnectError("down")
        if self.broken & set(numbers):
            raise ValueError("cannot inflate")
        found = [reply for reply in self.replies if reply.metadata.reply_to_message_id in numbers]
        self.replies = [reply for reply in self.replies if reply not in found]
        return found

    def get_node_ids(self):
        return [101, 999]

    def reply(self, number, content, node=None):
        made = Message(content, reply_to=self.sent[number])
        made.metadata.__dict__["_src_node_id"] = node or self.sent[number].metadata.dst_node_id
        self.replies.append(made)


@pytest.fixture
def grid(monkeypatch):
    for name, value in (("_run_id", 1), ("_node_id", 1), ("_task_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)
    return HandGrid()


@pytest.fixture
def transport(grid):
    return GridTransport(grid, lambda: NODES, Goodbyes(Path("none")))


def test_records_give_the_message_back(grid):
    message = Envelope({"a": [1, None]}, {"shared": bytes(range(256)), "none": b""})
    assert unpack(pack(message)) == message


def test_replies_come_back_by_client(grid, transport):
    transport.send({0: Envelope({"n": 0}, {"b": b"x"}), 1: Envelope({"n": 1})})
    assert [message.metadata.dst_node_id for message in grid.sent.values()] == [100, 101]
    assert transport.receive(0) == []
    grid.reply("m1", pack(Envelope({"r": 1})))
    assert transport.receive(0) == [(1, Envelope({"r": 1}, {}))]
    grid.reply("m0", pack(Envelope({"r": 0})))
    assert transport.receive(5) == [(0, Envelope({"r": 0}, {}))]
    assert transport.online() == {1}


def test_sites_get_nodes_and_lose_them_while_the_transport_is_in_use(grid):
    nodes = {0: 100}
    transport = GridTransport(grid, lambda: nodes, Goodbyes(Path("none")))
    transport.send({0: Envelope({}), 1: Envelope({})})
    failure = SiteFailure("unavailable", "Flower has no node for the site")
    assert transport.receive(0) == [(1, failure)]

    # the second site has its node now, and the first one, which was asked, has none any more
    del nodes[0]
    nodes[1] = 101
    transport.send({1: Envelope({})})
    grid.reply("m0", pack(Envelope({"r": 0})))
    grid.reply("m1", pack(Envelope({"r": 1})))
    replies = transport.receive(0)
    assert replies == [(0, Envelope({"r": 0}, {})), (1, Envelope({"r": 1}, {}))]
    assert transport.online() == {1}


def test_the_first_reply_to_any_of_the_requests_counts(grid, transport):
    transport.send({0: Envelope({})})
    transport.send({0: Envelope({})})
    grid.reply("m1", pack(Envelope({"r": 1})))
    assert len(transport.receive(0)) == 1
    grid.reply("m0", pack(Envelope({"r": 0})))
    assert transport.receive(0) == []


def test_a_failure_does_not_end_the_wait_for_a_resend(grid, transport):
    transport.send({0: Envelope({})})
    transport.send({0: Envelope({})})
    grid.reply("m0", Error(code=5, reason="gone"))
    ((client, failure),) = transport.receive(0)
    assert client == 0
    assert failure == SiteFailure("unavailable", "the site has lost its connection")
    grid.reply("m1", pack(Envelope({"r": 1})))
    assert transport.receive(0) == [(0, Envelope({"r": 1}, {}))]


def test_forgotten_requests_have_no_replies(grid, transport):
    transport.send({0: Envelope({})})
    transport.forget()
    grid.reply("m0", pack(Envelope({"r": 1})))
    assert transport.receive(0) == []


def test_errors_of_the_app_are_failures(grid, transport):
    transport.send({0: Envelope({})})
    grid.reply("m0", Error(code=2, reason="raised\n" + "x" * 10_000))
    ((_, failure),) = transport.receive(0)
    assert failure.kind == "failed"
    assert len(failure.text) <= 500


def test_a_reply_of_another_node_does_not_count(grid, transport):
    transport.send({0: Envelope({})})
    grid.reply("m0", pack(Envelope({"r": 1})), node=101)
    ((client, failure),) = transport.receive(0)
    assert client == 0
    assert "another node: 101 instead of 100" in failure.text


DAMAGED = {
    "nothing": RecordDict(),
    "kinds": RecordDict({"head": MetricRecord({"a": 1}), "blobs": ArrayRecord()}),
    "more": RecordDict(
        {"head": ConfigRecord({"head": "{}"}), "blobs": ArrayRecord(), "more": MetricRecord()}
    ),
    "no text": RecordDict({"head": ConfigRecord({"head": 3}), "blobs": ArrayRecord()}),
    "no JSON": RecordDict({"head": ConfigRecord({"head": "{"}), "blobs": ArrayRecord()}),
    "a list": RecordDict({"head": ConfigRecord({"head": "[]"}), "blobs": ArrayRecord()}),
    "an array": RecordDict(
        {"head": ConfigRecord({"head": "{}"}), "blobs": ArrayRecord({"a": Array(np.ones(3))})}
    ),
    "a name": RecordDict(
        {
            "head": ConfigRecord({"head": "{}"}),
            "blobs": ArrayRecord(
                {"../a": Array(dtype="uint8", shape=(1,), stype="fedtailor.1", data=b"x")}
            ),
        }
    ),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_replies_are_failures(grid, transport, content):
    transport.send({0: Envelope({})})
    grid.reply("m0", content)
    ((client, failure),) = transport.receive(0)
    assert client == 0
    assert isinstance(failure, SiteFailure)
    assert failure.kind == "damaged"


def test_one_reply_that_cannot_be_read_does_not_hide_the_others(grid, transport):
    transport.send({0: Envelope({}), 1: Envelope({})})
    grid.broken = {"m0"}
    grid.reply("m1", pack(Envelope({"r": 1})))
    replies = dict(transport.receive(0))
    assert replies[1] == Envelope({"r": 1}, {})
    assert "cannot inflate" in replies[0].text


def test_requests_that_flower_does_not_take_are_failures(grid, transport):
    grid.refuse = {100}
    transport.send({0: Envelope({}), 1: Envelope({})})
    ((client, failure),) = transport.receive(0)
    assert (client, failure.kind) == (0, "unavailable")


def test_a_lost_connection_is_not_the_sites_failure(grid, transport):
    transport.send({0: Envelope({})})
    grid.down = True
    with pytest.raises(httpx.ConnectError):
        transport.receive(0)


def test_blobs_for_all_are_stored_once(grid):
    blob = bytes(1000)
    first = pack(Envelope({"n": 1}, {"shared": blob}))
    second = pack(Envelope({"n": 2}, {"shared": blob}))
    assert first["blobs"]["shared"].object_id == second["blobs"]["shared"].object_id


def test_the_client_app_imports_no_torch():
    code = "import sys, fedtailor.deployment.flower.client_app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
