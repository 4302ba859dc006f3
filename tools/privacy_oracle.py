"""Write the epsilons of dp-accounting that tests compare ours with.

    python -m venv oracle && oracle/bin/pip install dp-accounting==0.6.0
    oracle/bin/python tools/privacy_oracle.py

It needs an environment of its own: dp-accounting pins versions that the tests cannot use.
"""

import itertools
import json
from pathlib import Path

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

TARGET = Path(__file__).resolve().parent.parent / "tests" / "privacy" / "epsilons.json"
NOISES = (0.6, 0.8, 1.0, 1.5, 3.0, 8.0)
RATES = (0.001, 0.01, 0.05, 0.2, 0.5, 1.0)
COUNTS = (1, 10, 100, 1000)
DELTAS = (1e-3, 1e-5, 1e-6)
SETTINGS = 50
_INTERVAL = 1e-4
_SMALLEST = 0.25
"""Of an epsilon; the grid is too coarse for smaller ones."""
_LARGEST = 30.0
"""Of an epsilon; larger ones promise nothing."""


def main() -> None:
    """Compute epsilons of 50 settings drawn from the grid."""
    every = list(itertools.product(NOISES, RATES, COUNTS, DELTAS))
    rows = []
    for number in np.random.default_rng(0).permutation(len(every)):
        noise, rate, count, delta = every[number]
        losses = pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=_INTERVAL,
            use_connect_dots=True,
        )
        epsilon = float(losses.self_compose(count).get_epsilon_for_delta(delta))
        if _SMALLEST < epsilon < _LARGEST:
            rows.append([noise, rate, count, delta, epsilon])
        if len(rows) == SETTINGS:
            break

    TARGET.write_text("\n".join(["[", ",\n".join(map(json.dumps, rows)), "]"]) + "\n")


if __name__ == "__main__":
    main()
