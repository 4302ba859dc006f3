"""A frozen encoder without weights: how strong edges of eight directions are, by part of a picture.

    fedtailor run -a one_shot_fda -d digits --clients 20 --encoder edges:encoder

in the folder of this file. It needs no other library; a trained encoder is better (see
docs/howto/encoders.md).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

DIRECTIONS = 8
PARTS = 4
"""Parts of a picture in both directions."""


class Edges(nn.Module):
    """Features (n, 8 * 16) of gray pictures (n, 1, height, width)."""

    def __init__(self) -> None:
        super().__init__()
        horizontal = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 4
        filters = []
        for number in range(DIRECTIONS):
            angle = 2 * math.pi * number / DIRECTIONS
            filters.append(math.cos(angle) * horizontal + math.sin(angle) * horizontal.T)

        self.register_buffer("filters", torch.stack(filters)[:, None])

    def forward(self, pictures: Tensor) -> Tensor:
        """Filter, keep what is positive, and take means over the parts."""
        strengths = functional.conv2d(pictures, self.filters, padding=1).relu()
        return functional.adaptive_avg_pool2d(strengths, PARTS).flatten(1)


def encoder() -> nn.Module:
    """Return the encoder."""
    return Edges()
