"""Recordings: the tensor operations of a function, run again on the same memory.

A recording is what a CUDA graph is on a GPU. The function runs once; every operation is kept, with
the memory of its results. A replay runs the operations again, in order, on what the inputs hold by
then. Numbers and branches of Python are frozen, so a function that looks at the values of its
tensors is refused. Views cost nothing, because they move no memory. Nor does automatic
differentiation, of which only the operations remain. A replay calls the same kernels on the same
shapes, so its results are those of the function, bit for bit. Some operations of PyTorch take
another path when they are watched, or look at values to raise an error (linear algebra does). So
only the operations listed at the end are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedtailor.core.torch_private import (
    TorchDispatchMode,
    functions_named,
    memory_of,
    runs_on_cpu,
    schema_of,
    tree_leaves,
    tree_map_only,
    unobserved,
)

MOST_BYTES = 4 * 2**20
"""Memory that one recording may hold: in larger steps the overhead does not count."""
_MOST_COPIED = 2**16
"""Bytes that may be copied for an operation that cannot write to given memory: convolutions of
images need more."""
_METADATA = {
    "__get__",
    "__iter__",
    "__len__",
    "__setitem__",
    "dim",
    "dtype",
    "element_size",
    "is_complex",
    "is_contiguous",
    "is_floating_point",
    "ndimension",
    "nelement",
    "numel",
    "size",
    "storage_offset",
    "stride",
}
"""Functions that return no tensor and look at no values."""
_SPLITS = {torch.tensor_split, Tensor.tensor_split}
"""Functions that look at the values of a second tensor."""


class CannotRecord(Exception):
    """A replay would not repeat what the function does, or would not be faster."""


class StepGraph:
    """The operations of a function; :meth:`replay` runs them again."""

    def __init__(
        self, outputs: Sequence[Tensor], calls: Sequence[Callable[[], Any]], recorder: _Recorder
    ) -> None:
        self.outputs = list(outputs)
        """The results of the function; every replay overwrites them."""
        self.nbytes = recorder.held
        self._calls = list(calls)
        self._read = recorder.read

    def __len__(self) -> int:
        """Return the number of operations of a replay."""
        return len(self._calls)

    def reads(self, tensor: Tensor) -> bool:
        """Return whether any operation reads the memory of this input."""
        return memory_of(tensor) in self._read

    def replay(self) -> None:
        """Run the operations again on what the inputs hold now."""
        with torch.no_grad():
            for call in self._calls:
                call()


def record(function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> StepGraph:
    """Run ``function`` once and return its recording.

    Args:
        function: without side effects; every tensor that changes between replays is one of
            ``inputs``.
        inputs: tensors whose memory stays where it is, while its values change.

    Raises:
        CannotRecord: the function reads values on the host, writes to memory that it did not make,
            or works on more than ``MOST_BYTES``; or it has operations that are not known to be
            repeated exactly, or whose large results would have to be copied.
    """
    recorder = _Recorder(inputs)
    with _NoHostReads(), recorder:
        outputs = [output.detach() for output in function()]
    with torch.no_grad():
        return StepGraph(outputs, [step.call() for step in recorder.steps], recorder)


class _Step(NamedTuple):
    """One operation."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Tensor]
    """Its results, in new memory; none if it writes to its arguments."""

    def written(self) -> list[Tensor]:
        """Return the arguments that it writes to."""
        arguments = schema_of(self.func).arguments
        positional = list(zip(arguments, self.args, strict=False))
        named = [(argument, self.kwargs.get(argument.name)) for argument in arguments]

        # An argument that was passed by position is None by name.
        written = [value for argument, value in positional + named if argument.is_write]
        return _tensors(written)

    def call(self) -> Callable[[], Any]:
        """Return a call that runs the operation into the same memory, after trying it once.

        Raises:
            CannotRecord: its results are large, and it cannot write to given memory.
        """
        for call in self._writing_calls():
            try:
                call()
            except (TypeError, RuntimeError):  # this form takes other arguments
                continue
            return call

        call = self._other_call()
        call()
        return call

    def _writing_calls(self) -> Iterator[Callable[[], Any]]:
        """Yield calls that might write to the memory of the results, the fastest first."""
        if not self.made:
            return

        # relu cannot write to given memory, but clamp_min can.
        if self.func is torch.ops.aten.relu.default:
            yield partial(torch.clamp_min, *self.args, 0, out=self.made[0])

        for form, out in _writing_forms(self.func, self.made):
            yield partial(form, *self.args, **self.kwargs, **out)

    def _other_call(self) -> Callable[[], Any]:
        """Return the operation itself, and where it makes new results, with a copy of them."""
        run_again = partial(self.func, *self.args, **self.kwargs)
        if not self.made:
            return run_again

        if sum(tensor.nbytes for tensor in self.made) > _MOST_COPIED:
            raise CannotRecord(f"it would copy large results: {self.func.name()}")
        if len(schema_of(self.func).returns) > 1:
            return partial(_copy_all, self.made, run_again)
        return partial(_copy, self.made[0], run_again)


