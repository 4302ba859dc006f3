"""What a site would use alone, as the model that predicts: where ``serve.fallback`` chooses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load
from torch import Tensor, nn

from fedtailor.core.errors import DataError
from fedtailor.core.reading import content_of, damaged, read_file
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.tensors import unit_rows
from fedtailor.experiment.estimates import wilson_interval
from fedtailor.experiment.predictions import OWN_MODELS_FILE
from fedtailor.experiment.reader import RunRecords
from fedtailor.serving.model import PersonalModel

_LARGEST = 2**31
_SMALLEST = 1e-12
"""Probability of a class that the site does not have."""
_MOST_STEPS = 10_000
"""Of a way through a tree."""
_CARD_KEYS = ("client", "number", "dataset", "seed", "num_train", "num_test", "class_counts", "new")
"""What the card repeats of that of the personalized model."""


class OwnModule(nn.Module):
    """A baseline as a module: stored values to the logarithms of probabilities (n, classes).

    The arrays are those of :func:`fedtailor.baselines.train_baselines`. Numbers are float64, as in
    scikit-learn.
    """

    scores_strangers = False

    def __init__(
        self, name: str, arrays: Mapping[str, np.ndarray], inputs: InputSpecification
    ) -> None:
        """Use the arrays of a baseline that :func:`_check` has checked."""
        super().__init__()
        self._inputs = inputs
        self._arrays = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        # A forest that has seen one class only has frequencies in place of trees.
        self._is_forest = name == "random_forest" and "roots" in arrays
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of stored values."""
        # As the baselines of a run get them: tables, or pictures and series with channels last.
        if x.dim() > 2:
            x = x.movedim(1, -1).flatten(1)

        scores = self._arrays["bias"] + self._sums(x)
        if self._is_forest:
            logarithms = scores.clamp(min=_SMALLEST).log()
        else:
            logarithms = torch.log_softmax(scores, dim=1)

        filled = torch.full((len(x), self._inputs.num_classes), _SMALLEST, dtype=torch.float64)
        filled = filled.log()
        filled[:, self._arrays["present"]] = logarithms
        return filled

    def features(self, x: Tensor) -> Tensor:
        """Refuse: there is no head.

        Raises:
            TypeError: always.
        """
        raise TypeError("a model that a site would use alone has no features")

    def _sums(self, x: Tensor) -> Tensor:
        """Return the scores (n, present) without the bias."""
        arrays = self._arrays
        if "weight" in arrays:
            return self._scaled(x).double() @ arrays["weight"].T
        if "roots" not in arrays:
            return torch.zeros(len(x), len(arrays["bias"]), dtype=torch.float64)

        # A forest compares float32.
        values = x.float().double()
        node = arrays["roots"].expand(len(x), -1)
        for _ in range(int(arrays["depth"])):
            goes_left = values.gather(1, arrays["feature"][node]) <= arrays["threshold"][node]
            node = torch.where(goes_left, arrays["left"][node], arrays["right"][node])
        return arrays["value"][node].sum(1)

    def _scaled(self, x: Tensor) -> Tensor:
        """Return the inputs of logistic regression: tables are scaled as for networks."""
        if self._inputs.kind != "table":
            return x
        mean = torch.tensor(self._inputs.mean, dtype=torch.float32)
        std = torch.tensor(self._inputs.std, dtype=torch.float32)
        values = unit_rows(x.float()) if self._inputs.l2 else x.float()
        return (values / self._inputs.white - mean) / std


