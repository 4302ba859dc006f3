"""Encoders for tests: a small convolution with seeded weights, and what no encoder may be.

``python tests/tiny_encoders.py`` writes the ONNX files of tests/encoders again.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

FEATURES = 6
SIDE = 12
"""Rows and columns of the pictures that the ONNX files take."""

ONNX = Path(__file__).parent / "encoders" / "tiny.onnx"
ONNX_OF_FOUR = ONNX.with_name("tiny_of_four.onnx")
"""The same network, for batches of four only."""


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


def write_onnx(path, *, batch=None):
    """Export the network to an ONNX file for batches of any size, or of one."""
    program = torch.export.export(
        Tiny().eval(),
        (torch.zeros(batch or 3, 1, SIDE, SIDE),),
        dynamic_shapes=None if batch else ({0: torch.export.Dim("batch", min=1)},),
    )
    exported = torch.onnx.export(program, dynamo=True, opset_version=20, verbose=False)
    graph = exported.model_proto
    for part in (graph, *graph.graph.node, *graph.graph.value_info, graph.graph):
        part.ClearField("metadata_props")  # names places on this machine
    path.write_bytes(graph.SerializeToString())


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


if __name__ == "__main__":
    write_onnx(ONNX)
    write_onnx(ONNX_OF_FOUR, batch=4)
