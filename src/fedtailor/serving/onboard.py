"""The model of a site that never took part, from a run folder and the site's own data; the run
stays as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from fedtailor.core.engine import Failure, one_thread
from fedtailor.core.errors import DataError, RunError
from fedtailor.core.federation import Cohort
from fedtailor.core.metrics import per_client
from fedtailor.core.reading import damaged
from fedtailor.data.split import ClientPositions
from fedtailor.experiment.reader import RunRecords
from fedtailor.serving.load import Method, load_method
from fedtailor.serving.one_site import federation_of_one
from fedtailor.serving.site_data import SiteData
from fedtailor.simulation.checkpoint import FinalState, read_final_state, readable_modules
from fedtailor.simulation.clients import LocalClients
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.programs import PersonalizeRequest


class Server(NamedTuple):
    """What a finished run offers to a new site."""

    method: Method
    state: FinalState
    population: int
    """Clients that could take part in training."""
    trainable: int
    """Those of them that had training examples."""
    next_number: int
    """The first number that no client of the run has."""


class Onboarded(NamedTuple):
    """The model of a new site."""

    personal: Any
    steps: int
    """Gradient steps that it took."""
    scores: dict[str, float]
    """On test examples; empty if the site has none."""


def load_server(records: RunRecords) -> Server:
    """Read from a run what a new site needs.

    Raises:
        ConfigError: the configuration of the run cannot be used here.
        DataError: the run has not finished, has no checkpoint, or a file is damaged.
    """
    if "onboarded" in records.provenance:
        origin = records.provenance["onboarded"]
        name = origin.get("run") if isinstance(origin, dict) else None
        message = f"'{records.path}' holds one onboarded site: new sites need the run that it comes from ('{name}')."
        raise DataError(message, path=str(records.path), allowed="a run", got="an onboarded site")

    if records.status["state"] != "finished":
        message = f"'{records.path}' is {records.status['state']}: a new site needs a run that has finished."
        raise DataError(
            message, path=str(records.path), allowed="finished", got=records.status["state"]
        )

    method = load_method(records)
    state = read_final_state(
        records.path / "checkpoints", modules=readable_modules(method.algorithm)
    )
    try:
        parts = list(records.split["clients"])
        num_new = records.split["new_clients"]
        if type(num_new) is not int or not 0 <= num_new < len(parts):
            raise ValueError(f"{num_new!r:.40} of {len(parts)} clients are new")

        known = parts[: len(parts) - num_new]
        trainable = sum(len(part["train"]) > 0 for part in known)
    except (KeyError, TypeError, ValueError) as reason:
        raise damaged(records.path / "split.json", f"{type(reason).__name__}: {reason}") from reason

    return Server(method, state, len(known), trainable, len(parts))


def onboard(
    server: Server, site: SiteData, *, number: int | None = None, rows: np.ndarray | None = None
) -> Onboarded:
    """Make the personal model of a site, by the rule of the run's method for new clients.

    The result has the bits of a new client of the simulation with the same number, training
    examples and normalization.

    Args:
        server: of the run.
        site: its examples.
        number: of the new client, on which its random numbers depend; None: the first that the run
            does not use.
        rows: of the training examples; None: all of them.

    Raises:
        RunError: the method failed.
    """
    number = server.next_number if number is None else number
    config = server.method.config
    algorithm = server.method.algorithm
    train = np.arange(site.num_train) if rows is None else rows
    division = ClientPositions(train, train[:0], np.arange(site.num_train, len(site.y)))
    method = server.method
    task = method.task(number)
    federation = federation_of_one(site, division, method.inputs, task, number, server.population)
    cohort = Cohort(
        ids=torch.tensor([number]),
        population=server.population,
        round=server.state.round,
        rounds=config.schedule.rounds,
        rounds_trained=server.state.client_rounds / max(server.trainable, 1),
    )

    with one_thread():
        shared = algorithm.broadcast(server.state.server, cohort)
        clients = LocalClients(algorithm, federation, Reference(), seed=config.seeds[0])
        request = PersonalizeRequest(new=True, validate=False, keep=True)
        ((_, reply),) = clients.personalize(request, shared, [number], server.state.round)

    if isinstance(reply, Failure) or reply.problem:
        reason = reply.reason if isinstance(reply, Failure) else reply.problem
        raise RunError(f"{config.algorithm.name} could not make a model for the site: {reason}")

    steps = int(reply.diagnostics.get("steps", 0))
    return Onboarded(clients.personal[number], steps, per_client(reply.scores["clients"]))


def global_model(server: Server) -> Any | None:
    """Return the model that the server itself would predict with; None if the method has none."""
    task = server.method.task(0)
    return server.method.algorithm.global_model(task, server.state.server)
