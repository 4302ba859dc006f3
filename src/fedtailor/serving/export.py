"""Personal models as files for other programs: ONNX, torch.export or safetensors, with a card."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from fedtailor import __version__
from fedtailor.core import tree
from fedtailor.core.atomic import make_folder, safe_name, to_json, write_json, write_whole
from fedtailor.core.errors import DataError, RunError, describe_error, find_name
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import read_object
from fedtailor.data.input_specification import InputSpecification
from fedtailor.encoders.onnx_file import OnnxEncoder
from fedtailor.experiment.reader import refuse_inside_run
from fedtailor.serving.encoded import EncodedModule
from fedtailor.serving.model import PersonalModel
from fedtailor.serving.onnx_graphs import behind_encoder
from fedtailor.serving.trace import OPSET, require_onnx, to_onnx, traced

SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torch-export": ".pt2", "safetensors": ".safetensors"}
"""The formats, and the endings of their files."""
_CARD_KEYS = (
    "client",
    "algorithm",
    "model",
    "dataset",
    "seed",
    "round",
    "adaptation",
    "encoder",
    "holds_examples",
    "scores",
)
"""What the card of an exported model repeats of the card in the run."""


def export_model(
    model: PersonalModel, folder: Path, format: str, *, with_examples: bool = False
) -> Path:
    """Write a personal model as ``CLIENT.onnx``, and its card as ``CLIENT.onnx.json``.

    The other formats are ``.pt2`` and ``.safetensors``.

    Args:
        model: of a client.
        folder: is made if it is missing.
        format: ``onnx``, ``torch-export`` or ``safetensors``.
        with_examples: allows a file that holds features of the client's training examples.

    Returns:
        The file of the model.

    Raises:
        ConfigError: unknown format, the packages of the extra ``onnx`` are missing, the client does
            not use its personal model, or that holds features of examples and ``with_examples`` is
            not set, or the folder is that of a run, or holds another model of the name.
        RunError: the model cannot be exported, or the files cannot be written.

    Example:
        >>> import fedtailor
        >>> study = fedtailor.from_dataset("digits", clients=3)
        >>> run = study.fit("fedavg", rounds=1, out="runs/export")
        >>> export_model(run.model("0"), Path("exported"), "safetensors").name
        '0.safetensors'
    """
    format = find_name("format", format, SUFFIXES, key="format")
    _refuse(model, with_examples=with_examples)
    refuse_inside_run(folder)
    if format == "onnx":
        require_onnx()

    path = folder / f"{safe_name(model.client)}{SUFFIXES[format]}"
    card = {**export_card(model, format), "file": path.name}
    if path.exists() and not _has_card(path, card):
        hint = "An exported model is never overwritten by another one."
        raise wrong_value("--out", f"a folder without another '{path.name}'", str(folder), hint)

    # Nothing is written if it cannot be exported.
    try:
        data = _WRITERS[format](model)
    except Exception as reason:  # PyTorch's exporters raise anything
        message = f"the model of client '{model.client}' cannot be exported as {format}"
        raise RunError(f"{message}: {describe_error(reason).rstrip('.')}.") from reason

    # The card first: a model without one would be taken for that of another program.
    make_folder(folder)
    card["sha256"] = hashlib.sha256(data).hexdigest()
    write_json(card_path(path), card, indent=2)
    write_whole(path, data)

    return path


def _has_card(path: Path, card: Mapping[str, Any]) -> bool:
    """Return whether an exported file has this card, but for the digest of its bytes."""
    try:
        record = read_object(card_path(path))
    except DataError:  # missing, or not a card
        return False

    record.pop("sha256", None)
    return to_json(record) == to_json(card)


def card_path(path: Path) -> Path:
    """Return the file of the card of an exported model."""
    return path.with_name(f"{path.name}.json")


def _refuse(model: PersonalModel, *, with_examples: bool) -> None:
    """Check that a client uses its personal model, and that features of examples may leave.

    Raises:
        ConfigError: it uses what it would use alone, which has no graph; or nobody allowed it.
    """
    card = model.card
    if card.get("instead_of"):
        hint = f"Client '{model.client}' uses its own model (serve.fallback = \"best\")."
        raise wrong_value("what is exported", "a personal model", card["algorithm"], hint)

    if card.get("holds_examples") and not with_examples:
        hint = f"A model of {card.get('algorithm')} holds features of its training examples."
        raise wrong_value("--with-examples", "given, if that is meant", False, hint)


def export_card(model: PersonalModel, format: str) -> dict[str, Any]:
    """Return what the user of an exported file must know."""
    inputs = model.inputs
    outputs: Any = "none: the file holds the tensors of the model only"
    if format != "safetensors":
        shape = "(batch, classes)"
        outputs = {
            "logits": f"logits or log-probabilities, up to a term that all classes share, {shape}",
            "probabilities": f"softmax of logits / temperature, {shape}",
        }

    card = {key: model.card.get(key) for key in _CARD_KEYS}
    if "privacy" in model.card:
        card["privacy"] = model.card["privacy"]
    card |= {"format": format, "fedtailor": __version__, "torch": torch.__version__}
    if format == "onnx":
        card["opset"] = OPSET

    # What goes in and comes out, for a program that has no fedtailor.
    card["inputs"] = {
        **inputs.to_record(),
        "name": "inputs",
        "shape": ["batch", *inputs.shape],
        "meaning": _meaning(inputs),
        "mean": inputs.mean.tolist(),
        "std": inputs.std.tolist(),
    }
    return card | {
        "outputs": outputs,
        "classes": [str(name) for name in model.classes_],
        "temperature": model.temperature,
        "calibrated": model.is_calibrated,
        "operating_point": dict(model.operating_point) or None,
    }


def _meaning(inputs: InputSpecification) -> str:
    """Put into words what the values of an input are."""
    if inputs.kind == "table":
        return "features as in the training tables, not normalized; the graph normalizes them"

    if inputs.kind == "series":
        channels, times = inputs.shape
        return f"series of {times} times with {channels} channels; the graph normalizes them"

    channels, height, width = inputs.shape
    colors = {1: "gray", 3: "RGB"}.get(channels, f"{channels} channels")
    sentence = f"images of {width} x {height} pixels, {colors}, {inputs.white:g} is white"
    sentence += "; the graph normalizes them"
    if inputs.image_size:
        size = f"{inputs.image_size} pixels"
        sentence += f"; larger pictures: the central square, resized bilinearly to {size}"
    return sentence


def _onnx(model: PersonalModel) -> bytes:
    module = model.module
    if isinstance(module, EncodedModule) and isinstance(module.encoder, OnnxEncoder):
        head = to_onnx(traced(module.head, module.head_inputs, model.temperature))
        return behind_encoder(head, module.encoder.path, model.inputs)

    return to_onnx(traced(module, model.inputs, model.temperature))


def _torch_export(model: PersonalModel) -> bytes:
    file = io.BytesIO()
    torch.export.save(traced(model.module, model.inputs, model.temperature), file)
    return file.getvalue()


def _safetensors(model: PersonalModel) -> bytes:
    """Return the tensors of the model, and those of its preprocessing; an encoder is left out."""
    module = model.module
    inputs = model.inputs
    if isinstance(module, EncodedModule):
        inputs = module.head_inputs
        module = module.head

    tensors = {
        "preprocessing.white": np.array(inputs.white),
        "preprocessing.mean": inputs.mean,
        "preprocessing.std": inputs.std,
    }
    for path, value in tree.paths(module.tree()).items():
        tensors[path.replace("/", ".")] = np.ascontiguousarray(value.numpy())

    data: bytes = safetensors.numpy.save(tensors)
    return data


_WRITERS: dict[str, Callable[[PersonalModel], bytes]] = {
    "onnx": _onnx,
    "torch-export": _torch_export,
    "safetensors": _safetensors,
}
