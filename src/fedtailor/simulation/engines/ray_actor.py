"""An actor of the engine ``ray``, as it runs in a process of a Ray cluster.

It computes as a child of the engine ``processes`` does, with the same handler of requests. What an
actor holds is lost when its process ends, so every call brings the references of all that it needs.
"""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import DataError
from fedtailor.simulation.engines.child import RequestHandler
from fedtailor.simulation.engines.mapped_tables import MappedTensor
from fedtailor.simulation.engines.serialization import TensorLayout, decode
from fedtailor.simulation.engines.workers import keep_pages


class StoredTable(NamedTuple):
    """A table in the object store of Ray."""

    layout: TensorLayout
    reference: Any
    """Of its memory (n,) as bytes, from the 64-byte boundary before it."""
    digest: str
    """SHA-256 of these bytes."""


class Package(NamedTuple):
    """What an actor must receive before the jobs of a map."""

    tables_version: int
    tables: Sequence[StoredTable]
    """Empty if the program needs none."""
    requests: Mapping[str, tuple[int, np.ndarray]]
    """By kind, with versions: what an actor has received, it does not handle again."""


class ClientActor:
    """Runs clients one after the other, in a process of its own."""

    def __init__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            # The run decides what an interruption ends.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

        torch.set_num_threads(1)
        keep_pages()
        self._handler = RequestHandler(partial(_path_here, tuple(sys.path)))
        self._package = 0
        self._tables_version = 0
        self._received: dict[str, int] = {}

    def describe(self) -> dict[str, str]:
        """Return where this is, and the versions on which results depend."""
        return description()

    def run(
        self, number: int, package: Sequence[Any], jobs: Sequence[bytes], together: bool
    ) -> list[np.ndarray]:
        """Return the answers to jobs, each as bytes (n,), which Ray sends without a copy.

        Args:
            number: of the package.
            package: its reference; in a sequence, because Ray fetches a reference that stands alone
                with every call.
            jobs: the encoded requests.
            together: whether their outputs are gathered.
        """
        # The calls of one map bring the same package.
        if number != self._package:
            unreadable = self._open(package[0])
            if unreadable is not None:
                return [np.frombuffer(unreadable, dtype=np.uint8)] * len(jobs)

            self._package = number

        if together:
            answers = self._handler.answer_together(jobs)
        else:
            answers = list(map(self._handler.answer, jobs))
        return [np.frombuffer(answer, dtype=np.uint8) for answer in answers]

    def _open(self, reference: Any) -> bytes | None:
        """Receive a package.

        Return the answer to a request that cannot be read, if there is one.
        """
        import ray

        package: Package = ray.get(reference)
        if package.tables and package.tables_version != self._tables_version:
            self._handler.hold_tables(
                [_mapped(table, ray.get(table.reference)) for table in package.tables]
            )
            self._tables_version = package.tables_version

        # What a new actor lacks, and what has changed since the last map.
        for kind, (version, data) in package.requests.items():
            if self._received.get(kind) != version:
                answer = self._handler.answer(data.data)
                if decode(answer)[0] == "unreadable":
                    return answer

                self._received[kind] = version

        return None


def _mapped(table: StoredTable, memory: np.ndarray) -> Tensor:
    """Return a tensor that nobody can write to: a program that tries ends its process.

    The memory of the object store can be written to by all processes of a machine, in spite of what
    NumPy says of it, so the bytes are copied to a file, and the copy is compared with what the run
    has sent.

    Raises:
        DataError: the copy is another one.
    """
    with tempfile.NamedTemporaryFile(prefix="fedtailor-") as file:
        file.write(memory.data)
        file.flush()
        file.seek(0)
        if hashlib.file_digest(file, "sha256").hexdigest() != table.digest:
            raise DataError(
                f"the data that arrived at the Ray worker on '{socket.gethostname()}' differ from "
                "those of this run: their SHA-256 is another one. Start the run again."
            )

        # It stays readable when the file is removed.
        return MappedTensor(file.name, table.layout).open()


def description() -> dict[str, str]:
    """Return where this process is, and the versions on which results depend."""
    return {
        "host": socket.gethostname(),
        "pid": str(os.getpid()),
        "fedtailor": import_module("fedtailor").__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _path_here(actor_path: Sequence[str], run_path: Sequence[str]) -> tuple[str, ...]:
    """Return where an actor looks for modules: where the run does, and where it did itself.

    Folders that do not exist here are left out.

    Args:
        actor_path: where the actor looked when it started.
        run_path: where the run looks.
    """
    existing = [entry for entry in run_path if entry and os.path.exists(entry)]
    return tuple(dict.fromkeys([*existing, *actor_path]))
