"""Weights & Biases: files that ``wandb sync`` sends, or, if ``WANDB_MODE=online`` says so, the server."""

from __future__ import annotations

import os
from collections.abc import Sequence

import wandb

from fedtailor.experiment.trackers.base import TrackedRun, Values


class WeightsAndBiases:
    """Writes a run of the project ``fedtailor``. To send it: ``wandb sync RUN/tracking/wandb/wandb/offline-run-*``."""

    def start(self, run: TrackedRun, known_as: str, last: int) -> str:
        """Start a run, or go on with the one of that id."""
        self._id = known_as or wandb.util.generate_id()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedtailor",
            id=self._id,
            resume="allow",
            name=run.title,
            dir=str(run.folder),
            mode=os.environ.get("WANDB_MODE") or "offline",
            config=dict(run.configuration),
            settings=wandb.Settings(console="off", silent=True, save_code=False, disable_git=True),
        )
        return self._id

    def write(self, rounds: Sequence[tuple[int, Values]]) -> None:
        """Write the values of each round as one step."""
        for number, values in rounds:
            self._run.log(values, step=number)

    def finish(self, values: Values) -> None:
        """Write the final scores into the summary."""
        self._run.summary.update(values)

    def close(self, *, finished: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if finished else 1)