def _writing_forms(
    func: Any, made: list[Tensor]
) -> Iterator[tuple[Callable[..., Any], dict[str, Any]]]:
    """Return the forms of an operation that write to given memory, and their ``out`` arguments.

    The fastest comes first.
    """
    names = [argument.name for argument in schema_of(func).arguments]
    packet = func.overloadpacket
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)

        # The same inputs, and a place for each result.
        arguments = schema_of(overload).arguments
        inputs = [argument.name for argument in arguments if not argument.is_out]
        outs = [argument.name for argument in arguments if argument.is_out]
        if inputs != names or len(outs) != len(made):
            continue

        # Without a kernel of its own, this form would copy too.
        if not runs_on_cpu(overload):
            continue

        # Functions of torch, such as torch.add, are called faster than operators.
        if func.namespace == "aten":
            out = made[0] if len(made) == 1 else tuple(made)
            for function in functions_named(packet.__name__):
                yield function, {"out": out}

        yield overload, dict(zip(outs, made, strict=True))


def _copy(made: Tensor, function: Callable[[], Tensor]) -> None:
    made.copy_(function())


def _copy_all(made: list[Tensor], function: Callable[[], Any]) -> None:
    for tensor, result in zip(made, _tensors(function()), strict=True):
        tensor.copy_(result)


