"""The page docs/comparison.md, from the records of benchmarks/learning.py."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import learning  # noqa: E402  # a script of the folder above

WORLD = "fashion_mnist-dir0.1-half"
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

{exceptions}
* FedBN is FedAvg here: the network has no normalization layers, and the run says so. FedSR without fine-tuning,
  FedProx, MOON, SCAFFOLD and FedDyn have one model for all.
* pFedMe with its paper's step sizes learns slowly: on every batch w moves by 0.005 x 15 = 0.075 of the way to a
  theta that is held near it, a step of about 0.005 times the gradient, where FedAvg's with its momentum is 0.02. So
  its *global* model is at {pfedme[global]:.1f}, a proximal solve that stays near that model lifts it to
  {pfedme[personalized]:.1f} (*personalized*), and its thetas right after local training are at {pfedme[local]:.1f}
  (*local*).{longer}
* With ten classes so unevenly divided most clients have examples of a few classes, so that a model of one's own is hard
  to beat: Local, which spends three times the steps, is above FedAvg-FT.
* Per-FedAvg's global model is a starting point for a step of training, and poor before it; that is what it is for.
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    notes = NOTES.format(exceptions=exceptions(), pfedme=accuracies("pfedme"), longer=explanation())
    return {"comparison.md": f"{INTRODUCTION}\n{learning.table(WORLD)}\n{notes}"}


def accuracies(name: str) -> dict[str, float]:
    """Return the mean accuracies of a run by point, in percent."""
    record = json.loads((learning.RESULTS / f"{WORLD}-{name}.json").read_text())
    return {point: 100 * metrics["accuracy"]["mean"] for point, metrics in record["metrics"].items()}


def exceptions() -> str:
    """Say which methods that are judged by personal models are not above FedAvg's global model."""
    base = accuracies("fedavg")["global"]
    found = [
        f"{name} ({value:.1f})"
        for name in sorted([*learning.TABLE, *learning.VARIANTS])
        if learning.load_algorithm(learning.VARIANTS.get(name, {}).get("name", name)).primary_evaluation
        == "personalized"
        and (value := accuracies(name)["personalized"]) <= base
    ]
    above = f"* **Personal models beat FedAvg's global model ({base:.1f})** with every method that has them but"
    return f"{above}\n  {', '.join(found)}."


def explanation() -> str:
    """Say what pFedMe reaches with steps as long as FedAvg's, if that was run."""
    if not (learning.RESULTS / f"{WORLD}-pfedme-outer0.02.json").exists():
        return ""
    found = accuracies("pfedme-outer0.02")
    return (
        " With steps as long as FedAvg's (`outer_lr` 0.02, a run that is in no table) they are "
        f"{found['global']:.1f}, {found['personalized']:.1f} and {found['local']:.1f}."
    )
