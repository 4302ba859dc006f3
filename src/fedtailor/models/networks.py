"""Built-in networks of convolution stages and linear layers, from the papers of the methods.

A stage is convolution, max-pool 2/2, activation. The papers activate before they pool. Activations
that never decrease commute with the maximum: the outputs are the same numbers, at a quarter of the
cost.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import Range, check_value
from fedtailor.core.rng import Key, uniform
from fedtailor.core.task import Params

Shape = tuple[int, ...]


def check_images(name: str, input_shape: Shape, smallest: int = 1) -> Shape:
    """Return the shape (channels, height, width) of the inputs of the model ``name``.

    Raises:
        ConfigError: the inputs are not images, or have a height or width of fewer than ``smallest``
            pixels.
    """
    shape = tuple(input_shape)
    if len(shape) == 3 and min(shape[1:]) >= smallest:
        return shape

    allowed = "images (channels, height, width)"
    if smallest > 1:
        allowed += f" of at least {smallest} x {smallest} pixels"

    got = f"({', '.join(str(size) for size in shape)})"
    raise ConfigError(
        f"model '{name}' needs {allowed}, got inputs of shape {got}.",
        key="model.name",
        allowed=allowed,
        got=got,
    )


def default_init(shapes: Mapping[str, Shape], key: Key) -> Params:
    """Draw weights and biases of linear and convolution layers from PyTorch's default distribution.

    ``LAYER.weight`` and ``LAYER.bias`` are uniform within +-1/sqrt(fan-in), as in
    ``torch.nn.Linear`` and ``torch.nn.Conv2d``. Each name has its own stream of random numbers.
    They are the same in every default dtype up to rounding.
    """
    params: Params = {}
    for name, shape in shapes.items():
        layer = name.rpartition(".")[0]
        bound = 1 / math.sqrt(math.prod(shapes[f"{layer}.weight"][1:]))
        params[name] = (2 * uniform(key.fold(name), shape) - 1) * bound
    return params


class LinearHeadModel(ABC):
    """A model without buffers whose head is one linear layer, ``head.weight`` and ``head.bias``.

    Subclasses define the shapes of the body, and ``features``; they satisfy ``core.task.Model``.
    """

    norm: frozenset[str] = frozenset()

    def __init__(self, body: Mapping[str, Shape], feature_dim: int, num_classes: int) -> None:
        self.feature_dim = feature_dim
        self.shapes: dict[str, Shape] = {
            **body,
            "head.weight": (num_classes, feature_dim),
            "head.bias": (num_classes,),
        }
        groups = dict.fromkeys(body, "body")
        self.groups = {**groups, "head.weight": "head", "head.bias": "head"}

    def init(self, key: Key) -> Params:
        """Return fresh parameters in torch's default dtype."""
        return default_init(self.shapes, key)

    @abstractmethod
    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, d) and no buffers."""

    def head(self, params: Params, z: Tensor) -> Tensor:
        """Return logits (n, classes) of features (n, d)."""
        return F.linear(z, params["head.weight"], params["head.bias"])


leaky_relu = partial(F.leaky_relu, negative_slope=0.01)


class Stage(NamedTuple):
    """A convolution with its output channels, kernel and padding; pool and activation follow."""

    channels: int
    kernel: int
    padding: int = 0

    def output_size(self, size: int) -> int:
        """Return height or width after the stage; 0 if the image is too small."""
        return max(size + 2 * self.padding - self.kernel + 1, 0) // 2


class StagedNetwork(LinearHeadModel):
    """Stages ``conv1``, ``conv2``, ..., linear layers by name, an activation after each; the head.

    Args:
        name: name of the model in messages.
        stages: any number of them; without stages, inputs may have any shape.
        widths: units of every linear layer; the last one gives the features.
        activation: ReLU or leaky ReLU.
        input_shape: shape of an example.
        num_classes: number of classes.

    Raises:
        ConfigError: there are stages, and the inputs are not images or too small.
    """

    def __init__(
        self,
        name: str,
        stages: Sequence[Stage],
        widths: Mapping[str, int],
        activation: Callable[[Tensor], Tensor],
        input_shape: Shape,
        num_classes: int,
    ) -> None:
        self.stages = tuple(stages)
        self.linear_layers = tuple(widths)
        self.activation = activation
        if stages:
            check_images(name, input_shape, smallest=_smallest(stages))

        # Convolutions, (channels, inputs, kernel, kernel) each.
        body: dict[str, Shape] = {}
        shape = tuple(input_shape)
        for number, stage in enumerate(stages, start=1):
            body[f"conv{number}.weight"] = (stage.channels, shape[0], stage.kernel, stage.kernel)
            body[f"conv{number}.bias"] = (stage.channels,)
            shape = (stage.channels, *map(stage.output_size, shape[1:]))

        # Linear layers on the flattened pixels of all channels.
        inputs = math.prod(shape)
        for layer, width in widths.items():
            body[f"{layer}.weight"] = (width, inputs)
            body[f"{layer}.bias"] = (width,)
            inputs = width
        super().__init__(body, inputs, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, d) and no buffers."""
        for number, stage in enumerate(self.stages, start=1):
            kernel = params[f"conv{number}.weight"]
            x = F.conv2d(x, kernel, params[f"conv{number}.bias"], padding=stage.padding)
            x = self.activation(F.max_pool2d(x, 2))

        z = x.flatten(1)  # (n, units)
        for layer in self.linear_layers:
            z = self.activation(F.linear(z, params[f"{layer}.weight"], params[f"{layer}.bias"]))
        return z, {}


