"""Devices: where the tensors of a run lie, and the one way back to the host.

A program creates tensors by ``torch.zeros(())`` and the like, without a word about devices. Inside
:func:`placed` they are created on the device of the run. What was drawn, read or planned on the
host goes to the device by :func:`to_device`. Whatever Python, a file or a report needs comes back
by :func:`to_host`. Each takes one copy for all tensors that it is given, however many: a device is
waited for once. On the CPU none of these does anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.options import wrong_value

T = TypeVar("T")

HOST = torch.device("cpu")
"""Where keys, plans of batches, reports and files are."""
_current: ContextVar[torch.device] = ContextVar("device", default=HOST)
_others: set[torch.device] = set()
"""The other devices on which this process has put anything: while there are none, no tensor has to
be looked at."""
_NOTHING = nullcontext()
_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""The instructions of processors that compute in bfloat16, by PyTorch's names."""


def current() -> torch.device:
    """Return the device on which this thread creates tensors."""
    return _current.get()


def placed(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which PyTorch's functions create new tensors on a device."""
    if device == HOST and current() == HOST:
        return _NOTHING
    _others.add(device)
    return _placed(device)


@contextmanager
def _placed(device: torch.device) -> Iterator[None]:
    token = _current.set(device)
    try:
        with device:
            yield
    finally:
        _current.reset(token)


def to_device(value: T, device: torch.device) -> T:
    """Return nested mappings, tuples and lists with their tensors on a device.

    What lies there is not copied.
    """
    if device == HOST and not _others:
        return value
    _others.add(device)
    leaves = _tensors(value)
    if all(leaf.device == device for leaf in leaves):
        return value
    return _replaced(value, iter(_copied_at_once(leaves, device)))


def to_host(value: T, why: str) -> T:
    """Return nested mappings, tuples and lists with their tensors on the host.

    Each keeps its layout in memory.

    Args:
        value: may hold other values than tensors, which stay as they are. On the CPU it is returned
            as it is.
        why: who needs the numbers there. PyTorch's profiler shows the copy by this name.
    """
    if not _others:
        return value
    leaves = _tensors(value)
    if all(leaf.device == HOST for leaf in leaves):
        return value
    with torch.profiler.record_function(f"to the host: {why}"):
        return _replaced(value, iter(_copied_at_once(leaves, HOST)))


def find(name: str) -> torch.device:
    """Return the device of a name: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

    ``auto`` is the first CUDA device if there is one, else the CPU.

    Raises:
        ConfigError: there is no such device, or it cannot do the arithmetic of a run.
    """
    if name == "cpu":
        return HOST

    there = available()
    if name == "auto":
        return torch.device(there[1] if len(there) > 1 else "cpu")

    device = "cuda:0" if name == "cuda" else name
    if device not in there or name == "mps":
        hint = ""
        if name == "mps":
            hint = "Apple's MPS has no float64, in which sums over clients and scores are computed."
        elif torch.version.cuda is None:
            hint = f"This PyTorch ({torch.__version__}) is built without CUDA."

        raise wrong_value("engine.device", f"auto, {', '.join(there)} on this machine", name, hint)

    return torch.device(device)


def refuse_missing_bfloat16(precision: str, device: torch.device) -> None:
    """Check that a device computes in bfloat16 if ``training.precision`` asks for it.

    PyTorch would imitate it, and take much longer than in full precision.

    Raises:
        ConfigError: the device has no such instructions.
    """
    if precision != "bfloat16":
        return

    if device.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # Older versions of PyTorch cannot tell: then nothing is refused.
        capabilities = getattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})()
        has_bfloat16 = any(capabilities.get(name) for name in _BFLOAT16)

    if not has_bfloat16:
        hint = f"The device '{device}' has no instructions for it."
        raise wrong_value("training.precision", "'full' on this machine", precision, hint)


def available() -> list[str]:
    """Return the names of the devices on which a run can take place: the CPU, and CUDA devices."""
    return ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


def _tensors(value: object) -> list[Tensor]:
    """Return the tensors of nested mappings, tuples and lists, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for child in value.values() for leaf in _tensors(child)]
    if isinstance(value, tuple | list):
        return [leaf for child in value for leaf in _tensors(child)]
    return []


def _replaced(value: T, leaves: Iterator[Tensor]) -> T:
    """Return the same structure with other tensors, taken in order."""
    result: object = value
    if isinstance(value, Tensor):
        result = next(leaves)
    elif isinstance(value, Mapping):
        result = {name: _replaced(child, leaves) for name, child in value.items()}
    elif isinstance(value, tuple | list):
        children = [_replaced(child, leaves) for child in value]
        result = children if isinstance(value, list) else tree.tuple_like(value, children)

    return result  # type: ignore[return-value]


def _copied_at_once(leaves: list[Tensor], device: torch.device) -> list[Tensor]:
    """Return tensors on a device.

    The bytes of those elsewhere are put together where they lie, and copied once.
    """
    far = [number for number, leaf in enumerate(leaves) if leaf.device != device]

    # The widest types first, so that every part begins where its type may.
    far.sort(key=lambda number: -leaves[number].element_size())
    parts = [leaves[number].detach().reshape(-1).contiguous().view(torch.uint8) for number in far]
    together = torch.cat(parts).to(device) if len(parts) > 1 else parts[0].to(device)
    result = list(leaves)

    for number, part in zip(far, torch.split(together, [len(part) for part in parts]), strict=True):
        # In memory of its own, aligned: a view would keep the memory of all.
        leaf = leaves[number]
        values = part.view(leaf.dtype).view(leaf.shape)
        result[number] = torch.empty_like(leaf, device=device).copy_(values)

    return result
