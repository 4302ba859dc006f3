"""MLflow: a database in a file, or the server that ``MLFLOW_TRACKING_URI`` names."""

from __future__ import annotations

import logging
import os
import time

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from fedtailor.experiment.tracking import TrackedRun, Values

_MOST_VALUES = 100
"""How many parameters MLflow takes at once; it takes more metrics."""
_LONGEST_PARAMETER = 500
_SECONDS_BETWEEN = 2.0
"""Seconds between two times that rounds are written: a database takes some 40 ms each time."""
_TAG = "fedtailor.run"
"""By which the log of a run is found again."""


class MLflow:
    """Writes runs of the experiment ``fedtailor``.

    To see them: ``mlflow ui --backend-store-uri sqlite:///FILE``.
    """

    def __init__(self, run: TrackedRun) -> None:
        """Begin the log, in place of an unfinished one."""
        for library in ("mlflow", "alembic"):  # they report every step of a new database
            logging.getLogger(library).setLevel(logging.WARNING)

        folder = run.folder.resolve()

        # Without a server, everything stays in the folder of the run.
        server = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(server or f"sqlite:///{folder / 'mlflow.db'}")
        self._waiting: list[Metric] = []
        self._written = 0.0

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedtailor"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            artifacts = None if server else (folder / "artifacts").as_uri()
            experiment_id = self._client.create_experiment(name, artifact_location=artifacts)
        else:
            experiment_id = experiment.experiment_id

        # The log of an earlier process is written again from its first round.
        for old in self._client.search_runs([experiment_id], f"tags.`{_TAG}` = '{run.key}'"):
            self._client.delete_run(old.info.run_id)

        tags = {_TAG: run.key}
        created = self._client.create_run(experiment_id, run_name=run.title, tags=tags)
        self._id = created.info.run_id
        params = [Param(key, str(value)[:_LONGEST_PARAMETER]) for key, value in run.options.items()]
        for first in range(0, len(params), _MOST_VALUES):
            self._client.log_batch(self._id, params=params[first : first + _MOST_VALUES])

    def on_round(self, number: int, values: Values) -> None:
        """Write one metric for each value, a few rounds at a time."""
        # Milliseconds.
        now = int(1000 * time.time())
        self._waiting += [Metric(key, value, now, number) for key, value in values.items()]
        if time.monotonic() - self._written > _SECONDS_BETWEEN or len(self._waiting) > _MOST_VALUES:
            self._write()

    def close(self, scores: Values | None) -> None:
        """Write the final scores, and say how the run has ended."""
        if scores is not None:
            self.on_round(0, scores)
        self._write()
        self._client.set_terminated(self._id, "KILLED" if scores is None else "FINISHED")

    def _write(self) -> None:
        self._client.log_batch(self._id, metrics=self._waiting)
        self._waiting = []
        self._written = time.monotonic()
