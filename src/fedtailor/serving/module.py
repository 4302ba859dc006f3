"""A personal model as a plain ``torch.nn.Module``, from stored values to logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.task import Task
from fedtailor.data.input_specification import InputSpecification


class Branch(nn.Module):
    """The tensors of a personal model below one name."""


class PersonalModule(nn.Module):
    """A personal model with its preprocessing inside, in evaluation mode.

    Its input are values as they are stored: images (n, channels, height, width), or tables (n,
    features). Its output are logits or log-probabilities (n, classes). All tensors of the model are
    buffers, named as in the model's file.
    """

    white: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        algorithm: Algorithm[Any, Any, Any],
        task: Task,
        personal: Any,
        inputs: InputSpecification,
    ) -> None:
        """Wrap a personal model.

        Args:
            algorithm: that made it.
            task: of the client, bound to the algorithm.
            personal: the model, a tree of tensors.
            inputs: how values become inputs.
        """
        super().__init__()
        self.algorithm = algorithm
        self.task = task
        self.personal = Branch()
        places: list[tuple[nn.Module, str]] = []
        for path, leaf in tree.paths(personal).items():
            places.append(_register(self.personal, path, leaf))

        self._places = places
        self._structure = tree.map(lambda leaf: leaf.new_empty(0), personal)
        dtype = torch.get_default_dtype()
        axes = (1, 1) if inputs.kind == "images" else ()
        self.register_buffer("white", torch.tensor(inputs.white, dtype=dtype), persistent=False)
        self.register_buffer(
            "mean",
            torch.tensor(inputs.mean.tolist(), dtype=dtype).view(-1, *axes),
            persistent=False,
        )
        self.register_buffer(
            "std", torch.tensor(inputs.std.tolist(), dtype=dtype).view(-1, *axes), persistent=False
        )
        self.eval()

    def tree(self) -> Any:
        """Return the personal model as the algorithm made it."""
        return tree.rebuild(
            self._structure, iter([getattr(owner, name) for owner, name in self._places])
        )

    def normalize(self, x: Tensor) -> Tensor:
        """Return the inputs of the model for stored values: the same bits as in training."""
        return (x.to(self.mean.dtype) / self.white - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or log-probabilities (n, classes) of stored values."""
        return self.algorithm.predict(self.task, self.tree(), self.normalize(x))

    def features(self, x: Tensor) -> Tensor:
        """Return what the head of the model receives (n, d) for stored values."""
        return self.algorithm.features(self.task, self.tree(), self.normalize(x))

    def ood_score(self, x: Tensor) -> Tensor | None:
        """Return how far stored values lie from what the model knows (n,); None: not said."""
        return self.algorithm.ood_score(self.task, self.tree(), self.normalize(x))


def _register(root: nn.Module, path: str, leaf: Tensor) -> tuple[nn.Module, str]:
    """Put a tensor into branches by the parts of its path; return the last one and its name."""
    *names, last = path.replace("/", ".").split(".")
    owner = root
    for name in names:
        free = _free_name(owner, name, Branch)
        if not hasattr(owner, free):
            owner.add_module(free, Branch())

        owner = getattr(owner, free)

    last = _free_name(owner, last, None)
    owner.register_buffer(last, leaf.detach())
    return owner, last


def _free_name(owner: nn.Module, name: str, kind: type[nn.Module] | None) -> str:
    """Return the name, with underscores behind it if something of another kind has it already."""
    while hasattr(owner, name) and not (kind and isinstance(getattr(owner, name), kind)):
        name += "_"
    return name or "_"
