"""TensorBoard: event files in a folder, one folder for each seed."""

from __future__ import annotations

from collections.abc import Sequence

import tomli_w
from torch.utils.tensorboard import SummaryWriter

from fedtailor.experiment.trackers.base import Log, TrackedRun, Values


class TensorBoard:
    """Writes event files. To see them: ``tensorboard --logdir RUN/tracking/tensorboard``."""

    def start(self, run: TrackedRun, known_as: str, last: int) -> Log:
        """Start an event file; a log that is continued consists of several."""
        self._run = run
        self._last = last
        purged = (
            last + 1 if known_as else None
        )  # what a killed process may have written after its last mark
        self._writer = SummaryWriter(str(run.folder / run.name), purge_step=purged)

        if not known_as:
            text = "    " + tomli_w.dumps(run.configuration).replace(
                "\n", "\n    "
            )  # Markdown for code
            self._writer.add_text("configuration", text)

        return Log(run.name, last)

    def write(self, rounds: Sequence[tuple[int, Values]]) -> None:
        """Write one number for each value and round."""
        for number, values in rounds:
            for key, value in values.items():
                self._writer.add_scalar(key, value, number)
            self._last = number
        self._writer.flush()

    def finish(self, values: Values) -> None:
        """Write the configuration and the final scores as hyper-parameters and their metrics."""
        self._writer.add_hparams(self._run.options, values, run_name=".", global_step=self._last)

    def close(self, *, finished: bool) -> None:
        """Close the event file."""
        self._writer.close()
