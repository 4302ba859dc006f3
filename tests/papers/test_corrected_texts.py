"""Sentences that correct what earlier texts said wrongly. The code they describe has tests of its
own."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALGORITHMS = "src/fedtailor/algorithms"

SENTENCES = [
    (
        f"{ALGORITHMS}/lg_fedavg.py",
        "every client tunes a copy of its lower layers under the frozen shared ones",
    ),
    (
        f"{ALGORITHMS}/fedpac.py",
        "Class means are weighted by their counts, as in the paper's code.",
    ),
    (f"{ALGORITHMS}/fedpac.py", "The paper's code prints two accuracies of a round"),
    (
        f"{ALGORITHMS}/fedpac.py",
        "tune the combined head at the end, with the head's own rate ``head_lr``",
    ),
    (
        f"{ALGORITHMS}/fedlda.py",
        "The experiments judge by the point ``local``, right after local training (I)",
    ),
    (
        f"{ALGORITHMS}/pfedvem.py",
        "here before the body trains, so that the body trains under that head; in C at",
    ),
    ("docs/experiments.md", "The row says nothing about feature alignment."),
    (
        "docs/experiments.md",
        "the text has a penalty of 0.01, the release's example 0.1. Ours is that of the text.",
    ),
    (
        "docs/experiments.md",
        "the head, but for LG-FedAvg the lower layers, since it shares the upper ones",
    ),
    ("docs/comparison.md", "Most are those of its paper or released code;"),
    ("docs/comparison.md", "**Per-FedAvg takes small steps.**"),
    ("docs/comparison.md", "**pFedBayes is held back by its noise.**"),
    ("docs/comparison.md", "Combining costs that much where clients have few classes"),
    ("docs/comparison.md", "## FedPAC's points"),
]


@pytest.mark.parametrize(("path", "sentence"), SENTENCES)
def test_the_correction_is_still_there(path, sentence):
    assert sentence in " ".join((ROOT / path).read_text().split())


def test_the_small_table_of_fedlda_has_the_numbers_of_the_records():
    text = (ROOT / "docs/experiments.md").read_text()
    rows = [
        line.strip("| ").split(" | ")
        for line in text.partition("FedLDA `small`")[2].splitlines()
        if "|" in line
    ]
    shown = {row[0]: row[1:] for row in rows[2:6]}
    names = {"FedLDA": "fedlda", "LG-FedAvg": "lg_fedavg", "Local": "local", "FedAvg": "fedavg"}
    assert shown.keys() == names.keys()
    for label, name in names.items():
        (path,) = (ROOT / "experiments/results/fedlda").glob(f"cifar10_cnn_500-{name}-seed0-*.json")
        metrics = json.loads(path.read_text())["result"]["metrics"]
        for point, cell in zip(("personalized", "local", "global"), shown[label], strict=True):
            measured = (
                f"{100 * metrics[point]['accuracy']['mean']:.1f}" if point in metrics else "-"
            )
            assert cell == measured, (label, point)
