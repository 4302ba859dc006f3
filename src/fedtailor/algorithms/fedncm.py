"""FedNCM: one exchange of class means, and the class whose mean has the nearest direction.

Legate, Bernier, Page-Caccia, Oyallon and Belilovsky 2023, "Guiding the last layer in federated
learning with pre-trained models", NeurIPS. With the mean mu_c of the features of class c
over all clients' examples, the head has the weights mu_c / ||mu_c|| and no bias.

Messages: up, once, ``counts`` (C,) and ``sums`` (C, d), the examples and the sum of their features
by class; down ``head``.

Deviations (P: paper):
* Clients send sums and counts. P sends means and counts; their weighted mean is the same.
* P fine-tunes the whole model afterwards (FedNCM+FT), here the method ends with the head.
* A class without examples at any client is never predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from fedtailor.algorithms._closed_form import ClosedForm, Linear, log_known
from fedtailor.toolkit import class_sums


@dataclass(frozen=True, kw_only=True)
class FedNCM(ClosedForm):
    """Nearest class mean in one exchange."""

    @property
    def squares(self) -> class_sums.Squares:
        """Means need no second moments."""
        return "none"

    def fit(self, sums: class_sums.ClassSums) -> Linear:
        """Return the normalized class means as weights."""
        return Linear(F.normalize(sums.means(), dim=1), log_known(sums.counts))
