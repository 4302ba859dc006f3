"""Our arm: FedAvg in the round loop of ``fedtailor run``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.peers import work
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.engine import Job, Program
from fedtailor.core.federation import Federation, Split
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task
from fedtailor.models import build_model
from fedtailor.simulation.engines import EngineOptions
from fedtailor.simulation.engines.build import build_engine
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.runs import PassingEngine


class Watched(PassingEngine):
    """An engine that keeps the last thing the server sent."""

    sent: Any = None

    def map(self, program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
        """Pass on."""
        self.sent = common.shared
        return super().map(program, common, jobs)


def make_federation(plan: work.Plan) -> Federation:
    """Return the clients with their images as they are stored."""
    found = work.data(plan)
    channels = plan.shape[0]
    scale = torch.tensor([[value] * channels for value in (work.WHITE, work.MEAN, work.DEVIATION)])
    none = torch.zeros(0, dtype=torch.int64)
    task = Task(build_model(plan.model, plan.shape, plan.classes), plan.classes, plan.shape)
    splits = [Split(rows, none, none) for rows in found.rows]
    return Federation(found.images.permute(0, 3, 1, 2), found.labels, splits, task, scale=scale)


def main() -> None:
    """Serve rounds."""
    plan = work.Plan.given()
    requests = work.Requests()
    engine = Watched(build_engine(EngineOptions(name=plan.engine, workers=plan.workers)))  # type: ignore[arg-type]
    schedule = Schedule(
        rounds=plan.rounds + 2, participation=work.participation(plan), evaluate_every=0
    )
    reports = simulate(
        FedAvg(training=plan.training), make_federation(plan), engine, schedule, seed=0
    )
    for cohort in work.cohorts(plan):
        if not requests.wait():
            break
        report = next(reports)
        requests.stop()
        assert report.trained == cohort, "the cohorts differ from those of the peers"
        requests.answer(report.steps)
    requests.finish()
    if plan.weights:
        next(reports)  # the next round starts by sending the weights after the last one
        work.save_weights(plan, list(engine.sent.model.values()))
    engine.close()


if __name__ == "__main__":
    main()
