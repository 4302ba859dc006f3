"""A personal model as a graph of PyTorch's own operators or of ONNX, ready to leave Python."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from fedtailor.core.errors import ConfigError
from fedtailor.core.extras import install_command
from fedtailor.core.torch_private import cdist_operator, resizing_operators
from fedtailor.data.input_specification import InputSpecification
from fedtailor.encoders.encoder import Encoder
from fedtailor.encoders.module import ModuleEncoder
from fedtailor.serving.encoded import EncodedModule
from fedtailor.serving.module import PersonalModule

OPSET = 20
"""The version of ONNX's operators."""
_ONNX_PACKAGES = ("onnx", "onnxscript")
_TRACED = 3
"""Examples in the batch with which a model is traced; the graph takes any number."""


class Classifier(nn.Module):
    """A personal model that returns logits and probabilities.

    Closed-form heads are centered: what all classes share of their weights and biases changes no
    probability, and can be a thousand times larger than the differences between classes, which
    would lose their digits in 32 bits.
    """

    def __init__(
        self, module: PersonalModule, temperature: float, inputs: InputSpecification
    ) -> None:
        super().__init__()
        self.model = PersonalModule(
            module.algorithm, module.task, _with_centered_heads(module.tree()), inputs
        )
        self.temperature = temperature
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and calibrated probabilities (n, classes) of stored values."""
        logits = self.model(x)
        return logits, torch.softmax(logits / self.temperature, dim=1)


class EncodedClassifier(nn.Module):
    """A personal model behind the module of an encoder: stored raw values to probabilities."""

    def __init__(self, module: EncodedModule, encoder: nn.Module, temperature: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.white = module.head_inputs.raw.white
        self.classifier = Classifier(module.head, temperature, module.head_inputs)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and calibrated probabilities (n, classes) of stored values."""
        features = self.encoder(x.float() / self.white)
        logits, probabilities = self.classifier(features.float())
        return logits, probabilities


def traced(
    module: PersonalModule | EncodedModule, inputs: InputSpecification, temperature: float
) -> ExportedProgram:
    """Trace a personal model into a program with one input, a batch of any size, and two outputs.

    Random numbers of a prediction are drawn once and become constants. Distances and the resizing
    of pictures are written with plain arithmetic.

    Raises:
        Exception: whatever ``torch.export`` raises for a model that it cannot trace.
    """
    dtype = torch.uint8 if inputs.stored == "uint8" else torch.float32
    example = torch.zeros((_TRACED, *inputs.shape), dtype=dtype)
    batch = ({0: Dim("batch", min=1)},)
    with torch.no_grad(), _quiet():
        # Draws become constants in the graph, which is traced again without them.
        classifier: nn.Module
        if isinstance(module, EncodedModule):
            classifier = EncodedClassifier(module, _module_of(module.encoder), temperature)
        else:
            classifier = Classifier(module, temperature, inputs)

        program = torch.export.export(classifier, (example,), dynamic_shapes=batch)
        graph = program.module()
        if isinstance(graph, GraphModule):
            has_draws = _fix_draws(graph)
            if _resize_by_products(graph) or has_draws:
                program = torch.export.export(graph, (example,), dynamic_shapes=batch)

        # ONNX has no operator for distances.
        decompositions = torch.export.default_decompositions()
        decompositions[cdist_operator()] = _distances
        decomposed: ExportedProgram = program.run_decompositions(decompositions)
        return decomposed


def _module_of(encoder: Encoder) -> nn.Module:
    """Return the module of an encoder.

    Raises:
        TypeError: it is a graph of ONNX.
    """
    if not isinstance(encoder, ModuleEncoder):
        raise TypeError("its encoder is an ONNX file, which goes into the format onnx only")

    return encoder.module


def to_onnx(program: ExportedProgram) -> bytes:
    """Return a traced model as the bytes of an ONNX file.

    Its outputs are ``logits`` and ``probabilities``.

    It needs the packages that :func:`require_onnx` looks for.
    """
    decompositions = torch.export.default_decompositions()
    decompositions[torch.ops.aten.sort.stable] = _sort
    with _quiet():
        converted: Any = torch.onnx.export(
            program.run_decompositions(decompositions),
            dynamo=True,
            opset_version=OPSET,
            input_names=["inputs"],
            output_names=["logits", "probabilities"],
            verbose=False,
        )

    # The first axis has a name, so that programs know it may have any length.
    model = converted.model_proto
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"

    # Shapes of intermediate values call the batch by another name.
    del model.graph.value_info[:]
    data: bytes = model.SerializeToString()
    return data


def require_onnx() -> None:
    """Check that the packages of the extra ``onnx`` are installed.

    Raises:
        ConfigError: one is missing.
    """
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        needed = " and ".join(missing)
        message = f"the format onnx needs {needed}: {install_command('onnx')}."
        allowed = list(_ONNX_PACKAGES)
        raise ConfigError(message, key="format", allowed=allowed, got="not installed")


