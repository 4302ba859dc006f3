"""Runs of an algorithm for the contract: what is recorded, and how two runs are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedtailor.core import tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.engine import Engine, Failure
from fedtailor.core.federation import Federation
from fedtailor.core.metrics import Scores
from fedtailor.core.schedule import Protocol
from fedtailor.simulation.quarantine import describe
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import federate

_PARTS = {
    "train": ("state", "upload", "metrics", "scores"),
    "personalize": ("personal model", "diagnostics", "scores"),
}
"""Program -> what its output consists of."""


class Disagreement(AssertionError):
    """Two things that must be equal are not; the message says where, and by how much."""


@dataclass
class Trace:
    """All that a run produced, in order."""

    outputs: list[tuple[int, str, int, Any]] = field(default_factory=list)
    """(round, program, client, output) of every client's program."""
    reports: list[RoundReport] = field(default_factory=list)

    def of(self, program: str) -> dict[tuple[int, int], Any]:
        """Return (round, client) -> output of one program: train, personalize or score."""
        return {(round, client): output for round, name, client, output in self.outputs if name == program}

    def numbers(self) -> dict[str, Tensor]:
        """Return every tensor of the run by name, final personal models included.

        Raises:
            Disagreement: the program of a client failed.
        """
        result = {}
        for round, program, client, output in self.outputs:
            where = f"round {round}, {program}, client {client}"
            if isinstance(output, Failure):
                raise Disagreement(f"{where}: {describe(output)}")
            parts = dict(zip(_PARTS[program], output, strict=True)) if program in _PARTS else {"scores": output}
            result.update({f"{where}: {path}": leaf for path, leaf in tree.paths(parts).items()})
        return result


class TracingEngine:
    """An engine that passes work on to another one and records what comes back."""

    name = "recording"

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.trace = Trace()

    def begin_run(self) -> None:
        """Begin a run of the engine that does the work."""
        self.engine.begin_run()

    def map(self, program: Any, common: Any, jobs: Any) -> list[Any]:
        """Return the output of every job."""
        outputs = self.engine.map(program, common, jobs)
        name = program_name(program)
        found = [(int(common.round), name, job.client, output) for job, output in zip(jobs, outputs, strict=True)]
        self.trace.outputs += found
        return outputs

    def close(self) -> None:
        """Close the engine that does the work."""
        self.engine.close()


def program_name(program: Any) -> str:
    """Return what a program does: train, personalize or score."""
    return str(program.func.__name__.removesuffix("_program"))


def run(
    algorithm: Algorithm[Any, Any, Any],
    engine: Engine,
    federation: Federation,
    *,
    rounds: int = 2,
    seed: int = 3,
    **options: Any,
) -> Trace:
    """Run an algorithm, evaluating at every point after every round; return the record."""
    recording = TracingEngine(engine)
    protocol = Protocol(rounds=rounds, **{"evaluate_every": 1, "personalized_every": 1, **options})
    recording.trace.reports = list(federate(algorithm, federation, recording, protocol, seed=seed))
    return recording.trace


def assert_same_bits(first: tree.Tree, second: tree.Tree) -> None:
    """Check that two trees have the same leaves, bit for bit.

    Raises:
        Disagreement: they do not.
    """
    first, second = tree.paths(first), tree.paths(second)
    _assert_same_leaves(first, second)
    for path, leaf in first.items():
        if not torch.equal(leaf, second[path]):
            raise Disagreement(f"{path} differs by {_distance(leaf, second[path]):.2g}")


def assert_same_runs(first: Trace, second: Trace) -> None:
    """Check that two runs agree bit for bit.

    Raises:
        Disagreement: they do not, or a client's program failed.
    """
    assert_same_bits(first.numbers(), second.numbers())


def assert_close_runs(first: Trace, second: Trace, tolerance: float = 1e-12) -> None:
    """Check that two runs agree in float64, each number relative to the largest of its tensor or 1.

    Raises:
        Disagreement: they do not, or a client's program failed.
    """
    assert_close(first.numbers(), second.numbers(), tolerance)


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    """Check that numbers by name agree, each relative to the largest of its tensor or 1.

    Raises:
        Disagreement: they do not.
    """
    _assert_same_leaves(first, second)
    for path, leaf in first.items():
        scale = max(1.0, float(leaf.abs().max())) if leaf.numel() else 1.0
        if not torch.allclose(leaf, second[path], rtol=0, atol=tolerance * scale):
            raise Disagreement(f"{path} differs by {_distance(leaf, second[path]):.2g}, of {scale:.2g}")


def _assert_same_leaves(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Check that there are the same leaves, each of the same shape and type."""
    if list(first) != list(second):
        odd = sorted(set(first) ^ set(second)) or [a for a, b in zip(first, second, strict=True) if a != b]
        raise Disagreement(f"{odd[0]} is not in both, or elsewhere")
    for path, leaf in first.items():
        one, other = ((tuple(each.shape), each.dtype) for each in (leaf, second[path]))
        if one != other:
            raise Disagreement(f"{path} is {_kind(*one)} and {_kind(*other)}")


def _kind(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {shape}"


def _distance(first: Tensor, second: Tensor) -> float:
    return float((first.double() - second.double()).abs().max())


def scores_of(record: Trace, point: str, clients: str = "known") -> list[Scores] | None:
    """Return the scores of the last evaluation at a point."""
    found = [e for report in record.reports for e in report.evaluations if (e.point, e.clients) == (point, clients)]
    return found[-1].scores if found else None


def accuracy(scores: list[Scores]) -> float:
    """Return the accuracy over the test examples of all clients."""
    total = Scores(*(torch.stack(column).sum(0) for column in zip(*scores, strict=True)))
    return float(total.class_correct.sum() / total.class_total.sum())
