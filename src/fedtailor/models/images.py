"""The check that the inputs of a built-in model are images, and large enough."""

from __future__ import annotations

from fedtailor.core.errors import ConfigError
from fedtailor.models.layers import Shape


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
