"""A user's own ``torch.nn.Module`` as a functional model."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core import rng
from fedtailor.core.errors import ConfigError
from fedtailor.core.options import check_value
from fedtailor.core.rng import Key
from fedtailor.core.task import Model, Params
from fedtailor.models import probe
from fedtailor.models.structure import Owned, body_skeleton, find_head, owned_tensors, refusal
from fedtailor.models.substitutes import Call, calling

T = TypeVar("T")
Start = Literal["reset", "given"]

NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
MODEL_PARTS = ("groups", "norm", "shapes", "feature_dim", "init", "features", "head")

_generator_lock = threading.RLock()  # a user's function, run with a seeded generator, may call from_module


class _Skeletons(threading.local):
    """The modules of this thread: a call swaps parameters into a module, so threads must not share one."""

    def __init__(self) -> None:
        self.of: WeakKeyDictionary[ModuleModel, dict[tuple[torch.dtype, torch.device], nn.Module]]
        self.of = WeakKeyDictionary()


_skeletons = _Skeletons()


class ModuleModel:
    """A functional model around a module; built by :func:`from_module`, satisfies ``core.task.Model``.

    Parameters keep the module's names. Parameters with ``requires_grad=False``, and buffers other than those of
    batch normalization, are constants of the model: neither trained nor sent.
    """

    def __init__(self, template: nn.Module, head_name: str, start: Start) -> None:
        self.head_name = head_name
        layer = template.get_submodule(head_name)
        assert isinstance(layer, nn.Linear)
        owned = owned_tensors(template)
        self.feature_dim = layer.in_features
        self.shapes = {name: tuple(entry.tensor.shape) for name, entry in owned.items()}
        self.groups = {name: self._group(entry) for name, entry in owned.items()}
        self.norm = frozenset(name for name, entry in owned.items() if isinstance(entry.layer, NORM_LAYERS))
        self.skeleton = body_skeleton(template, head_name)
        """The module without its head; never run itself, threads copy it."""
        self._template = template
        self._start = start
        self._body = [name for name, group in self.groups.items() if group != "head"]

    def _group(self, entry: Owned) -> str:
        if not isinstance(entry.tensor, nn.Parameter):
            return "buffer"
        return "head" if entry.layer_name == self.head_name else "body"

    def values(self) -> Params:
        """Return the values that the user's module came with, in torch's default dtype."""
        return _values(self._template)

    def init(self, key: Key) -> Params:
        """Return the parameters that training starts from, as ``from_module(..., init=...)`` asked.

        ``"given"``: :meth:`values`, whatever the key. ``"reset"``: every layer's ``reset_parameters``, with randomness
        from the key. Layers reset before the modules that hold them, so a ``reset_parameters`` of the user's own module
        has the last word. Parameters that no such method reaches keep the values that the user's module came with.
        The key is a single one, not a stack of keys.
        """
        if self._start == "given":
            return outside_transforms(self.values)
        with seeded_generator(key):
            return outside_transforms(partial(_fresh_values, self._template))

    def features(self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool) -> tuple[Tensor, Params]:
        """Return features (n, d), and in training the new statistics of batch normalization."""
        skeleton = self._thread_skeleton(x.dtype, x.device)
        if skeleton.training != training:
            skeleton.train(training)
        call = Call(weight, key)
        with calling(call):
            z = torch.func.functional_call(skeleton, {name: params[name] for name in self._body}, (x,))
        return z, call.buffers

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Return logits (n, classes) of features (n, d)."""
        prefix = f"{self.head_name}." if self.head_name else ""
        return F.linear(z, params[f"{prefix}weight"], params.get(f"{prefix}bias"))

    def _thread_skeleton(self, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """Return this thread's own module; only its constants matter, parameters are swapped in."""
        mine = _skeletons.of.setdefault(self, {})
        if (dtype, device) not in mine:
            mine[dtype, device] = outside_transforms(lambda: copy.deepcopy(self.skeleton).to(device, dtype))
        return mine[dtype, device]


def from_module(
    module: nn.Module,
    *,
    input_shape: tuple[int, ...],
    num_classes: int,
    head: str | None = None,
    name: str | None = None,
    init: Start = "reset",
) -> ModuleModel:
    """Wrap a copy of a module as a functional model.

    The head is a linear layer whose output is the module's output; its input is the feature vector. Dropout
    becomes keyed; BatchNorm counts rows of weight > 0 only and hands its statistics back. Small forward passes
    check the rest: the outputs are the module's own, nothing else draws random numbers or changes buffers,
    and padding rows do not change other rows.

    By default the weights that the module has now are thrown away: a run starts from new ones, drawn from its seed.
    Pass ``init="given"`` if they matter, because they are pretrained or set by the module's ``__init__``.

    Args:
        module: takes (n, *input_shape), gives logits (n, num_classes); never changed.
        input_shape: shape of one example.
        num_classes: number of classes.
        head: name of the head, such as ``"fc"``; default: the last ``nn.Linear`` with ``num_classes`` outputs.
        name: what to call the model in messages; default: the module's class.
        init: ``"reset"``: every layer's ``reset_parameters`` with the run's seed, see :meth:`ModuleModel.init`;
            ``"given"``: the values the module has now, for every seed.

    Raises:
        ConfigError: the module cannot be used; the message names the layer and the reason.

    Example:
        >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = from_module(module, input_shape=(4,), num_classes=3)
        >>> model.groups["2.weight"], model.feature_dim
        ('head', 8)
    """
    name = name or type(module).__name__
    check_value(init, Start, key="init")
    try:
        template = copy.deepcopy(module).to("cpu", torch.get_default_dtype()).eval()
    except Exception as error:
        raise refusal(name, f"it cannot be copied: {error}") from error
    x = probe.examples(input_shape)
    with _generator_lock, torch.random.fork_rng(devices=[]):
        expected = probe.outputs(name, template, x, num_classes)
        probe.check_randomness(name, template, x, training=False)  # first: random outputs fail the other checks too
        model = ModuleModel(template, find_head(name, template, num_classes, head), init)
        probe.check_randomness(name, model.skeleton, x, training=True)
        probe.check_equal(name, model, x, expected)
        probe.check_state(name, model.skeleton, x)
        probe.check_padding(name, model, x)
    return model


def wrap(result: Any, *, input_shape: tuple[int, ...], num_classes: int, name: str) -> Model:
    """Return a model as it is, and a module wrapped by :func:`from_module`, to be initialized by each run's seed.

    Raises:
        ConfigError: ``result`` is neither; or the module cannot be used.
    """
    if isinstance(result, nn.Module):
        return from_module(result, input_shape=input_shape, num_classes=num_classes, name=name)
    missing = [part for part in MODEL_PARTS if not hasattr(result, part)]
    if not missing and not isinstance(result, type):
        return cast(Model, result)
    got = f"the class {result.__name__}" if isinstance(result, type) else type(result).__name__
    lacks = f" (without {', '.join(missing)})" if 0 < len(missing) < len(MODEL_PARTS) else ""
    allowed = "a torch.nn.Module or a fedtailor model"
    raise ConfigError(
        f"model '{name}' must be {allowed}, got {got}{lacks}.", key="model.name", allowed=allowed, got=got
    )


@contextmanager
def seeded_generator(key: Key) -> Iterator[None]:
    """Seed PyTorch's CPU generator from a key for a while, one thread at a time; then put it back."""
    seed = int(rng.words(rng.plain(key.fold("torch")), 1)[0]) >> 1
    with _generator_lock, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _values(module: nn.Module) -> Params:
    dtype = torch.get_default_dtype()
    owned = owned_tensors(module).items()
    return {name: entry.tensor.detach().to(dtype, copy=True).contiguous() for name, entry in owned}


def outside_transforms(function: Callable[[], T]) -> T:
    """Run a function that ``torch.func`` transforms must not touch: in a thread of its own, where none is active."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _fresh_values(template: nn.Module) -> Params:
    """Return the values of a copy whose layers were reset; drawn in float32, so that default dtypes agree."""
    module = copy.deepcopy(template).float()
    with torch.no_grad():
        module.apply(_reset)
    return _values(module)


def _reset(layer: nn.Module) -> None:
    """Reset a layer's own parameters; attention and transformers call their method ``_reset_parameters``."""
    for method in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(layer, method, None)):
            getattr(layer, method)()
            return
