"""Encoders in ONNX files, run by onnxruntime."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.errors import ConfigError, describe_error
from fedtailor.core.extras import install_command
from fedtailor.encoders.encoder import BATCH, KEY, ONNX

_TYPES = {"tensor(float)": torch.float32, "tensor(uint8)": torch.uint8}
"""What a graph may take: floats from 0 to 1, or bytes as a data set stores them."""


class OnnxEncoder:
    """The first output of a graph with one input, whose first axis is the batch."""

    def __init__(self, target: str) -> None:
        """Open the file of a target ``onnx:FILE``.

        Raises:
            ConfigError: a library or the file is missing, or its graph takes something else.
        """
        self.target = target
        self.path = Path(os.path.expanduser(target.removeprefix(ONNX)))
        for library in ("onnxruntime", "onnx"):
            if importlib.util.find_spec(library) is None:
                message = f"an encoder in an ONNX file needs {library}: {install_command('onnx')}."
                raise ConfigError(message, key=KEY, allowed=library, got="not installed")

        if not self.path.is_file():
            message = f"there is no file '{self.path}' for the encoder '{target}'."
            raise ConfigError(message, key=KEY, allowed="an ONNX file", got=target)

        self._session = self._open()
        self.digest = _digest_of(self.path)
        (graph_input,) = self._session.get_inputs()
        self._input = graph_input.name
        self._dtype = _TYPES[graph_input.type]
        self._output = self._session.get_outputs()[0].name
        self.license = self._session.get_modelmeta().custom_metadata_map.get("license", "")

        # A graph may be made for batches of one size.
        size = graph_input.shape[0] if graph_input.shape else None
        self.batch = size if isinstance(size, int) and size > 0 else BATCH

    def _open(self) -> Any:
        """Return a session of one thread, so that results do not depend on the number of cores."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                str(self.path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as reason:  # the runtime has a dozen exceptions of its own
            message = f"'{self.path}' cannot be opened: {describe_error(reason).rstrip('.')}."
            raise ConfigError(message, key=KEY, got=self.target) from reason

        types = [graph_input.type for graph_input in session.get_inputs()]
        if len(types) != 1 or types[0] not in _TYPES:
            allowed = f"one input of type {' or '.join(_TYPES)}"
            message = f"the graph in '{self.path}' must have {allowed}, got {', '.join(types)}."
            raise ConfigError(message, key=KEY, allowed=allowed, got=types)

        return session

    def run(self, stored: Tensor, white: float) -> Tensor:
        """Return the features of one batch (batch, d), float32."""
        if self._dtype == torch.uint8:
            if stored.dtype != torch.uint8:
                raise TypeError("the graph takes bytes, and the data are floats")

            values = stored
        else:
            values = stored.float() / white

        (features,) = self._session.run([self._output], {self._input: values.contiguous().numpy()})
        return torch.from_numpy(features).float()

    def worker(self) -> OnnxEncoder:
        """Return this encoder: a session may be used by several threads."""
        return self


def _digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, and of the files beside it that hold its weights."""
    digest = hashlib.sha256()
    for file in [path, *_files_of_weights(path)]:
        with file.open("rb") as content:
            hashlib.file_digest(content, lambda: digest)  # which continues it

    return digest.hexdigest()


def _files_of_weights(path: Path) -> list[Path]:
    """Return the files in which a large model keeps its weights."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    model = onnx.load(path, load_external_data=False)
    outside = [tensor for tensor in model.graph.initializer if uses_external_data(tensor)]
    names = {ExternalDataInfo(tensor).location for tensor in outside}
    return [path.parent / name for name in sorted(names)]
