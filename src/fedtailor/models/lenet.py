"""The two convolutional networks of the pFedVEM paper, for 32 x 32 images and for images of any
size.

Zhu et al. 2023, "Confidence-Aware Personalized Federated Learning via Variational Expectation
Maximization" (CVPR). The paper activates before it pools. ReLU never decreases, so it commutes with
the maximum: the outputs are the same numbers, at a quarter of the cost.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.rng import Key
from fedtailor.core.task import Params
from fedtailor.models.cnn import Stage
from fedtailor.models.images import check_images
from fedtailor.models.layers import LinearHeadModel, Shape

LENET_STAGES = (Stage(16, 5), Stage(32, 5))
LENET_WIDTHS = (120, 84)
LENET_SMALLEST = 16  # pixels: the smallest height and width for two stages
CNN6_CHANNELS = (32, 64, 128, 256, 100)


class LeNet(LinearHeadModel):
    """Stages ``conv1``, ``conv2`` with max-pool 2/2, layers ``hidden1``, ``hidden2``, ReLU after
    each; the head.
    """

    def __init__(self, input_shape: Shape, num_classes: int) -> None:
        body: dict[str, Shape] = {}
        shape = list(input_shape)
        for number, stage in enumerate(LENET_STAGES, start=1):
            body[f"conv{number}.weight"] = (stage.channels, shape[0], stage.kernel, stage.kernel)
            body[f"conv{number}.bias"] = (stage.channels,)
            shape = [stage.channels, *(stage.output_size(size) for size in shape[1:])]

        inputs = math.prod(shape)
        for number, width in enumerate(LENET_WIDTHS, start=1):
            body[f"hidden{number}.weight"] = (width, inputs)
            body[f"hidden{number}.bias"] = (width,)
            inputs = width

        super().__init__(body, inputs, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, 84) and no buffers."""
        for number in range(1, len(LENET_STAGES) + 1):
            x = F.conv2d(x, params[f"conv{number}.weight"], params[f"conv{number}.bias"])
            x = F.relu(F.max_pool2d(x, 2))

        z = x.flatten(1)
        for number in range(1, len(LENET_WIDTHS) + 1):
            z = F.relu(
                F.linear(z, params[f"hidden{number}.weight"], params[f"hidden{number}.bias"])
            )

        return z, {}


class SixLayerNetwork(LinearHeadModel):
    """Convolutions ``conv1`` to ``conv5`` with ReLU, max-pool 2/2 with padding 1 between them, mean
    over pixels; head.

    The padding keeps a border: maps of n pixels become n // 2 + 1 pixels, so images may be as small
    as one pixel.
    """

    def __init__(self, input_shape: Shape, num_classes: int) -> None:
        body: dict[str, Shape] = {}
        inputs = input_shape[0]
        for number, channels in enumerate(CNN6_CHANNELS, start=1):
            body[f"conv{number}.weight"] = (channels, inputs, 3, 3)
            body[f"conv{number}.bias"] = (channels,)
            inputs = channels
        super().__init__(body, inputs, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, 100) and no buffers."""
        for number in range(1, len(CNN6_CHANNELS) + 1):
            x = F.conv2d(x, params[f"conv{number}.weight"], params[f"conv{number}.bias"], padding=1)
            if number < len(CNN6_CHANNELS):
                x = F.max_pool2d(x, 2, padding=1)
            x = F.relu(x)
        return x.mean((2, 3)), {}


def lenet(input_shape: Shape, num_classes: int) -> LeNet:
    """Build the network of CIFAR-10; designed for 32 x 32 images; larger and slightly smaller ones
    work, too.

    Raises:
        ConfigError: the inputs are not images, or too small.
    """
    return LeNet(check_images("lenet", input_shape, LENET_SMALLEST), num_classes)


def cnn6(input_shape: Shape, num_classes: int) -> SixLayerNetwork:
    """Build the network of CIFAR-100 (32 x 32) and SUN397 (64 x 64), for images of any size.

    Raises:
        ConfigError: the inputs are not images.
    """
    return SixLayerNetwork(check_images("cnn6", input_shape), num_classes)
