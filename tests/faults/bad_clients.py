"""Clients that misbehave, by kind: what each of them does in one round, and what must come of it.

They stand in a module of their own, because the processes of the engine ``processes`` import it.
"""

import ctypes
import functools
import os
import random
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import tree
from fedtailor.core.message import Each, Mean
from fedtailor.core.reduction import FieldSum

ONLY_PROCESSES = ("reference", "workers", "batched")
FAULTY = 2
"""The client that misbehaves."""
ROUND = 1
"""The round in which it does."""


class Fault(NamedTuple):
    """A kind of misbehavior."""

    outcome: Literal["absent", "failed", "quarantine", "harmless"]
    """``failed`` and ``quarantine``: the run is that without the client; ``harmless``: that of a
    sound client."""
    act: object
    """``act(round)`` returns the client's update in place of ``round.update``."""
    not_in: tuple[str, ...] = ()
    """Engines that cannot contain it, as the documentation says."""


class Round(NamedTuple):
    """What a client's program has at hand when it misbehaves."""

    update: object
    task: object
    download: object
    state: object
    data: object
    key: object


FAULTS: dict[str, Fault] = {}
RETURNED = []
"""Tensors that the faulty client returned and still has."""


def fault(outcome, name=None, not_in=()):
    """Register a function as a kind of misbehavior."""

    def register(function):
        FAULTS[name or function.__name__] = Fault(outcome, function, not_in)
        return function

    return register


@dataclass(frozen=True, kw_only=True)
class BadClient(FedRep):
    """FedRep with one client that misbehaves in one round, after it has trained."""

    kind: str = ""
    head_epochs: int = 1

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        if bool((key.client == FAULTY) & (key.round == ROUND)):
            return FAULTS[self.kind].act(Round(update, task, download, state, data, key))

        if RETURNED and bool(key.round > ROUND):
            for tensor in RETURNED:
                tensor.fill_(float("nan"))
            RETURNED.clear()
        return update


# Exceptions


def raising(make):
    """Return what raises a new exception."""

    def act(round):
        raise make()

    return act


class OwnBaseException(BaseException):
    pass


class TextRaises(Exception):
    def __str__(self):
        raise ValueError("no text")


class TextExits(Exception):
    def __str__(self):
        raise SystemExit(0)


class TextIsNoText(Exception):
    def __str__(self):
        return 3


class NeedsArguments(Exception):
    def __init__(self, *, client):
        super().__init__(f"client {client}")


class ReduceRaises(Exception):
    def __reduce__(self):
        raise SystemExit(1)


def with_cyclic_context():
    first = ValueError("first")
    second = ValueError("second")
    first.__context__ = second
    second.__context__ = first
    return first


EXCEPTIONS = {
    "an error": lambda: ValueError("no luck"),
    "exit": lambda: SystemExit(0),
    "generator exit": GeneratorExit,
    "stop iteration": StopIteration,
    "memory error": MemoryError,
    "an operating system's error": lambda: OSError(28, "No space left on device"),
    "a group of errors": lambda: BaseExceptionGroup("several", [SystemExit(1), ValueError("x")]),
    "a base exception": OwnBaseException,
    "a text that raises": TextRaises,
    "a text that exits": TextExits,
    "a text that is no text": TextIsNoText,
    "a text of 50 MB": lambda: ValueError("x" * 50_000_000),
    "a text that cannot be printed": lambda: ValueError("\udcff\x1b[2J\x00\n\ttwo lines"),
    "an error that cannot be copied": lambda: NeedsArguments(client=1),
    "an error that cannot be sent": ReduceRaises,
    "errors that cause each other": with_cyclic_context,
}
for _name, _make in EXCEPTIONS.items():
    fault("failed", f"raises {_name}")(raising(_make))


@fault("failed", "raises an interruption", not_in=("reference", "batched"))
def interrupt(round):
    raise KeyboardInterrupt


@fault("failed", "endless recursion")
def recurse(round):
    return recurse(round)


@fault("failed", "asks for too much memory")
def too_much_memory(round):
    return torch.empty(2**60)


# What is returned


def returning(change):
    """Return what changes the update."""
    return lambda round: change(round.update)


def body_of(update):
    """Return the value that an update uploads."""
    return update.upload["body"].value


def with_body(update, value):
    """Return an update that uploads another value."""
    return update._replace(upload={"body": update.upload["body"]._replace(value=value)})


def with_leaf(make):
    """Return what replaces the first tensor of the upload."""

    def act(round):
        body = round.update.upload["body"].value
        name = next(iter(body))
        return with_body(round.update, {**body, name: make(body[name])})

    return act


def sum_of(entry):
    """Return what an engine sends in place of a client's field that it has added up."""
    total = FieldSum([0])
    total.add(0, entry)
    return total.parts()[0]


