"""Flower's ClientApp: a process for every message, which only asks the site's resident process.

No torch here, because each message would load it again.
"""

from __future__ import annotations

import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedtailor.core.errors import FedtailorError, describe_error, one_line
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.flower.records import pack, unpack
from fedtailor.deployment.resident import ask, socket_path

RESTART_SECONDS = 60.0
"""How long a resident process may need to start again; then the request fails."""
_TIMES = 2
"""How often a request is asked if the process ends in the middle; the request may have ended it."""
_LONGEST_WORK = 24 * 3600.0


def answer(message: Message, context: Context) -> Message:
    """Return the resident process's reply, or one with the head ``{"failed": reason}``."""
    try:
        reply = _ask(Path(str(context.node_config["folder"])), unpack(message.content))
    except FedtailorError as error:
        reply = Envelope({"failed": one_line(error.message)})
    except OSError as error:
        reply = Envelope({"failed": f"the site's process does not answer: {describe_error(error)}"})
    return Message(pack(reply), reply_to=message)


def _ask(folder: Path, request: Envelope) -> Envelope:
    """Ask the resident process, and wait for it if it is being restarted."""
    path = socket_path(folder)
    end = time.monotonic() + RESTART_SECONDS
    asked = 0
    while True:
        try:
            return ask(path, request, _LONGEST_WORK)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > end:
                raise
        except ConnectionError:
            asked += 1
            if asked == _TIMES:
                raise

            end = time.monotonic() + RESTART_SECONDS

        time.sleep(0.1)


client_app = ClientApp()
client_app.train()(answer)
