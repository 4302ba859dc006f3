"""What three ideas gain: the records and tables of docs/results/options.md.

    python -m benchmarks.options --data-dir DIR     # what has no record; an hour
    python -m benchmarks.options --table            # tables in Markdown

``gaussians``: a power of rectified features before the Gaussians of pFedFDA, and several sets of
Gaussians (``gaussian_sets.py``). All clients train in every round.
``server``: server optimizers for FedAvg, FedRep and pFedVEM, with two rates of the clients. 30 % of
the clients take part in a round.
``rates``: the same without a server optimizer, with five rates of the clients.

Every setting is scored on validation examples, a fifth of each client's training examples. What
stands in a table is then trained on all training examples and scored on test examples: all settings
of ``gaussians``, and of every server optimizer the rate with the best validation accuracy. A seed
has its own division of the data. Every run adds a line to ``results/options.jsonl``.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.records import Record, read_records, save_record

SEEDS = (0, 1, 2)
CLIENTS = 20
ROUNDS = 20
OFFSET = 0.001
"""Added to features before a power: its slope at 0 would be infinite."""
FEDERATIONS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "fraction": 0.5},
    "fashion_mnist": {"dataset": "fashion_mnist", "fraction": 0.02},
}

TITLES = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
METHODS = ("fedavg", "fedrep", "pfedvem")
"""Of the study of server optimizers."""
DEFAULT_CLIENT_RATE = 0.01
LARGE_CLIENT_RATE = 0.1
CLIENT_RATES = (DEFAULT_CLIENT_RATE, 0.03, LARGE_CLIENT_RATE, 0.3, 1.0)
_RATES = (0.01, 0.03, 0.1, 0.3)
OPTIMIZERS: dict[str, list[dict[str, float]]] = {
    "none": [{}],
    "sgd": [{"server_momentum": momentum} for momentum in (0.5, 0.7, 0.9)],
    "adagrad": [{"server_lr": rate, "server_momentum": 0.0} for rate in _RATES],
    "adam": [{"server_lr": rate} for rate in _RATES],
    "yogi": [{"server_lr": rate} for rate in _RATES],
}
"""Server optimizer -> options that are tried."""

_HEADER = "| federation | setting | validation | difference | test | difference |"

Study = Literal["gaussians", "server", "rates"]
STUDIES: tuple[Study, ...] = ("gaussians", "server", "rates")
Examples = Literal["validation", "test"]


class Setting(NamedTuple):
    """A method with its options."""

    group: str
    """Settings of which one row of a table has the best."""
    default: str
    """The group that it is compared with."""
    label: str
    values: dict[str, Any]
    """Sections of a configuration, beside those that all runs have."""

    @property
    def method(self) -> str:
        """Name of the method."""
        name: str = self.values["algorithm"]["name"]
        return name


class Run(NamedTuple):
    """One training."""

    federation: str
    setting: Setting
    examples: Examples
    seed: int

    @property
    def name(self) -> str:
        """Name of its record."""
        return f"{self.federation}/{self.setting.label}/{self.examples}/{self.seed}"


def powered(input_shape: Sequence[int], num_classes: int, power: float) -> Any:
    """Return a perceptron of 100 rectified units, whose features are raised to a power."""
    from torch import nn

    class Power(nn.Module):
        def forward(self, z: Any) -> Any:
            return (z + OFFSET) ** power - OFFSET**power

    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 100),
        nn.ReLU(),
        Power(),
        nn.Linear(100, num_classes),
    )


def settings_of(study: Study) -> list[Setting]:
    """Return the settings of a study; those that others compare with come before them."""
    if study == "gaussians":
        return _gaussian_settings()
    if study == "server":
        return _server_settings()

    settings = []
    for method in METHODS:
        settings += [_server_setting(method, "none", {}, rate) for rate in CLIENT_RATES]
    return settings


def _gaussian_settings() -> list[Setting]:
    method: dict[str, Any] = {"name": "pfedfda"}
    settings = []
    for power in (1.0, 0.5, 0.25):
        label = "pfedfda" if power == 1.0 else f"pfedfda, power {power}"
        values = {"algorithm": method, "model": _model(power)}
        settings.append(Setting(label, "pfedfda", label, values))

    for sets in (2, 3):
        label = f"pfedfda, {sets} sets"
        method = {"name": "benchmarks.gaussian_sets:GaussianSets", "sets": sets}
        values = {"algorithm": method, "model": _model(1.0)}
        settings.append(Setting(label, "pfedfda", label, values))
    return settings


def _model(power: float) -> dict[str, Any]:
    return {"name": "benchmarks.options:powered", "options": {"power": power}}


def _server_settings() -> list[Setting]:
    settings = []
    for method in METHODS:
        for name, options in OPTIMIZERS.items():
            for option in options:
                settings.append(_server_setting(method, name, option, DEFAULT_CLIENT_RATE))

    # Is it the optimizer, or is the clients' rate too small?
    for method in METHODS:
        for name in ("none", "sgd", "adam"):
            for option in OPTIMIZERS[name]:
                settings.append(_server_setting(method, name, option, LARGE_CLIENT_RATE))
    return settings


def _server_setting(
    method: str, optimizer: str, options: dict[str, float], client_rate: float
) -> Setting:
    is_default = client_rate == DEFAULT_CLIENT_RATE
    training = {} if is_default else {"lr": client_rate}
    start = method if is_default else f"{method} at rate {client_rate}"
    group = f"{start}, {optimizer}"
    number = options.get("server_lr", options.get("server_momentum", ""))
    values = {
        "algorithm": {"name": method},
        "model": {"name": "mlp"},
        "training": training,
        "federation": {"participation": 0.3, "server_optimizer": optimizer, **options},
    }
    return Setting(group, f"{start}, none", f"{group} {number}".rstrip(), values)


def config_of(run: Run) -> dict[str, Any]:
    """Return the sections of the configuration of a run."""
    values = run.setting.values
    data = {
        **FEDERATIONS[run.federation],
        "partition": "dirichlet(alpha=0.5)",
        "clients": CLIENTS,
        "seed": "run",
        "val_fraction": 0.2 if run.examples == "validation" else 0.0,
    }
    return {
        **values,
        "seed": run.seed,
        "data": data,
        "federation": {"rounds": ROUNDS, **values.get("federation", {})},
        "evaluation": {"every": 0, "baselines": "none"},
    }


def train(run: Run, data_dir: str) -> Record:
    """Train and return the record."""
    import fedtailor
    from fedtailor.experiment.reader import read_provenance

    values = config_of(run)
    config = fedtailor.make_config(values, [("data.dir", data_dir)] if data_dir else [])
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "run"
        result = fedtailor.run(config, out=folder)
        commit = read_provenance(folder)["commit"]

    point = "validation" if run.examples == "validation" else "personalized"
    accuracy = result["metrics"][point]["accuracy"]
    return {
        "config": values,
        "evaluation": point,
        "accuracy": {average: accuracy[average] for average in ("mean", "pooled")},
        **{key: result[key] for key in ("clients", "rounds", "split_sha256")},
        "commit": commit,
    }


class Scores(NamedTuple):
    """What the records say of one federation."""

    federation: str
    records: dict[str, Record]

    def accuracies(self, setting: Setting, examples: Examples) -> list[float]:
        """Return the mean accuracy over clients of every seed, in percent."""
        names = [Run(self.federation, setting, examples, seed).name for seed in SEEDS]
        return [100 * self.records[name]["accuracy"]["mean"] for name in names]

    def best_of(self, settings: Sequence[Setting]) -> Setting:
        """Return the setting with the highest validation accuracy over all seeds."""

        def score(setting: Setting) -> float:
            return statistics.fmean(self.accuracies(setting, "validation"))

        return max(settings, key=score)

    def best_of_groups(self, study: Study) -> dict[str, Setting]:
        """Return the best setting of every group."""
        groups: dict[str, list[Setting]] = {}
        for setting in settings_of(study):
            groups.setdefault(setting.group, []).append(setting)
        return {group: self.best_of(settings) for group, settings in groups.items()}

    def row(self, setting: Setting, default: Setting) -> str:
        """Return the row of a setting in a table."""
        cells = [TITLES[self.federation], setting.label]
        examples: Examples
        for examples in ("validation", "test"):
            values = self.accuracies(setting, examples)
            mean = f"{statistics.fmean(values):.1f}"
            if setting == default:
                cells += [f"{mean} ± {_standard_error(values):.1f}", "-"]
            else:
                cells += [mean, _difference(values, self.accuracies(default, examples))]
        return f"| {' | '.join(cells)} |"


def _difference(values: Sequence[float], others: Sequence[float]) -> str:
    pairs = [value - other for value, other in zip(values, others, strict=True)]
    mean = round(statistics.fmean(pairs), 2) + 0.0  # -0.0 becomes 0.0
    return f"{mean:+.2f} ± {_standard_error(pairs):.2f}"


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def missing(examples: Examples) -> Iterator[Run]:
    """Yield the runs without a record; those on test examples need all on validation examples."""
    records = read_records("options")
    done = set(records)
    for federation in FEDERATIONS:
        for study in STUDIES:
            settings = settings_of(study)
            if examples == "test":
                settings = list(Scores(federation, records).best_of_groups(study).values())

            for setting in settings:
                for seed in SEEDS:
                    run = Run(federation, setting, examples, seed)
                    if run.name not in done:
                        done.add(run.name)  # two studies may share it
                        yield run


def table(study: Study) -> list[str]:
    """Return the rows of a study: the best setting of every group, beside its default."""
    rows = []
    records = read_records("options")
    for federation in FEDERATIONS:
        scores = Scores(federation, records)
        best = scores.best_of_groups(study)
        rows += [scores.row(setting, best[setting.default]) for setting in best.values()]
    return rows


def summary() -> list[str]:
    """Return the rows of methods with the best server optimizer, beside the best of ``none``.

    The clients' rate, the optimizer and its options are all chosen on validation examples.
    """
    rows = []
    records = read_records("options")
    for federation in FEDERATIONS:
        scores = Scores(federation, records)
        for method in METHODS:
            without = [setting for setting in settings_of("rates") if setting.method == method]
            default = scores.best_of(without)
            settings = [setting for setting in _server_settings() if setting.method == method]
            optimizers = [setting for setting in settings if setting.group != setting.default]

            rows.append(scores.row(default, default))
            rows.append(scores.row(scores.best_of(optimizers), default))
    return rows


def client_rates() -> list[str]:
    """Return validation accuracies without a server optimizer, by the clients' rate."""
    rows = []
    records = read_records("options")
    for federation in FEDERATIONS:
        scores = Scores(federation, records)
        for method in METHODS:
            cells = [TITLES[federation], method]
            for setting in settings_of("rates"):
                if setting.method == method:
                    values = scores.accuracies(setting, "validation")
                    cells.append(f"{statistics.fmean(values):.1f} ± {_standard_error(values):.1f}")
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def _print_table(title: str, header: str, rows: Sequence[str]) -> None:
    print(f"\n{title}\n\n{header}\n|{'---|' * (header.count('|') - 1)}")
    print("\n".join(rows))


def main() -> None:
    """Train what has no record, or print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="", help="folder of the data sets")
    parser.add_argument("--table", action="store_true", help="print tables of the records")
    arguments = parser.parse_args()

    if arguments.table:
        rates = " | ".join(str(rate) for rate in CLIENT_RATES)
        _print_table("gaussians", _HEADER, table("gaussians"))
        _print_table("server, best of all by validation examples", _HEADER, summary())
        _print_table("rates", f"| federation | method | {rates} |", client_rates())
        _print_table("server", _HEADER, table("server"))
        return

    stages: tuple[Examples, ...] = ("validation", "test")
    for examples in stages:
        for run in list(missing(examples)):
            record = train(run, arguments.data_dir)
            save_record("options", run.name, record)
            print(f"{run.name}: {100 * record['accuracy']['mean']:.1f}", flush=True)


if __name__ == "__main__":
    main()