def with_weight(make):
    """Return what replaces the weight of the upload."""

    def act(round):
        body = round.update.upload["body"]
        return round.update._replace(upload={"body": body._replace(weight=make(body.weight))})

    return act


def with_state(make):
    """Return what replaces the client state."""
    return lambda round: round.update._replace(state=make(round.update.state))


def with_metrics(metrics):
    """Return what replaces the metrics."""
    return lambda round: round.update._replace(metrics=metrics() if callable(metrics) else metrics)


def deep(levels=5_000):
    """Return a tensor in nested dictionaries."""
    value = torch.ones(1)
    for _ in range(levels):
        value = {"a": value}
    return value


def endless():
    """Return a dictionary that holds itself."""
    value = {}
    value["a"] = value
    return value


class RaisesWhenRead(Mapping):
    """A mapping that cannot be read."""

    def __getitem__(self, name):
        raise SystemExit(4)

    def __iter__(self):
        return iter(["body"])

    def __len__(self):
        return 1


class Subclass(torch.Tensor):
    """A tensor of another class."""


def poked(value):
    def poke(leaf):
        leaf = leaf.clone()
        leaf.view(-1)[0] = value
        return leaf

    return poke


LEAVES = {
    "not a number": poked(float("nan")),
    "infinite": poked(float("inf")),
    "beyond all sums": poked(1e35),
    "of half precision": torch.Tensor.half,
    "of whole numbers": torch.Tensor.long,
    "another axis": lambda leaf: leaf[None],
    "None": lambda leaf: None,
    "a list": torch.Tensor.tolist,
    "a NumPy array": lambda leaf: leaf.numpy(),
}
for _name, _make in LEAVES.items():
    fault("failed" if _name in ("a list", "a NumPy array") else "quarantine", f"uploads {_name}")(
        with_leaf(_make)
    )

STRANGE_LEAVES = {
    "complex numbers": lambda leaf: leaf.to(torch.complex64),
    "a sparse tensor": torch.Tensor.to_sparse,
    "a tensor without values": lambda leaf: leaf.to("meta"),
    "a tensor of another class": lambda leaf: leaf.as_subclass(Subclass),
    "a tensor of 4 TB": lambda leaf: torch.ones(1).expand(10**12),
    "a function": lambda leaf: len,
}
for _name, _make in STRANGE_LEAVES.items():
    fault("failed", f"uploads {_name}")(with_leaf(_make))

WEIGHTS = {
    "negative": torch.neg,
    "not a number": lambda weight: weight * float("nan"),
    "missing": lambda weight: None,
    "a plain number": float,
    "ten times too large": lambda weight: 10 * weight,
    "zero": torch.zeros_like,
}
for _name, _make in WEIGHTS.items():
    fault("quarantine", f"a weight that is {_name}")(with_weight(_make))

fault("failed", "returns nothing")(returning(lambda update: None))
fault("failed", "returns another tuple")(returning(tuple))
fault("quarantine", "no upload")(returning(lambda update: update._replace(upload=None)))
fault("quarantine", "an empty upload")(returning(lambda update: update._replace(upload={})))
fault("quarantine", "another field")(
    returning(
        lambda update: update._replace(upload={**update.upload, "extra": update.upload["body"]})
    )
)
fault("quarantine", "another reduction")(
    returning(lambda update: update._replace(upload={"body": Each(update.upload["body"].value)}))
)
fault("quarantine", "a sum of several uploads")(
    returning(lambda update: update._replace(upload={"body": sum_of(update.upload["body"])}))
)
fault("quarantine", "a field without a reduction")(
    returning(lambda update: update._replace(upload={"body": update.upload["body"].value}))
)
fault("failed", "an upload that cannot be read")(
    returning(lambda update: update._replace(upload=RaisesWhenRead()))
)
fault("failed", "an upload 5,000 levels deep")(returning(lambda update: with_body(update, deep())))
fault("quarantine", "an upload 20 levels deep")(
    returning(lambda update: with_body(update, deep(20)))
)
fault("failed", "an endless upload")(returning(lambda update: with_body(update, endless())))
fault("failed", "names that are no texts")(
    returning(lambda update: with_body(update, {(1, 2): torch.ones(1)}))
)
fault("failed", "a name of 10 MB")(
    returning(lambda update: with_body(update, {"x" * 10**7: torch.ones(1)}))
)
fault("quarantine", "names that collide")(
    returning(lambda update: with_body(update, {"a/b": torch.ones(1), "a": {"b": torch.ones(1)}}))
)

fault("quarantine", "no state")(with_state(lambda state: None))
fault("quarantine", "a state that is not finite")(
    with_state(lambda state: {n: v * torch.nan for n, v in state.items()})
)
fault("failed", "a state that is a lock")(with_state(lambda state: (threading.Lock(),)))

