"""A finished run, ready for use: its clients, scores and models."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedtailor.core.errors import unknown_name
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.core.reading import content_of
from fedtailor.data.split import clients_of_run
from fedtailor.experiment.reader import RunRecords, read_run

if TYPE_CHECKING:
    from fedtailor.serving.model import PersonalModel


_AUROC = "AUROC"
"""A column whose numbers are not in percent."""


class ClientScores(SimpleNamespace):
    """The scores of a client's model on its test examples: ``accuracy``, ``ece`` and so on.

    It has every metric of :data:`fedtailor.core.metrics.CLIENT_METRICS`; None where there is no
    value, such as the AUROC of a client with one class. Calibration is that before the temperature.
    """


@dataclass(frozen=True)
class Client:
    """A client of a run."""

    number: int
    """Its number in the split."""
    name: str
    is_new: bool
    """Whether it never took part in training."""
    num_train: int
    num_validation: int
    num_test: int
    scores: Mapping[str, ClientScores] = field(default_factory=dict)
    """After the last round, by evaluation point: ``global``, ``local``, ``personalized``."""

    @property
    def personalized(self) -> ClientScores | None:
        """The scores of its personal model; None without test examples."""
        return self.scores.get("personalized")


class RunClients(Sequence[Client]):
    """The clients of a run, in order; an index is a number or a name."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = list(clients)
        self._by_name = {client.name: client for client in self._clients}

    @property
    def names(self) -> list[str]:
        """The names of all clients."""
        return [client.name for client in self._clients]

    def __repr__(self) -> str:
        return str(_table_of(self._clients))

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients)

    def __getitem__(self, which: Any) -> Any:
        """Return the client with a number or a name, or those of a slice.

        Raises:
            ConfigError: there is no such client.
        """
        if isinstance(which, slice):
            return self._clients[which]
        if isinstance(which, str) and which in self._by_name:
            return self._by_name[which]
        if isinstance(which, int) and -len(self) <= which < len(self):
            return self._clients[which]
        if isinstance(which, int):
            raise IndexError(f"client {which}: the run has {len(self)} clients")
        raise unknown_name("client", str(which), self.names, of="the run")

    def _repr_html_(self) -> str:
        return _table_of(self._clients)._repr_html_()


