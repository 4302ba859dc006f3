"""One ONNX graph of an encoder and a personal model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedtailor.data.input_specification import InputSpecification

_ENCODER = "encoder/"
"""Before all names in the graph of an encoder."""


def behind_encoder(head: bytes, encoder: Path, inputs: InputSpecification) -> bytes:
    """Return the graph of an encoder that is followed by that of a personal model.

    Args:
        head: an ONNX file whose input ``inputs`` are features.
        encoder: the file of the encoder.
        inputs: what the encoder takes, as stored.

    Raises:
        Exception: whatever the library ONNX raises for graphs that it cannot join.
    """
    import onnx
    from onnx import compose

    last = onnx.load_from_string(head)
    first = onnx.load(encoder)
    del first.graph.output[1:]
    first, last = _of_one_version(first, last)

    # Names of the two graphs may be the same, and the outputs keep those of the head.
    first = compose.add_prefix(first, _ENCODER)
    first = _taking_stored_values(first, inputs)
    features = first.graph.output[0].name
    joined = compose.merge_models(first, last, io_map=[(features, "inputs")])
    joined.graph.input[0].name = "inputs"
    for node in joined.graph.node:
        for number, name in enumerate(node.input):
            if name == "stored":
                node.input[number] = "inputs"

    del joined.graph.value_info[:]
    onnx.checker.check_model(joined)
    data: bytes = joined.SerializeToString()
    return data


def _of_one_version(first: Any, second: Any) -> tuple[Any, Any]:
    """Return two models with the later of their versions of ONNX and of its operators."""
    from onnx import version_converter

    versions = [_version_of(first), _version_of(second)]
    if versions[0] < versions[1]:
        first = version_converter.convert_version(first, versions[1])
    elif versions[1] < versions[0]:
        second = version_converter.convert_version(second, versions[0])

    latest = max(first.ir_version, second.ir_version)
    first.ir_version = latest
    second.ir_version = latest
    return first, second


def _version_of(model: Any) -> int:
    """Return the version of ONNX's own operators."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    return int(versions.get("", versions.get("ai.onnx", 0)))


def _taking_stored_values(encoder: Any, inputs: InputSpecification) -> Any:
    """Return a graph whose input ``stored`` are values as stored, not from 0 to 1."""
    from onnx import TensorProto, compose, helper

    (graph_input,) = encoder.graph.input
    stored = TensorProto.UINT8 if inputs.stored == "uint8" else TensorProto.FLOAT
    kind = graph_input.type.tensor_type.elem_type
    scaled = [
        helper.make_node("Cast", ["stored"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["floats", "white"], ["scaled"]),
    ]
    if kind == TensorProto.UINT8:
        scaled = [helper.make_node("Identity", ["stored"], ["scaled"])]

    shape: list[str | int | None] = ["batch", *inputs.shape]
    white = helper.make_tensor("white", TensorProto.FLOAT, [], [inputs.white])
    graph = helper.make_graph(
        scaled,
        "scaling",
        [helper.make_tensor_value_info("stored", stored, shape)],
        [helper.make_tensor_value_info("scaled", kind, shape)],
        [white],
    )
    scaling = helper.make_model(
        graph, opset_imports=encoder.opset_import, ir_version=encoder.ir_version
    )
    return compose.merge_models(scaling, encoder, io_map=[("scaled", graph_input.name)])
