"""Alarms without labels, and adaptation, on digits divided by classes.

    python -m benchmarks.watch [--only TEXT ...]    # what has no record
    python -m benchmarks.watch --table

The 1,797 digits of scikit-learn at five sites (Dirichlet 0.5 by class), an MLP, ten rounds; three
seeds with divisions of their own. Held-out examples of a site are its validation and test examples.
Changed inputs come from the held-out examples of the other sites: classes look alike at all.
Every run adds a line to ``results/watch.jsonl``:

* how often each alarm rings on ordinary inputs: random parts of a client's held-out examples;
* after how many inputs an alarm rings (of 20, 40, 80), as noise or a share of two classes
  grows, beside a Kolmogorov-Smirnov test on every feature, with Bonferroni's correction;
* accuracy under another class mix, and under noise, before and after ``adapt`` with 0, 10 and 50
  labels, on other inputs of the same kind.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.records import RESULTS, describe_machine, save_record

SEEDS = range(3)
METHODS = ("pfedfda", "fedavg_ft")
ALARMS = ("unusual", "surprise", "class_mix")
SIZES = (20, 40, 80)
NOISE = (30.0, 60.0, 90.0)
SHARES = (0.5, 0.7, 0.9)
HELD_OUT = 60
NUM_ORDINARY = 40
DIVISIONS = 20
"""Random divisions of the held-out examples of every site."""
_SITES = 5


class Change(NamedTuple):
    """How inputs have changed."""

    noise: float = 0.0
    """Standard deviation of the noise on pixels; white is 255."""
    share: float = 0.0
    """Of inputs that are of two classes, the rarest of the client; 0: its own class mix."""


def write_sites(folder: Path, seed: int) -> None:
    """Write digits as the data of sites, with other shares of classes at each."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.default_rng(seed)
    chosen: list[list[int]] = [[] for _ in range(_SITES)]
    for label in range(10):
        rows = random.permutation(np.flatnonzero(digits.target == label))
        ends = np.cumsum(random.dirichlet(np.full(_SITES, 0.5))) * len(rows)
        for site, part in zip(chosen, np.split(rows, ends[:-1].astype(int)), strict=True):
            site += part.tolist()

    names = np.arange(10).astype(str)
    for number, site_rows in enumerate(chosen):
        (folder / str(number)).mkdir(parents=True)
        x = (15 * digits.images[site_rows]).astype(np.uint8)
        y = digits.target[site_rows]
        np.savez(folder / str(number) / "train.npz", x=x, y=y, class_names=names)


