"""A client's personal model, ready to predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.engine import one_thread
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.tensors import model_layout
from fedtailor.serving.inputs import to_stored

_CHUNK_NUMBERS = 2_000_000
"""Input numbers of a batch, about: as many as in an evaluation, so that predictions have the same
bits."""


class PersonalModel:
    """The model of one client.

    It can be the last step of a scikit-learn pipeline, and of its tools for trained classifiers: it
    has ``classes_``, ``predict`` and ``predict_proba``, and ``fit`` leaves it as it is.
    """

    def __init__(self, module: Any, inputs: InputSpecification, card: Mapping[str, Any]) -> None:
        """Use a module; :meth:`fedtailor.serving.run.Run.model` makes such objects.

        Args:
            module: the model, in evaluation mode: a :class:`PersonalModule`, or a module like it.
            inputs: how examples become inputs.
            card: of the model.
        """
        self.module = module
        """The model as a ``torch.nn.Module``: stored values to logits, see
        :class:`PersonalModule`."""
        self.inputs = inputs
        self.card = dict(card)
        """What is known about the model: who made it, from how many examples, its scores and
        calibration."""
        self.classes_ = np.array(inputs.class_names or range(inputs.num_classes))
        """The classes in the order of the columns of :meth:`predict_proba`: names, or numbers if
        they have none."""

    @property
    def client(self) -> str:
        """The name of the client."""
        return str(self.card.get("client", ""))

    @property
    def temperature(self) -> float:
        """By which logits are divided before the softmax; 1 if the model is not calibrated."""
        return float(self._calibration().get("temperature", 1.0))

    @property
    def is_calibrated(self) -> bool:
        """Whether the temperature was fitted on validation examples of the client (30 or more)."""
        from fedtailor.simulation.calibration import FEWEST_EXAMPLES

        return int(self._calibration().get("examples", 0)) >= FEWEST_EXAMPLES

    @property
    def ood_threshold(self) -> float | None:
        """Inputs with a larger :meth:`ood_score` are unlike the client's examples; or None."""
        threshold = self._calibration().get("threshold")
        return None if threshold is None else float(threshold)

    def _calibration(self) -> Mapping[str, Any]:
        calibration: Mapping[str, Any] = self.card.get("calibration", {})
        return calibration

    def predict(self, inputs: Any) -> np.ndarray:
        """Return the predicted classes (n,): names, or numbers if the classes have none.

        The most probable ones, or by the threshold of the operating point if the model has one.

        Args:
            inputs: arrays, pictures, paths or rows of a table, see
                :func:`fedtailor.serving.inputs.to_stored`.

        Raises:
            DataError: the inputs are not what the model was trained for.
        """
        numbers = self.classify(self._over_batches(self.module, inputs))
        labels: np.ndarray = self.classes_[numbers.numpy()]
        return labels

    def predict_proba(self, inputs: Any) -> np.ndarray:
        """Return the probabilities (n, classes), float64, with the fitted temperature.

        Raises:
            DataError: the inputs are not what the model was trained for.
        """
        return self.probabilities(self._over_batches(self.module, inputs)).numpy()

    def ood_score(self, inputs: Any) -> np.ndarray | None:
        """Return how far inputs lie from what the model knows (n,), larger for stranger ones.

        None if the method does not say.

        Raises:
            DataError: the inputs are not what the model was trained for.
        """
        if not self.scores_strangers:
            return None
        return self._over_batches(self.module.ood_score, inputs).double().numpy()

    @property
    def scores_strangers(self) -> bool:
        """Whether the method has an :meth:`ood_score`."""
        return bool(self.module.scores_strangers)

    def logits(self, inputs: Any) -> np.ndarray:
        """Return logits or log-probabilities (n, classes), before calibration.

        Raises:
            DataError: the inputs are not what the model was trained for.
        """
        return self._over_batches(self.module, inputs).numpy()

    def features(self, inputs: Any) -> np.ndarray:
        """Return what the head of the model receives (n, d).

        Raises:
            DataError: the inputs are not what the model was trained for.
            TypeError: a method of your own defines ``predict``, and no ``features``.
        """
        return self._over_batches(self.module.features, inputs).numpy()

    @property
    def operating_point(self) -> Mapping[str, Any]:
        """The threshold for a wanted sensitivity, and what it rests on.

        The sensitivity is ``evaluation.sensitivity`` of the run. Its numbers are those of
        :class:`fedtailor.simulation.operating_point.OperatingPoint`, by name. Empty: none was
        wanted, and the most probable class is predicted.
        """
        point: Mapping[str, Any] = self._calibration().get("operating_point") or {}
        return point

    @property
    def positive_class(self) -> str:
        """The class that an operating point is for, where there is one."""
        return str(self.classes_[self.operating_point["positive"]])

    def classify(self, logits: Tensor) -> Tensor:
        """Return the numbers of the classes (n,) that logits (n, classes) mean.

        The most probable ones, or by the threshold of the operating point.
        """
        threshold = self.operating_point.get("log_odds")
        if threshold is None:
            return logits.argmax(1)

        from fedtailor.simulation.operating_point import classify

        return classify(logits, float(threshold), self.operating_point["positive"])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities (n, classes) of logits, with the fitted temperature."""
        return torch.softmax(logits.double() / self.temperature, dim=1)

    def score(self, X: Any, y: Any) -> float:  # names of scikit-learn
        """Return the accuracy on inputs with known classes (n,).

        Raises:
            DataError: inputs or classes are not those of the model.
        """
        from fedtailor.serving.evaluate import numbers_of

        predicted = self.classify(self._over_batches(self.module, X))
        right = predicted == numbers_of(y, [str(name) for name in self.classes_])
        return float(right.double().mean())

    def evaluate(self, inputs: Any, labels: Any, *, groups: Any = None) -> dict[str, Any]:
        """Return all metrics on inputs with known classes, and how they compare with training.

        See :func:`fedtailor.serving.evaluate.evaluate`.

        Args:
            inputs: as of :meth:`predict`.
            labels: their classes (n,), as in ``classes_``.
            groups: which inputs belong together (n,), such as the patient of each.

        Raises:
            DataError: inputs or labels are not those of the model, or there are none.
        """
        from fedtailor.serving.evaluate import evaluate

        logits = torch.from_numpy(self.logits(inputs))
        return evaluate(
            logits,
            labels,
            [str(name) for name in self.classes_],
            self.card,
            predicted=self.classify(logits),
            temperature=self.temperature if self.is_calibrated else None,
            groups=groups,
        )

    def fit(self, X: Any = None, y: Any = None) -> Self:  # names of scikit-learn
        """Return the model as it is: it is trained already."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        # Those of a classifier that gives probabilities.
        return LogisticRegression().__sklearn_tags__()

    def __repr__(self) -> str:
        method = self.card.get("algorithm", "?")
        classes = len(self.classes_)
        return f"PersonalModel(client={self.client!r}, algorithm={method!r}, classes={classes})"

    def _over_batches(self, function: Any, inputs: Any) -> Tensor:
        """Apply a function of stored values to all inputs, in batches, with one thread."""
        stored = to_stored(inputs, self.inputs)
        outputs = []
        with torch.no_grad(), one_thread():
            for batch in batches(stored):
                outputs.append(function(batch))
        return torch.cat(outputs)


def batches(stored: np.ndarray) -> Iterator[Tensor]:
    """Yield stored values in the batches of an evaluation; one is empty if there are no examples.

    Images are (n, channels, height, width), with channels last in memory; series are (n, channels,
    times).
    """
    # Tables have few numbers an example, and pictures many: both get batches of bounded memory.
    size = max(50, min(1000, _CHUNK_NUMBERS // max(stored[:1].size, 1)))
    for start in range(0, max(len(stored), 1), size):
        part = torch.from_numpy(np.array(stored[start : start + size]))
        yield model_layout(part)
