"""The networks of gpu_step.py as their papers write them: modules of torch.nn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedtailor.models.resnet import BLOCKS, GROUP_SIZE, STAGE_CHANNELS, STEM_CHANNELS, Block
from train_step import torch_module


def peer_module(name: str, classes: int) -> nn.Module:
    """Build a network whose parameters come in the order of the model's."""
    return ResNet(classes) if name == "resnet18" else torch_module(name, classes)


class GroupNorm(nn.Module):
    """Group normalization with one scale and one shift per group."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(fill(channels // GROUP_SIZE)) for fill in (torch.ones, torch.zeros))

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = (values.repeat_interleave(GROUP_SIZE) for values in (self.weight, self.bias))
        return nn.functional.group_norm(x, len(self.weight), scale, shift)


def convolution(inputs: int, channels: int, kernel: int, stride: int, padding: int) -> nn.Sequential:
    """Return a convolution and its normalization."""
    return nn.Sequential(nn.Conv2d(inputs, channels, kernel, stride, padding, bias=False), GroupNorm(channels))


class Residual(nn.Module):
    """Two convolutions and a sum."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.first = convolution(block.inputs, block.channels, 3, block.stride, 1)
        self.second = convolution(block.channels, block.channels, 3, 1, 1)
        self.shortcut = convolution(block.inputs, block.channels, 1, block.stride, 0) if block.projects else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Sequential):
    """ResNet-18 with the stem for ImageNet."""

    def __init__(self, classes: int) -> None:
        stem = [convolution(3, STEM_CHANNELS, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        blocks = [Residual(block) for block in BLOCKS]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(STAGE_CHANNELS[-1], classes)]
        super().__init__(*stem, *blocks, *head)