def _with_centered_heads(personal: Any) -> Any:
    """Center the linear heads of a model: NamedTuples of a weight (classes, d) and a bias."""
    if isinstance(personal, Mapping):
        return {name: _with_centered_heads(part) for name, part in personal.items()}
    if not isinstance(personal, tuple):
        return personal

    # (classes, d) and (classes,); in 64 bits, and then as they came.
    cls: Any = type(personal)
    fields = getattr(personal, "_fields", None)
    if fields == ("weight", "bias") and personal[0].dim() == 2:
        weight = personal[0].double()
        bias = personal[1].double()
        dtype = personal[0].dtype
        return cls((weight - weight.mean(0)).to(dtype), (bias - bias.mean()).to(dtype))

    parts = [_with_centered_heads(part) for part in personal]
    return tuple(parts) if fields is None else cls(*parts)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's exporters, which report their progress and what PyTorch will change."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return the Euclidean distances (..., n, m) of rows (..., n, d) from rows (..., m, d)."""
    if p != 2:
        raise ValueError(f"distances with p = {p} are not exported")
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1).sqrt()


def _fix_draws(graph: GraphModule) -> bool:
    """Replace random draws, whose keys are constants, by their numbers; tell if there are any."""
    draws = [node for node in graph.graph.nodes if node.target is torch.ops.fedtailor.draw.default]
    for number, node in enumerate(draws):
        name = f"draw_{number}"
        graph.register_buffer(name, _evaluate(graph, node))
        with graph.graph.inserting_before(node):
            constant = graph.graph.get_attr(name)

        node.replace_all_uses_with(constant)

    # The nodes that made the keys have no user any more.
    if draws:
        graph.graph.eliminate_dead_code()
        graph.recompile()

    return bool(draws)


def _resize_by_products(graph: GraphModule) -> bool:
    """Write the resizing of pictures as products with matrices; tell if there is any.

    Exporters, runtimes and PyTorch find the positions between pixels in 32 bits, each with other
    roundings, which an encoder makes ten times as large. The matrices hold the weights that
    PyTorch has used in training. Where a factor is given in place of a size, nothing is changed.
    """
    nodes = [node for node in graph.graph.nodes if node.target in resizing_operators()]
    found = False
    for number, node in enumerate(nodes):
        pictures, size, align_corners, *_ = node.args
        if size is None:
            continue

        found = True
        height, width = pictures.meta["val"].shape[-2:]
        rows = _resizing(node.target, height, size[0], align_corners)
        columns = _resizing(node.target, width, size[1], align_corners)
        graph.register_buffer(f"resize_{number}_rows", rows)
        graph.register_buffer(f"resize_{number}_columns", columns.mT.contiguous())

        # As PyTorch does: first within rows, then within columns.
        matmul = torch.ops.aten.matmul.default
        with graph.graph.inserting_before(node):
            to_the_right = graph.graph.get_attr(f"resize_{number}_columns")
            wide = graph.graph.call_function(matmul, (pictures, to_the_right))
            downwards = graph.graph.get_attr(f"resize_{number}_rows")
            resized = graph.graph.call_function(matmul, (downwards, wide))

        node.replace_all_uses_with(resized)
        graph.graph.erase_node(node)

    if found:
        graph.recompile()

    return found


def _resizing(operator: Any, length: int, new_length: int, align_corners: bool) -> Tensor:
    """Return the matrix (new length, length) by which an operator resizes along one axis."""
    # Every column of the identity as a picture of two equal columns: with antialiasing, PyTorch
    # does not resize a single one correctly.
    pictures = torch.eye(length).view(length, 1, length, 1).expand(-1, -1, -1, 2)
    resized: Tensor = operator(pictures.contiguous(), [new_length, 2], align_corners, None)
    return resized[:, 0, :, 0].mT


def _evaluate(graph: GraphModule, node: Any) -> Any:
    """Return the value of a node that depends on constants only."""
    if isinstance(node, list | tuple):
        return type(node)(_evaluate(graph, one) for one in node)
    if not isinstance(node, Node):
        return node

    if node.op == "get_attr":
        value: Any = graph
        for name in str(node.target).split("."):
            value = getattr(value, name)

        return value

    if node.op != "call_function" or not callable(node.target):
        raise ValueError(f"the random numbers of a prediction depend on {node.op} {node.name}")

    values = {name: _evaluate(graph, value) for name, value in node.kwargs.items()}
    return node.target(*_evaluate(graph, node.args), **values)


def _sort(
    values: Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """Sort with ``TopK``, which is stable in ONNX: the first of equal values comes first."""
    return torch.topk(values, values.shape[dim], dim, largest=descending, sorted=True)
