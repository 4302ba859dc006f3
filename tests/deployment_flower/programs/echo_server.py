"""A ServerApp that exchanges messages until a file ``stop`` appears, and writes down what
happened."""

import hashlib
import json
import os
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.flower.goodbyes import Goodbyes
from fedtailor.deployment.flower.transport import GridTransport

RESEND = 15.0


def exchange(transport, requests):
    """Ask all, again those that do not answer, and return the replies by client."""
    begun = time.monotonic()
    sent = begun
    transport.send(requests)
    replies = {}
    failures = []
    while len(replies) < len(requests) and time.monotonic() - begun < 180:
        for client, reply in transport.receive(1.0):
            if isinstance(reply, Envelope):
                replies[client] = reply
            else:
                failures.append([client, *reply])
        if time.monotonic() - sent > RESEND:
            sent = time.monotonic()
            transport.send(
                {client: request for client, request in requests.items() if client not in replies}
            )
    transport.forget()
    return replies, failures, time.monotonic() - begun


def main(grid: Grid, context: Context) -> None:
    """Exchange messages with the sites of ``nodes.json``."""
    folder = Path(str(context.run_config["folder"]))
    node_of = {
        int(client): node
        for client, node in json.loads((folder / "nodes.json").read_text()).items()
    }
    transport = GridTransport(grid, lambda: node_of, Goodbyes(Path("goodbyes.json")))
    while transport.online() != set(node_of):
        time.sleep(0.2)
    blob = os.urandom(100_000)
    number = 0
    with (folder / "exchanges.jsonl").open("a") as log:
        while not (folder / "stop").exists():
            head = {"number": number, "site_that_fails": "site0" if number == 1 else None}
            own = {client: os.urandom(100) for client in node_of}
            requests = {
                client: Envelope(head, {"shared": blob, "own": own[client], "none": b""})
                for client in node_of
            }
            replies, failures, seconds = exchange(transport, requests)
            record = {
                "number": number,
                "seconds": round(seconds, 2),
                "failures": failures,
                "heads": {client: reply.head for client, reply in replies.items()},
                "same": {
                    client: reply.blobs == requests[client].blobs
                    for client, reply in replies.items()
                    if reply.blobs
                },
                "digest": hashlib.sha256(blob).hexdigest(),
            }
            log.write(json.dumps(record) + "\n")
            log.flush()
            number += 1


server_app = ServerApp()
server_app.main()(main)
