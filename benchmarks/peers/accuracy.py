"""The accuracy of PFLlib's own program beside ours, on the same split.

    git clone https://github.com/TsingZ0/PFLlib FOLDER
    python -m benchmarks.peers.pfllib --data-dir DIR --pfllib FOLDER --python PYTHON [METHOD ...]
    python -m benchmarks.peers.pfllib --data-dir DIR --ours [METHOD ...]

PYTHON is that of an environment with torch, torchvision, h5py, scikit-learn, cvxpy and calmsize,
which PFLlib imports; the network here needs none of torchvision, so an empty module of that name
does as well. Nothing of PFLlib is part of this repository: its program reads the split that
is written here, in the layout of its data sets, and its results are read from its file.

The federation is that of ``skew-0.1`` on the leaderboard, with a perceptron of 100 hidden units,
which both have. All clients train in all rounds, by plain SGD. Every run adds a record to
``results/peers_accuracy.jsonl``, by seed: of the initial model and the order of examples. Those of
PFLlib are its repetitions, of which the second and third begin with the same accuracy.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.records import describe_machine, save_record
from fedtailor import make_config, run
from fedtailor.core.errors import all_done
from fedtailor.experiment.assembly import PreparedRun, assemble

BENCHMARK = "peers_accuracy"
SEEDS = (0, 1, 2)
ROUNDS = 10
LR = 0.05
BATCH = 20
DATA = {
    "dataset": "fashion_mnist",
    "partition": "dirichlet(alpha=0.1)",
    "subset": 4000,
    "clients": 20,
    "test_share": 0.5,
}
NAME = "fedtailor_FashionMNIST"
"""Of the data set: PFLlib chooses the network by a part of it."""
OURS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "fedrep": {"head_epochs": 1},
    "ditto": {"penalty": 0.1, "personal_epochs": 1},
    "apfl": {"alpha": 0.5, "adaptive": True},
}
"""Options of our methods."""
THEIRS: Mapping[str, Sequence[str]] = {
    "fedavg": ("-algo", "FedAvg"),
    "fedrep": ("-algo", "FedRep", "-pls", "1"),
    "ditto": ("-algo", "Ditto", "-pls", "1", "-mu", "0.1"),
    "apfl": ("-algo", "APFL", "-al", "0.5"),
}
"""The same as options of PFLlib."""
PERCEPTRON = {"name": "mlp", "options": {"hidden": 100}}
VARIANTS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "whole batches": (PERCEPTRON, True),
    "whole epochs": (PERCEPTRON, False),
    "its divided network": ({"name": "benchmarks.peers.pfllib:divided_network"}, True),
}
"""Of our runs: the model, and whether the last batch of an epoch is left out if it is smaller, as
PFLlib does."""
_READ = """
import h5py, json, sys
with h5py.File(sys.argv[1]) as file:
    print(json.dumps(file["rs_test_acc"][:].tolist()))
"""


def divided_network(input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Return the perceptron as PFLlib divides it into base and head for FedAvg and FedRep.

    Its network ends with a log-softmax. The head is taken out before that and put after it, so the
    base ends with a log-softmax over the hidden units.
    """
    hidden = 100
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), hidden),
        nn.ReLU(),
        nn.LogSoftmax(dim=1),
        nn.Linear(hidden, num_classes),
    )


def configuration(
    method: str,
    seed: int,
    data_dir: str,
    model: Mapping[str, Any] = PERCEPTRON,
    *,
    drop_last: bool = True,
) -> Any:
    """Return the configuration of our run."""
    return make_config(
        {
            "seed": seed,
            "data": {**DATA, "dir": data_dir},
            "model": model,
            "algorithm": {"name": method, **OURS[method]},
            "training": {"lr": LR, "batch_size": BATCH, "epochs": 1, "drop_last": drop_last},
            "federation": {"rounds": ROUNDS},
            "evaluation": {"every": 0},
            "checkpoint": {"every": 0},
            "engine": {"name": "reference"},
        }
    )