def configuration(method: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the configuration of a run."""
    return {
        "seed": seed,
        "algorithm": {"name": method},
        "data": {"path": str(folder), "val_fraction": 0.2},
        "training": {"lr": 0.05, "epochs": 3, "batch_size": 20},
        "federation": {"rounds": 10},
        "evaluation": {"every": 0, "baselines": "none"},
        "checkpoint": {"every": 0},
        "engine": {"name": "reference"},
    }


class Pool(NamedTuple):
    """Images and labels of held-out examples."""

    x: np.ndarray
    y: np.ndarray

    def draw(self, random: np.random.Generator, mix: np.ndarray, count: int) -> Pool:
        """Draw images whose classes come in a mix."""
        weights = mix[self.y] / np.maximum(np.bincount(self.y, minlength=len(mix)), 1)[self.y]
        chosen = random.choice(len(self.y), size=count, p=weights / weights.sum())
        return Pool(self.x[chosen], self.y[chosen])

    def noisy(self, random: np.random.Generator, noise: float) -> Pool:
        """Add noise to the images."""
        pixels = self.x + noise * random.standard_normal(self.x.shape)
        return self._replace(x=np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def run_one(name: str) -> dict[str, Any]:
    """Run and return a record."""
    import fedtailor
    from fedtailor.data.build import build

    method, seed = name.rsplit("_", 1)
    record = describe_machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_sites(folder / "sites", int(seed))
        config = fedtailor.make_config(configuration(method, int(seed), folder / "sites"))
        divided = build(config.data, run_seed=int(seed))
        pools = []
        for positions in divided.positions:
            rows = np.concatenate([positions.val, positions.test])
            pools.append(Pool(divided.dataset.x[rows], divided.dataset.y[rows]))

        result = fedtailor.run(config, out=folder / "run")
        run = fedtailor.load(folder / "run")
        watched = watch_all(run, pools)
        adapted = adapt_all(run, pools, folder) if method == "pfedfda" else {}

    return record | {
        "method": method,
        "seed": int(seed),
        "accuracy": result["metrics"]["personalized"]["accuracy"]["mean"],
        "watch": watched,
        "adapt": adapted,
        "split_sha256": result["split_sha256"],
    }


def others(pools: list[Pool], client: int) -> Pool:
    """Return the examples of all clients but one."""
    rest = [pool for number, pool in enumerate(pools) if number != client]
    return Pool(
        np.concatenate([pool.x for pool in rest]), np.concatenate([pool.y for pool in rest])
    )


def mix_of(pool: Pool, change: Change) -> np.ndarray:
    """Return the class mix of a client, or that of a change."""
    mix = np.bincount(pool.y, minlength=10) / len(pool.y)
    if not change.share:
        return mix

    rare = mix.argsort()[:2]
    mix = (1 - change.share) * mix
    mix[rare] += change.share / 2
    return mix / mix.sum()


def watch_all(run: Any, pools: list[Pool]) -> dict[str, Any]:
    """Return false alarms, and after how many inputs alarms ring, summed over clients."""
    from fedtailor.serving.alarms import check_inputs
    from fedtailor.serving.signals import Signals, signals

    false = dict.fromkeys(ALARMS, 0)
    trials = 0
    delays: dict[str, dict[str, list[int]]] = {}
    for client, pool in enumerate(pools):
        random = np.random.default_rng([client, 0])
        model = run.model(client)
        whole = signals(model, [pool.x])
        for _ in range(DIVISIONS if len(pool.y) >= HELD_OUT + 10 else 0):
            order = random.permutation(len(pool.y))
            ordinary = order[HELD_OUT : HELD_OUT + NUM_ORDINARY]
            held_out = Signals(*(value[order[:HELD_OUT]] for value in whole))
            alarms = check_inputs(held_out, Signals(*(value[ordinary] for value in whole)))
            trials += 1
            for name in ALARMS:
                false[name] += getattr(alarms, name).rings

        rest = others(pools, client)
        held_out = Signals(*(value[:HELD_OUT] for value in whole))
        features = model.features(pool.x[:HELD_OUT])
        for change in (*(Change(noise=noise) for noise in NOISE), *map(_share, SHARES)):
            stream = rest.draw(random, mix_of(pool, change), max(SIZES)).noisy(random, change.noise)
            said = signals(model, [stream.x])
            their_features = model.features(stream.x)
            first = dict.fromkeys((*ALARMS, "ks"), 0)
            for size in SIZES:
                recent = Signals(*(value[:size] for value in said))
                alarms = check_inputs(held_out, recent)
                rings = {name: getattr(alarms, name).rings for name in ALARMS}
                rings["ks"] = ks_rings(features, their_features[:size])
                for name, is_ringing in rings.items():
                    first[name] = first[name] or (size if is_ringing else 0)

            of_change = delays.setdefault(json.dumps(change._asdict()), {})
            for name, size in first.items():
                of_change.setdefault(name, []).append(size)

    return {"trials": trials, "false_alarms": false, "delays": delays}


def _share(share: float) -> Change:
    return Change(share=share)


def ks_rings(held_out: np.ndarray, recent: np.ndarray) -> bool:
    """Return whether the distribution of some feature differs, at 1 % over all of them."""
    from scipy.stats import ks_2samp

    p_values = ks_2samp(held_out, recent, axis=0).pvalue
    return bool(np.nanmin(p_values) <= 0.01 / held_out.shape[1])


def adapt_all(run: Any, pools: list[Pool], folder: Path) -> dict[str, Any]:
    """Return accuracies on changed inputs, before and after an adaptation, client by client."""
    import fedtailor
    from fedtailor.core.errors import DataError

    rows: dict[str, list[dict[str, Any]]] = {}
    for client, pool in enumerate(pools):
        random = np.random.default_rng([client, 1])
        rest = others(pools, client)
        order = random.permutation(len(rest.y))
        half = len(order) // 2
        seen = Pool(rest.x[order[:half]], rest.y[order[:half]])
        unseen = Pool(rest.x[order[half:]], rest.y[order[half:]])
        for change in (Change(), Change(share=0.7), Change(share=0.9), Change(noise=60.0)):
            mix = mix_of(pool, change)
            recent = seen.draw(random, mix, 100).noisy(random, change.noise)
            judge = unseen.draw(random, mix, 300).noisy(random, change.noise)
            row: dict[str, Any] = {"stale": accuracy(run.model(client), judge)}
            for labels in (0, 10, 50):
                where = Path(tempfile.mkdtemp(dir=folder))
                count = labels or 100
                given = Pool(recent.x[:count], recent.y[:count])
                paths = write_arrays(where, given, run.model(client).classes_ if labels else None)
                try:
                    adapted = run.adapt(client, paths, where / "out", labels=labels > 0)
                except DataError as error:
                    row[str(labels)] = {"refused": error.message}
                    continue

                new = fedtailor.load(adapted.path).model(0)
                row[str(labels)] = {"accuracy": accuracy(new, judge)}

            rows.setdefault(json.dumps(change._asdict()), []).append(row)

    return rows


def accuracy(model: Any, pool: Pool) -> float:
    """Return the accuracy of a model on images."""
    names = [str(name) for name in model.classes_]
    predicted = np.array([names.index(str(name)) for name in model.predict(pool.x)])
    return float((predicted == pool.y).mean())


def write_arrays(folder: Path, pool: Pool, classes: np.ndarray | None) -> list[str]:
    """Write inputs as ``adapt`` takes them, with labels if there are names; return their path."""
    if classes is None:
        np.savez(folder / "recent.npz", x=pool.x)
        return [str(folder / "recent.npz")]

    data = folder / "labelled"
    data.mkdir()
    np.savez(data / "train.npz", x=pool.x, y=pool.y, class_names=classes.astype(str))
    return [str(data)]


def names() -> Iterator[str]:
    """Yield the names of all runs."""
    for seed in SEEDS:
        for method in METHODS:
            yield f"{method}_{seed}"


def read_records() -> dict[str, dict[str, Any]]:
    """Return the records by name."""
    path = RESULTS / "watch.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {record["name"]: record for record in map(json.loads, lines)}


def print_table() -> None:
    """Print false alarms, delays and accuracies."""
    for method in METHODS:
        records = [record for record in read_records().values() if record["method"] == method]
        if not records:
            continue

        mean = statistics.fmean(record["accuracy"] for record in records)
        trials = sum(record["watch"]["trials"] for record in records)
        print(f"{method}: {len(records)} seeds, accuracy {100 * mean:.1f} %")
        for name in ALARMS:
            count = sum(record["watch"]["false_alarms"][name] for record in records)
            print(f"  false alarms, {name}: {count} of {trials}")
        for change in records[0]["watch"]["delays"]:
            print(f"  {change}: {_delays(records, change)}")
        for change in records[0]["adapt"]:
            print(f"  {change}: {_accuracies(records, change)}")


def _delays(records: list[dict[str, Any]], change: str) -> str:
    """Return how many clients ring by 20 and by 80 inputs, by alarm."""
    cells = []
    for name in (*ALARMS, "ks"):
        sizes = [size for r in records for size in r["watch"]["delays"][change][name]]
        by_20 = sum(size == 20 for size in sizes)
        cells.append(f"{name} {by_20} / {sum(size > 0 for size in sizes)} of {len(sizes)}")
    return ", ".join(cells)


def _accuracies(records: list[dict[str, Any]], change: str) -> str:
    """Return the accuracies before and after, over all clients: a refused one keeps its model."""
    by_seed = [record["adapt"][change] for record in records]
    stale = [100 * statistics.fmean(row["stale"] for row in rows) for rows in by_seed]
    cells = [f"stale {statistics.fmean(stale):.1f}"]
    for labels in ("0", "10", "50"):
        gains = []
        refused = 0
        worst = 0.0
        for rows in by_seed:
            differences = []
            for row in rows:
                refused += "refused" in row[labels]
                differences.append(100 * (row[labels].get("accuracy", row["stale"]) - row["stale"]))

            gains.append(statistics.fmean(differences))
            worst = min(worst, *differences)

        spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
        gain = f"{statistics.fmean(gains):+.1f} ± {spread:.1f}"
        cells.append(f"{labels} labels {gain} (worst {worst:+.1f}, {refused} refused)")
    return ", ".join(cells)


def main() -> None:
    """Run what is missing, or print what there is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of runs")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()
    if not options.table:
        done = read_records()
        for name in names():
            if name not in done and all(text in name for text in options.only):
                print(name, flush=True)
                save_record("watch", name, run_one(name))

    print_table()


if __name__ == "__main__":
    main()
