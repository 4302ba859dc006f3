"""Capture: a function that changes tensors at fixed places runs once and is replayed with nothing in between.

On a GPU that is a CUDA graph. On the CPU the recordings of ``fedtailor.core.recording`` take its place, so that the
logic of what is captured can be tested there. They hold a fixed list of operations, and refuse writes to memory that
was there before: the function works on copies of its places, which are written back after each replay. What a
recording cannot hold (more than 4 MiB, say) has a stand-in that runs the function again; records say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WARM_UPS = 3
"""Runs before a graph is captured: libraries choose their algorithms and take their memory in them."""
_REFUSED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
_HOST_READS = {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.cpu, Tensor.__array__}

Function = Callable[..., Sequence[Tensor]]
"""``function(*places)`` changes the places and returns other results."""


class CaptureError(Exception):
    """The function cannot be captured: a replay would not repeat what it does."""


@dataclass
class Captured:
    """What a function does to its places; every replay does it again."""

    kind: str
    """``CUDA graph``, ``recording`` or ``stand-in``."""
    replay: Callable[[], object]
    outputs: list[Tensor] = field(default_factory=list)
    """What the function returned; every replay overwrites them. Not known of a stand-in."""
    reason: str = ""
    """Why it is a stand-in."""
    operations: int = 0
    """Of a recording."""


def capture(
    function: Function, places: Sequence[Tensor], inputs: Sequence[Tensor] = (), *, pool: Any = None
) -> Captured:
    """Capture ``function(*places)``; the places hold afterwards what they held before.

    Args:
        function: changes the places by operations on tensors, and reads nothing on the host.
        places: tensors whose memory stays where it is; they are the function's arguments.
        inputs: other tensors that the function reads and whose values change between replays.
        pool: memory that several graphs share, which never run at the same time and keep no outputs.

    Raises:
        CaptureError: the function reads values on the host, draws random numbers, makes tensors on another device or
            changes its inputs (looked at where there is no GPU), or the capture of a graph failed.
    """
    if places[0].device.type == "cuda":
        return _capture_graph(function, places, pool)
    _refuse(function, places, inputs)
    if places[0].device.type != "cpu":
        return Captured("stand-in", lambda: function(*places), reason=f"no graphs on {places[0].device.type}")
    return _capture_recording(function, places, inputs)


def _capture_graph(function: Function, places: Sequence[Tensor], pool: Any) -> Captured:
    """Capture on a stream of its own, after runs whose changes are taken back."""
    before = [place.clone() for place in places]
    graph = torch.cuda.CUDAGraph()
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):  # each from the start, so that counters stay in range
                function(*places)
                _restore(places, before)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # of the side stream, which nobody uses again
        with torch.cuda.graph(graph, pool=pool):
            outputs = list(function(*places))
        _restore(places, before)
        torch.cuda.synchronize()
    except Exception as error:
        raise CaptureError(f"no CUDA graph: {type(error).__name__}: {error}") from error
    return Captured("CUDA graph", graph.replay, outputs)


def _capture_recording(function: Function, places: Sequence[Tensor], inputs: Sequence[Tensor]) -> Captured:
    from fedtailor.core.recording import CannotRecord, record

    def run() -> list[Tensor]:
        work = [place * 1 for place in places]  # clone cannot write to given memory
        with _PlainSgd():
            return [*work, *function(*work)]

    try:
        recording = record(run, [*places, *inputs])
    except CannotRecord as reason:
        return Captured("stand-in", lambda: function(*places), reason=str(reason))

    def replay() -> None:
        recording.replay()
        _restore(places, recording.outputs[: len(places)])

    return Captured("recording", replay, recording.outputs[len(places) :], operations=len(recording))


def plain_sgd(
    params: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    **_: Any,
) -> None:
    """Do what ``torch._fused_sgd_`` does, which recordings do not hold."""
    for param, gradient, velocity in zip(params, gradients, momenta, strict=True):
        assert param.stride() == gradient.stride() == velocity.stride()  # as the fused form asks for
        velocity.mul_(momentum).add_(gradient).add_(param, alpha=weight_decay)
        param.add_(velocity, alpha=-lr)


class _PlainSgd(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (plain_sgd if func is torch._fused_sgd_ else func)(*args, **(kwargs or {}))


def _restore(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for place, value in zip(places, values, strict=True):
            place.copy_(value)


def _refuse(function: Function, places: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Run the function once on copies, and refuse what a graph would: the stand-in must not allow more."""
    copies = [place.clone() for place in places]
    fixed = [*places, *inputs]
    before = [tensor._version for tensor in fixed]
    with _NoHostCalls(), _NoHostOperations(places[0].device):
        function(*copies)
    if before != [tensor._version for tensor in fixed]:
        raise CaptureError("it changes tensors that are not its arguments: warm-up runs could not be taken back")


class _NoHostCalls(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS:
            raise CaptureError(f"it reads values on the host: {func.__name__}")
        return func(*args, **(kwargs or {}))


class _NoHostOperations(TorchDispatchMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _REFUSED.isdisjoint(func.tags):
            raise CaptureError(f"it reads values on the host or draws random numbers: {func.name()}")
        output = func(*args, **(kwargs or {}))
        for made in tree_leaves(output):
            if isinstance(made, Tensor) and made.device != self.device:
                raise CaptureError(f"it makes a tensor on another device, {made.device}: {func.name()}")
        return output
