"""Serialization of trees for other processes: tensors by value, with their memory layout.

PyTorch would send handles of shared memory, which is often limited to 64 MB in containers. A plain
copy would lose properties on which the last bit of a result depends: strides (channels-last weights
use other kernels) and alignment. Only a parent and the children that it started exchange these
bytes.
"""

from __future__ import annotations

import io
import struct
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

_ALIGNMENT = 64
"""Bytes. PyTorch aligns memory to it, and the widest vector instructions need it."""
_MAIN_MODULES = ("__main__", "__mp_main__")


class SerializationError(Exception):
    """A value cannot be sent to another process; the message says why."""


class TensorLayout(NamedTuple):
    """How a tensor lies in memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Number of elements between the last 64-byte boundary and the first element."""


def tensor_to_bytes(tensor: Tensor) -> tuple[TensorLayout, np.ndarray]:
    """Return a tensor's layout, and its memory (n,) from the first to the last element as bytes.

    Raises:
        SerializationError: the tensor is sparse, quantized, or not in main memory.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise SerializationError(f"a tensor of layout {tensor.layout} on {tensor.device}")

    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.numel() == 0:
        span = 0
    else:
        span = 1 + sum(
            (size - 1) * step for size, step in zip(plain.shape, plain.stride(), strict=True)
        )

    # Strides may leave gaps, which are copied too.
    offset = plain.data_ptr() % _ALIGNMENT // plain.element_size()
    values = plain.as_strided((span,), (1,)).view(torch.uint8).numpy()
    return TensorLayout(plain.dtype, tuple(plain.shape), plain.stride(), offset), values


def aligned_bytes(tensor: Tensor) -> tuple[TensorLayout, np.ndarray]:
    """Return a tensor's layout, and its memory (n,) from the boundary before it as bytes."""
    layout, values = tensor_to_bytes(tensor)
    padding = np.zeros(layout.offset * layout.dtype.itemsize, dtype=np.uint8)
    return layout, np.concatenate([padding, values]) if len(padding) else values


def tensor_from_bytes(layout: TensorLayout, values: np.ndarray) -> Tensor:
    """Return a new tensor with a layout and the memory (n,) that :func:`tensor_to_bytes` gave."""
    # New memory begins at a boundary, so the offset gives the tensor its old alignment.
    count = len(values) // layout.dtype.itemsize
    memory = torch.empty(layout.offset + count, dtype=layout.dtype)
    if count > 0:
        memory[layout.offset :].view(torch.uint8).numpy()[:] = values
    return memory.as_strided(layout.shape, layout.stride, layout.offset)


class _Pickler(ForkingPickler):
    """Writes classes and functions by name, and tensors by value."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to write a value, or ``NotImplemented`` for the usual way."""
        if isinstance(value, Tensor):
            if isinstance(value, nn.Parameter):  # asked of tensors only: the question takes long
                return nn.Parameter, (value.detach(), value.requires_grad)
            return tensor_from_bytes, tensor_to_bytes(value)

        if isinstance(value, torch.UntypedStorage | torch.TypedStorage):
            raise SerializationError("the storage of a tensor")

        if isinstance(value, type | FunctionType) and value.__module__ in _MAIN_MODULES:
            raise SerializationError(
                f"'{value.__qualname__}' is defined in the main script, which other processes do "
                "not import; move it to a module"
            )

        return NotImplemented


def encode(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        SerializationError: some part of the value cannot be sent.
    """
    # Not dumps(): Python 3.12 can crash when it collects the view of a stream that it returns.
    stream = io.BytesIO()
    try:
        _Pickler(stream, 5).dump(value)
    except SerializationError:
        raise
    except Exception as error:  # an object's own code for pickling may raise anything
        raise SerializationError(str(error) or type(error).__name__) from error

    return stream.getvalue()


def decode(data: bytes | memoryview) -> Any:
    """Return the value that :func:`encode` wrote.

    Errors from importing its classes are raised unchanged.
    """
    return _Pickler.loads(data)


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write the number of bytes, then the bytes."""
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes:
    """Read the bytes that :func:`write_frame` wrote.

    Raises:
        EOFError: the other process closed the stream.
    """
    header = _read_exactly(stream, 8)
    (count,) = struct.unpack("<Q", header)
    return _read_exactly(stream, count)


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
