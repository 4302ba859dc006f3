"""MLflow: a database in a file, or the server that ``MLFLOW_TRACKING_URI`` names."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from fedtailor.experiment.trackers.base import Log, TrackedRun, Values

_MOST_METRICS = 1000
_MOST_PARAMETERS = 100
"""How many values MLflow takes at once."""
_LONGEST_PARAMETER = 500
_EXPERIMENT = "fedtailor"
_LOUD = ("mlflow", "alembic")
"""Loggers that report every step in which a new database is made."""


class MLflow:
    """Writes runs of the experiment ``fedtailor``. To see them: ``mlflow ui --backend-store-uri
    sqlite:///FILE``.
    """

    def start(self, run: TrackedRun, known_as: str, last: int) -> Log:
        """Make a run, or go on with it."""
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.WARNING)

        address = (
            os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{run.folder.resolve() / 'mlflow.db'}"
        )
        self._client = MlflowClient(address)

        if known_as:
            self._id = known_as
            self._client.update_run(self._id, status="RUNNING")
            return Log(self._id, last)

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            files = (
                None
                if "MLFLOW_TRACKING_URI" in os.environ
                else (run.folder.resolve() / "artifacts").as_uri()
            )
            experiment_id = self._client.create_experiment(name, artifact_location=files)
        else:
            experiment_id = experiment.experiment_id

        self._id = self._client.create_run(experiment_id, run_name=run.title).info.run_id
        options = [
            Param(key, str(value)[:_LONGEST_PARAMETER]) for key, value in run.options.items()
        ]
        for first in range(0, len(options), _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=options[first : first + _MOST_PARAMETERS])

        return Log(self._id, 0)

    def write(self, rounds: Sequence[tuple[int, Values]]) -> None:
        """Write one metric for each value and round."""
        now = int(1000 * time.time())
        self._put(
            [
                Metric(key, value, now, number)
                for number, values in rounds
                for key, value in values.items()
            ]
        )

    def finish(self, values: Values) -> None:
        """Write the final scores as metrics."""
        now = int(1000 * time.time())
        self._put([Metric(key, value, now, 0) for key, value in values.items()])

    def close(self, *, finished: bool) -> None:
        """Say how the run has ended."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")

    def _put(self, metrics: list[Metric]) -> None:
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[first : first + _MOST_METRICS])
