"""Messages between server and site: the same after the way there, and nothing but DataError for
damaged ones."""

import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

import fedtailor
from fedtailor.core.errors import DataError
from fedtailor.deployment import envelope as module
from fedtailor.deployment.envelope import (
    Envelope,
    head_from_text,
    head_to_text,
    receive,
    send,
)
from sites import from_bytes, to_bytes

MESSAGES = [
    Envelope({}),
    Envelope({"kind": "train", "round": 3, "nested": {"list": [1, 2.5, None, True, "ä"]}}),
    Envelope({"kind": "x"}, {"empty": b"", "shared": bytes(range(256)) * 40, "a.b-c_D": b"\x00"}),
]


def frame_of(text: bytes, blobs: bytes = b"", *, length=None) -> bytes:
    return struct.pack("<I", len(text) if length is None else length) + text + blobs


def frame_of_json(value: object, blobs: bytes = b"") -> bytes:
    return frame_of(json.dumps(value).encode(), blobs)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_socket_gives_the_message_back(message):
    left, right = socket.socketpair()
    with left, right:
        sender = threading.Thread(target=lambda: (send(left, message), send(left, message)))
        sender.start()
        assert receive(right) == message
        assert receive(right) == message
        sender.join()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"FTE",
        b"GET / HTTP/1.1\r\n\r\n",
        frame_of(b"{}", length=10),
        frame_of(b"{}", length=2**32 - 1),
        frame_of(b"\xff\xfe"),
        frame_of(b'{"head":{},"blobs":{}'),
        frame_of(b"[" * 100_000),
        frame_of(b'{"head":{"a":NaN},"blobs":{}}'),
        frame_of(b'{"head":{"a":1,"a":2},"blobs":{}}'),
        frame_of(b'{"head":{"a":' + b"9" * 10_000 + b'},"blobs":{}}'),
        frame_of_json([]),
        frame_of_json({"head": {}}),
        frame_of_json({"head": {}, "blobs": {}, "more": 1}),
        frame_of_json({"head": [], "blobs": {}}),
        frame_of_json({"head": {}, "blobs": []}),
        frame_of_json({"head": {}, "blobs": [["a", 0]]}),
        frame_of_json({"head": {}, "blobs": {"a": -1}}),
        frame_of_json({"head": {}, "blobs": {"a": True}}, b"x"),
        frame_of_json({"head": {}, "blobs": {"a": 1.0}}, b"x"),
        frame_of_json({"head": {}, "blobs": {"a": 10**30}}),
        frame_of_json({"head": {}, "blobs": {"a": 2}}, b"x"),
        frame_of_json({"head": {}, "blobs": {"a": 1}}, b"xy"),
        frame_of_json({"head": {}, "blobs": {"../a": 1}}, b"x"),
        frame_of_json({"head": {}, "blobs": {"": 1}}, b"x"),
        frame_of(b'{"head":{},"blobs":{"a":1,"a":1}}', b"xy"),
    ],
)
def test_damaged_frames_are_refused(frame):
    with pytest.raises(DataError):
        from_bytes(frame)


def test_mutated_frames_give_a_message_or_a_data_error():
    draw = random.Random(0)
    refused = 0
    for number in range(1000):
        frame = bytearray(to_bytes(MESSAGES[number % 3]))[:400]
        for _ in range(draw.randint(1, 4)):
            position = draw.randrange(len(frame))
            change = draw.randrange(4)
            if change == 0:
                frame[position] = draw.randrange(256)
            elif change == 1:
                frame[position] ^= 1 << draw.randrange(8)
            elif change == 2:
                del frame[position : position + draw.randint(1, 20)]
                frame += b"\0"
            else:
                frame[position:position] = frame[draw.randrange(len(frame)) :][:16]
        try:
            message = from_bytes(bytes(frame))
        except DataError:
            refused += 1
        else:
            assert isinstance(message.head, dict)
            assert all(isinstance(blob, bytes) for blob in message.blobs.values())
    assert refused > 600


def test_what_is_announced_but_not_sent_takes_no_memory():
    text = json.dumps({"head": {}, "blobs": {"a": 2**30}}).encode()
    left, right = socket.socketpair()
    with left, right:
        left.sendall(frame_of(text) + b"only this")
        left.shutdown(socket.SHUT_WR)
        tracemalloc.start()
        with pytest.raises(ConnectionError, match="9 of 1073741824"):
            receive(right)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 4 * 1024**2


@pytest.mark.parametrize(
    "message",
    [
        Envelope({"a": float("nan")}),
        Envelope({"a": {1, 2}}),
        Envelope(["no", "object"]),
        Envelope({}, {"a/b": b""}),
        Envelope({"a": "x" * (module.LARGEST_HEAD + 1)}),
    ],
    ids=["nan", "set", "list", "name", "large"],
)
def test_what_is_no_message_is_not_sent(message):
    with pytest.raises(DataError):
        to_bytes(message)


def test_heads_alone_follow_the_same_rules():
    head = {"kind": "hello", "n": [1, 2]}
    assert head_from_text(head_to_text(head)) == head
    for text in ("[]", "{", '{"a":Infinity}', '{"a":1,"a":1}', " " * (module.LARGEST_HEAD + 1)):
        with pytest.raises(DataError):
            head_from_text(text)
    with pytest.raises(DataError):
        head_to_text({"a": float("inf")})


def test_the_modules_of_a_new_process_import_the_standard_library_only():
    code = (
        "import sys; import fedtailor.deployment.envelope, fedtailor.deployment.resident; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    source = str(
        Path(fedtailor.__file__).parents[1]
    )  # without site, an installed package is not found
    command = [sys.executable, "-S", "-c", code]
    env = {**os.environ, "PYTHONPATH": source}
    output = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert set(json.loads(output.replace("'", '"'))) <= {"fedtailor"} | {"__main__"}
