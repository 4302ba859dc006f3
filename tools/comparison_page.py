"""The page docs/comparison.md, from the records of benchmarks/learning.py."""

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.algorithms import ALGORITHMS, load_algorithm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import fedpac_points  # noqa: E402  # a script of the folder above
import learning  # noqa: E402  # another

WORLD = learning.HALF
INTRODUCTION = """# Every algorithm on Fashion-MNIST

This page has one run of every algorithm under the same protocol. All 70,000 images of Fashion-MNIST are divided among
100 clients by Dirichlet(0.1), with at least 62.5 images each. A fifth of a client's images are its test examples
(14,040 in all), and half of the others its training examples (27,964 in all). The model is the EMNIST-CNN. There are 20
rounds; in each, every client takes part with probability 0.3, and in the last round all do. A client trains 5 local
epochs of SGD (learning rate 0.01, momentum 0.5, weight decay 0.0005) in batches of 50; the last, shorter batch of an
epoch counts too. There is one seed (0; the division has seed 42). The hyper-parameters of a method are its defaults.
Most are those of its paper or released code; [below](#where-defaults-come-from) are those that come from elsewhere.
**Nothing was tuned, here or on test data**: a method whose paper trains longer, or with another learning rate, would do
better with those settings. `python benchmarks/learning.py` runs what has no record yet.

Accuracies are in percent, on the test examples of each client: the mean over clients, the accuracy over all examples
together (pooled), and the mean of the worst tenth of clients. They belong to the model that the method is about.
*personalized*, *local* and *global* are the points of the last round, where a method has them: a client's final model,
its model right after its training, and the server's model. Steps are the gradient steps of all clients, in all rounds
and in personalization, in thousands. By definition, methods spend different budgets: Local, for example, trains all
clients in every round. Seconds are from a machine with two cores that partly did other work: they are upper bounds.
"""
NOTES = """
What the table shows:

{exceptions}
* FedBN equals FedAvg here, because the network has no normalization layers; the run says so. FedSR without
  fine-tuning, FedProx, MOON, SCAFFOLD and FedDyn have one model for all clients.
* pFedMe learns slowly with the step sizes of its paper. On every batch w moves by 0.005 x 15 = 0.075 of the way to a
  theta that stays near it. That is a step of about 0.005 times the gradient, where FedAvg's step with its momentum is
  0.02. So its *global* model reaches {pfedme[global]:.1f}. A proximal solve that stays near that model raises it to
  {pfedme[personalized]:.1f} (*personalized*), and its thetas right after local training reach {pfedme[local]:.1f}
  (*local*).{longer}
* FedPAC has {fedpac[local]:.1f} right after local training (*local*), and {fedpac[personalized]:.1f} with the
  heads that the server then combines
  (*personalized*). Combining costs that much where clients have few classes: see [FedPAC's points](#fedpacs-points).
* The ten classes are divided so unevenly that most clients have examples of a few classes only. A personal model is
  then hard to beat: Local, which takes three times as many steps, is above FedAvg-FT.
* The global model of Per-FedAvg is meant as a starting point for training, and is poor before it.
* Per-FedAvg and pFedBayes are low for reasons that runs with other options show: see
  [below](#per-fedavg-and-pfedbayes).
"""

SMALL = """
## Per-FedAvg and pFedBayes

Both are far below FedAvg-FT in the table at the top. These runs change one or two options, in a federation a fifth as
large: 20 clients that share 14,000 images, and otherwise as above. Numbers are means over all clients of the
personalized model after the last round, each client on its own test examples, in percent; with several seeds their mean
and standard deviation. The seeds vary the initial model, the cohorts and the order of examples. Nothing was selected:
the table has every run that was finished. Where it has one seed, differences of a point or two may be chance.

{table}

* **Per-FedAvg takes small steps.** The Hessian-free variant uses three batches for a step, and its steps have no
  momentum. So a batch moves the model by 0.01 / 3 times a gradient, and FedAvg's by 0.01 / (1 - 0.5). A learning rate
  of 0.03 gives {rows[perfedavg-lr0.03]} instead of {rows[perfedavg]}. 0.1 is too much: by seed it has {diverged}, since
  training diverges at some clients, and their uploads are left out ({left_out}). With seed 0, ten epochs of adaptation
  at the end instead of one make up for part of it ({rows[perfedavg-adapt10]} instead of {first}).
* **pFedBayes is held back by its noise.** It trains with weights drawn from a Gaussian, whose deviations are 0.0789 at
  the start. With a thousandth of them, and a millionth of `penalty`, so that the global means pull as before, it has
  {rows[pfedbayes-noise0.001]} instead of {rows[pfedbayes]}. In the large federation of the table at the top, the same
  change gives {large} instead of {top} (one seed). The pull of the global means matters less: a weaker one (`penalty`
  0.1) gives {rows[pfedbayes-penalty0.1]}, and a weaker one almost without noise
  {rows[pfedbayes-noise0.001-penalty0.1]}. Deviations of 0.01 with the default penalty ({rows[pfedbayes-scale0.01]})
  make that pull some sixty times as strong. Not told apart: the smaller penalty frees the deviations, too.
"""

