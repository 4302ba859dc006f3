"""Write docs/comparison.md from the records of benchmarks/learning.py: `make docs`.

A test fails when the page is not what this file would write.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import learning  # noqa: E402  # a script of the folder above

WORLD = "fashion_mnist-dir0.1-half"
PAGE = Path(__file__).resolve().parent / "comparison.md"
INTRODUCTION = """# Every algorithm on Fashion-MNIST

One run of every algorithm under one protocol: half of the training images of Fashion-MNIST (30,000), divided among 100
clients by Dirichlet(0.1), at least 62.5 examples each; EMNIST-CNN; 20 rounds, in each of which a client takes part with
probability 0.3, everybody in the last; 5 local epochs of SGD (rate 0.01, momentum 0.5, weight decay 0.0005) in batches
of 50, the last shorter one of an epoch included. One seed (0; the division has seed 42). Hyper-parameters of a method
are its defaults, those of its paper: **nothing was tuned, here or on test data**, and a method whose paper trains
longer, or with another step size, would do better with those. `python benchmarks/learning.py` runs what has no record.

Accuracies are in percent, on every client's own test examples: the mean over clients, pooled over all examples, and the
mean of the worst tenth of clients, of the model that the method is judged by. *personalized* and *global* are the two
points after the last round, where the method has them. Steps are gradient steps of all clients in all rounds and in
personalization, in thousands: methods spend different budgets by their definitions (Local trains everybody in every
round). Seconds are of two cores on which, in part, other work went on: an upper bound.
"""
NOTES = """
What stands out:

* **Every personalized method beats FedAvg's global model**, but FedBN, which is FedAvg here: the network has no
  normalization layers, and the run says so. FedSR without fine-tuning, FedProx, MOON, SCAFFOLD and FedDyn have one
  model for all, and are judged by it.
* With ten classes so unevenly divided most clients have examples of a few classes, so that a model of one's own is hard
  to beat: Local, which spends three times the steps, is above FedAvg-FT.
* Per-FedAvg's global model is a starting point for a step of training, and poor before it; that is what it is for.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """Return the text of the page."""
    return f"{INTRODUCTION}\n{learning.table(WORLD)}\n{NOTES}"


if __name__ == "__main__":
    main()
