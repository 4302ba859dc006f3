"""The writer of a run of one seed: its records, checkpoints and stores, and what must be closed.

Simulations and the server of real sites write through it::

    with RunWriter(path, plan, observer) as writer:
        start = writer.restore()
        for report in simulate(..., storage=writer.storage, resume=start.state):
            writer.add_round(report)
        return writer.finish(report)

A round is on disk before the next one begins. After a kill, :meth:`RunWriter.restore` goes back to
the last checkpoint that can be used, and the records with it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.errors import all_done
from fedtailor.core.federation import Roster
from fedtailor.core.schedule import Schedule
from fedtailor.data.input_specification import InputSpecification, write_input_specification
from fedtailor.experiment import summary
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.predictions import PREDICTIONS_FILE, ClientPredictions, write_predictions
from fedtailor.experiment.reader import chance_warning, count_rounds, read_provenance
from fedtailor.experiment.resume import changed_software
from fedtailor.experiment.tracking import RunProgress
from fedtailor.simulation.checkpoint import Checkpoints, readable_modules
from fedtailor.simulation.engines.store import IN_MEMORY, Store
from fedtailor.simulation.report import RoundReport, RunState

if TYPE_CHECKING:
    from fedtailor.privacy.ledger import Ledger

CHECKPOINTS = "checkpoints"
"""Folder in a run folder for checkpoints, and for what clients keep from round to round."""
_SCRATCH = "state"
"""Folder for what need not outlive the process, such as models before they are written."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run is, as far as its writer must know."""

    title: str
    """Says on the screen which run it is."""
    algorithm: AnyAlgorithm
    roster: Roster
    schedule: Schedule
    inputs: InputSpecification
    """How examples become inputs of the model."""
    split: Callable[[], Mapping[str, Any]]
    """Makes the record of the split, which can be large and is written once."""
    provenance: Mapping[str, Any]
    """Where the results come from."""
    facts: Mapping[str, Any]
    """What the result says of the run beside its scores."""
    notes: Sequence[str]
    """What a user should know before the first round."""
    checkpoint_every: int
    """Rounds between checkpoints; 0: none."""
    lasting: Sequence[str]
    """Names of what clients keep from round to round; checkpoints hold it."""
    scratch: Sequence[str] = ()
    """Names of what is of no use to a later process."""


class Start(NamedTuple):
    """Where a run begins: with nothing, or after some rounds of an earlier process."""

    state: RunState | None
    """The server's side of the run after these rounds; None: there are none."""
    events: Sequence[Mapping[str, Any]]
    """Who gave no answer in rounds that run again, because they came after the last checkpoint."""


