"""The networks of the FedCR paper: two hidden layers of 1024 units, alone or after two convolution
stages.

Zhang et al. 2023, "FedCR: Personalized Federated Learning Based on Across-Client Common
Representation with Conditional Mutual Information Regularization", ICML. These are the
deterministic networks that the paper's baselines train. A stochastic algorithm puts its Gaussian
layer between the 1024 features and the head
(:class:`fedtailor.statistics.bottleneck.GaussianModel`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.options import Range, check_value
from fedtailor.core.rng import Key
from fedtailor.core.task import Params
from fedtailor.models.cnn import Stage
from fedtailor.models.images import check_images
from fedtailor.models.layers import LinearHeadModel, Shape

FEATURE_DIM = 1024
SMALLEST_SIDE = 16  # pixels: the smallest height and width for two stages


class WideNetwork(LinearHeadModel):
    """Convolution stages ``conv1``, ``conv2``, if any; layers ``hidden1``, ``hidden2``; ReLU after
    each; the head.
    """

    def __init__(self, stages: Sequence[Stage], input_shape: Shape, num_classes: int) -> None:
        self.stages = tuple(stages)
        body: dict[str, Shape] = {}
        shape = list(input_shape)
        for number, stage in enumerate(self.stages, start=1):
            body[f"conv{number}.weight"] = (stage.channels, shape[0], stage.kernel, stage.kernel)
            body[f"conv{number}.bias"] = (stage.channels,)
            shape = [stage.channels, *(stage.output_size(size) for size in shape[1:])]

        width = math.prod(shape)
        for name in ("hidden1", "hidden2"):
            body[f"{name}.weight"] = (FEATURE_DIM, width)
            body[f"{name}.bias"] = (FEATURE_DIM,)
            width = FEATURE_DIM

        super().__init__(body, FEATURE_DIM, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, 1024) and no buffers."""
        for number, stage in enumerate(self.stages, start=1):
            x = F.conv2d(
                x,
                params[f"conv{number}.weight"],
                params[f"conv{number}.bias"],
                padding=stage.padding,
            )
            x = F.relu(
                F.max_pool2d(x, 2)
            )  # the other order gives the same numbers at four times the cost

        z = x.flatten(1)
        for name in ("hidden1", "hidden2"):
            z = F.relu(F.linear(z, params[f"{name}.weight"], params[f"{name}.bias"]))

        return z, {}


def fedcr_mlp(input_shape: Shape, num_classes: int) -> WideNetwork:
    """Build the perceptron of EMNIST-L, for inputs of any shape."""
    return WideNetwork((), tuple(input_shape), num_classes)


def fedcr_cnn(
    input_shape: Shape, num_classes: int, *, channels1: int = 64, channels2: int = 64
) -> WideNetwork:
    """Build the convolutional network of CIFAR; the authors' code for Fashion-MNIST has 4 and 12
    channels.

    Raises:
        ConfigError: the inputs are not images or too small, or a number of channels is not a whole
            number >= 1.
    """
    check_value(channels1, Annotated[int, Range(ge=1)], key="model.options.channels1")
    check_value(channels2, Annotated[int, Range(ge=1)], key="model.options.channels2")
    shape = check_images("fedcr_cnn", input_shape, SMALLEST_SIDE)
    return WideNetwork((Stage(channels1, 5), Stage(channels2, 5)), shape, num_classes)