@dataclass(frozen=True)
class ClientTable:
    """A table to look at: it prints as text, and as HTML in a notebook."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]

    def records(self) -> list[dict[str, str | int | float | None]]:
        """Return the rows as dicts, as ``pandas.DataFrame`` takes them."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def __str__(self) -> str:
        # Every column is as wide as its widest cell.
        cells = [self.columns, *self._texts()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            padded = map(str.ljust, row, widths)
            lines.append("  ".join(padded).rstrip())

        return "\n".join(lines)

    __repr__ = __str__

    def _texts(self) -> list[tuple[str, ...]]:
        """Return the rows as they are shown."""
        return [tuple(map(_show, self.columns, row)) for row in self.rows]

    def _repr_html_(self) -> str:
        head = _html_row("th", self.columns)
        body = "".join(_html_row("td", row) for row in self._texts())
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


class Run:
    """A run folder: one seed, or of several seeds, of which ``seeds`` holds each."""

    def __init__(self, records: RunRecords) -> None:
        """Use the records of a run; :func:`load` makes such objects."""
        self.records = records
        """Everything that the folder says: ``rounds``, ``clients``, ``events``, ``config``,
        ``provenance``."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.records.path

    @property
    def algorithm(self) -> str:
        """The name of the method."""
        return str(self.records.config.get("algorithm", {}).get("name", ""))

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``failed`` or ``interrupted``."""
        return str(self.records.status["state"])

    @property
    def result(self) -> dict[str, Any] | None:
        """What ``fedtailor run --json`` printed; None for a run that has not finished."""
        return self.records.result

    @cached_property
    def seeds(self) -> dict[int, Run]:
        """The runs of the single seeds, where there are several."""
        return {seed: Run(records) for seed, records in self.records.seeds.items()}

    def seed(self, seed: int) -> Run:
        """Return the run of one of several seeds, or this one if it is of that seed.

        Raises:
            ConfigError: there is no such seed.
        """
        return Run(self.records.of_seed(seed))

    @cached_property
    def clients(self) -> RunClients:
        """The clients with their counts, and their scores after the last round.

        Raises:
            ConfigError: the run has several seeds; take one of ``seeds``.
            DataError: a file is damaged.
        """
        records = self.records.of_seed(None)
        split = records.split
        clients = []
        with content_of(records.path / "split.json"):
            # New clients have the last numbers.
            first_new = len(split["clients"]) - int(split["new_clients"])
            scores = self._scores()
            for number, (position, name) in enumerate(clients_of_run(split)):
                part = split["clients"][position]
                client = Client(
                    number=number,
                    name=str(name),
                    is_new=position >= first_new,
                    num_train=len(part["train"]),
                    num_validation=len(part["val"]),
                    num_test=len(part["test"]),
                    scores=scores.get(number, {}),
                )
                clients.append(client)

        return RunClients(clients)

    def _scores(self) -> dict[int, dict[str, ClientScores]]:
        """Return the scores of every client at each point, in the last evaluation that counts."""
        scores: dict[int, dict[str, ClientScores]] = {}

        # With `select`, the models are those of an earlier round.
        selected = (self.records.result or {}).get("selected", {})
        last = selected.get("round", math.inf)
        for line in self.records.clients:
            is_scored = line.get("test_set") == "clients" and line.get("accuracy") is not None
            if is_scored and line["round"] <= last:
                metrics = {name: line.get(name) for name in CLIENT_METRICS}
                scores.setdefault(line["client"], {})[line["point"]] = ClientScores(**metrics)

        return scores

    def table(self) -> ClientTable:
        """Return a table of the clients: examples, and the scores of the models that the run gives.

        The scores are the accuracies of the evaluation points and the balanced accuracy of the
        personal model, in percent, and its AUROC, from 0 to 1.

        Raises:
            ConfigError: the run has several seeds; take one of ``seeds``.
        """
        return _table_of(self.clients)

    def model(self, client: str | int, *, seed: int | None = None) -> PersonalModel:
        """Return the model that a client uses.

        It is its personal model; with ``serve.fallback = "best"``, it is what the client would use
        alone where the personal model is not clearly better.

        Args:
            client: its name, or its number.
            seed: which of several seeds.

        Raises:
            ConfigError: there are several seeds and none of them is named, or no such client.
            DataError: the run has no models yet, or a file is damaged.
        """
        from fedtailor.serving.load import load_model

        return load_model(self.records.of_seed(seed), client)

    def watch(
        self, client: str | int, paths: Sequence[str], *, seed: int | None = None
    ) -> dict[str, Any]:
        """Compare recent inputs of a client, without labels, with its held-out examples.

        See :class:`fedtailor.serving.alarms.Alarms` for the alarms.

        Args:
            client: its name, or its number.
            paths: pictures, folders, CSV or Parquet tables, ``.npz`` files with an array ``x``.
            seed: which of several seeds.

        Raises:
            ConfigError: the run cannot be used here.
            DataError: there is no such model, the inputs are not what it was trained for, there are
                too few of them or of held-out examples, or the data of the run have changed.
        """
        from fedtailor.serving.watch import observe, to_record

        return to_record(observe(self.records.of_seed(seed), client, paths))

    def adapt(
        self,
        client: str | int,
        paths: Sequence[str],
        out: str | Path,
        *,
        labels: bool = False,
        label_column: str = "",
        seed: int | None = None,
    ) -> Run:
        """Adapt the model of a client to recent inputs, and write it as a run folder of its own.

        Without labels, the class prior alone changes; with labels, also the class means; both in
        closed form. Nothing in the folder of this run changes.

        Args:
            client: its name, or its number.
            paths: of the recent inputs, as of :meth:`watch`; with labels, as of ``evaluate``.
            out: the folder to write.
            labels: whether ``paths`` have labels.
            label_column: of tables with labels; empty: the one of the run.
            seed: which of several seeds.

        Raises:
            ConfigError: ``out`` exists, or the method has no Gaussians of classes.
            DataError: the inputs do not support an adaptation, or do not fit the model.
            RunError: the folder cannot be written.
        """
        from fedtailor.experiment.folder import refuse_existing
        from fedtailor.experiment.reader import refuse_inside_run
        from fedtailor.serving.adapt import adapt_client, write_adapted

        records = self.records.of_seed(seed)
        refuse_existing(Path(out))
        refuse_inside_run(Path(out))
        adapted = adapt_client(records, client, paths, labels=labels, label_column=label_column)
        write_adapted(Path(out), records, adapted)
        return load(out)

    def onboard(
        self,
        data: str | Path,
        out: str | Path,
        *,
        name: str = "",
        label_column: str = "",
        validate: bool = False,
        seed: int | None = None,
    ) -> Run:
        """Make the model of a site that never took part, and write it as a run folder of its own.

        Nothing in the folder of this run changes.

        Args:
            data: the labelled data of the site, anything that ``data.path`` can be.
            out: the folder to write.
            name: of the site; empty: the name of the data.
            label_column: of a table; empty: the one of the run.
            validate: whether to judge by a cross-validation if the model is better than what the
                site would use alone; the verdict is in ``result["worth_it"]`` of the new run.
            seed: which of several seeds.

        Raises:
            ConfigError: ``out`` exists, the name is taken, or the run cannot be used here.
            DataError: the data does not fit the run, or the run has no final state.
            RunError: the method failed, or the folder cannot be written.
        """
        from fedtailor.serving.onboard import onboard_site

        records = self.records.of_seed(seed)
        onboard_site(
            records, data, Path(out), name=name, label_column=label_column, validate=validate
        )
        return load(out)

    def hand_over(self, out: str | Path, *, seed: int | None = None) -> list[str]:
        """Write what a new site needs of this run as a folder of its own, to give it away.

        ``load(out).onboard(...)`` makes the same models as this run.

        Args:
            out: the folder to write.
            seed: which of several seeds.

        Returns:
            The fields of the method's messages of which the server gets the value of each site:
            its state, which is in the folder, may hold them.

        Raises:
            ConfigError: ``out`` exists, or the run cannot be used here.
            DataError: the run has no final state.
            RunError: the folder cannot be written.
        """
        from fedtailor.serving.hand_over import hand_over

        return hand_over(self.records.of_seed(seed), Path(out))

    def resume(self) -> Run:
        """Resume an interrupted run from its last checkpoint, and return the finished run.

        Raises:
            RunError: the run could not continue.
        """
        from fedtailor.experiment.config import load_config
        from fedtailor.experiment.run import run

        run(load_config(self.path / "experiment.toml"), out=self.path)
        return load(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, algorithm={self.algorithm!r}, state={self.state!r})"

    def _repr_html_(self) -> str:
        title = html.escape(f"{self.algorithm}, {self.path.name}: {self.state}")
        if self.records.seeds:
            return f"<p>{title}, seeds {', '.join(map(str, self.records.seeds))}</p>"
        return f"<p>{title}</p>{self.table()._repr_html_()}"


def load(path: str | Path) -> Run:
    """Read a run folder, whatever state the run is in.

    Raises:
        DataError: the folder is not a run, or one of its files is damaged.

    Example:
        >>> import fedtailor
        >>> config = fedtailor.make_config({"data": {"clients": 3}, "federation": {"rounds": 2}})
        >>> result = fedtailor.run(config, out="runs/example")
        >>> run = load("runs/example")
        >>> run.state, run.clients.names
        ('finished', ['0', '1', '2'])
        >>> import numpy as np
        >>> run.model("1").predict(np.zeros((2, 8, 8))).shape
        (2,)
    """
    return Run(read_run(path))


def _table_of(clients: Sequence[Client]) -> ClientTable:
    # Columns are the evaluation points that some client has.
    scored = {point for client in clients for point in client.scores}
    points = [point for point in ("global", "local", "personalized") if point in scored]
    rows = []
    for client in clients:
        name = f"{client.name} (new)" if client.is_new else client.name
        counts = (client.num_train, client.num_validation, client.num_test)
        cells = [_percent(client.scores.get(point), "accuracy") for point in points]
        cells.append(_percent(client.personalized, "balanced_accuracy"))
        auroc = client.personalized and client.personalized.auroc
        cells.append(None if auroc is None else round(auroc, 3))

        rows.append((name, *counts, *cells))

    columns = ("client", "train", "validation", "test", *points, "balanced", _AUROC)
    return ClientTable(columns, tuple(rows))


def _html_row(tag: str, texts: Sequence[str]) -> str:
    cells = [f"<{tag}>{html.escape(text)}</{tag}>" for text in texts]
    return f"<tr>{''.join(cells)}</tr>"


def _percent(scores: ClientScores | None, metric: str) -> float | None:
    value = getattr(scores, metric, None)
    return None if value is None else round(100 * value, 1)


def _show(column: str, value: str | int | float | None) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if column == _AUROC else f"{value:.1f}"
