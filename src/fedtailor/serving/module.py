"""A personal model as a plain ``torch.nn.Module``, from stored values to logits."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm, AnyAlgorithm
from fedtailor.core.task import Task
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.tensors import unit_rows


class PersonalModule(nn.Module):
    """A personal model with its preprocessing inside, in evaluation mode.

    Its input are values as they are stored: images (n, channels, height, width), series (n,
    channels, times), or tables (n, features). Its output are logits or log-probabilities (n,
    classes). All tensors of the model are buffers, named by their paths, such as
    ``model_head_weight``.
    """

    white: Tensor
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        algorithm: AnyAlgorithm,
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
        self._structure = tree.map(lambda leaf: leaf.new_empty(0), personal)
        self._names: list[str] = []
        for path, leaf in tree.paths(personal).items():
            name = re.sub(r"\W", "_", path)
            while hasattr(self, name):  # another path, or a method of the module
                name += "_"

            self.register_buffer(name, leaf.detach())
            self._names.append(name)

        # Of every channel of images and series, or of every feature of tables.
        dtype = torch.get_default_dtype()
        axes = (1,) * (len(inputs.shape) - 1)
        for name, values in (("mean", inputs.mean), ("std", inputs.std)):
            numbers = torch.tensor(values.tolist(), dtype=dtype).view(-1, *axes)
            self.register_buffer(name, numbers, persistent=False)

        self.l2 = inputs.l2
        self.register_buffer("white", torch.tensor(inputs.white, dtype=dtype), persistent=False)
        self.eval()

    @property
    def scores_strangers(self) -> bool:
        """Whether the method has an :meth:`ood_score`."""
        return type(self.algorithm).ood_score is not Algorithm.ood_score

    def tree(self) -> Any:
        """Return the personal model as the algorithm made it."""
        return tree.rebuild(self._structure, (getattr(self, name) for name in self._names))

    def normalize(self, x: Tensor) -> Tensor:
        """Return the inputs of the model for stored values: the same bits as in training."""
        values = x.to(self.mean.dtype)
        if self.l2:
            values = unit_rows(values)

        return (values / self.white - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or log-probabilities (n, classes) of stored values."""
        return self.algorithm.predict(self.task, self.tree(), self.normalize(x))

    def features(self, x: Tensor) -> Tensor:
        """Return what the head of the model receives (n, d) for stored values."""
        return self.algorithm.features(self.task, self.tree(), self.normalize(x))

    def ood_score(self, x: Tensor) -> Tensor | None:
        """Return how far stored values lie from what the model knows (n,); None: not said."""
        return self.algorithm.ood_score(self.task, self.tree(), self.normalize(x))

    def surprise(self, x: Tensor) -> Tensor | None:
        """Return the negative log-density of stored values (n,), in nats; None: not said."""
        return self.algorithm.surprise(self.task, self.tree(), self.normalize(x))
