"""Encoders by their targets."""

from __future__ import annotations

from fedtailor.core.errors import ConfigError
from fedtailor.encoders.encoder import KEY, ONNX, Encoder


def load_encoder(target: str) -> Encoder:
    """Return the encoder that a target names.

    Args:
        target: ``onnx:FILE`` or ``package.module:function``.

    Raises:
        ConfigError: there is no such file, function or package, or it is no encoder.
    """
    if target.startswith(ONNX):
        from fedtailor.encoders.onnx_file import OnnxEncoder

        return OnnxEncoder(target)

    from fedtailor.encoders.module import ModuleEncoder

    return ModuleEncoder.load(target)


def load_unchanged(target: str, digest: str) -> Encoder:
    """Return the encoder that made some features.

    Args:
        target: by which it was loaded then.
        digest: that it had.

    Raises:
        ConfigError: it is not there, or has another digest now; the message has both.
    """
    encoder = load_encoder(target)
    if encoder.digest != digest:
        message = (
            f"encoder '{target}' has changed: its digest is {encoder.digest}, and that of the "
            f"features is {digest}."
        )
        raise ConfigError(message, key=KEY, allowed=digest, got=encoder.digest)

    return encoder
