"""The two convolutional networks of the FedPAC and pFedFDA papers, for 28 x 28 and 32 x 32 images.

A stage is convolution, max-pool 2/2, leaky ReLU. The papers activate before they pool. Leaky ReLU
is increasing, so it commutes with the maximum: the outputs are the same numbers, at a quarter of
the cost. Xu et al. 2023, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration" (ICLR); Mclaughlin and Su 2024, "Personalized Federated Learning via Feature
Distribution Adaptation" (NeurIPS).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.rng import Key
from fedtailor.core.task import Params
from fedtailor.models.images import check_images
from fedtailor.models.layers import LinearHeadModel, Shape

FEATURE_DIM = 128
SLOPE = 0.01


class Stage(NamedTuple):
    """A convolution with its output channels, kernel and padding; max-pool and activation
    follow.
    """

    channels: int
    kernel: int
    padding: int = 0

    def output_size(self, size: int) -> int:
        """Return height or width after the stage; 0 or less if the image is too small."""
        return (size + 2 * self.padding - self.kernel + 1) // 2


EMNIST_STAGES = (Stage(16, 5), Stage(32, 5, padding=1))
CIFAR_STAGES = (Stage(16, 5), Stage(32, 5, padding=1), Stage(64, 3, padding=1))


def convolve(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """Apply one stage; images that lie channels last in memory stay so."""
    return F.leaky_relu(F.max_pool2d(F.conv2d(x, weight, bias, padding=padding), 2), SLOPE)


class ConvolutionalNetwork(LinearHeadModel):
    """Convolution stages ``conv1``, ``conv2``, ..., a linear layer with leaky ReLU, then the
    head.
    """

    def __init__(
        self, name: str, stages: Sequence[Stage], input_shape: Shape, num_classes: int
    ) -> None:
        self.stages = tuple(stages)
        height, width = _output_sizes(name, stages, input_shape)
        body: dict[str, Shape] = {}
        channels = input_shape[0]
        for number, stage in enumerate(stages, start=1):
            body[f"conv{number}.weight"] = (stage.channels, channels, stage.kernel, stage.kernel)
            body[f"conv{number}.bias"] = (stage.channels,)
            channels = stage.channels

        body["linear.weight"] = (FEATURE_DIM, channels * height * width)
        body["linear.bias"] = (FEATURE_DIM,)
        super().__init__(body, FEATURE_DIM, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, 128) and no buffers."""
        for number, stage in enumerate(self.stages, start=1):
            x = convolve(
                x, params[f"conv{number}.weight"], params[f"conv{number}.bias"], stage.padding
            )
        z = F.linear(x.flatten(1), params["linear.weight"], params["linear.bias"])
        return F.leaky_relu(z, SLOPE), {}


def emnist_cnn(input_shape: Shape, num_classes: int) -> ConvolutionalNetwork:
    """Build the two-stage network; designed for 28 x 28 images; larger and slightly smaller ones
    work, too.

    Raises:
        ConfigError: the inputs are not images, or too small.
    """
    return ConvolutionalNetwork("emnist_cnn", EMNIST_STAGES, tuple(input_shape), num_classes)


def cifar_cnn(input_shape: Shape, num_classes: int) -> ConvolutionalNetwork:
    """Build the three-stage network; designed for 32 x 32 images; larger and slightly smaller ones
    work, too.

    Raises:
        ConfigError: the inputs are not images, or too small.
    """
    return ConvolutionalNetwork("cifar_cnn", CIFAR_STAGES, tuple(input_shape), num_classes)


def _output_sizes(name: str, stages: Sequence[Stage], input_shape: Shape) -> tuple[int, int]:
    """Return height and width after the last stage.

    Raises:
        ConfigError: the inputs are not images, or too small.
    """
    smallest = next(size for size in range(1, 1000) if _output_size(stages, size) >= 1)
    _, height, width = check_images(name, input_shape, smallest)
    return _output_size(stages, height), _output_size(stages, width)


def _output_size(stages: Sequence[Stage], size: int) -> int:
    """Return height or width after the last stage; 0 if the image is too small."""
    for stage in stages:
        size = stage.output_size(size)
        if size < 1:
            return 0
    return size
