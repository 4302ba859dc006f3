"""The operations that a recording may hold.

Their results depend on the values of their tensors alone.

Each gives the same bits whether it is watched or not, and whatever memory it writes to. The shape
of its results does not depend on values; where it refuses values, it does so in a replay too. All
this is tested for every operation of PyTorch here. An operation that is not in the list is not
recorded.
"""

from __future__ import annotations

from typing import Any

import torch

from fedtailor.core.torch_private import schema_of

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
_KNOWN = _SHAPE_ONLY.union(
    *(names.split() for names in (_ELEMENTWISE, _BACKWARD, _OVER_MANY, _PLACES, _FROM_NUMBERS))
)
_OUR_OWN = {"fedtailor::draw"}
"""Operators that this package defines: the keyed draw of ``core.noise``."""
_VIEWS_IN_PLACE = {"squeeze_", "t_", "transpose_", "unsqueeze_"}


def names() -> list[str]:
    """Return the names of PyTorch's operations, without views and those that change arguments."""
    return sorted(_KNOWN)


def repeatable(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a recording may hold an operation with these arguments."""
    name = func.overloadpacket.__name__
    if func.namespace != "aten":
        return func.name() in _OUR_OWN

    # By numbers an index is repeatable; by a mask, the shape of its result depends on values.
    if name == "index":
        masks = (torch.bool, torch.uint8)
        return all(place is None or place.dtype not in masks for place in args[1])

    if moves_no_memory(func):
        return True

    if schema_of(func).is_mutable:
        fresh = [returned for returned in schema_of(func).returns if returned.alias_info is None]
        return name.removesuffix("_") in _KNOWN and not fresh

    return name in _KNOWN


def moves_no_memory(func: Any) -> bool:
    """Return whether an operation returns a view, or turns its argument into one."""
    name = func.overloadpacket.__name__
    return func.is_view or name in _VIEWS_IN_PLACE or name in ("alias", "detach", "lift_fresh")


def from_shapes(func: Any) -> bool:
    """Return whether the result of an operation depends on the shapes of its tensors alone."""
    return func.overloadpacket.__name__ in _SHAPE_ONLY
