"""Personal models as ONNX files."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from fedtailor.core.errors import ConfigError
from fedtailor.serving.trace import quiet

OPSET = 20
"""The version of ONNX's operators."""
_PACKAGES = ("onnx", "onnxscript")


def to_onnx(program: ExportedProgram) -> bytes:
    """Return a traced model as the bytes of an ONNX file, with the outputs ``logits`` and
    ``probabilities``.

    Raises:
        ConfigError: the packages of the extra ``onnx`` are missing.
    """
    require_onnx()
    decompositions = torch.export.default_decompositions()
    decompositions[torch.ops.aten.sort.stable] = _sort
    with quiet():
        converted: Any = torch.onnx.export(
            program.run_decompositions(decompositions),
            dynamo=True,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=["logits", "probabilities"],
            verbose=False,
        )

    model = converted.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"

    del model.graph.value_info[:]  # shapes of intermediate values, by another name of the batch
    data: bytes = model.SerializeToString()
    return data


def _sort(
    values: Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort with ``TopK``, which in ONNX puts the first of equal values first, as a stable sort
    does.
    """
    return torch.topk(values, values.shape[dim], dim, largest=descending, sorted=True)


def require_onnx() -> None:
    """Check that the packages of the extra ``onnx`` are installed.

    Raises:
        ConfigError: one is missing.
    """
    import importlib.util

    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        message = f"the format onnx needs {' and '.join(missing)}: pip install 'fedtailor[onnx]'."
        raise ConfigError(message, key="format", allowed=list(_PACKAGES), got="not installed")