def prepare(data_dir: str) -> PreparedRun:
    """Return the federation: the split does not depend on the seed."""
    prepared = assemble(configuration("fedavg", SEEDS[0], data_dir), SEEDS[0])
    with all_done([prepared.engine.close]):
        return prepared


def write_split(prepared: PreparedRun, folder: Path) -> None:
    """Write the examples of all clients, as our networks get them, into a folder of PFLlib."""
    white, mean, deviation = prepared.federation.scale.reshape(3, -1, 1, 1)
    inputs = ((prepared.federation.x / white - mean) / deviation).numpy()
    labels = prepared.divided.dataset.y
    for client, positions in enumerate(prepared.divided.positions):
        for part, rows in (("train", positions.train), ("test", positions.test)):
            path = folder / "dataset" / NAME / part / f"{client}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            examples = {"x": inputs[rows], "y": labels[rows]}
            np.savez(path, data=np.array(examples, dtype=object))


def run_theirs(method: str, folder: Path, python: str) -> list[float]:
    """Run PFLlib's program for all seeds, and return the last accuracy of each, over examples."""
    words = [*THEIRS[method], "-data", NAME, "-m", "DNN", "-ncl", "10", "-nc", str(DATA["clients"])]
    words += ["-lbs", str(BATCH), "-lr", str(LR), "-ls", "1", "-gr", str(ROUNDS)]
    words += ["-eg", str(ROUNDS), "-t", str(len(SEEDS)), "-dev", "cpu", "-go", "fedtailor"]
    program = [python, "main.py", *words]
    subprocess.run(program, cwd=folder / "system", check=True, stdout=subprocess.DEVNULL)

    accuracies = []
    for number in range(len(SEEDS)):
        file = folder / "results" / f"{NAME}_{THEIRS[method][1]}_fedtailor_{number}.h5"
        read = [python, "-c", _READ, str(file)]
        done = subprocess.run(read, capture_output=True, text=True, check=True)
        accuracies.append(json.loads(done.stdout)[-1])

    return accuracies


def run_ours(method: str, data_dir: str, variant: str) -> dict[str, list[float]]:
    """Run our method for all seeds; return accuracies over examples and means over clients."""
    model, drop_last = VARIANTS[variant]
    scores: dict[str, list[float]] = {"pooled": [], "mean": []}
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            config = configuration(method, seed, data_dir, model, drop_last=drop_last)
            result = run(config, out=Path(folder) / str(seed))
            accuracy = result["metrics"]["personalized"]["accuracy"]
            for averaging, values in scores.items():
                values.append(accuracy[averaging])

    return scores


def record_name(method: str, variant: str) -> str:
    """Return the name of the record of our runs of a method."""
    return f"fedtailor-{method}-{variant.replace(' ', '-')}"


def main() -> None:
    """Measure methods, and write their records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="*", default=list(OURS), help="methods (default: all)")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--pfllib", type=Path, help="clone of PFLlib")
    parser.add_argument("--python", default="python", help="that of PFLlib's environment")
    parser.add_argument("--ours", action="store_true", help="measure ours")
    options = parser.parse_args()

    prepared = prepare(options.data_dir)
    shared = {"benchmark": BENCHMARK, "split_sha256": prepared.split["split_sha256"]}
    shared |= {"seeds": list(SEEDS), "rounds": ROUNDS, "lr": LR, "batch": BATCH}
    shared |= describe_machine()
    if options.pfllib:
        write_split(prepared, options.pfllib)
        git = ["git", "-C", str(options.pfllib), "rev-parse", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()

    for method in options.methods:
        if options.pfllib:
            pooled = run_theirs(method, options.pfllib, options.python)
            record = {"method": method, "program": "PFLlib", "commit": commit, "pooled": pooled}
            save_record(BENCHMARK, f"pfllib-{method}", {**shared, **record})
            print(method, "PFLlib", pooled, flush=True)

        if options.ours:
            for variant in VARIANTS:
                scores = run_ours(method, options.data_dir, variant)
                record = {"method": method, "program": "fedtailor", "variant": variant, **scores}
                save_record(BENCHMARK, record_name(method, variant), {**shared, **record})
                print(method, variant, scores, flush=True)


if __name__ == "__main__":
    main()
