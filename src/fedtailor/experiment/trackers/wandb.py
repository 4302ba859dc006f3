"""Weights & Biases: files that ``wandb sync`` sends, or, if ``WANDB_MODE=online`` says so, the
server.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence

import wandb

from fedtailor.experiment.trackers.base import Log, TrackedRun, Values


class WeightsAndBiases:
    """Writes a run of the project ``fedtailor``. To send it: ``wandb sync
    RUN/tracking/wandb/wandb/offline-run-*``.
    """

    def start(self, run: TrackedRun, known_as: str, last: int) -> Log:
        """Start a run, or write the one of that id again.

        What a killed process has logged is not on the disk. So the files of an unfinished run are
        replaced.
        """
        name = known_as or secrets.token_hex(4)
        for path in run.folder.glob(f"wandb/offline-run-*-{name}"):
            shutil.rmtree(path)

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedtailor",
            id=name,
            resume="allow",
            name=run.title,
            dir=str(run.folder),
            mode=os.environ.get("WANDB_MODE") or "offline",
            config=dict(run.configuration),
            settings=wandb.Settings(console="off", silent=True, save_code=False, disable_git=True),
        )

        return Log(name, 0)

    def write(self, rounds: Sequence[tuple[int, Values]]) -> None:
        """Write the values of each round as one step."""
        for number, values in rounds:
            self._run.log(values, step=number, commit=True)

    def finish(self, values: Values) -> None:
        """Write the final scores into the summary."""
        self._run.summary.update(values)

    def close(self, *, finished: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if finished else 1)
