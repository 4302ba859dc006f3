"""Weights & Biases: files that ``wandb sync`` sends, or the server, if ``WANDB_MODE=online``."""

from __future__ import annotations

import os
import shutil

import wandb

from fedtailor.experiment.tracking import TrackedRun, Values


class WeightsAndBiases:
    """Writes a run of the project ``fedtailor``.

    To send it: ``wandb sync RUN/tracking/wandb/wandb/offline-run-*``.
    """

    def __init__(self, run: TrackedRun) -> None:
        """Begin the log, in place of the files of an unfinished one."""
        for path in run.folder.glob(f"wandb/offline-run-*-{run.key}"):
            shutil.rmtree(path)

        # Nothing leaves this machine unless the environment says so.
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedtailor",
            id=run.key,
            resume="allow",
            name=run.title,
            dir=str(run.folder),
            mode=os.environ.get("WANDB_MODE") or "offline",
            config=dict(run.configuration),
            settings=wandb.Settings(console="off", silent=True, save_code=False, disable_git=True),
        )

    def on_round(self, number: int, values: Values) -> None:
        """Write the values as one step."""
        self._run.log(values, step=number, commit=True)

    def close(self, scores: Values | None) -> None:
        """Write the final scores into the summary."""
        if scores is not None:
            self._run.summary.update(scores)
        self._run.finish(exit_code=1 if scores is None else 0)
