"""The arm of PFLlib: its own program on our split, in the layout of its data sets.

Nothing of PFLlib is part of this repository. Its environment needs torch, torchvision, h5py,
scikit-learn, cvxpy and calmsize; the network here needs none of torchvision, so an empty module of
that name does as well.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.split import BATCH, LR, ROUNDS, SEEDS, ClientExamples

NAME = "fedtailor_FashionMNIST"
"""Of the data set: PFLlib chooses the network by a part of it."""
METHODS: Mapping[str, Sequence[str]] = {
    "fedavg": ("-algo", "FedAvg"),
    "fedrep": ("-algo", "FedRep", "-pls", "1"),
    "ditto": ("-algo", "Ditto", "-pls", "1", "-mu", "0.1"),
    "apfl": ("-algo", "APFL", "-al", "0.5"),
}
"""Our options in the words of PFLlib."""
_READ = """
import h5py, json, sys
with h5py.File(sys.argv[1]) as file:
    print(json.dumps(file["rs_test_acc"][:].tolist()))
"""


def write_examples(clients: Sequence[ClientExamples], folder: Path) -> None:
    """Write the examples of all clients into a clone of PFLlib."""
    for client, parts in enumerate(clients):
        for part, (x, y) in parts.items():
            path = folder / "dataset" / NAME / part / f"{client}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path, data=np.array({"x": x, "y": y}, dtype=object))


def commit_of(folder: Path) -> str:
    """Return the commit of a clone of PFLlib."""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_method(method: str, folder: Path, python: str, num_clients: int) -> dict[str, list[float]]:
    """Run PFLlib's program for all repetitions; return the last accuracy of each, over examples."""
    words = [*METHODS[method], "-data", NAME, "-m", "DNN", "-ncl", "10", "-nc", str(num_clients)]
    words += ["-lbs", str(BATCH), "-lr", str(LR), "-ls", "1", "-gr", str(ROUNDS)]
    words += ["-eg", str(ROUNDS), "-t", str(len(SEEDS)), "-dev", "cpu", "-go", "fedtailor"]
    program = [python, "main.py", *words]
    subprocess.run(program, cwd=folder / "system", check=True, stdout=subprocess.DEVNULL)

    accuracies = []
    for number in range(len(SEEDS)):
        file = folder / "results" / f"{NAME}_{METHODS[method][1]}_fedtailor_{number}.h5"
        read = [python, "-c", _READ, str(file)]
        done = subprocess.run(read, capture_output=True, text=True, check=True)
        accuracies.append(json.loads(done.stdout)[-1])

    return {"pooled": accuracies}