def _smallest(stages: Sequence[Stage]) -> int:
    """Return the smallest height and width that leave a pixel after the last stage."""
    # Backwards from one pixel: a pool halves, a convolution takes its kernel off.
    size = 1
    for stage in reversed(stages):
        size = max(2 * size + stage.kernel - 1 - 2 * stage.padding, 1)
    return size


def mlp(input_shape: Shape, num_classes: int, *, hidden: int = 100) -> StagedNetwork:
    """Build a perceptron for any inputs; ``hidden`` is the width of its hidden layer.

    Raises:
        ConfigError: ``hidden`` is not a whole number >= 1.
    """
    check_value(hidden, Annotated[int, Range(ge=1)], key="model.options.hidden")
    return StagedNetwork("mlp", (), {"hidden": hidden}, F.relu, input_shape, num_classes)


def linear(input_shape: Shape, num_classes: int) -> StagedNetwork:
    """Build a head without a body: the features are the inputs, flattened."""
    return StagedNetwork("linear", (), {}, F.relu, input_shape, num_classes)


class Projection(LinearHeadModel):
    """A linear map ``projection`` without bias or activation; the head.

    Args:
        features: of the map.
        input_shape: shape of an example; it is flattened.
        num_classes: number of classes.
    """

    def __init__(self, features: int, input_shape: Shape, num_classes: int) -> None:
        self.inputs = math.prod(input_shape)
        super().__init__({"projection.weight": (features, self.inputs)}, features, num_classes)

    def init(self, key: Key) -> Params:
        """Return fresh parameters: on average over maps, inputs keep their norm."""
        params = super().init(key)
        scale = math.sqrt(3 * self.inputs / self.feature_dim)
        params["projection.weight"] = scale * params["projection.weight"]
        return params

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, d) and no buffers."""
        return F.linear(x.flatten(1), params["projection.weight"]), {}


def projection(input_shape: Shape, num_classes: int, *, features: int = 256) -> Projection:
    """Build a random map to ``features`` numbers, for inputs that are features already.

    A method that does not train it takes fewer features, whose choice tells nothing about any data.
    Distances are kept up to a factor that is the nearer to 1 the more features there are (Johnson
    and Lindenstrauss 1984, "Extensions of Lipschitz mappings into a Hilbert space").

    Raises:
        ConfigError: ``features`` is not a whole number >= 1.
    """
    check_value(features, Annotated[int, Range(ge=1)], key="model.options.features")
    return Projection(features, input_shape, num_classes)


def emnist_cnn(input_shape: Shape, num_classes: int) -> StagedNetwork:
    """Build the network of FedPAC and pFedFDA for 28 x 28 images.

    Larger and slightly smaller images work, too. Xu et al. 2023 (ICLR), McLaughlin and Su 2024
    (NeurIPS).
    """
    stages = (Stage(16, 5), Stage(32, 5, padding=1))
    widths = {"linear": 128}
    return StagedNetwork("emnist_cnn", stages, widths, leaky_relu, input_shape, num_classes)


def cifar_cnn(input_shape: Shape, num_classes: int) -> StagedNetwork:
    """Build the network of FedPAC and pFedFDA for 32 x 32 images: a stage more."""
    stages = (Stage(16, 5), Stage(32, 5, padding=1), Stage(64, 3, padding=1))
    widths = {"linear": 128}
    return StagedNetwork("cifar_cnn", stages, widths, leaky_relu, input_shape, num_classes)


def lenet(input_shape: Shape, num_classes: int) -> StagedNetwork:
    """Build the network of pFedVEM for CIFAR-10; other images of 16 x 16 pixels or more work, too.

    Zhu et al. 2023, "Confidence-Aware Personalized Federated Learning via Variational Expectation
    Maximization" (CVPR).
    """
    stages = (Stage(16, 5), Stage(32, 5))
    widths = {"hidden1": 120, "hidden2": 84}
    return StagedNetwork("lenet", stages, widths, F.relu, input_shape, num_classes)


def fedcr_mlp(input_shape: Shape, num_classes: int) -> StagedNetwork:
    """Build the perceptron of FedCR for EMNIST-L, for inputs of any shape.

    Zhang et al. 2023, "FedCR: Personalized Federated Learning Based on Across-Client Common
    Representation with Conditional Mutual Information Regularization" (ICML). This is the
    deterministic network that the paper's baselines train. A stochastic algorithm puts its Gaussian
    layer between the 1024 features and the head
    (:class:`fedtailor.statistics.bottleneck.GaussianModel`).
    """
    widths = {"hidden1": 1024, "hidden2": 1024}
    return StagedNetwork("fedcr_mlp", (), widths, F.relu, input_shape, num_classes)


def fedcr_cnn(
    input_shape: Shape, num_classes: int, *, channels1: int = 64, channels2: int = 64
) -> StagedNetwork:
    """Build the network of FedCR for CIFAR; its code for Fashion-MNIST has 4 and 12 channels.

    Raises:
        ConfigError: the inputs are not images or too small, or a number of channels is not a whole
            number >= 1.
    """
    check_value(channels1, Annotated[int, Range(ge=1)], key="model.options.channels1")
    check_value(channels2, Annotated[int, Range(ge=1)], key="model.options.channels2")
    stages = (Stage(channels1, 5), Stage(channels2, 5))
    widths = {"hidden1": 1024, "hidden2": 1024}
    return StagedNetwork("fedcr_cnn", stages, widths, F.relu, input_shape, num_classes)


class SixLayerNetwork(LinearHeadModel):
    """Convolutions ``conv1`` to ``conv5`` with ReLU, pools between them, mean over pixels; head.

    The padding of a pool keeps a border: maps of n pixels become n // 2 + 1 pixels, so images may
    be as small as one pixel.
    """

    CHANNELS = (32, 64, 128, 256, 100)

    def __init__(self, input_shape: Shape, num_classes: int) -> None:
        body: dict[str, Shape] = {}
        inputs = input_shape[0]
        for number, channels in enumerate(self.CHANNELS, start=1):
            body[f"conv{number}.weight"] = (channels, inputs, 3, 3)
            body[f"conv{number}.bias"] = (channels,)
            inputs = channels
        super().__init__(body, inputs, num_classes)

    def features(
        self, params: Params, x: Tensor, *, weight: Tensor, key: Key, training: bool
    ) -> tuple[Tensor, Params]:
        """Return features (n, 100) and no buffers."""
        for number in range(1, len(self.CHANNELS) + 1):
            x = F.conv2d(x, params[f"conv{number}.weight"], params[f"conv{number}.bias"], padding=1)
            if number < len(self.CHANNELS):
                x = F.max_pool2d(x, 2, padding=1)
            x = F.relu(x)
        return x.mean((2, 3)), {}


def cnn6(input_shape: Shape, num_classes: int) -> SixLayerNetwork:
    """Build the network of pFedVEM for CIFAR-100 and SUN397, for images of any size.

    Raises:
        ConfigError: the inputs are not images.
    """
    return SixLayerNetwork(check_images("cnn6", input_shape), num_classes)
