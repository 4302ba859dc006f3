"""A run that continues another one, which has finished: with new data, other sites, more rounds.

The server begins with the state that it had at the end; what it keeps of single sites begins again,
as for sites that join (``Algorithm.admit``), and so do the states of the sites. A simulation that
begins with this state has the same bits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core import rng, tree
from fedtailor.core.atomic import write_whole
from fedtailor.core.codec import compact, decode, encode
from fedtailor.core.errors import ConfigError
from fedtailor.core.reading import read_file
from fedtailor.deployment.membership import refuse_unfinished
from fedtailor.deployment.options import FEDERATION_FILE, PLAN_FILE, FederationFile, load_federation
from fedtailor.deployment.plan import DeploymentPlan, read_plan_of
from fedtailor.experiment.writer import CHECKPOINTS
from fedtailor.simulation.checkpoint import read_final_state, readable_modules
from fedtailor.simulation.report import RunState

START_FILE = "start.safetensors"
"""In the folder of a run that continues another one: the state of the server at its end."""
_LARGEST = 2**35
"""Bytes of a state."""
_SAME = ("data", "model", "algorithm")
"""Sections that decide what the state of a server means."""


class EarlierRun(NamedTuple):
    """A run across sites that has finished, as one to continue."""

    plan: DeploymentPlan
    server: Any
    """The state of the server at its end."""

    @classmethod
    def read(cls, path: Path, file: FederationFile) -> EarlierRun:
        """Read the folder of a run that ``file`` continues.

        Raises:
            ConfigError: it is the folder of no such run, or it cannot be continued in this way.
            DataError: a file is damaged, or another version of fedtailor has made the run.
        """
        refuse_unfinished(path)
        begun = load_federation(path / FEDERATION_FILE).config
        changed = [name for name in _SAME if getattr(begun, name) != getattr(file.config, name)]
        if changed:
            raise _refused(path, f"[{changed[0]}] of federation.toml is not the one of that run")

        plan = read_plan_of(path / PLAN_FILE)
        algorithm = plan.algorithm
        modules = readable_modules(algorithm)
        server = read_final_state(path / CHECKPOINTS, modules=modules).server
        name = type(algorithm).__name__
        if algorithm.exchanges:
            raise _refused(path, f"{name} is done after its exchanges, and begins with nothing")
        if not tree.leaves(server):
            raise _refused(path, f"with {name}, the server keeps nothing")
        if not algorithm.admits:
            raise _refused(path, f"{name} keeps something of every site, and has no 'admit'")
        return cls(plan, server)

    def copy_state(self, run: Path) -> None:
        """Write the state into the folder of the run that continues this one."""
        modules = readable_modules(self.plan.algorithm)
        write_whole(run / START_FILE, encode(self.server, modules=modules))


def first_state(run: Path, plan: DeploymentPlan, population: int) -> RunState:
    """Return the state with which a run begins that continues another one.

    Args:
        run: its folder.
        plan: of the run.
        population: how many sites can take part in its first round.

    Raises:
        DataError: the file with the state is damaged.
    """
    algorithm = plan.algorithm
    raw = read_file(run / START_FILE, limit=_LARGEST, within=run)
    server = decode(raw, modules=readable_modules(algorithm))

    # To the state, all sites are new.
    task = algorithm.bind(plan.task(0))
    key = rng.new_key(plan.config.seeds[0], purpose="init_server")
    return RunState(compact(algorithm.admit(task, server, 0, population, key)))


def _refused(path: Path, why: str) -> ConfigError:
    message = f"'{path}' cannot be continued: {why}."
    return ConfigError(message, key="from", path=path, got=str(path))