def own_model(
    records: RunRecords, personal: Mapping[str, Any], inputs: InputSpecification
) -> PersonalModel | None:
    """Return what a client uses instead of its personalized model; None if it uses that one.

    Args:
        records: of a run of one seed.
        personal: the card of the personalized model.
        inputs: of the run.

    Raises:
        DataError: a file is damaged, or the run has not finished.
    """
    # Written with serve.fallback = "best" only.
    if not (records.path / OWN_MODELS_FILE).is_file():
        return None
    if records.result is None:
        message = f"'{records.path}' has not finished, so nothing says which model is used."
        raise DataError(message, path=records.path, allowed="a finished run")

    row = _row(records, personal)
    if row is None or row["verdict"] == "better":
        return None

    client = _number_in_split(records, personal)
    name, arrays = _read(records, client, inputs)
    if not name:  # nothing could be trained
        return None

    card = {key: personal[key] for key in _CARD_KEYS if key in personal}
    scores = row["scores"]["own"]
    intervals = {}
    if card.get("num_test"):
        count = card["num_test"] * personal.get("independence", 1.0)
        intervals["accuracy"] = wilson_interval(scores["accuracy"], count)

    card |= {
        "algorithm": name,
        "model": name,
        "instead_of": personal.get("algorithm"),
        "verdict": row["verdict"],
        "scores": dict(scores),
        "intervals": intervals,
        "calibration": {"examples": 0},
    }
    return PersonalModel(OwnModule(name, arrays, inputs), inputs, card)


def _number_in_split(records: RunRecords, personal: Mapping[str, Any]) -> int:
    """Return the place of a client in the split; a folder of one client has place 0 only."""
    return int(personal["number"]) if len(records.split["clients"]) > 1 else 0


def _row(records: RunRecords, personal: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the verdict of a client; None if there is none."""
    worth_it = (records.result or {}).get("worth_it") or {}
    client = _number_in_split(records, personal)
    try:
        rows = [row for row in worth_it.get("sites", ()) if row["client"] == client]
        for row in rows:
            _ = (row["verdict"], row["scores"]["own"]["accuracy"])
    except (KeyError, TypeError, ValueError) as reason:
        path = records.path / "result.json"
        raise damaged(path, f"worth_it: {type(reason).__name__}: {reason}") from reason

    return rows[0] if rows else None


def _read(
    records: RunRecords, client: int, inputs: InputSpecification
) -> tuple[str, dict[str, np.ndarray]]:
    """Return the name and the arrays of a client's own model; an empty name if it has none.

    Raises:
        DataError: the file is damaged.
    """
    path = records.path / OWN_MODELS_FILE
    raw = read_file(path, limit=_LARGEST, within=records.path)
    name = ""
    arrays = {}
    with content_of(path, SafetensorError):
        for key, array in load(raw).items():
            number, model, what = key.split("/")
            if number == str(client):
                name = model
                arrays[what] = array
        if arrays:
            _check(arrays, inputs)

    return name, arrays


def _check(arrays: Mapping[str, np.ndarray], inputs: InputSpecification) -> None:
    """Check that arrays are a model for these inputs.

    Raises:
        KeyError, ValueError: they are not.
    """
    present = arrays["present"]
    num_present = len(present)
    features = int(np.prod(inputs.shape))
    _check_numbers("present", present, inputs.num_classes)
    shapes: dict[str, tuple[int, ...]] = {"bias": (num_present,)}
    if "weight" in arrays:
        shapes["weight"] = (num_present, features)

    if "roots" in arrays:
        nodes = len(arrays["left"])
        shapes |= dict.fromkeys(("feature", "threshold", "left", "right"), (nodes,))
        shapes |= {"value": (nodes, num_present), "depth": (1,)}
        for name in ("left", "right", "roots"):
            _check_numbers(name, arrays[name], nodes)

        _check_numbers("feature", arrays["feature"], features)
        _check_numbers("depth", arrays["depth"], _MOST_STEPS)

    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} has the shape {arrays[name].shape} instead of {shape}")


def _check_numbers(name: str, array: np.ndarray, limit: int) -> None:
    if array.dtype != np.int64 or array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be whole numbers")
    if array.min() < 0 or array.max() >= limit:
        raise ValueError(f"{name} must lie between 0 and {limit - 1}")
