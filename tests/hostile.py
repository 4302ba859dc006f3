"""Messages of a site that lies, and the parts of a server that reads them."""

import json
import random

from fedtailor.deployment.envelope import Envelope
from sites import from_bytes, to_bytes


def mutated(frame, generator):
    """Return a frame with a few bytes changed, cut, doubled or made of another message's parts."""
    raw = bytearray(frame)
    for _ in range(generator.choice((1, 1, 2, 8))):
        kind = generator.randrange(6)
        place = generator.randrange(len(raw)) if raw else 0
        if kind == 0 and raw:
            raw[place] = generator.randrange(256)
        elif kind == 1:
            del raw[place : place + generator.choice((1, 7, 300))]
        elif kind == 2:
            raw[place:place] = generator.randbytes(generator.choice((1, 8, 64)))
        elif kind == 3 and raw:
            raw[place] ^= 1 << generator.randrange(8)
        elif kind == 4:
            raw = raw[:place]
        else:
            raw[place:place] = raw[place : place + 50]
    return bytes(raw)


def with_changed_head(frame, generator):
    """Return a message in which a value of the head was replaced by something else."""
    envelope = from_bytes(frame)
    head = json.loads(json.dumps(envelope.head))
    key = generator.choice(sorted(head))
    strange = [
        None,
        -1,
        2**70,
        "x" * 5000,
        [],
        {},
        [[[]]],
        True,
        1e308,
        "\x00",
        "../../etc",
        {"a": {"b": []}},
    ]
    head[key] = generator.choice(strange)
    return to_bytes(Envelope(head, envelope.blobs))


def changed_frames(frames, count):
    """Yield changed messages."""
    generator = random.Random(7)
    for number in range(count):
        frame = generator.choice(frames)
        yield with_changed_head(frame, generator) if number % 4 == 0 else mutated(frame, generator)


class Once:
    """An exchange in which one site gives a fixed answer."""

    def __init__(self, answer):
        """Take the answer."""
        self.answer = answer

    def ask(self, requests, **_):
        """Return it."""
        return dict.fromkeys(requests, self.answer)

    def away(self):
        """Return no site."""
        return {}


class Tolerant:
    """Notes nothing of what sites do."""

    def note(self, client, stage, round, reason):
        """Do nothing."""

    def excluded(self):
        """Return no site."""
        return {}
