"""The wide residual network of depth 16 and width 2, for images of any size.

Zagoruyko and Komodakis 2016, "Wide Residual Networks" (BMVC), without dropout. The paper uses batch
normalization. The default here is group normalization (Wu and He 2018, "Group Normalization",
ECCV), which needs no running statistics: those of clients with different data have no meaningful
average.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from fedtailor.core.options import check_value
from fedtailor.models.module import from_module
from fedtailor.models.module_model import ModuleModel
from fedtailor.models.networks import Shape, check_images
from fedtailor.models.resnet import ResidualBlock, blocks_of

Norm = Literal["group", "batch"]

STEM_CHANNELS = 16
STAGE_CHANNELS = (32, 64, 128)
LARGEST_NUMBER_OF_GROUPS = 8


class WideBlock(nn.Module):
    """Normalization, ReLU and convolution, twice; added to the input or its projection."""

    def __init__(self, block: ResidualBlock, norm: Norm) -> None:
        super().__init__()
        _, inputs, channels, stride = block
        self.norm1 = norm_layer(norm, inputs)
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.norm2 = norm_layer(norm, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        projects = block.projects
        self.shortcut = nn.Conv2d(inputs, channels, 1, stride, bias=False) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, channels, height / stride, width / stride), rounded up."""
        # Before the convolutions, not after: the pre-activation form of the paper.
        active = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(active))))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        result: Tensor = y + shortcut
        return result


class WideResNet(nn.Module):
    """Convolution ``conv``, six blocks, normalization ``norm``, ReLU, mean over pixels; head."""

    def __init__(self, input_shape: Shape, num_classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv = nn.Conv2d(input_shape[0], STEM_CHANNELS, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for block in blocks_of("stage{}_block{}", STEM_CHANNELS, STAGE_CHANNELS):
            self.blocks.add_module(block.name, WideBlock(block, norm))

        self.norm = norm_layer(norm, STAGE_CHANNELS[-1])
        self.head = nn.Linear(STAGE_CHANNELS[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        logits: Tensor = self.head(F.relu(self.norm(self.blocks(self.conv(x)))).mean((2, 3)))
        return logits


def norm_layer(norm: Norm, channels: int) -> nn.Module:
    """Return a normalization layer with a scale and a shift per channel."""
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(min(LARGEST_NUMBER_OF_GROUPS, channels), channels)


def wideresnet16(input_shape: Shape, num_classes: int, *, norm: Norm = "group") -> ModuleModel:
    """Build the network; designed for 32 x 32 images; other sizes work, too.

    Layers have PyTorch's initialization.

    Args:
        input_shape: (channels, height, width).
        num_classes: number of classes.
        norm: ``"group"``: group normalization with at most 8 groups; ``"batch"``: batch
            normalization, with statistics of the rows of weight > 0 only.

    Raises:
        ConfigError: the inputs are not images, or ``norm`` is unknown.
    """
    check_value(norm, Norm, key="model.options.norm")
    shape = check_images("wideresnet16", input_shape)
    module = WideResNet(shape, num_classes, norm)
    return from_module(
        module, input_shape=shape, num_classes=num_classes, head="head", name="wideresnet16"
    )
