"""A resident process that echoes what it is asked, with its process id: python echo_site.py
FOLDER."""

import os
import signal
import sys
from pathlib import Path

from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.resident import _end, serve, socket_path

folder = Path(sys.argv[1])


def answer(envelope: Envelope) -> Envelope:
    """Return the message, or do what its head says."""
    if envelope.head.get("site_that_fails") == folder.name:
        raise ValueError("I was told to fail")
    return Envelope(
        {"site": folder.name, "pid": os.getpid(), "asked": envelope.head}, envelope.blobs
    )


signal.signal(signal.SIGTERM, _end)
serve(socket_path(folder), answer)
