"""Who is told about a run: whoever shows its progress, and trackers, which log it.

Trackers log for other programs, none of which can stop or change the run.
Trackers are told every round once, by one callback. When a run is resumed, its log begins again and
gets the earlier rounds from the records. So nothing must be remembered of what was logged.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import secrets
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, cast

from fedtailor.core.atomic import write_whole
from fedtailor.core.errors import ConfigError, describe_error, find_name
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.core.reading import read_lines
from fedtailor.experiment.config import Config, flatten, to_toml

FOLDER = "tracking"
"""In a run folder: one folder for each tracker."""

Values = dict[str, float]
"""Numbers by name, such as ``personalized/accuracy_mean``."""


class RunProgress:
    """Is told about a run of one seed. This one ignores it all; others override what they show."""

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start a run of one seed, of which ``done`` rounds were done before."""

    def round(self, record: Mapping[str, Any]) -> None:
        """Report the end of a round; ``record`` is its line in ``rounds.jsonl``."""

    def prepare(self, what: str, done: int, total: int) -> None:
        """Report for how many images of ``total`` something is done before the first round.

        ``what`` is ``reading pictures`` or ``corrupting images``.
        """

    def note(self, text: str) -> None:
        """Report something that a user should know."""

    def end(self) -> None:
        """Report the end of a run, finished or not, or that its data cannot be prepared."""


class PassedOn(RunProgress):
    """Passes on all that it is told; others override what they add or leave out."""

    def __init__(self, progress: RunProgress) -> None:
        """Pass it on to ``progress``."""
        self._progress = progress

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Pass on that a run starts."""
        self._progress.begin(title, num_rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Pass on the end of a round."""
        self._progress.round(record)

    def prepare(self, what: str, done: int, total: int) -> None:
        """Pass on how far the data is prepared."""
        self._progress.prepare(what, done, total)

    def note(self, text: str) -> None:
        """Pass on what a user should know."""
        self._progress.note(text)

    def end(self) -> None:
        """Pass on that a run has ended."""
        self._progress.end()


class TrackedRun(NamedTuple):
    """The run of one seed, as trackers see it."""

    name: str
    """Different for every seed of a run."""
    title: str
    """Algorithm, data set and seed."""
    key: str
    """By which a log can be found again; different for every run and seed."""
    folder: Path
    """For the files of the tracker. It exists; runs of other seeds use it too."""
    configuration: Mapping[str, Any]
    """The sections of ``experiment.toml``."""

    @property
    def options(self) -> dict[str, Any]:
        """The configuration by dotted name, such as ``training.lr``: numbers, booleans, texts."""
        options = flatten(self.configuration)
        for key, value in options.items():
            options[key] = value if isinstance(value, bool | int | float | str) else str(value)
        return options


class Tracker(Protocol):
    """Logs the run of one seed where another program reads it.

    It is made with a :class:`TrackedRun` when the run begins or is resumed. Methods may raise: the
    tracker is switched off then, and the run continues.
    """

    def on_round(self, number: int, values: Values) -> None:
        """Log the values of a round."""

    def close(self, scores: Values | None) -> None:
        """Log the final scores and close the log; None: the run was interrupted."""


class TrackerEntry(NamedTuple):
    """A row of the table of trackers."""

    target: str
    """``module:class`` in :mod:`fedtailor.experiment.trackers`."""
    title: str
    libraries: tuple[str, ...]
    """The modules that it imports, which an extra with the name of the tracker installs."""
    server_variable: str = ""
    """Of the environment: names a server; only the first library is needed then."""


TRACKERS: Mapping[str, TrackerEntry] = {
    "mlflow": TrackerEntry(
        "mlflow:MLflow",
        "MLflow",
        ("mlflow", "sqlalchemy", "alembic"),
        server_variable="MLFLOW_TRACKING_URI",
    ),
    "tensorboard": TrackerEntry("tensorboard:TensorBoard", "TensorBoard", ("tensorboard",)),
    "wandb": TrackerEntry("wandb:WeightsAndBiases", "Weights & Biases", ("wandb",)),
}
"""The trackers by name."""


