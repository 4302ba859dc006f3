"""Encoders for tests: a small convolution with seeded weights, and what no encoder may be."""

import os
import time

import torch
from torch import nn

FEATURES = 6


class Tiny(nn.Module):
    """Two convolutions and a mean over the picture, for any size and number of channels."""

    license = "CC0-1.0"

    def __init__(self, channels=1, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Conv2d(channels, 4, 3, padding=1)
        self.second = nn.Conv2d(4, FEATURES, 3, padding=1, stride=2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)

    def forward(self, x):
        x = (x - 0.5) / 0.25
        return self.second(torch.relu(self.first(x))).mean((2, 3))


class OfAttributes(Tiny):
    """Keeps what it computes in an attribute, as hooks do."""

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


class Noisy(Tiny):
    def forward(self, x):
        return super().forward(x) + 0.01 * torch.randn(len(x), FEATURES)


class Mixing(Tiny):
    def forward(self, x):
        features = super().forward(x)
        return features - features.mean(0)


class Undefined(Tiny):
    def forward(self, x):
        return super().forward(x) / 0


class Flat(Tiny):
    def forward(self, x):
        return super().forward(x).mean(1)


class Failing(Tiny):
    def forward(self, x):
        raise RuntimeError("you tried to allocate 64 TB")


def tiny():
    return Tiny()


def other():
    return Tiny(seed=1)


def colors():
    return Tiny(channels=3)


def of_attributes():
    return OfAttributes()


def noisy():
    return Noisy()


def mixing():
    return Mixing()


def undefined():
    return Undefined()


def flat():
    return Flat()


def failing():
    return Failing()


def nothing():
    return None


def raising():
    raise OSError("the weights are not there")


def write_onnx(path, module=None, *, batch=None, channels=1, side=8):
    """Export a module to an ONNX file for batches of any size, or of one."""
    program = torch.export.export(
        (module or Tiny(channels)).eval(),
        (torch.zeros(batch or 3, channels, side, side),),
        dynamic_shapes=None if batch else ({0: torch.export.Dim("batch", min=1)},),
    )
    torch.onnx.export(program, dynamo=True, opset_version=20, verbose=False).save(str(path))
    return f"onnx:{path}"


class Counting(Tiny):
    """Takes a while, and adds a line to a file for every batch that it has finished."""

    def forward(self, x):
        time.sleep(0.02)
        features = super().forward(x)
        with open(os.environ["FEDTAILOR_TEST_BATCHES"], "a") as file:
            file.write(".")
        return features


def counting():
    return Counting()


class Rows(nn.Module):
    """Mean and largest feature of rows."""

    def forward(self, x):
        return torch.stack([x.mean(1), x.amax(1)], dim=1)


def rows():
    return Rows()


def talkative():
    print("loading")
    return Tiny()
