"""Programs that child processes import: they stand in a module of their own."""

import os
import signal
import sys
import time
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core.engine import ExamplePositions, Job
from fedtailor.simulation.programs import SharedInputs
from fedtailor.training.one_client import current_runner


class Inputs(NamedTuple):
    """What these programs know of a client."""

    client: torch.Tensor
    train: ExamplePositions
    state: object


class Picky(Exception):
    """An exception that cannot be made from its arguments."""

    def __init__(self, *, client):
        super().__init__(f"client {client} is picky")


def job(client, size=1, task=None, state=()):
    """Return a job whose examples are numbered 1 to ``size``, of weight 1."""
    examples = ExamplePositions(torch.arange(1, size + 1), torch.ones(size))
    return Job(client, task, Inputs(torch.tensor(client), examples, state), size)


def data(x, y=None, shared=()):
    """Return what is common, with these tables."""
    words = torch.tensor(0), torch.tensor(1)
    return SharedInputs(
        x, torch.arange(len(x)) if y is None else y, torch.empty(3, 0), *words, shared
    )


def total(task, common, inputs):
    """Return the client, and the sum of its examples times a common factor."""
    value = (inputs.train.positions * inputs.train.weight).sum() * common["factor"]
    return {"client": inputs.client, "sum": (value,), "state": inputs.state}


def faulty(task, common, inputs):
    if int(inputs.client) == 1:
        raise ValueError("client 1")
    if int(inputs.client) == 4:
        raise Picky(client=4)
    return total(task, common, inputs)


def runner_is_new(task, common, inputs):
    """Return whether no program has met this runner of training steps before."""
    runner = current_runner()
    met = hasattr(runner, "met")
    runner.met = True
    return torch.tensor(not met)


def deadly(task, common, inputs):
    if int(inputs.client) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return inputs.client


def interrupted(task, common, inputs):
    raise KeyboardInterrupt


def unreadable(task, common, inputs):
    return {"function": lambda: 0} if int(inputs.client) == 1 else inputs.client


def look(task, common, inputs):
    """Return what the process is like."""
    print("this must not disturb the answers")
    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return {
        "process": os.getpid(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "ignores": ignores,
        "grad": torch.is_grad_enabled(),
    }


def layouts(task, common, inputs):
    """Return the layout of every tensor of the common part as it arrived, and the tensors
    themselves."""
    return {
        name: (t.stride(), t.data_ptr() % 64, t) for name, t in common.items() if not t.is_complex()
    }


def tables(task, common, inputs):
    """Return what a program sees of the data."""
    x = common.x
    own = x[inputs.train.positions].clone()
    return x.stride(), x.is_contiguous(memory_format=torch.channels_last), own, common.y.clone()


def classes(task, common, inputs):
    """Return the number of classes, and which task of which process this is."""
    return task.num_classes, os.getpid(), id(task)


def meet(task, common, inputs):
    """Wait until two clients have come."""
    Path(common, str(int(inputs.client))).touch()
    end = time.monotonic() + 60
    while len(list(Path(common).iterdir())) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    return inputs.client


def writes_to_tables(task, common, inputs):
    """Return the sum of the data; client 1 writes to it."""
    if int(inputs.client) == 1:
        common.x.zero_()
    return common.x.sum()


def closes_files(task, common, inputs):
    """Return the sum of the data; client 1 closes the files of its process."""
    if int(inputs.client) == 1:
        os.closerange(0, 256)
    return common.x.sum()


def slow(task, common, inputs):
    """Note which process starts, and take a while."""
    with open(common.shared, "a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(60)


BASE = torch.arange(2 * 3 * 4 * 4, dtype=torch.float32).reshape(2, 3, 4, 4)
TENSORS = {
    "contiguous": BASE,
    "channels_last": BASE.contiguous(memory_format=torch.channels_last),
    "transposed": BASE[0, 0].t(),
    "expanded": torch.tensor(3.0).expand(4, 5),
    "with_gaps": BASE[:, 1, ::2],
    "offset": torch.arange(20.0)[3:9],
    "number": torch.tensor(7, dtype=torch.int64),
    "one_by_one": torch.ones(1, 3, 1, 1).contiguous(memory_format=torch.channels_last),
    "empty": torch.empty(0, 5),
    "bytes": torch.arange(7, dtype=torch.uint8)[1:],
    "truth": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.view_as_complex(torch.ones(3, 2)).conj(),
}


def same(found, tensor):
    """Check values and layout."""
    assert torch.equal(found, tensor) and found.dtype == tensor.dtype
    assert (found.shape, found.stride()) == (tensor.shape, tensor.resolve_conj().stride())
    if tensor.numel():
        assert found.data_ptr() % 64 == tensor.resolve_conj().data_ptr() % 64
    assert (
        found.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
        or not tensor.numel()
    )


class Moody(namedtuple("Moody", "value")):
    """A tuple that can be made where the tests do not run."""

    def __new__(cls, value):
        if "pytest" in sys.modules:
            raise NotImplementedError
        return super().__new__(cls, value)


@dataclass(frozen=True, kw_only=True)
class Odd(FedRep):
    """FedRep with a client whose state cannot be sent back, or who fails."""

    who: int
    kind: str

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        if int(key.client) != self.who:
            return update
        if self.kind == "fails":
            raise ValueError(self.kind)
        return update._replace(state=odd_tuple(self.kind)(torch.ones(())))


def odd_tuple(kind):
    if kind == "a tuple of a class of its own":
        return namedtuple("Homeless", "value")
    return Moody