def check_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of trackers as the table has them, each once.

    Raises:
        ConfigError: there is no such tracker, or its library is not installed; the message says
            what to install.
    """
    chosen = dict.fromkeys(find_name("tracker", name, TRACKERS, key="track") for name in names)
    for name in chosen:
        entry = TRACKERS[name]

        # A server has the database, so its libraries are not needed here.
        has_server = bool(os.environ.get(entry.server_variable))
        needed = entry.libraries[:1] if has_server else entry.libraries
        missing = [library for library in needed if importlib.util.find_spec(library) is None]
        if missing:
            from fedtailor.core.extras import install_command

            message = f"{entry.title} needs {', '.join(missing)}: {install_command(name)}"
            allowed = "a tracker whose library is installed"
            raise ConfigError(message, key="track", allowed=allowed, got=name)

    return tuple(chosen)


def make_tracker(name: str, run: TrackedRun) -> Tracker:
    """Import a tracker and its library, and begin the log of a run."""
    module, _, attribute = TRACKERS[name].target.partition(":")
    library = importlib.import_module(f"fedtailor.experiment.trackers.{module}")
    make = cast("Callable[[TrackedRun], Tracker]", getattr(library, attribute))
    return make(run)


class TrackedProgress(PassedOn):
    """Tells trackers about the run of one seed, and whoever shows its progress.

    As a context manager it closes the logs, if the run ends early too.
    """

    def __init__(
        self, progress: RunProgress, names: Iterable[str], path: Path, config: Config
    ) -> None:
        """Prepare; nothing is written before the run begins.

        Args:
            progress: is told everything as well.
            names: of the trackers.
            path: the run folder, which all seeds share.
            config: of the run.
        """
        super().__init__(progress)
        self._names = tuple(names)
        self._path = path
        self._config = config
        self._trackers: dict[str, Tracker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close(None)

    def begin(self, title: str, num_rounds: int, done: int = 0) -> None:
        """Start the logs, and give them the rounds that were done before."""
        for name in self._names:
            self._attempt(name, partial(self._start, name, title, done))
        super().begin(title, num_rounds, done)

    def round(self, record: Mapping[str, Any]) -> None:
        """Log a round; ``record`` is its line in ``rounds.jsonl``."""
        super().round(record)
        if self._trackers:
            values = values_of(record)
            self._tell(lambda tracker: tracker.on_round(record["round"], values))

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the final scores of a run, and close the logs."""
        self._close(final_values(result) if self._trackers else None)

    def _close(self, scores: Values | None) -> None:
        self._tell(lambda tracker: tracker.close(scores))
        self._trackers = {}

    def _start(self, name: str, title: str, done: int) -> None:
        """Start a tracker, and log the rounds of earlier processes."""
        config = self._config
        parts = [f"seed-{config.seeds[0]}"]
        if config.data.fold:
            parts.append(f"fold-{config.data.fold}")

        run_name = "-".join(parts)
        folder = self._path / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        key = f"{_key_of(self._path / FOLDER / 'key')}-{run_name}"
        configuration = tomllib.loads(to_toml(self._config))

        tracker = make_tracker(name, TrackedRun(run_name, title, key, folder, configuration))

        # The rounds of earlier processes are logged again, from the records.
        if done:
            # A run of one seed, or of one fold, has no folder for it.
            single = self._path
            for part in parts:
                single = single / part if (single / part).is_dir() else single

            for record in read_lines(single / "rounds.jsonl", within=single):
                tracker.on_round(record["round"], values_of(record))

        self._trackers[name] = tracker

    def _tell(self, step: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._attempt(name, partial(step, tracker))

    def _attempt(self, name: str, step: Callable[[], None]) -> None:
        """Take a step of a tracker; switch it off if that raises anything but Ctrl-C.

        What a library prints goes to stderr.
        """
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
                warnings.simplefilter("ignore")
                step()
        except (Exception, SystemExit) as error:
            self._trackers.pop(name, None)
            reason = describe_error(error)
            title = TRACKERS[name].title
            self.note(f"{title} is switched off, and the run continues: {reason}")


def _key_of(path: Path) -> str:
    """Return the key of a run folder, which is made when it is first needed."""
    if not path.exists():
        write_whole(path, secrets.token_hex(4))
    return path.read_text()


def values_of(record: Mapping[str, Any]) -> Values:
    """Return what trackers log of a round; ``record`` is its line in ``rounds.jsonl``."""
    from fedtailor.experiment.summary import evaluation_name

    values: Values = {}
    for evaluation in record["evaluations"]:
        prefix = evaluation_name(evaluation)
        if evaluation["group"] == "new":
            prefix = f"new_clients/{prefix}"
        values |= _scores(prefix, evaluation["metrics"])

    for section in ("training_metrics", "seconds", "bytes"):
        for key, number in record[section].items():
            values[f"{section.removesuffix('_metrics')}/{key}"] = number

    return _finite(values)


def final_values(result: Mapping[str, Any]) -> Values:
    """Return the final scores that trackers log, from the result of a run."""
    values: Values = {}
    for name, metrics in result["metrics"].items():
        values |= _scores(f"final/{name}", metrics)
    for name, metrics in result.get("new_clients", {}).items():
        values |= _scores(f"final/new_clients/{name}", metrics)
    return _finite(values)


def _scores(prefix: str, metrics: Mapping[str, Any]) -> Values:
    """Return the mean of every metric over clients, and two more figures of the accuracy."""
    values: Values = {}
    for name in CLIENT_METRICS:
        figures = metrics.get(name, {})
        if "mean" not in figures:
            continue

        if name == "accuracy":
            for figure in ("mean", "worst10", "pooled"):
                if figure in figures:
                    values[f"{prefix}/accuracy_{figure}"] = figures[figure]
        else:
            values[f"{prefix}/{name}"] = figures["mean"]

    return values


def _finite(values: Mapping[str, Any]) -> Values:
    """Return the values that are numbers; a loss that is not finite is null in records."""
    finite = {}
    for key, value in values.items():
        if isinstance(value, int | float) and math.isfinite(value):
            finite[key] = float(value)
    return finite
