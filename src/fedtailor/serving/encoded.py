"""Models behind a frozen encoder: they take raw inputs, and run the encoder and the head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.data.input_specification import InputSpecification
from fedtailor.encoders.encoder import Encoder, encode
from fedtailor.encoders.load import load_unchanged
from fedtailor.serving.model import PersonalModel


class EncodedModule(nn.Module):
    """An encoder and a model of its features, in evaluation mode.

    It has the methods of :class:`fedtailor.serving.module.PersonalModule`, for raw values as they
    are stored.
    """

    def __init__(self, encoder: Encoder, head: Any, inputs: InputSpecification) -> None:
        """Put an encoder before a model.

        Args:
            encoder: that made the features in training.
            head: the model, a module of features.
            inputs: of the head, with the record of the encoder.
        """
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.head_inputs = inputs
        self._white = inputs.raw.white
        self.eval()

    @property
    def scores_strangers(self) -> bool:
        """Whether the method has an :meth:`ood_score`."""
        return bool(self.head.scores_strangers)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or log-probabilities (n, classes) of stored values."""
        logits: Tensor = self.head(self._encoded(x))
        return logits

    def features(self, x: Tensor) -> Any:
        """Return what the head of the model receives (n, d) for stored values."""
        return self.head.features(self._encoded(x))

    def ood_score(self, x: Tensor) -> Any:
        """Return how far stored values lie from what the model knows (n,); None: not said."""
        return self.head.ood_score(self._encoded(x))

    def surprise(self, x: Tensor) -> Any:
        """Return the negative log-density of stored values (n,), in nats; None: not said."""
        return self.head.surprise(self._encoded(x))

    def _encoded(self, x: Tensor) -> Tensor:
        if len(x) == 0:
            return torch.zeros(0, *self.head_inputs.shape)

        return encode(self.encoder, x, self._white)


def with_encoder(model: PersonalModel) -> PersonalModel:
    """Return a model that takes raw inputs, where an encoder made those of the given one.

    Raises:
        ConfigError: the encoder is not there, or has changed since the features were made.
    """
    inputs = model.inputs
    if inputs.encoder is None:
        return model

    encoder = load_unchanged(inputs.encoder.target, inputs.encoder.digest)
    return PersonalModel(EncodedModule(encoder, model.module, inputs), inputs.raw, model.card)
