"""A device for tests, where there is no real one: ``stand_in:0``, made in Python over tensors of
the CPU.

A tensor of this device holds a tensor of the CPU that nobody else sees. Every operator runs on
these hidden tensors, so that a run on the device has the bits of a run on the CPU. As on a GPU, an
operator refuses operands of the CPU but single numbers and indices, NumPy gets nothing, and
whatever reads values in Python makes a copy: each is noted.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import fedtailor
from fedtailor.simulation.engines import containment

NAME = "stand_in"
_SOURCE = str(Path(fedtailor.__file__).parent)
_aten = torch.ops.aten

_COPIES = (_aten.copy_.default, _aten._to_copy.default)
"""Operators that take tensors of both devices."""
_INDEXING = (
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
)
"""Operators that take indices of the CPU."""
_TAKES_NUMBERS = (
    _aten.fill_.Tensor,
    _aten.masked_fill.Tensor,
    _aten.masked_fill_.Tensor,
    _aten._foreach_mul.Tensor,
)
"""Operators that take single numbers of the CPU, beside those that PyTorch marks as pointwise."""
_LOOKS_AT_VALUES = {
    _aten._local_scalar_dense.default: "item",
    _aten.equal.default: "equal",
    _aten.nonzero.default: "nonzero",
    _aten.masked_select.default: "masked_select",
    _aten.bincount.default: "bincount",
    _aten._unique2.default: "unique",
    _aten.repeat_interleave.Tensor: "repeat_interleave",
}
"""Operators whose result, or its shape, the host learns: a GPU is waited for."""


class HostCopy(NamedTuple):
    """A copy of values to the host."""

    operator: str
    place: str
    """The function of the package that made it, such as ``core/devices.py:_copied_at_once``."""
    why: str
    """What ``to_host`` was told; empty if something else made the copy."""


class StandInTensor(torch.Tensor):
    """A tensor of the stand-in device."""

    hidden: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, hidden: torch.Tensor) -> "StandInTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            hidden.shape,
            strides=hidden.stride(),
            storage_offset=hidden.storage_offset(),
            dtype=hidden.dtype,
            device=torch.device(NAME, 0),
        )
        tensor.hidden = hidden
        return tensor

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return _run(operator, arguments, options or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()  # PyTorch has none for classes of tensors


def _run(operator: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """Run an operator on the hidden tensors."""
    wanted = options.get("device")
    goes_to_host = wanted is not None and torch.device(wanted).type == "cpu"
    owners: dict[int, StandInTensor] = {}

    def hidden(value: Any) -> Any:
        if isinstance(value, StandInTensor):
            owners[id(value.hidden)] = value
            return value.hidden
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        if isinstance(value, torch.Tensor):
            is_changed = operator._schema.is_mutable and value is arguments[0]
            _refuse_mixture(operator, value, is_changed)
        return value

    def shown(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in owners:
            return owners[id(value)]
        tensor = StandInTensor(value)
        for owner in owners.values():
            if owner.hidden.untyped_storage()._cdata == value.untyped_storage()._cdata:
                torch._functionalize_unsafe_set(
                    tensor, owner
                )  # a view shares the memory of what it views
                break
        return tensor

    _note(_look(operator, arguments, goes_to_host))
    plain_arguments = tree_map(hidden, arguments)
    result = operator(*plain_arguments, **tree_map(hidden, options))
    for owner in owners.values():
        if (owner.shape, owner.stride()) != (owner.hidden.shape, owner.hidden.stride()):
            _take_shape(owner)
    if goes_to_host:
        return result
    if operator is _aten.copy_.default and not isinstance(arguments[0], StandInTensor):
        return arguments[0]
    return tree_map(shown, result)


def _refuse_mixture(operator: Any, value: torch.Tensor, is_changed: bool) -> None:
    """Refuse a tensor of the CPU; ``is_changed``: the operator writes to it."""
    if operator in _COPIES:
        return
    if operator in _INDEXING and value.dtype in (torch.int64, torch.bool):
        return
    takes_numbers = torch.Tag.pointwise in operator.tags or operator in _TAKES_NUMBERS
    if value.dim() == 0 and takes_numbers and not is_changed:
        return
    both = f"{NAME}:0 and {value.device}"
    raise RuntimeError(
        f"{operator}: expected all tensors to be on the same device, but found {both}"
    )


def _take_shape(tensor: StandInTensor) -> None:
    """Give a tensor that an operator has resized the shape of its hidden tensor."""
    hidden = tensor.hidden
    memory = StandInTensor(hidden).untyped_storage()
    with no_dispatch():
        included = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            _aten.set_.source_Storage_storage_offset(
                tensor, memory, hidden.storage_offset(), hidden.shape, hidden.stride()
            )
        finally:
            torch._C._set_meta_in_tls_dispatch_include(included)


# Copies to the host

_copies: list[HostCopy] | None = None


@contextmanager
def host_copies() -> Iterator[list[HostCopy]]:
    """Collect the copies to the host that are made inside."""
    global _copies
    before = _copies
    _copies = []
    try:
        yield _copies
    finally:
        _copies = before


def _look(operator: Any, arguments: Any, goes_to_host: bool) -> str:
    """Return in what way an operator tells the host values; empty if it does not."""
    if operator is _aten._to_copy.default and goes_to_host:
        return "to"
    if operator is _aten.copy_.default and not isinstance(arguments[0], StandInTensor):
        return "copy_"
    if operator in _INDEXING:
        far = [index for index in arguments[1] if isinstance(index, StandInTensor)]
        return "index by a mask" if any(index.dtype is torch.bool for index in far) else ""
    return _LOOKS_AT_VALUES.get(operator, "")


def _note(operator: str) -> None:
    """Note a copy to the host, with the function of the package that made it."""
    if not operator or _copies is None:
        return
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith(_SOURCE):
        frame = frame.f_back
    place = ""
    if frame is not None:
        place = (
            f"{frame.f_code.co_filename.removeprefix(_SOURCE).lstrip('/')}:{frame.f_code.co_name}"
        )
    while frame is not None and frame.f_code.co_filename.endswith("core/devices.py"):
        if frame.f_code.co_name == "to_host":
            _copies.append(HostCopy(operator, place, frame.f_locals["why"]))
            return
        frame = frame.f_back
    _copies.append(HostCopy(operator, place, ""))


# Registration


class _Backend:
    """What PyTorch asks of the module of a device."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass


def _fallback(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Run an operator that has no tensor of the device among its arguments, such as
    ``torch.zeros``."""
    return _run(operator, arguments, options)


def _copy_from(
    source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy where PyTorch lets no class of tensors decide, as in ``torch.tensor``."""
    read = source.hidden if isinstance(source, StandInTensor) else source
    written = target.hidden if isinstance(target, StandInTensor) else target
    if written is target:
        _note("copy_")
    written.copy_(read)
    return target


_libraries: list[torch.library.Library] = []
"""Kept: what a library registers is forgotten with it."""


def register() -> torch.device:
    """Make the device known to PyTorch, once per process, and return it."""
    if not _libraries:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
        everything = torch.library.Library("_", "IMPL")
        everything.fallback(_fallback, "PrivateUse1")
        copies = torch.library.Library("aten", "IMPL")
        copies.impl("_copy_from", _copy_from, "PrivateUse1")
        _libraries.extend([everything, copies])
        containment.CLASSES = (*containment.CLASSES, StandInTensor)
    return torch.device(NAME, 0)
