"""Frozen encoders: deterministic maps from raw inputs to vectors, by which models get features.

A target names one: ``onnx:FILE``, or ``package.module:function`` for a function without arguments
that returns a ``torch.nn.Module``. Nothing of an encoder is trained.
"""
