"""The page docs/scarce-data.md, from the records of benchmarks/scarce_data.py."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import scarce_data  # noqa: E402  # a script of the folder above

TEXT = """# Few examples per client

With few training examples, two defaults of pFedFDA can cost much: the class prior and the ridge of the covariance.
This page says how much, on which data, and what to do. All numbers are written from records; the command `python
benchmarks/scarce_data.py --data-dir DIR` makes those that are missing.

## What to do

FINDINGS

## How it was measured

| federation | clients | training examples a client | model | rounds | clients in a round |
|---|---|---|---|---|---|
| digits, 25 % | 20 | 18 | perceptron, 100 hidden units | 20 | all |
| Fashion-MNIST, 5 / 10 / 25 % | 30 | 28 / 56 / 140 | EMNIST-CNN | 20 | 30 % |
| CIFAR-10, 5 / 10 / 25 % | 30 | 24 / 48 / 120 | CIFAR-CNN | 40 | 30 % |

Classes are divided by Dirichlet(0.5). The percentage is the share of its training examples that a client keeps; its
test examples stay the same. Training is as in pFedFDA's paper, with fewer clients and rounds: 5 epochs of SGD with
rate 0.01, momentum 0.5 and batches of 50. All clients take part in the last round.

**Selection uses validation examples only**: a fifth of each client's training examples, with seeds 0 to 2. The
setting with the highest accuracy over all of them is selected. Four searches are made: pFedFDA's prior, its ridge,
its ridge with the selected prior, and FedAvg-FT's epochs of fine-tuning. Then the defaults and the selected
settings are trained on all training examples and tested once, with seeds 0 to 4. A seed drives the division of the
data, the initial model and the cohorts, so an example may be for validation with one seed and for testing with
another. Intervals are 95 % t intervals over the seeds. A difference is that of runs with equal seeds, in points. No
interval is corrected for the number of comparisons.

## On test examples

Personalized models after the last round, each client on its own test examples: the mean over clients, in percent.
Behind a selected setting is its difference from the default of the method.

{mean}

The mean of the worst tenth of clients:

{worst}

## On validation examples

Accuracy over all validation examples: in percent for the defaults, and as the difference from them, in points, for
the other settings. *ended* is a setting with which a run ended because no client could train any more.

{validation}
"""


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    worlds = [world for world in scarce_data.WORLDS if scarce_data.is_complete(world)]
    text = TEXT.format(
        mean=scarce_data.test_table(worlds, "mean"),
        worst=scarce_data.test_table(worlds, "worst10"),
        validation=scarce_data.validation_table(worlds),
    )
    return {"scarce-data.md": text}
