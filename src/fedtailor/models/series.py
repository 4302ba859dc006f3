"""A small convolutional network for series of any length, such as the accelerations of a watch.

Wang, Yan and Oates 2017, "Time series classification from scratch with deep neural networks: a
strong baseline" (IJCNN): the fully convolutional network, three convolutions over time and the mean
over all times. Here it has 32, 64 and 64 channels instead of 128, 256 and 128, kernels of 7, 5 and
3 instead of 8, 5 and 3, so that the length stays, and group normalization (Wu and He 2018, "Group
Normalization", ECCV) instead of batch normalization, whose running statistics have no meaningful
average over clients with different data.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedtailor.core.errors import ConfigError
from fedtailor.models.module import from_module
from fedtailor.models.module_model import ModuleModel
from fedtailor.models.networks import Shape

LAYERS = ((32, 7), (64, 5), (64, 3))
"""Channels and kernel of every convolution."""
GROUPS = 8


class SeriesNetwork(nn.Module):
    """Convolutions ``conv1`` to ``conv3``, each with a normalization and ReLU; mean; the head."""

    def __init__(self, input_channels: int, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential()
        inputs = input_channels
        for number, (channels, kernel) in enumerate(LAYERS, start=1):
            # Only the bias lets the amplitude of a series pass the normalization.
            convolution = nn.Conv1d(inputs, channels, kernel, padding=kernel // 2)
            self.body.add_module(f"conv{number}", convolution)
            self.body.add_module(f"norm{number}", nn.GroupNorm(GROUPS, channels))
            self.body.add_module(f"relu{number}", nn.ReLU())
            inputs = channels

        self.head = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes) of series (n, channels, times)."""
        # Where in time something happens does not matter.
        features = self.body(x).mean(2)
        logits: Tensor = self.head(features)
        return logits


def series_cnn(input_shape: Shape, num_classes: int) -> ModuleModel:
    """Build the network, 64 features, for series (channels, times).

    Layers have PyTorch's initialization.

    Raises:
        ConfigError: the inputs are not series.
    """
    shape = tuple(input_shape)
    if len(shape) != 2:
        allowed = "series (channels, times)"
        message = f"model 'series_cnn' needs {allowed}, got inputs of shape {shape}."
        raise ConfigError(message, key="model.name", allowed=allowed, got=str(shape))

    module = SeriesNetwork(shape[0], num_classes)
    return from_module(
        module, input_shape=shape, num_classes=num_classes, head="head", name="series_cnn"
    )