class RunWriter:
    """Writes the folder of a run, and closes what was opened for it."""

    def __init__(self, path: Path, plan: RunPlan, observer: RunProgress) -> None:
        """Write to a run folder that exists; nobody else may write to it meanwhile."""
        self.path = path
        self.result: dict[str, Any] | None = None
        """The result, once there is one."""
        self._plan = plan
        self._observer = observer
        self._folder = RunFolder(path)
        self._totals = summary.Totals()
        self._operating_points: dict[str, Any] = {}
        self._privacy: dict[str, Any] = {}
        self._seconds_before = 0.0
        self._began = time.perf_counter()
        self._stack = ExitStack()

        # What lasts is in checkpoints; the rest is of use to this process only.
        modules = readable_modules(plan.algorithm)
        lasting = _make_stores(path / CHECKPOINTS, plan.lasting, modules)
        scratch = _make_stores(path / _SCRATCH, plan.scratch, modules)
        self._stores = {**lasting, **scratch}
        self._checkpoints = Checkpoints(path / CHECKPOINTS, lasting, modules=modules)
        self._closing = (
            observer.end,
            *(store.close for store in scratch.values()),
            self._checkpoints.close,
        )

    def __enter__(self) -> Self:
        """Say that this process runs the run, and remove what a killed one has left.

        Raises:
            RunError: the folder cannot be written.
        """
        self._folder.remove_temporary_files()
        shutil.rmtree(self.path / _SCRATCH, ignore_errors=True)
        self._stack.enter_context(self._folder)
        self._stack.enter_context(all_done(self._closing))
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.__exit__(*raised)

    def storage(self, name: str) -> Store:
        """Return where trees of tensors by client are stored under a name of the plan."""
        return self._stores[name]

    def ledger(self) -> Ledger:
        """Return the ledger of the run: what earlier processes released counts too.

        Raises:
            DataError: its file is damaged.
        """
        from fedtailor.privacy.ledger import LEDGER_FILE, Ledger

        return Ledger(self.path / LEDGER_FILE)

    def restore(self, *, under_way: bool = False) -> Start:
        """Go back to the last checkpoint that can be used, or begin; say which.

        If all rounds were done, :attr:`result` is set, and only :meth:`conclude` is left.

        Args:
            under_way: whether this process has just written its last round, which is no news.

        Raises:
            RunError: a file cannot be written, or cannot be read at the moment.
        """
        restored, notes = self._checkpoints.restore(self._objection)
        done = 0 if restored is None else restored.state.round
        events = self._folder.absences(after=done)

        # At every start, in case the file was edited.
        self._folder.write_split(self._plan.split())
        if restored is None:
            notes += self._begin()
        else:
            resumed = self._continue(restored.notes, done)
            notes += [] if under_way else resumed

        self._note(notes, round=done)
        if not under_way:
            self._observer.begin(self._plan.title, self._plan.schedule.rounds, done)

        return Start(None if restored is None else restored.state, events)

    def _begin(self) -> list[str]:
        """Write what is known before the first round; return what a user should know."""
        notes = []
        if self._folder.clear():
            notes.append("no checkpoint can be used: the run begins again with its first round.")

        self._folder.write_provenance(self._plan.provenance)
        write_input_specification(self.path, self._plan.inputs)
        return [*notes, *self._plan.notes]

    def _continue(self, checkpoint: Mapping[str, Any], done: int) -> list[str]:
        """Go back to what the records held at a checkpoint; return what a user should know.

        Args:
            checkpoint: its notes.
            done: its round.
        """
        notes = [f"resumed after round {done} of {self._plan.schedule.rounds}."]

        # The round that was under way has no line, or an incomplete one.
        recorded = count_rounds(self.path)
        if recorded > done + 1:
            again = f"rounds {done + 1} to {recorded} are run again"
            notes.append(f"{again}: no later checkpoint can be used.")

        software = changed_software(read_provenance(self.path), self._plan.provenance)
        if software:
            notes.append(
                f"the last bits of results can differ from those of one process: {software}."
            )

        # The sums over earlier rounds are made again from their records.
        self._folder.rewind(checkpoint["records"])
        for record in self._folder.rounds():
            self._totals.add_round(record)

        self._totals.add_events(self._folder.events())
        self._seconds_before = float(checkpoint["seconds"])
        self.result = checkpoint.get("result")
        return notes

    def _objection(self, checkpoint: Mapping[str, Any]) -> str:
        """Return why a checkpoint with these notes cannot be used, or an empty string.

        Raises:
            RunError: a file cannot be read.
        """
        if not isinstance(checkpoint.get("seconds"), int | float):
            return "its notes are not those of a run."
        return self._folder.objection(checkpoint.get("records"))

    def add_round(self, report: RoundReport) -> None:
        """Write a round and show it; write a checkpoint if one is due.

        The checkpoint of the last round is written by :meth:`finish`, after the models.
        """
        roster = self._plan.roster

        # The round is on disk before anybody hears of it.
        record = summary.round_record(report, roster)
        clients = summary.client_records(report, roster)
        if report.final is not None:
            # They count in place of the lines that an earlier evaluation in their round has left.
            chosen = summary.client_records(report.final, roster)
            clients += [{**line, "final": True} for line in chosen]

        self._folder.add_round(record, clients=clients, events=report.events)
        self._totals.add_round(record)
        self._totals.add_events(report.events)

        for sentence in summary.event_sentences(report, roster):
            self._observer.note(sentence)

        self._observer.round(record)
        if report.is_last and report.privacy:
            from fedtailor.privacy.claims import with_claim

            self._privacy = {"privacy": with_claim(report.privacy)}

        # A checkpoint after the last round would come before its models.
        every = self._plan.checkpoint_every
        if every > 0 and report.round % every == 0 and not report.is_last:
            self._save_checkpoint(report.state)

    def _save_checkpoint(self, state: RunState, **notes: Any) -> None:
        records = self._folder.bookmark()
        self._checkpoints.save(state, {"records": records, "seconds": self._seconds(), **notes})

    def _seconds(self) -> float:
        """Return the seconds of the run so far, those of earlier processes included."""
        return self._seconds_before + time.perf_counter() - self._began

    def write_models(self, models: Iterable[tuple[str, bytes, Mapping[str, Any]]]) -> None:
        """Write the models of all clients: their names, safetensors files and cards."""
        self._folder.write_models(self._noting_operating_points(models))

    def _noting_operating_points(
        self, models: Iterable[tuple[str, bytes, Mapping[str, Any]]]
    ) -> Iterator[tuple[str, bytes, Mapping[str, Any]]]:
        """Yield all models, and keep the operating points of their cards for the result.

        The cards say what noise promises, if there is any.
        """
        promises: dict[str, Any] = {}
        if self._privacy:
            from fedtailor.privacy.claims import of_card

            promises = of_card(self._privacy)

        self._operating_points = {}
        for name, model, card in models:
            point = card["calibration"]["operating_point"]
            if point is not None:
                self._operating_points[name] = point

            yield name, model, {**card, **promises}

    def write_predictions(self, clients: Mapping[int, ClientPredictions]) -> None:
        """Write what models say about the single test examples of clients, by their numbers."""
        write_predictions(self.path / PREDICTIONS_FILE, clients)

    def finish(
        self,
        last: RoundReport,
        *,
        shared_verdicts: Mapping[str, Any] | None = None,
        worth_it: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write the result of a run after its last round, and its last checkpoint.

        Args:
            last: the last round.
            shared_verdicts: what real sites have said of their own models.
            worth_it: verdicts by which clients choose between two models.
        """
        self._note(_notes_on_end(last, self._plan), round=last.round)
        result = summary.result(last, self._plan.roster, self._plan.schedule)
        warning = chance_warning(result["chance"])
        if warning:  # the command shows it below the result
            event = {"kind": "chance", "round": last.round, "reason": warning}
            self._folder.add_events([event])

        if self._operating_points:
            result["operating_points"] = self._operating_points

        result |= self._privacy
        result = {"run": str(self.path), **self._plan.facts, **result, **self._totals.record}
        result["seconds"]["total"] = self._seconds()
        if shared_verdicts:
            result["shared_verdicts"] = shared_verdicts
        if worth_it:
            result["worth_it"] = worth_it
        self.result = result

        # The last checkpoint holds the result, so that a kill after it loses neither of them.
        if self._plan.checkpoint_every > 0:
            self._save_checkpoint(last.state, result=result)
        return self.conclude()

    def conclude(self) -> dict[str, Any]:
        """Make a run that has a result one that has finished, and return the result."""
        assert self.result is not None, "the last round has a result"
        self._checkpoints.keep(1 if self._plan.checkpoint_every > 0 else 0)
        result = {**self.result, "run": str(self.path)}
        self._folder.finish(result)
        return result

    def note(self, text: str, *, round: int) -> None:
        """Write a note among the events, and show it."""
        self._note([text], round=round)

    def _note(self, notes: Sequence[str], *, round: int) -> None:
        """Write notes among the events, and show them."""
        where = {"round": round} if round else {}
        self._folder.add_events([{"kind": "note", **where, "text": note} for note in notes])
        for note in notes:
            self._observer.note(note)


def _make_stores(folder: Path, names: Sequence[str], modules: frozenset[str]) -> dict[str, Store]:
    stores = {}
    for name in names:
        stores[name] = Store(folder, name, modules=modules, in_memory=IN_MEMORY // 3)
    return stores


def _notes_on_end(last: RoundReport, plan: RunPlan) -> list[str]:
    """Return what a user should know about the end of a run.

    Whether it stopped early, which round its models are of, and who never trained.
    """
    notes = []
    schedule = plan.schedule
    if schedule.watches_validation and last.final is not None:
        if last.round < schedule.rounds:
            # Few runs stop early, and others do not import this.
            from fedtailor.core.text import counted

            notes.append(
                f"stopped after round {last.round} of {schedule.rounds}: for "
                f"{counted(schedule.patience, 'evaluation')}, no mean accuracy on validation "
                "examples was better than before."
            )

        if schedule.select == "best":
            notes.append(
                f"the models and scores are those of round {last.final.round}, the best on "
                "validation examples."
            )

    # Their models come from the work of others only.
    never = sum(client not in last.state.participated for client in plan.roster.known)
    if never:
        notes.append(
            f"{never} of {plan.roster.population} clients never trained, or none of their results "
            "could be used."
        )

    return notes
