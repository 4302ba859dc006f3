"""Private names of PyTorch: they exist in this version, and one module uses them."""

import re
from operator import attrgetter
from pathlib import Path

import pytest
import torch

import fedtailor
from fedtailor.core import torch_private

REPLACEMENTS = {
    "torch._C.DisableTorchFunction": "torch._C.DisableTorchFunctionSubclass",
    "torch._C._are_functorch_transforms_active": "False outside of torch.func.vmap, as in batched.py",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "record no operator with an out argument",
    "torch._C._get_fp32_precision_getter": "torch.backends.*.fp32_precision",
    "torch._C._nn": "the operator itself, which is slower",
    "torch._C._set_fp32_precision_setter": "torch.backends.*.fp32_precision",
    "torch._foreach_mul": "a loop over the gradients",
    "torch._fused_sgd_": "the loop in training/optimizer.py",
    "torch.ops.aten._cdist_forward.default": "the operator that torch.export then shows for cdist",
    "torch.ops.aten._upsample_bicubic2d_aa.vec": "the operator of interpolate(antialias=True)",
    "torch.ops.aten._upsample_bilinear2d_aa.vec": "the operator of interpolate(antialias=True)",
    "torch.ops.aten.add.Tensor._schema": "no recording: ReplayRunner becomes the plain runner",
    "torch.utils._python_dispatch.TorchDispatchMode": "the same",
    "torch.utils._pytree.tree_leaves": "fedtailor.core.tree.leaves",
    "torch.utils._pytree.tree_map_only": "fedtailor.core.tree.map",
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_this_version_of_torch_has_it(name):
    """If not: change core/torch_private.py to what REPLACEMENTS names, and run make test."""
    assert attrgetter(name.removeprefix("torch."))(torch) is not None, REPLACEMENTS[name]


def test_writes_and_memory_are_told_apart():
    first = torch.zeros(3)
    assert torch_private.memory_of(first[1:]) == torch_private.memory_of(first)
    assert torch_private.memory_of(first.clone()) != torch_private.memory_of(first)
    first[1:].add_(1)
    assert torch_private.count_writes(first) == 1


def test_no_other_module_uses_private_names():
    private = re.compile(
        r"\btorch(\.\w+)*\._[A-Za-z]|from torch\.\S*\._|\._cdata|\._schema|\b[xy]\._version"
    )
    package = Path(fedtailor.__file__).parent
    for path in package.rglob("*.py"):
        if path.name != "torch_private.py":
            assert not private.search(path.read_text()), path