class _NoHostReads(TorchFunctionMode):
    """Refuses functions that take values out of PyTorch without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        result = func(*args, **(kwargs or {}))
        if _reads_values(func, args, kwargs, result):
            raise CannotRecord(f"it reads values on the host: {func.__name__}")
        return result


def _reads_values(func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    """Return whether a function turned the values of tensors into something of Python."""
    if func in _SPLITS and _tensors((args[1:], kwargs)):
        return True
    if func.__name__ in _METADATA:
        return False
    return bool(_tensors((args, kwargs))) and not _tensors(result)


class _Recorder(TorchDispatchMode):
    """Keeps the operations that run, below differentiation and the transforms of ``torch.func``."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = {memory_of(tensor) for tensor in inputs}
        self.changing = set(self.inputs)
        """Memory whose values may differ between replays."""
        self.constants: dict[int, Tensor] = {}
        """Tensors that the function made and that are the same in every replay, by their memory."""
        self.read: set[int] = set()
        """Memory that some operation reads."""
        self.steps: list[_Step] = []
        self.held = sum(tensor.nbytes for tensor in inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and keep it if a replay must run it."""
        with unobserved():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_repeatable(func, args):
            raise CannotRecord(f"it is not known to be repeated exactly: {func.name()}")

        # Views, because the function may change the shapes of its tensors later, in place.
        writes = schema_of(func).is_mutable and not _moves_no_memory(func)
        step = _Step(func, _fixed_views(args), _fixed_views(kwargs), [])
        if writes:
            self._thaw(step)

        # Results in the memory of an argument are views, or the argument itself.
        output = func(*args, **kwargs)
        arguments = {memory_of(tensor) for tensor in _tensors((args, kwargs))}
        results = [tensor for tensor in _tensors(output) if memory_of(tensor) not in arguments]
        made = _fixed_views(results)
        self._count_bytes(made)
        self.read |= arguments

        # Only what depends on changing memory must run again in a replay.
        unchanging = self.changing.isdisjoint(arguments) or _depends_on_shapes(func)
        if func is torch.ops.aten.lift_fresh.default:  # a tensor made of numbers of Python
            self.constants[memory_of(output)] = output.detach()
        elif writes:
            self.steps.append(step)
        elif made and unchanging:
            self.constants |= {memory_of(tensor): tensor for tensor in made}
        elif made:  # else it is a view, which moves no memory
            self.changing |= {memory_of(tensor) for tensor in made}
            self.steps.append(step._replace(made=made))

        return output

    def _count_bytes(self, made: Sequence[Tensor]) -> None:
        self.held += sum(tensor.nbytes for tensor in made)
        if self.held > MOST_BYTES:
            raise CannotRecord(f"it works on more than {MOST_BYTES} bytes")

    def _thaw(self, step: _Step) -> None:
        """Note that an operation is about to change memory.

        If it changes a constant, every replay first gives that its value back.
        """
        for tensor in step.written():
            where = memory_of(tensor)
            is_made_here = where in self.changing or where in self.constants
            if where in self.inputs or not is_made_here:
                raise CannotRecord(f"it writes to memory that it did not make: {step.func.name()}")

            # The value that the constant has now, before the operation.
            if where in self.constants:
                constant = self.constants.pop(where)
                values = constant.clone()
                restore = _Step(torch.ops.aten.copy_.default, (constant, values), {}, [])
                self.steps.append(restore)

            self.changing.add(where)


def _fixed_views(tree: Any) -> Any:
    """Return the tree with its tensors as views of the same memory, whose shapes stay fixed."""
    return tree_map_only(Tensor, Tensor.detach, tree)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


# The operations that a recording may hold. Their results depend on the values of their tensors
# alone, and their shapes do not even on these. Each gives the same bits whether it is watched or
# not, and whatever memory it writes to; where it refuses values, it does so in a replay too. The
# tests try every operation that is listed here.

_ELEMENTWISE = """
abs acos add addcdiv addcmul asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil
clamp clamp_max clamp_min copy cos cosh div elu eq erf exp exp2 expm1 fill floor ge gelu gt hardtanh
isnan le leaky_relu lerp log log10 log1p log2 log_sigmoid_forward logaddexp logical_and logical_not
logical_or logical_xor lt masked_fill maximum minimum mul nan_to_num ne neg pow reciprocal relu
round rsqrt rsub sgn sigmoid sign silu sin sinh softplus sqrt sub tan tanh trunc where zero
"""
_BACKWARD = """
_log_softmax_backward_data _softmax_backward_data avg_pool2d_backward convolution_backward
elu_backward embedding_dense_backward gelu_backward hardtanh_backward leaky_relu_backward
log_sigmoid_backward max_pool2d_with_indices_backward native_group_norm_backward
native_layer_norm_backward nll_loss_backward select_backward sigmoid_backward silu_backward
slice_backward softplus_backward tanh_backward threshold_backward
"""
_OVER_MANY = """
_log_softmax _softmax addmm addmv all amax amin any argmax argmin avg_pool2d baddbmm bmm convolution
cumsum dot linalg_vector_norm logsumexp max max_pool2d_with_indices mean min mm mv native_group_norm
native_layer_norm nll_loss_forward sort std sum topk var var_mean
"""
_PLACES = """
_to_copy _unsafe_view cat clone constant_pad_nd embedding flip gather index_add index_put
index_select repeat roll scatter scatter_add stack tril triu
"""
_FROM_NUMBERS = "arange empty empty_strided eye full ones scalar_tensor zeros"
_FROM_SHAPES = """
ones_like zeros_like full_like empty_like new_zeros new_ones new_full new_empty new_empty_strided
"""
_SHAPE_ONLY = set(_FROM_SHAPES.split())
KNOWN = {
    *_ELEMENTWISE.split(),
    *_BACKWARD.split(),
    *_OVER_MANY.split(),
    *_PLACES.split(),
    *_FROM_NUMBERS.split(),
    *_SHAPE_ONLY,
}
"""The names of PyTorch's operations, without views and those that change arguments."""
_OUR_OWN = {"fedtailor::draw"}
"""Operators that this package defines: the keyed draw of ``core.noise``."""
_VIEWS_IN_PLACE = {"squeeze_", "t_", "transpose_", "unsqueeze_"}


def is_repeatable(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a recording may hold an operation with these arguments."""
    name = func.overloadpacket.__name__
    if func.namespace != "aten":
        return func.name() in _OUR_OWN

    # By numbers an index is repeatable; by a mask, the shape of its result depends on values.
    if name == "index":
        masks = (torch.bool, torch.uint8)
        return all(index is None or index.dtype not in masks for index in args[1])

    if _moves_no_memory(func):
        return True

    # An operation that changes its arguments, and makes nothing else.
    schema = schema_of(func)
    if schema.is_mutable:
        fresh = [returned for returned in schema.returns if returned.alias_info is None]
        return name.removesuffix("_") in KNOWN and not fresh

    return name in KNOWN


def _moves_no_memory(func: Any) -> bool:
    """Return whether an operation returns a view, or turns its argument into one."""
    name = func.overloadpacket.__name__
    return func.is_view or name in _VIEWS_IN_PLACE or name in ("alias", "detach", "lift_fresh")


def _depends_on_shapes(func: Any) -> bool:
    """Return whether the result of an operation depends on the shapes of its tensors alone."""
    return func.overloadpacket.__name__ in _SHAPE_ONLY
