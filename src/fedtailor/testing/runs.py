"""Runs of an algorithm for the contract: their traces, and comparisons of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.engine import Engine, Failure, Job, Program
from fedtailor.core.federation import Federation
from fedtailor.core.message import Messages
from fedtailor.core.schedule import Schedule
from fedtailor.core.scores import Scores, total
from fedtailor.core.upload_checks import Problem, problem_with
from fedtailor.simulation.quarantine import problem_at_client
from fedtailor.simulation.report import RoundReport, describe
from fedtailor.simulation.rounds import simulate


class Disagreement(AssertionError):
    """Two things that must be equal are not; the message says where, and by how much."""


class ClientOutput(NamedTuple):
    """The output of one client's program."""

    round: int
    program: str
    """``train``, ``personalize`` or ``score``."""
    client: int
    output: Any

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name.

        Raises:
            Disagreement: the program failed.
        """
        where = f"round {self.round}, {self.program}, client {self.client}"
        if isinstance(self.output, Failure):
            raise Disagreement(f"{where}: {describe(self.output)}")
        return {f"{where}: {path}": leaf for path, leaf in tree.paths(self.output).items()}


@dataclass
class Trace:
    """Everything that a run computed, in order."""

    outputs: list[ClientOutput] = field(default_factory=list)
    reports: list[RoundReport] = field(default_factory=list)

    def of(self, program: str) -> dict[tuple[int, int], Any]:
        """Return (round, client) -> output of one program: train, personalize or score."""
        return {
            (round, client): output
            for round, name, client, output in self.outputs
            if name == program
        }

    def numbers(self) -> dict[str, Tensor]:
        """Return every tensor of the run by name, including the final personal models.

        Raises:
            Disagreement: the program of a client failed.
        """
        result: dict[str, Tensor] = {}
        for output in self.outputs:
            result.update(output.tensors())
        return result


class PassingEngine:
    """Base of an engine that passes the work to another engine, with something done to it."""

    name = "passing"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.smallest_group = engine.smallest_group

    def begin_run(self) -> None:
        """Begin a run of the other engine."""
        self.engine.begin_run()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        return self.engine.map(program, common, jobs)

    def close(self) -> None:
        """Close the other engine."""
        self.engine.close()


class TracingEngine(PassingEngine):
    """Keeps what comes back."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.trace = Trace()

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Return the output of every job."""
        outputs = super().map(program, common, jobs)
        round = int(common.round)
        name = program_name(program)
        for job, output in zip(jobs, outputs, strict=True):
            self.trace.outputs.append(ClientOutput(round, name, job.client, output))
        return outputs


def problem_with_output(output: Any, messages: Messages) -> Problem | None:
    """Return why the output of a client's round must not be used, or None if it can be."""
    if isinstance(output, Failure):
        return Problem("failure", "", describe(output))
    problem = problem_with(output.upload, messages)
    return problem or problem_at_client(output.state, output.metrics)


def program_name(program: Any) -> str:
    """Return what a program does: train, personalize or score."""
    return str(program.func.__name__.removesuffix("_program"))


def run(
    algorithm: AnyAlgorithm,
    engine: Engine,
    federation: Federation,
    *,
    rounds: int = 2,
    seed: int = 3,
    **options: Any,
) -> Trace:
    """Run an algorithm with evaluation at every point after every round; return the trace.

    Args:
        algorithm: to run.
        engine: runs the clients' programs.
        federation: the clients and their data.
        rounds: number of rounds.
        seed: of the run.
        options: fields of the schedule; they replace the evaluation after every round, for example.
    """
    tracing = TracingEngine(engine)
    schedule = Schedule(rounds=rounds, **{"evaluate_every": 1, "personalized_every": 1, **options})
    tracing.trace.reports = list(simulate(algorithm, federation, tracing, schedule, seed=seed))

    return tracing.trace


def assert_same_bits(first: tree.Tree, second: tree.Tree) -> None:
    """Check that two trees have the same leaves, bit for bit.

    Raises:
        Disagreement: they do not.
    """
    leaves = tree.paths(first)
    others = tree.paths(second)
    _assert_same_structure(leaves, others)
    for path, leaf in leaves.items():
        if not torch.equal(leaf, others[path]):
            raise Disagreement(f"{path} differs by {_distance(leaf, others[path]):.2g}")


def assert_same_runs(first: Trace, second: Trace) -> None:
    """Check that two runs agree bit for bit.

    Raises:
        Disagreement: they do not, or a client's program failed.
    """
    assert_same_bits(first.numbers(), second.numbers())


def assert_close_runs(first: Trace, second: Trace, tolerance: float = 1e-12) -> None:
    """Check that two runs agree in float64, as :func:`assert_close` does.

    Raises:
        Disagreement: they do not, or a client's program failed.
    """
    assert_close(first.numbers(), second.numbers(), tolerance)


def assert_close(
    first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-12
) -> None:
    """Check that tensors by name agree.

    Differences are relative to the largest number of a tensor, or to 1.

    Raises:
        Disagreement: they do not.
    """
    _assert_same_structure(first, second)
    for path, leaf in first.items():
        if not leaf.is_floating_point():
            if not torch.equal(leaf, second[path]):
                raise Disagreement(f"{path} differs")
            continue

        # Rounding grows with the largest numbers of a tensor.
        scale = max(1.0, float(leaf.abs().max())) if leaf.numel() else 1.0
        if not torch.allclose(leaf, second[path], rtol=0, atol=tolerance * scale):
            raise Disagreement(
                f"{path} differs by {_distance(leaf, second[path]):.2g}, of {scale:.2g}"
            )


def _assert_same_structure(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Check that the names are the same, in the same order, and every shape and type."""
    missing = sorted(set(first) ^ set(second))
    if missing:
        raise Disagreement(f"{missing[0]} is in only one of them")

    for (path, leaf), (other_path, other) in zip(first.items(), second.items(), strict=True):
        if path != other_path:
            raise Disagreement(f"{path} is in another place")
        if leaf.shape != other.shape or leaf.dtype != other.dtype:
            raise Disagreement(f"{path} is {_kind(leaf)} and {_kind(other)}")


def _kind(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {tuple(leaf.shape)}"


def _distance(first: Tensor, second: Tensor) -> float:
    return float((first.double() - second.double()).abs().max())


def scores_of(trace: Trace, point: str, group: str = "known") -> list[Scores] | None:
    """Return the scores of the last evaluation at a point; None if there was none."""
    scores = None
    for report in trace.reports:
        for evaluation in report.evaluations:
            if (evaluation.point, evaluation.group) == (point, group):
                scores = list(evaluation.scores.values())

    return scores


def accuracy(scores: list[Scores]) -> float:
    """Return the accuracy over the test examples of all clients."""
    together = total(scores)
    return float(together.class_correct.sum() / together.class_total.sum())
