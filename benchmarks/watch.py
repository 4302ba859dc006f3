"""Alarms without labels, and adaptation, on digits and on pictures, divided by classes.

    python -m benchmarks.watch [--data-dir DIR] [--only TEXT ...]    # what has no record
    python -m benchmarks.watch --table

* digits: the 1,797 of scikit-learn at five sites, an MLP, ten rounds. What changes: noise.
* cifar10_s: 4,000 pictures of CIFAR-10 at ten sites, as features of EfficientNet-Lite0 (see
  ``benchmarks.efficientnet``), pFedFDA with its preset ``frozen``, FedAvg-FT with a linear model,
  ten rounds. What changes: the severity of one of the ten corruptions of CIFAR10-S at each site.

Classes are divided by Dirichlet(0.5); three seeds with divisions of their own. Held-out examples
of a site are its validation and test examples. Changed inputs come from the held-out examples of
the other sites: classes look alike at all. No input comes twice. Every run adds a line to
``results/watch.jsonl``:

* how often each alarm rings on ordinary inputs: random parts of a client's held-out examples;
* after how many inputs an alarm rings (of 20, 40, 80), as the change or a share of two classes
  grows, beside a Kolmogorov-Smirnov test on every feature, with Bonferroni's correction;
* accuracy under another class mix, and under the change, before and after ``adapt`` with 0, 10 and
  50 labels, on other inputs of the same kind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.records import describe_machine, read_records, save_record

SEEDS = range(3)
METHODS = ("pfedfda", "fedavg_ft")
ALARMS = ("unusual", "surprise", "doubt", "class_mix")
SIZES = (20, 40, 80)
LEVELS = {"digits": (30.0, 60.0, 90.0), "cifar10_s": (1.0, 3.0, 5.0)}
"""By data: standard deviation of noise on pixels, of which white is 255; severity."""
SHARES = (0.5, 0.7, 0.9)
HELD_OUT = 60
NUM_ORDINARY = 40
DIVISIONS = 20
"""Random divisions of the held-out examples of every site."""
_SITES = {"digits": 5, "cifar10_s": 10}
_PICTURES = 4_000
_CHANGED = 400
"""Inputs of other sites that a site gets changed, at most."""
_RECENT = 100
"""Inputs, at most, that a model is adapted to."""
_JUDGE = 300
"""Draws of other inputs that judge it."""
_ENCODER = "benchmarks.efficientnet:lite0"


class Change(NamedTuple):
    """How inputs have changed."""

    noise: float = 0.0
    """Standard deviation of the noise on pixels, or severity of a corruption; 0: as before."""
    share: float = 0.0
    """Of inputs that are of two classes, the rarest of the client; 0: its own class mix."""


def write_sites(folder: Path, x: np.ndarray, y: np.ndarray, sites: int, seed: int) -> None:
    """Write examples as the data of sites, with other shares of classes at each."""
    random = np.random.default_rng(seed)
    chosen: list[list[int]] = [[] for _ in range(sites)]
    for label in range(10):
        rows = random.permutation(np.flatnonzero(y == label))
        ends = np.cumsum(random.dirichlet(np.full(sites, 0.5))) * len(rows)
        for of_site, part in zip(chosen, np.split(rows, ends[:-1].astype(int)), strict=True):
            of_site += part.tolist()

    names = np.arange(10).astype(str)
    for number, of_site in enumerate(chosen):
        (folder / str(number)).mkdir(parents=True)
        site = {"x": x[of_site], "y": y[of_site], "class_names": names}
        np.savez(folder / str(number) / "train.npz", **site)


def load_digit_images() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of scikit-learn, (n, 8, 8, 1) from 0 to 240, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (15 * digits.images).astype(np.uint8)
    return images[..., None], digits.target


def load_pictures(data_dir: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return some pictures of CIFAR-10, (n, 32, 32, 3) from 0 to 255, and their labels."""
    import fedtailor
    from fedtailor.data.build import build

    data = {"dataset": "cifar10", "dir": data_dir, "clients": 1, "partition": "iid"}
    config = fedtailor.make_config({"algorithm": {"name": "local"}, "data": data})
    dataset = build(config.data, run_seed=0).dataset
    rows = np.random.default_rng(seed).choice(len(dataset.y), _PICTURES, replace=False)
    return dataset.x[rows], dataset.y[rows]


