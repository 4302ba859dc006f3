"""Encoders by their targets."""

from __future__ import annotations

from fedtailor.encoders.encoder import ONNX, Encoder


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
