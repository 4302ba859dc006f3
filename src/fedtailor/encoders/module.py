"""Encoders that a function of a user returns: a ``torch.nn.Module`` with its preprocessing."""

from __future__ import annotations

import contextlib
import copy
import sys
from itertools import chain
from typing import Any, Self

import torch
from torch import Tensor, nn

from fedtailor.core.errors import calling
from fedtailor.core.options import wrong_value
from fedtailor.core.targets import find_target
from fedtailor.encoders.code import digest_of_module
from fedtailor.encoders.encoder import BATCH, KEY


class ModuleEncoder:
    """A module in evaluation mode; it takes floats, pictures from 0 (black) to 1 (white)."""

    batch = BATCH

    def __init__(self, module: nn.Module, target: str, digest: str) -> None:
        """Use a module; :meth:`load` makes such objects."""
        self.module = module
        self.target = target
        self.digest = digest
        self.license = str(getattr(module, "license", ""))

    @classmethod
    def load(cls, target: str) -> Self:
        """Call the function ``package.module:function`` without arguments.

        Raises:
            ConfigError: there is no such function, it fails, or it returns something else.
        """
        function = find_target(target, what="encoder", key=KEY)
        # Some libraries print as they load, which must not become part of a command's output.
        with calling(f"{target}()", key=KEY, got=target), contextlib.redirect_stdout(sys.stderr):
            module = function()

        if not isinstance(module, nn.Module):
            allowed = f"a torch.nn.Module, returned by {target}()"
            raise wrong_value(KEY, allowed, type(module).__name__)

        # Its code and its constants are in no file of Python, so that a digest would miss them.
        if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
            raise wrong_value(KEY, "a module of Python or an ONNX file", f"TorchScript, {target}")

        # Nothing of it is ever trained, wherever it becomes a part of a larger module.
        module.eval().requires_grad_(False)
        return cls(module, target, digest_of_module(function, module))

    def run(self, stored: Tensor, white: float) -> Tensor:
        """Return the features of one batch (batch, d), float32."""
        with torch.inference_mode():
            features: Any = self.module(stored.float() / white)

        if not isinstance(features, Tensor):
            raise TypeError(f"the module returns {type(features).__name__} instead of a tensor")

        return features.float().clone()

    def worker(self) -> ModuleEncoder:
        """Return an encoder with the same weights in memory, and modules of its own.

        Modules may keep what they compute in their attributes, which two threads would mix up.
        """
        tensors = chain(self.module.parameters(), self.module.buffers())
        shared = {id(tensor): tensor for tensor in tensors}
        return ModuleEncoder(copy.deepcopy(self.module, shared), self.target, self.digest)