METRICS = {
    "not a number": {"loss": torch.tensor(float("nan"))},
    "infinite": {"loss": torch.tensor(float("inf")), "steps": torch.tensor(-float("inf"))},
    "a vector": {"loss": torch.zeros(3)},
    "a plain number": {"steps": 3},
}
for _name, _metrics in METRICS.items():
    fault("quarantine", f"a metric that is {_name}")(with_metrics(_metrics))
fault("quarantine", "10,000 metrics")(
    with_metrics(lambda: {str(n): torch.ones(()) for n in range(10_000)})
)
fault("harmless", "uploads with a graph")(
    returning(
        lambda update: with_body(
            update, tree.map(lambda leaf: leaf.requires_grad_() * 1, update.upload["body"].value)
        )
    )
)


# What is written in place


def first(value):
    """Return the first tensor of a tree."""
    return tree.leaves(value)[0]


def copied(update):
    """Return an update in memory of its own."""
    body = update.upload["body"]
    upload = {"body": Mean(tree.map(torch.clone, body.value), body.weight.clone())}
    return update._replace(upload=upload, state=tree.map(torch.clone, update.state))


def doing(action):
    """Return what acts and then returns the update as it was."""

    @functools.wraps(action)
    def act(round):
        update = copied(round.update)
        action(round)
        return update

    return act


fault("harmless", "writes to the broadcast")(
    doing(lambda round: first(round.download.shared).fill_(1e6))
)
fault("harmless", "writes to the memory of the broadcast")(
    doing(lambda round: first(round.download.shared).numpy().fill(1e6))
)
fault("harmless", "removes from the broadcast")(
    doing(lambda round: round.download.shared.body.clear())
)
fault("harmless", "writes to its state")(doing(lambda round: first(round.state).fill_(1e6)))
fault("harmless", "writes to its counts")(
    doing(lambda round: [leaf.zero_() for leaf in round.data.info])
)
fault("harmless", "writes to its positions")(
    doing(lambda round: round.data.train.positions.zero_())
)
fault("harmless", "writes to its weights of examples")(
    doing(lambda round: round.data.train.weight.zero_())
)
fault("harmless", "writes to its key")(
    doing(lambda round: [leaf.fill_(7) for leaf in round.key[:4]])
)
fault("harmless", "writes to its examples")(doing(lambda round: round.data.train.x.mul_(100)))
fault("harmless", "writes to its labels")(doing(lambda round: round.data.train.y.zero_()))
fault("harmless", "writes to the memory of its examples")(
    doing(lambda round: round.data.train.x.numpy().fill(100))
)


@fault("harmless", "changes what it returned in the next round")
def change_later(round):
    """Keep the upload, the state and the broadcast, to write to them when they are long at the
    server."""
    update = copied(round.update)
    RETURNED[:] = [
        first(update.upload["body"].value),
        first(update.state),
        first(round.download.shared),
    ]
    return update


# Settings of the thread and of the process


fault("harmless", "takes four threads")(doing(lambda round: torch.set_num_threads(4)))
fault("harmless", "turns gradients off")(doing(lambda round: torch.set_grad_enabled(False)))
fault("harmless", "makes float64 the default")(
    doing(lambda round: torch.set_default_dtype(torch.float64))
)
fault("harmless", "asks for deterministic algorithms")(
    doing(lambda round: torch.use_deterministic_algorithms(True))
)
fault("harmless", "lowers the precision")(
    doing(lambda round: torch.set_float32_matmul_precision("medium"))
)
fault("harmless", "asks for TF32")(
    doing(lambda round: setattr(torch.backends, "fp32_precision", "tf32"))
)
fault("harmless", "asks for products of bfloat16")(
    doing(lambda round: setattr(torch.backends.mkldnn.matmul, "fp32_precision", "bf16"))
)
fault("harmless", "leaves inference mode on")(
    doing(lambda round: torch.inference_mode().__enter__())
)
fault("harmless", "seeds PyTorch")(doing(lambda round: torch.manual_seed(0)))
fault("harmless", "seeds NumPy")(doing(lambda round: np.random.seed(0)))
fault("harmless", "seeds Python")(doing(lambda round: random.seed(0)))


# What only another process contains


@fault("absent", "ends the process", not_in=ONLY_PROCESSES)
def end(round):
    os._exit(0)


@fault("absent", "aborts", not_in=ONLY_PROCESSES)
def abort(round):
    os.abort()


@fault("absent", "kills itself", not_in=ONLY_PROCESSES)
def kill(round):
    os.kill(os.getpid(), signal.SIGKILL)


@fault("absent", "reads memory that is not there", not_in=ONLY_PROCESSES)
def crash(round):
    ctypes.string_at(0)


@fault("absent", "closes all files", not_in=ONLY_PROCESSES)
def close_files(round):
    os.closerange(0, 256)
    return round.update