SMALL_RUNS = {
    "fedavg_ft": "",
    "perfedavg": "",
    "perfedavg-lr0.03": "learning rate 0.03",
    "perfedavg-lr0.1": "learning rate 0.1",
    "perfedavg-adapt10": "`adapt_epochs` 10",
    "pfedbayes": "",
    "pfedbayes-penalty0.1": "`penalty` 0.1",
    "pfedbayes-scale0.01": "`initial_scale` 0.01",
    "pfedbayes-noise0.001": "`initial_scale` 0.0000789, `penalty` 0.00001",
    "pfedbayes-noise0.001-penalty0.1": "`initial_scale` 0.0000789, `penalty` 0.0000001",
}
"""The runs of the small federation, with the option that each changes."""

FEDPAC = """
## FedPAC's points

FedPAC has no global model. A client's model is scored right after its local training (`local`), or with the averaged
body and the head that the server has combined for the client (`personalized`), or after further epochs of that head
(`finetune_epochs`, at the head's learning rate `head_lr`). The code of its paper prints the first two in every round.
The table also has the averaged body with the client's own head, which tells averaging and combining apart. Numbers are
means over clients in percent, each client on its own test examples, and their mean and standard deviation over three
seeds. The seeds vary the initial model, the cohorts and the order of examples, on one division of the data. Training is
as above, with half of the training images of Fashion-MNIST and all of the digits. Every client takes part in the last
round. `python benchmarks/fedpac_points.py` makes the records.

{table}
"""


class Origin(NamedTuple):
    """Where a default comes from that is not simply that of the method's paper."""

    algorithm: str
    option: str
    paper: str
    """The paper whose experiments set this value, as a folder of ``experiments``; empty: none of
    them."""
    text: str


ORIGINS = (
    Origin(
        "apfl", "alpha", "pfedfda",
        "pFedFDA's authors chose it from 0.25, 0.5, 0.75 and 1. APFL's released code has 0.5; with `adaptive` every "
        "client adapts its own.",
    ),
    Origin(
        "ditto", "penalty", "pfedfda",
        "pFedFDA's authors chose it from 0.05 to 2, FedCR's chose 0.001 to 0.1 for their data sets. The scripts of "
        "Ditto's released code for Fashion-MNIST have 1 as well; its default is 0, which is Local.",
    ),
    Origin("ditto", "personal_epochs", "pfedfda", "As in the experiments of pFedFDA."),
    Origin(
        "fedbabu", "finetune_epochs", "pfedfda",
        "Of the head, as in the experiments of pFedFDA; FedCR's have 10. FedBABU's paper compares tuning of the head, "
        "of the body and of both.",
    ),
    Origin(
        "perfedavg", "adapt_epochs", "pfedvem",
        "The paper adapts by a single step (`adapt_steps` 1). pFedVEM's authors found an epoch better.",
    ),
    Origin(
        "moon", "penalty", "",
        "The default of the released code. The paper tunes it for each data set among 0.1, 1, 5 and 10, and has 5 for "
        "CIFAR-10.",
    ),
    Origin("fedprox", "penalty", "pfedvem", "The smallest of the values that pFedVEM's authors search: 0.1, 1 and 10."),
    Origin("ifca", "clusters", "pfedvem", "As in the experiments of pFedVEM."),
    Origin("knn_per", "mixing", "", "The paper tunes it for each client, as a run with validation examples does here."),
)  # fmt: skip


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    notes = NOTES.format(
        exceptions=exceptions(),
        pfedme=accuracies("pfedme"),
        longer=explanation(),
        fedpac=accuracies("fedpac"),
    )
    fedpac = FEDPAC.format(table=fedpac_points.table())
    sections = f"{notes}{explanations_of_small_federation()}{fedpac}"
    return {"comparison.md": f"{INTRODUCTION}\n{learning.table(WORLD)}\n{sections}\n{origins()}"}


