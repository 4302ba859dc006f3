"""ResNet-18 with group normalization, one scale and one shift per group, for images of any size.

He et al. 2016, "Deep Residual Learning for Image Recognition" (CVPR), with the stem for ImageNet;
Wu and He 2018, "Group Normalization" (ECCV). A group has 32 channels, as in the networks of the
FedLDA experiments. The usual layer has a scale and a shift per channel: 9,600 parameters instead of
300.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.rng import Key, normal
from fedtailor.core.task import Params
from fedtailor.models.networks import LinearHeadModel, Shape, check_images, default_init

STEM_CHANNELS = 64
STAGE_CHANNELS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2
GROUP_SIZE = 32  # channels


class ResidualBlock(NamedTuple):
    """Two convolutions, added to the input; if the size changes, to a convolution of the input."""

    name: str
    inputs: int
    channels: int
    stride: int

    @property
    def projects(self) -> bool:
        """Whether a convolution changes the size of the input before it is added."""
        return self.stride != 1 or self.inputs != self.channels


def blocks_of(
    name: str, stem_channels: int, stage_channels: Sequence[int]
) -> Iterator[ResidualBlock]:
    """Yield the blocks of a network; its name has places for the numbers of stage and block."""
    inputs = stem_channels
    for stage, channels in enumerate(stage_channels, start=1):
        for number in range(1, BLOCKS_PER_STAGE + 1):
            # Every stage but the first halves height and width.
            stride = 2 if stage > 1 and number == 1 else 1
            yield ResidualBlock(name.format(stage, number), inputs, channels, stride)
            inputs = channels


BLOCKS = tuple(blocks_of("stage{}.block{}", STEM_CHANNELS, STAGE_CHANNELS))


def group_norm(params: Params, name: str, x: Tensor) -> Tensor:
    """Normalize (n, channels, height, width) within groups of channels; scale and shift each."""
    scale = _by_channel(params[f"{name}.weight"])
    shift = _by_channel(params[f"{name}.bias"])
    return F.group_norm(x, x.shape[1] // GROUP_SIZE, scale, shift)


def _by_channel(by_group: Tensor) -> Tensor:
    """Return a number per channel (channels,) from a number per group (groups,)."""
    return by_group[:, None].expand(-1, GROUP_SIZE).flatten()


def residual(params: Params, block: ResidualBlock, x: Tensor) -> Tensor:
    """Apply one block."""
    name = block.name
    # Two convolutions, each with its normalization.
    y = F.conv2d(x, params[f"{name}.conv1.weight"], stride=block.stride, padding=1)
    y = F.relu(group_norm(params, f"{name}.norm1", y))
    y = group_norm(params, f"{name}.norm2", F.conv2d(y, params[f"{name}.conv2.weight"], padding=1))

    # The input takes the new size before it is added.
    if block.projects:
        x = F.conv2d(x, params[f"{name}.shortcut.weight"], stride=block.stride)
        x = group_norm(params, f"{name}.shortcut_norm", x)
    return F.relu(x + y)


def _layers(image_channels: int) -> Iterator[tuple[str, str, Shape]]:
    """Yield the name of every convolution and its normalization, and the convolution's shape."""
    yield "conv", "norm", (STEM_CHANNELS, image_channels, 7, 7)
    for block in BLOCKS:
        name, inputs, channels = block[:3]
        yield f"{name}.conv1", f"{name}.norm1", (channels, inputs, 3, 3)
        yield f"{name}.conv2", f"{name}.norm2", (channels, channels, 3, 3)
        if block.projects:
            yield f"{name}.shortcut", f"{name}.shortcut_norm", (channels, inputs, 1, 1)


class ResNet18(LinearHeadModel):
    """Stem ``conv``, ``norm``; blocks ``stage1.block1`` to ``stage4.block2``; mean; the head."""

    def __init__(self, input_shape: Shape, num_classes: int) -> None:
        body: dict[str, Shape] = {}
        for convolution, norm, shape in _layers(input_shape[0]):
            body[f"{convolution}.weight"] = shape
            body[f"{norm}.weight"] = (shape[0] // GROUP_SIZE,)
            body[f"{norm}.bias"] = (shape[0] // GROUP_SIZE,)
        super().__init__(body, STAGE_CHANNELS[-1], num_classes)
        self.norm = frozenset(name for name in body if "norm" in name)

    def init(self, key: Key) -> Params:
        """Return fresh parameters in torch's default dtype.

        Convolutions are normal with standard deviation sqrt(2 / fan-out) (He et al. 2015, ICCV),
        scales are 1, shifts are 0, and the head has PyTorch's default. Each name has its own stream
        of random numbers.
        """
        params: Params = {}
        head = {}
        for name, shape in self.shapes.items():
            if self.groups[name] == "head":
                head[name] = shape
            elif name in self.norm:
                params[name] = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
            else:
                fan_out = shape[0] * math.prod(shape[2:])
                params[name] = normal(key.fold(name), shape) * math.sqrt(2 / fan_out)

        return {**params, **default_init(head, key)}

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, 512) and no buffers."""
        x = group_norm(params, "norm", F.conv2d(x, params["conv.weight"], stride=2, padding=3))

        # ReLU before the pool gives the same numbers at a higher cost.
        x = F.relu(F.max_pool2d(x, 3, stride=2, padding=1))
        for block in BLOCKS:
            x = residual(params, block, x)
        return x.mean((2, 3)), {}


def resnet18_gn(input_shape: Shape, num_classes: int) -> ResNet18:
    """Build the network; designed for 64 x 64 images; other sizes work, too.

    Raises:
        ConfigError: the inputs are not images.
    """
    return ResNet18(check_images("resnet18_gn", input_shape), num_classes)
