"""TensorBoard: event files in a folder, one folder for each seed."""

from __future__ import annotations

import shutil

import tomli_w
from torch.utils.tensorboard import SummaryWriter

from fedtailor.experiment.tracking import TrackedRun, Values


class TensorBoard:
    """Writes event files. To see them: ``tensorboard --logdir RUN/tracking/tensorboard``."""

    def __init__(self, run: TrackedRun) -> None:
        """Begin the log, in place of an unfinished one."""
        folder = run.folder / run.name
        shutil.rmtree(folder, ignore_errors=True)
        self._options = run.options
        self._round = 0
        self._writer = SummaryWriter(str(folder))

        # Four blanks make it code in Markdown.
        lines = tomli_w.dumps(run.configuration).splitlines()
        self._writer.add_text("configuration", "\n".join(f"    {line}" for line in lines))

    def on_round(self, number: int, values: Values) -> None:
        """Write one number for each value."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, number)
        self._writer.flush()
        self._round = number

    def close(self, scores: Values | None) -> None:
        """Write the options and the final scores as hyper-parameters and their metrics."""
        if scores is not None:
            self._writer.add_hparams(self._options, scores, run_name=".", global_step=self._round)
        self._writer.close()