def explanations_of_small_federation() -> str:
    """Return the section about runs of Per-FedAvg and pFedBayes with other options."""
    rows = {}
    lines = ["| run | changed options | seeds | accuracy |", "|---|---|---|---:|"]
    for name, change in SMALL_RUNS.items():
        scores = scores_of_small_federation(name)
        rows[name] = f"{statistics.mean(scores.values()):.1f}"
        spread = f" ± {statistics.stdev(scores.values()):.1f}" if len(scores) > 1 else ""
        seeds = ", ".join(str(seed) for seed in scores)
        lines.append(
            f"| {name.partition('-')[0]} | {change or '-'} | {seeds} | {rows[name]}{spread} |"
        )
    left_out = [
        record["events"]["quarantine"]
        for record in records_of_small_federation("perfedavg-lr0.1").values()
    ]
    return SMALL.format(
        table="\n".join(lines),
        rows=rows,
        diverged=listed(
            f"{score:.1f}" for score in scores_of_small_federation("perfedavg-lr0.1").values()
        ),
        left_out=listed(map(str, left_out)),
        first=f"{scores_of_small_federation('perfedavg')[0]:.1f}",
        large=f"{accuracies('pfedbayes-noise0.001')['personalized']:.1f}",
        top=f"{accuracies('pfedbayes')['personalized']:.1f}",
    )


def listed(words: Iterable[str]) -> str:
    """Return words as a list in a sentence."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def scores_of_small_federation(name: str) -> dict[int, float]:
    """Return the mean accuracies of a run's personalized models by seed, in percent."""
    records = records_of_small_federation(name)
    return {
        seed: 100 * record["metrics"]["personalized"]["accuracy"]["mean"]
        for seed, record in records.items()
    }


def records_of_small_federation(name: str) -> dict[int, dict[str, Any]]:
    """Return the records of a run by seed."""
    found = {}
    for seed in (0, 1, 2):
        path = learning.RESULTS / f"{learning.run_name(learning.SMALL, name, seed)}.json"
        if path.exists():
            found[seed] = json.loads(path.read_text())
    return found


def origins() -> str:
    """Return the section about defaults that are not simply those of the method's paper."""
    lines = [
        "## Where defaults come from",
        "",
        "Many papers tune these options for each data set, so that there is no value to take over. The page of a",
        "method lists every other difference.",
        "",
        "| algorithm | option | default | where it comes from |",
        "|---|---|---|---|",
    ]
    for each in ORIGINS:
        default = getattr(load_algorithm(each.algorithm), each.option)
        lines.append(f"| {each.algorithm} | `{each.option}` | {default:g} | {each.text} |")
    return "\n".join(lines) + "\n"


def accuracies(name: str) -> dict[str, float]:
    """Return the mean accuracies of a run by point, in percent."""
    record = json.loads((learning.RESULTS / f"{WORLD}-{name}.json").read_text())
    return {
        point: 100 * metrics["accuracy"]["mean"] for point, metrics in record["metrics"].items()
    }


def exceptions() -> str:
    """Return the methods whose personal models are not above FedAvg's global model, in a
    sentence.
    """
    base = accuracies("fedavg")["global"]
    found = [
        f"{name} ({value:.1f})"
        for name in sorted([*ALGORITHMS, *learning.VARIANTS])
        if load_algorithm(learning.VARIANTS.get(name, {}).get("name", name)).primary_evaluation
        == "personalized"
        and (value := accuracies(name)["personalized"]) <= base
    ]
    above = f"* **Personal models beat FedAvg's global model ({base:.1f})** in every method that has them, except"
    return f"{above}\n  {', '.join(found)}."


def explanation() -> str:
    """Return what pFedMe reaches with steps as long as FedAvg's, in a sentence; empty if there is
    no record.
    """
    if not (learning.RESULTS / f"{WORLD}-pfedme-outer0.02.json").exists():
        return ""
    found = accuracies("pfedme-outer0.02")
    return (
        " With steps as long as FedAvg's (`outer_lr` 0.02, a run that no table shows) the three\n  reach "
        f"{found['global']:.1f}, {found['personalized']:.1f} and {found['local']:.1f}."
    )
