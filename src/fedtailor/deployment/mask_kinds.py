"""The requests about sums under masks, beside those of a round: their names. No torch.

``channel``: which key others seal shares under. ``keys``: keys of sums to come. ``classes``: a
masked vector of which classes there are. ``agree``: who is in a sum, if somebody is missing.
``unmask``: shares of what opens a sum.
"""

from __future__ import annotations

from fedtailor.core.errors import RunError

CHANNEL = "channel"
KEYS = "keys"
CLASSES = "classes"
AGREE = "agree"
UNMASK = "unmask"
KINDS = (CHANNEL, KEYS, CLASSES, AGREE, UNMASK)
FINAL = "final-"
"""Before the kind of a request about the models that a run gives."""
SUMS = ("train", "score", "personalize", FINAL + "score", FINAL + "personalize", CLASSES)
"""The requests that are answered with a masked vector."""


class SumFailedError(RunError):
    """A sum that cannot be made, or not be opened; nothing is known about it."""
