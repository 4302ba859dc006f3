"""The functional model around a user's ``torch.nn.Module``."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.devices import current, to_device
from fedtailor.core.rng import Key, join_key, unroll
from fedtailor.core.task import Params
from fedtailor.models.structure import Owned, body_skeleton, owned_tensors
from fedtailor.models.substitutes import BATCH_NORMS, Call, calling

T = TypeVar("T")
Start = Literal["reset", "given"]

NORM_LAYERS = (
    *BATCH_NORMS,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


class _Skeletons(threading.local):
    """The modules of this thread: a call puts parameters into them, so threads share none."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[ModuleModel, dict[tuple[torch.dtype, torch.device], nn.Module]]
        self.of = WeakKeyDictionary()


_skeletons = _Skeletons()


class ModuleModel:
    """A functional model around a module; built by ``from_module``, satisfies ``core.task.Model``.

    Parameters keep the module's names. Parameters with ``requires_grad=False``, and buffers other
    than those of batch normalization, are constants of the model: they are neither trained nor
    sent.
    """

    def __init__(self, template: nn.Module, head_name: str, start: Start) -> None:
        self.head_name = head_name
        layer = template.get_submodule(head_name)
        assert isinstance(layer, nn.Linear)

        # What is trained and sent, by name in layer order.
        owned = owned_tensors(template)
        self.feature_dim = layer.in_features
        self.shapes = {name: tuple(entry.tensor.shape) for name, entry in owned.items()}
        self.groups = {name: self._group(entry) for name, entry in owned.items()}
        self.norm = frozenset(
            name for name, entry in owned.items() if isinstance(entry.layer, NORM_LAYERS)
        )

        self.skeleton = body_skeleton(template, head_name)
        """The module without its head; threads run copies of it."""
        self._template = template
        self._start = start
        self._body = [name for name, group in self.groups.items() if group != "head"]

    def _group(self, entry: Owned) -> str:
        if not isinstance(entry.tensor, nn.Parameter):
            return "buffer"
        return "head" if entry.layer_name == self.head_name else "body"

    def values(self) -> Params:
        """Return the values of the user's module, in torch's default dtype."""
        return _values(self._template)

    def init(self, key: Key) -> Params:
        """Return initial parameters in torch's default dtype, as ``from_module`` was told.

        ``"given"``: :meth:`values`, for every key. ``"reset"``: every layer's ``reset_parameters``,
        with randomness from the key. Layers are reset before the modules that contain them, so
        ``reset_parameters`` of the user's own module runs last. Parameters that no such method sets
        keep the values of the user's module.
        """
        # A copy outside ``vmap``: the values are the same for all clients.
        if self._start == "given":
            return to_device(outside_transforms(self.values), current())

        # The words of the key are tensors, which ``vmap`` may have stacked over clients.
        words = key[:4]
        values = _fresh_values(self._template, key.purpose, *words)
        return to_device(dict(zip(self.groups, values, strict=True)), current())

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, d), and in training the new buffers of batch normalization."""
        # Switching the mode visits all layers, so only if it changes.
        skeleton = self._thread_skeleton(x.dtype, x.device)
        if skeleton.training != training:
            skeleton.train(training)

        # Substituted layers find weight and key in the call, and leave their buffers there.
        call = Call(weight, key)
        body = {name: params[name] for name in self._body}
        with calling(call):
            z = torch.func.functional_call(skeleton, body, (x,))
        return z, call.buffers

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Return logits (n, classes) of features (n, d)."""
        # A module that is only its head has no name for it.
        prefix = f"{self.head_name}." if self.head_name else ""
        return F.linear(z, params[f"{prefix}weight"], params.get(f"{prefix}bias"))

    def _thread_skeleton(self, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """Return this thread's module; it holds the constants, calls put the parameters in."""
        # Constants are copied once for every dtype and device, not in every call.
        modules = _skeletons.of.setdefault(self, {})
        if (dtype, device) not in modules:
            modules[dtype, device] = outside_transforms(
                lambda: copy.deepcopy(self.skeleton).to(device, dtype)
            )
        return modules[dtype, device]


def _values(module: nn.Module) -> Params:
    """Return a copy of what is trained or tracked in a module, in torch's default dtype."""
    dtype = torch.get_default_dtype()
    owned = owned_tensors(module).items()
    return {name: entry.tensor.detach().to(dtype, copy=True).contiguous() for name, entry in owned}


_lock = threading.RLock()
"""Of PyTorch's generator; a user's function, run with a seeded one, may call from_module."""


@contextmanager
def preserved_generator() -> Iterator[None]:
    """Restore the state of PyTorch's CPU generator at the end; one thread at a time."""
    with _lock, torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def seeded_generator(key: Key) -> Iterator[None]:
    """Seed PyTorch's CPU generator from a key, and restore its state at the end."""
    first_word = int(rng.words(rng.plain(key.fold("torch")), 1)[0])
    with preserved_generator():
        torch.default_generator.manual_seed(first_word >> 1)
        yield


def outside_transforms(function: Callable[[], T]) -> T:
    """Run a function without active ``torch.func`` transforms: in a new thread, which has none."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


class _FreshValues(torch.autograd.Function):
    """The values of a module whose layers were reset; under ``vmap`` it receives stacked keys.

    The layers' own code draws from PyTorch's generator, which takes one seed: a stack of clients is
    a loop.
    """

    @staticmethod
    def forward(template: nn.Module, purpose: int, *where: Tensor) -> tuple[Tensor, ...]:
        with seeded_generator(join_key(where, purpose)):
            values = outside_transforms(partial(_reset_copy, template))
        return tuple(values.values())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        return (None,) * 6  # template, purpose, and the four words of the key

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], template: nn.Module, purpose: int, *where: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        # One key per client, then one run of the layers' own code per client.
        clients = unroll(where, in_dims[2:], info.batch_size)
        fresh = [_fresh_values(template, purpose, *words) for words in clients]
        stacked = tuple(torch.stack(column) for column in zip(*fresh, strict=True))
        return stacked, (0,) * len(stacked)


_fresh_values: Callable[..., tuple[Tensor, ...]] = _FreshValues.apply


def _reset_copy(template: nn.Module) -> Params:
    """Return the values of a copy with reset layers."""
    module = copy.deepcopy(template).float()  # so that draws are the same in every dtype
    with torch.no_grad():
        module.apply(_reset)
    return _values(module)


def _reset(layer: nn.Module) -> None:
    """Reset a layer's own parameters."""
    for method in ("reset_parameters", "_reset_parameters"):  # the latter in attention
        if callable(getattr(layer, method, None)):
            getattr(layer, method)()
            return