@cache
def load_lite0() -> Any:
    """Return the encoder of pictures."""
    from fedtailor.encoders.load import load_encoder

    return load_encoder(_ENCODER)


_features: dict[str, np.ndarray] = {}
"""By the digest of the pictures: the methods of a seed have the same ones."""


def features_of(pictures: np.ndarray) -> np.ndarray:
    """Return the features (n, 1280) of pictures."""
    import torch

    from fedtailor.encoders.encoder import encode

    key = hashlib.sha256(pictures.tobytes()).hexdigest()
    if key not in _features:
        stored = torch.from_numpy(np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)))
        _features[key] = encode(load_lite0(), stored, white=255.0).numpy()
    return _features[key]


def configuration(data: str, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the configuration of a run."""
    algorithm = {"name": method}
    if data == "cifar10_s" and method == "pfedfda":
        algorithm["preset"] = "frozen"

    return {
        "seed": seed,
        "algorithm": algorithm,
        "data": {"path": str(folder), "val_fraction": 0.2},
        "model": {"name": "mlp" if data == "digits" else "linear"},
        "training": {"lr": 0.05, "epochs": 3, "batch_size": 20},
        "federation": {"rounds": 10},
        "evaluation": {"every": 0, "baselines": "none"},
        "checkpoint": {"every": 0},
        "engine": {"name": "reference"},
    }


class Pool(NamedTuple):
    """Inputs and labels of examples."""

    x: np.ndarray
    y: np.ndarray

    def rows(self, rows: np.ndarray) -> Pool:
        """Return some of the examples."""
        return Pool(self.x[rows], self.y[rows])

    def chances(self, mix: np.ndarray) -> np.ndarray:
        """Return the chances of the examples that make their classes come in a mix."""
        counts = np.bincount(self.y, minlength=len(mix))
        weights = mix[self.y] / counts[self.y]
        return weights / weights.sum()

    def choose(self, random: np.random.Generator, mix: np.ndarray, count: int) -> np.ndarray:
        """Choose different rows whose classes come in a mix, as far as there are enough of each."""
        chances = self.chances(mix)
        size = min(count, np.count_nonzero(chances))
        return random.choice(len(self.y), size=size, replace=False, p=chances)


class Site(NamedTuple):
    """What a client has, and what may come to it."""

    held_out: Pool
    others: Pool
    """The held-out examples of the other clients."""
    changed: Mapping[float, Pool]
    """Some of these, in the class mix of the client and changed, by level."""

    def source(self, change: Change) -> tuple[Pool, np.ndarray]:
        """Return where inputs come from after a change, and their class mix."""
        mix = np.bincount(self.held_out.y, minlength=10) / len(self.held_out.y)
        if change.noise:
            return self.changed[change.noise], mix
        if change.share:
            rare = mix.argsort()[:2]
            mix = (1 - change.share) * mix
            mix[rare] += change.share / 2
        return self.others, mix


def run_one(name: str, data_dir: str) -> dict[str, Any]:
    """Run and return a record."""
    import fedtailor
    from fedtailor.data.build import build

    data, method, seed = parts_of(name)
    record = describe_machine()
    if data == "digits":
        pictures, labels = load_digit_images()
        x = pictures
    else:
        pictures, labels = load_pictures(data_dir, seed)
        x = features_of(pictures)

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_sites(folder / "sites", x, labels, _SITES[data], seed)
        config = fedtailor.make_config(configuration(data, method, seed, folder / "sites"))
        divided = build(config.data, run_seed=seed)
        sites = sites_of(divided, LEVELS[data], pictures, x)
        result = fedtailor.run(config, out=folder / "run")
        run = fedtailor.load(folder / "run")
        watched = watch_all(run, sites, LEVELS[data])
        adapted: dict[str, Any] = {}
        if method == "pfedfda":
            adapted = adapt_all(run, sites, LEVELS[data][1], folder)

    return record | {
        "data": data,
        "method": method,
        "seed": seed,
        "accuracy": result["metrics"]["personalized"]["accuracy"]["mean"],
        "watch": watched,
        "adapt": adapted,
        "split_sha256": result["split_sha256"],
    }


def parts_of(name: str) -> tuple[str, str, int]:
    """Return data, method and seed of a run."""
    data, _, method = name.rpartition("-")
    method, seed = method.rsplit("_", 1)
    return data or "digits", method, int(seed)


def sites_of(
    divided: Any, levels: tuple[float, ...], pictures: np.ndarray, x: np.ndarray
) -> list[Site]:
    """Return what every client has, and what may come to it.

    Args:
        divided: the data of a run.
        levels: of the change.
        pictures: of all examples.
        x: inputs that were made of them.
    """
    pools = []
    for positions in divided.positions:
        rows = np.concatenate([positions.val, positions.test])
        pools.append(Pool(divided.dataset.x[rows], divided.dataset.y[rows]))

    row_of = {one.tobytes(): row for row, one in enumerate(x)}
    sites = []
    for client, pool in enumerate(pools):
        rest = [other for number, other in enumerate(pools) if number != client]
        others = Pool(np.concatenate([p.x for p in rest]), np.concatenate([p.y for p in rest]))
        site = Site(pool, others, {})

        source, mix = site.source(Change())
        some = source.rows(source.choose(np.random.default_rng([client, 2]), mix, _CHANGED))
        rows = np.array([row_of[one.tobytes()] for one in some.x])
        for level in levels:
            site.changed[level] = some._replace(x=change_pictures(pictures, rows, level, client))
        sites.append(site)

    return sites


def change_pictures(
    pictures: np.ndarray, rows: np.ndarray, level: float, client: int
) -> np.ndarray:
    """Return the inputs that a client gets of some pictures, after a change.

    Digits are noisy. Pictures have the corruption with the number of the client, and become
    features.
    """
    if pictures.shape[-1] == 1:
        noise = level * np.random.default_rng([client, 3]).standard_normal(pictures[rows].shape)
        return np.clip(np.rint(pictures[rows] + noise), 0, 255).astype(np.uint8)

    from fedtailor.data.corruptions import CORRUPTIONS, corrupt

    kind = list(CORRUPTIONS)[client]
    changed = corrupt(pictures[rows], kind, int(level), positions=rows, seed=client)
    return features_of(changed)


def watch_all(run: Any, sites: list[Site], levels: tuple[float, ...]) -> dict[str, Any]:
    """Return false alarms, and after how many inputs alarms ring, summed over clients.

    Args:
        run: with a model for every client.
        sites: the inputs of every client.
        levels: of the change.
    """
    import torch

    from fedtailor.serving.alarms import check_inputs
    from fedtailor.serving.signals import signals

    false = dict.fromkeys(ALARMS, 0)
    trials = 0
    delays: dict[str, dict[str, list[int]]] = {}
    for client, site in enumerate(sites):
        random = np.random.default_rng([client, 0])
        model = run.model(client)
        whole = signals(model, [site.held_out.x])
        count = len(site.held_out.y)
        for _ in range(DIVISIONS if count >= HELD_OUT + 10 else 0):
            order = torch.from_numpy(random.permutation(count))
            ordinary = whole.rows(order[HELD_OUT : HELD_OUT + NUM_ORDINARY])
            alarms = check_inputs(whole.rows(order[:HELD_OUT]), ordinary)
            trials += 1
            for name, rings in ringing(alarms).items():
                false[name] += rings

        held_out = whole.rows(slice(HELD_OUT))
        features = model.features(site.held_out.x[:HELD_OUT])
        for change in (*(Change(noise=level) for level in levels), *map(_share, SHARES)):
            source, mix = site.source(change)
            stream = source.rows(source.choose(random, mix, max(SIZES)))
            said = signals(model, [stream.x])
            their_features = model.features(stream.x)
            first = dict.fromkeys((*ALARMS, "ks"), 0)
            for size in SIZES:
                rings = ringing(check_inputs(held_out, said.rows(slice(size))))
                rings["ks"] = ks_rings(features, their_features[:size])
                for name, is_ringing in rings.items():
                    first[name] = first[name] or (size if is_ringing else 0)

            of_change = delays.setdefault(json.dumps(change._asdict()), {})
            for name, size in first.items():
                of_change.setdefault(name, []).append(size)

    return {"trials": trials, "false_alarms": false, "delays": delays}


def ringing(alarms: Any) -> dict[str, bool]:
    """Return which alarms ring; one that the method does not have never does."""
    found = {name: getattr(alarms, name) for name in ALARMS}
    return {name: alarm is not None and alarm.rings for name, alarm in found.items()}


def _share(share: float) -> Change:
    return Change(share=share)


def ks_rings(held_out: np.ndarray, recent: np.ndarray) -> bool:
    """Return whether the distribution of some feature differs, at 1 % over all of them."""
    from scipy.stats import ks_2samp

    p_values = ks_2samp(held_out, recent, axis=0).pvalue
    return bool(np.nanmin(p_values) <= 0.01 / held_out.shape[1])


def adapt_all(run: Any, sites: list[Site], level: float, folder: Path) -> dict[str, Any]:
    """Return accuracies on changed inputs, before and after an adaptation, client by client.

    Args:
        run: with a model for every client.
        sites: the inputs of every client.
        level: of the change.
        folder: for files.
    """
    import fedtailor
    from fedtailor.core.errors import DataError

    rows: dict[str, list[dict[str, Any]]] = {}
    for client, site in enumerate(sites):
        random = np.random.default_rng([client, 1])
        for change in (Change(), Change(share=0.7), Change(share=0.9), Change(noise=level)):
            source, mix = site.source(change)
            chosen = source.choose(random, mix, _RECENT)
            recent = source.rows(chosen)

            # The others judge; here, a rare one may come again.
            rest = source.rows(np.delete(np.arange(len(source.y)), chosen))
            judge = rest.rows(random.choice(len(rest.y), _JUDGE, p=rest.chances(mix)))
            row: dict[str, Any] = {"stale": accuracy(run.model(client), judge)}
            for labels in (0, 10, 50):
                where = Path(tempfile.mkdtemp(dir=folder))
                count = labels or _RECENT
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
    for prefix in ("", "cifar10_s-"):
        for seed in SEEDS:
            for method in METHODS:
                yield f"{prefix}{method}_{seed}"


def print_table() -> None:
    """Print false alarms, delays and accuracies."""
    of_runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, record in read_records("watch").items():
        data, method, _ = parts_of(name)
        of_runs.setdefault((data, method), []).append(record)

    for (data, method), records in of_runs.items():
        mean = statistics.fmean(record["accuracy"] for record in records)
        trials = sum(record["watch"]["trials"] for record in records)
        print(f"{data}, {method}: {len(records)} seeds, accuracy {100 * mean:.1f} %")
        names = alarms_of(method)
        for name in names:
            count = sum(record["watch"]["false_alarms"][name] for record in records)
            print(f"  false alarms, {name}: {count} of {trials}")
        for change in records[0]["watch"]["delays"]:
            print(f"  {change}: {_delays(records, change, [*names, 'ks'])}")
        for change in records[0]["adapt"]:
            print(f"  {change}: {_accuracies(records, change)}")


def alarms_of(method: str) -> list[str]:
    """Return the alarms that a method has: `surprise` needs the densities of features."""
    return [name for name in ALARMS if name != "surprise" or method == "pfedfda"]


def _delays(records: list[dict[str, Any]], change: str, alarms: list[str]) -> str:
    """Return how many clients ring by 20 and by 80 inputs, by alarm."""
    cells = []
    for name in alarms:
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
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of runs")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    options = parser.parse_args()
    if not options.table:
        done = read_records("watch")
        for name in names():
            if name not in done and all(text in name for text in options.only):
                print(name, flush=True)
                save_record("watch", name, run_one(name, options.data_dir))

    print_table()


if __name__ == "__main__":
    main()
