"""The private names of PyTorch that this package uses, each with its reason.

A later version of PyTorch may lack one. ``tests/core/test_torch_private.py`` says then what takes
its place, and only this module changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

unobserved = torch._C.DisableTorchFunction
"""A context in which no mode sees what is called: a recording would take a look at a tensor for a
look at its values."""

fused_sgd = torch._fused_sgd_
"""A step of SGD in one pass over memory; ``torch.optim.SGD(fused=True)`` calls it, but holds
parameters of its own."""

foreach_mul = torch._foreach_mul
"""The products of many tensors with one number, in one call."""


def is_transformed() -> bool:
    """Return whether PyTorch transforms the program, as ``vmap`` does.

    Then no shape and no branch may depend on values.
    """
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def memory_of(tensor: Tensor) -> int:
    """Return a number that tells one piece of memory from another as long as both are held.

    ``data_ptr()`` does not: it is 0 for every tensor without values.
    """
    with unobserved():
        return int(tensor.untyped_storage()._cdata)


def count_writes(tensor: Tensor) -> int:
    """Return how often a tensor's memory was written to in place, through it or its views."""
    return int(tensor._version)


def schema_of(operator: Any) -> Any:
    """Return the declaration of an operator: which arguments it has, and which it writes to."""
    return operator._schema


def runs_on_cpu(operator: Any) -> bool:
    """Return whether an operator has a kernel of its own for the CPU."""
    has_kernel: bool = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CPU")
    return has_kernel


def functions_named(name: str) -> Iterator[Any]:
    """Yield PyTorch's functions of a name: to call the operator itself takes longer."""
    for module in (torch, torch._C._nn):
        if hasattr(module, name):
            yield getattr(module, name)


def cdist_operator() -> Any:
    """Return the operator of distances, of which ONNX has none: exports replace it."""
    return torch.ops.aten._cdist_forward.default


def resizing_operators() -> tuple[Any, ...]:
    """Return the operators that resize pictures along rows and columns: exports replace them."""
    aten = torch.ops.aten
    return (
        aten.upsample_bilinear2d.vec,
        aten.upsample_bicubic2d.vec,
        aten._upsample_bilinear2d_aa.vec,
        aten._upsample_bicubic2d_aa.vec,
    )


_PRECISIONS = (
    ("generic", "all"),
    ("mkldnn", "all"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
    ("cuda", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
)
"""Where the precision of float32 can be set: a backend and its operators, parents first. The public
``torch.backends.mkldnn.fp32_precision`` reads its own value, but sets that of all backends."""


def float32_precisions() -> tuple[str, ...]:
    """Return the precision of float32 for every operation of which it can be set."""
    return tuple(torch._C._get_fp32_precision_getter(*operation) for operation in _PRECISIONS)


def set_float32_precisions(precisions: Sequence[str]) -> None:
    """Set the precision of float32 for every operation where it differs from these."""
    for operation, precision in zip(_PRECISIONS, precisions, strict=True):
        if torch._C._get_fp32_precision_getter(*operation) == precision:
            continue

        # Follow the parent again; a value of its own only where the parent has another one.
        torch._C._set_fp32_precision_setter(*operation, "none")
        if torch._C._get_fp32_precision_getter(*operation) != precision:
            torch._C._set_fp32_precision_setter(*operation, precision)
