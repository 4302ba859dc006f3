"""How trees travel between processes: tensors by value, with the layout of their memory.

PyTorch would send handles of shared memory, which is often 64 MB in containers, and a copy made without care would
lose what results depend on to the bit: strides (a weight that lies channels last takes other kernels) and alignment.
"""

from __future__ import annotations

import struct
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

_LINE = 64  # bytes: what torch aligns memory to, and the widest vectors want
_PROGRAM = ("__main__", "__mp_main__")


class Unsendable(Exception):
    """Something cannot go to another process; the message says why."""


class Layout(NamedTuple):
    """How a tensor lies in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    lead: int
    """Elements between the first one and the multiple of 64 bytes before it."""


def lay_flat(tensor: Tensor) -> tuple[Layout, np.ndarray]:
    """Return a tensor's layout, and the bytes (n,) from its first to its last element, as they are in memory.

    Raises:
        Unsendable: it is sparse, quantized, or elsewhere than in main memory.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise Unsendable(f"a tensor of layout {tensor.layout} on {tensor.device}")
    plain = tensor.detach().resolve_conj().resolve_neg()
    gaps = [(size - 1) * step for size, step in zip(plain.shape, plain.stride(), strict=True)]
    span = sum(gaps) + 1 if plain.numel() else 0
    lead = plain.data_ptr() % _LINE // plain.element_size()
    values = plain.as_strided((span,), (1,)).view(torch.uint8).numpy()
    return Layout(plain.dtype, tuple(plain.shape), plain.stride(), lead), values


def stand_up(layout: Layout, values: np.ndarray) -> Tensor:
    """Return a new tensor of a layout from its bytes (n,)."""
    count = len(values) // layout.dtype.itemsize
    room = torch.empty(layout.lead + count, dtype=layout.dtype)
    if count:
        room[layout.lead :].view(torch.uint8).numpy()[:] = values
    return room.as_strided(layout.shape, layout.stride, layout.lead)


def _parameter(tensor: Tensor, trained: bool) -> nn.Parameter:
    return nn.Parameter(tensor, trained)


class _Pickler(ForkingPickler):
    """Writes trees, classes and functions by name, and tensors by value."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to write a value, where it is not as usual."""
        if isinstance(value, nn.Parameter):
            return _parameter, (value.detach(), value.requires_grad)
        if isinstance(value, Tensor):
            return stand_up, lay_flat(value)
        if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
            raise Unsendable("the storage of a tensor")
        if isinstance(value, type | FunctionType) and value.__module__ in _PROGRAM:
            reason = "is defined in the script that was started, which other processes do not import"
            raise Unsendable(f"'{value.__qualname__}' {reason}: move it to a module of its own")
        return NotImplemented


def encode(value: Any) -> memoryview:
    """Return a value as bytes.

    Raises:
        Unsendable: some part of it cannot be sent.
    """
    try:
        return _Pickler.dumps(value, 5)
    except Unsendable:
        raise
    except Exception as error:  # whatever an object raises that is asked for its parts
        raise Unsendable(str(error) or type(error).__name__) from error


def decode(data: bytes | memoryview) -> Any:
    """Return the value that :func:`encode` wrote; whatever importing its classes raises is raised."""
    return _Pickler.loads(data)


def write_frame(stream: IO[bytes], data: bytes | memoryview) -> None:
    """Write bytes with their number before them."""
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Read what :func:`write_frame` wrote.

    Raises:
        EOFError: the other side is gone.
    """
    return _read(stream, struct.unpack("<Q", _read(stream, 8))[0])


def _read(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
