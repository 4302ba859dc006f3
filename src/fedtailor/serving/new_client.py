"""The model of a client that never took part: made from the final state of a run and its data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.core.engine import Failure, one_thread
from fedtailor.core.errors import DataError, RunError
from fedtailor.core.federation import Cohort, Federation
from fedtailor.core.reading import content_of
from fedtailor.core.scores import Scores
from fedtailor.data.split import ClientPositions
from fedtailor.experiment.reader import FOR_NEW_SITES, PROVENANCE_FILE, RunRecords
from fedtailor.serving.load import TrainedMethod, load_method
from fedtailor.serving.site_data import SiteData, federation_of_one
from fedtailor.simulation.checkpoint import read_final_state, readable_modules
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.programs import PersonalizeRequest
from fedtailor.simulation.report import RunState
from fedtailor.simulation.server import values_per_client


class FinishedRun(NamedTuple):
    """What a finished run offers to a new site."""

    method: TrainedMethod
    state: RunState
    population: int
    """Clients that could take part in training."""
    trainable: int
    """Those of them that had training examples."""
    next_number: int
    """The first number that no client of the run has."""

    def federation(self, site: SiteData, positions: ClientPositions, number: int) -> Federation:
        """Return a federation in which only a site with this number has data."""
        method = self.method
        task = method.task(number)
        return federation_of_one(site, positions, method.inputs, task, number, self.population)


class OnboardedModel(NamedTuple):
    """The model of a new site."""

    personal: Any
    steps: int
    """Gradient steps that it took."""
    scores: Scores
    """On test examples."""


def load_finished_run(records: RunRecords) -> FinishedRun:
    """Read from a run what a new site needs.

    Raises:
        ConfigError: the configuration of the run cannot be used here.
        DataError: the run has not finished, has no checkpoint, or a file is damaged.
    """
    path = records.path
    records.refuse_folds()

    # Such a folder has no state of the server.
    if "onboarded" in records.provenance:
        message = f"'{path}' holds one onboarded site: new sites need the run that it comes from."
        raise DataError(message, path=path, allowed="a run", got="an onboarded site")

    state = records.status["state"]
    if state != "finished":
        message = f"'{path}' is {state}: a new site needs a run that has finished."
        raise DataError(message, path=path, allowed="finished", got=state)

    method = load_method(records)
    modules = readable_modules(method.algorithm)
    final = read_final_state(path / "checkpoints", modules=modules)
    population, trainable, next_number = _numbers_of_clients(records)
    return FinishedRun(method, final, population, trainable, next_number)


def _numbers_of_clients(records: RunRecords) -> tuple[int, int, int]:
    """Return how many clients could take part, how many could train, and the next number.

    Raises:
        DataError: the file that says so is damaged.
    """
    # A folder for new sites has the numbers, and not the split that they come from.
    if FOR_NEW_SITES in records.provenance:
        with content_of(records.path / PROVENANCE_FILE):
            numbers = records.provenance[FOR_NEW_SITES]
            return (
                int(numbers["population"]),
                int(numbers["trainable"]),
                int(numbers["next_number"]),
            )

    with content_of(records.path / "split.json"):
        clients = list(records.split["clients"])
        num_new = records.split["new_clients"]
        if type(num_new) is not int or not 0 <= num_new < len(clients):
            raise ValueError(f"{num_new!r:.40} of {len(clients)} clients are new")

        population = len(clients) - num_new
        trainable = sum(len(client["train"]) > 0 for client in clients[:population])
        return population, trainable, len(clients)


def onboard(
    run: FinishedRun,
    site: SiteData,
    *,
    number: int | None = None,
    positions: np.ndarray | None = None,
) -> OnboardedModel:
    """Make the personal model of a site, by the rule of the run's method for new clients.

    The result has the bits of a new client of the simulation with the same number, training
    examples and normalization.

    Args:
        run: which the site joins.
        site: its examples.
        number: of the new client, on which its random numbers depend; None: the first that the run
            does not use.
        positions: of the training examples; None: all of them.

    Raises:
        RunError: the method failed.
    """
    number = run.next_number if number is None else number
    division = all_positions(site)
    if positions is not None:
        division = division._replace(train=positions)

    method = run.method
    config = method.config
    federation = run.federation(site, division, number)
    cohort = Cohort(
        ids=torch.tensor([number]),
        population=run.population,
        round=run.state.round,
        rounds=config.schedule.rounds,
        rounds_trained=run.state.client_rounds / max(run.trainable, 1),
    )

    # As the simulation does for its new clients, with a cohort of one.
    with one_thread():
        shared = method.algorithm.broadcast(run.state.server, cohort)
        clients = LocalClients(method.algorithm, federation, Reference(), seed=config.seeds[0])
        clients.update_per_client(
            values_per_client(method.algorithm, run.state.server, cohort, config.seeds[0])
        )
        request = PersonalizeRequest(new=True, validate=False, keep=True)
        ((_, reply),) = clients.personalize(request, shared, [number], run.state.round)

    # An exception of the method, or a model that is not finite.
    if isinstance(reply, Failure) or reply.problem:
        reason = reply.reason if isinstance(reply, Failure) else reply.problem
        raise RunError(f"{config.algorithm.name} could not make a model for the site: {reason}")

    steps = int(reply.diagnostics.get("steps", 0))
    return OnboardedModel(clients.personal[number], steps, reply.scores["clients"])


def all_positions(site: SiteData) -> ClientPositions:
    """Return the examples of a site without validation examples, the training ones first."""
    positions = np.arange(len(site.y))
    train = positions[: site.num_train]
    return ClientPositions(train, positions[:0], positions[site.num_train :])
