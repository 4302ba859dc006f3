"""The plan of a run across sites: what the server and all sites agree on, and its digest.

The plan travels with every request. It holds no data of any site but what the sites agreed to share
before the first round: names of classes, columns of tables, mean and deviation.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedtailor import __version__
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.errors import DataError
from fedtailor.core.reading import content_of, damaged, parse_json, read_file
from fedtailor.core.task import Task
from fedtailor.data.input_specification import InputSpecification, specification_of
from fedtailor.deployment.limits import MOST_SITES
from fedtailor.deployment.wire import whole
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import Config, make_config, to_toml
from fedtailor.serving.load import TrainedMethod

LARGEST_PLAN = 2**26
"""Bytes of a plan."""
_MOST_ANCESTORS = 1000


@dataclass(frozen=True)
class DeploymentPlan:
    """What the server and all sites agree on."""

    config: Config
    """Resolved: every option has the value that is used."""
    inputs: InputSpecification
    """How the examples of a site become inputs of the model."""
    sites: int
    """Number of sites with which the run begins, new ones included."""
    new_sites: int
    """How many sites, the last ones, never take part in training."""
    run: str
    """A name that no other run has."""
    lineage: tuple[str, ...] = ()
    """The names of the earlier runs that it continues, the oldest first; empty: of none."""

    @property
    def population(self) -> int:
        """Number of sites with which the run begins, and that can take part in training."""
        return self.sites - self.new_sites

    @property
    def admits(self) -> bool:
        """Whether sites can join while the run is under way; they get the next numbers."""
        # New sites have the last numbers; a roster of secure sums is fixed, and noise counts on all
        # rounds; an earlier round to which a run goes back has no state of those who joined.
        privacy = self.config.privacy
        is_fixed = self.new_sites > 0 or privacy.secure_sums or privacy.unit != "none"
        goes_back = self.config.schedule.select == "best"
        return not is_fixed and not goes_back and self.algorithm.admits

    def is_new(self, client: int) -> bool:
        """Return whether the site with a number never takes part in training."""
        return self.population <= client < self.sites

    @cached_property
    def method(self) -> TrainedMethod:
        """What the run trains."""
        return TrainedMethod(self.config, self.algorithm, self.inputs)

    @cached_property
    def algorithm(self) -> AnyAlgorithm:
        """The algorithm, with its options."""
        return make_algorithm(self.config)

    def task(self, client: int) -> Task:
        """Return the task of a site by its number."""
        return self.method.task(client)

    @cached_property
    def raw(self) -> bytes:
        """The plan as JSON; :func:`read_plan` reads it."""
        record = {
            "fedtailor": __version__,
            "run": self.run,
            "lineage": list(self.lineage),
            "config": to_toml(self.config),
            "inputs": self.inputs.to_record(),
            "mean": self.inputs.mean.tolist(),
            "std": self.inputs.std.tolist(),
            "sites": self.sites,
            "new_sites": self.new_sites,
        }
        return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the plan."""
        return hashlib.sha256(self.raw).hexdigest()


def read_plan(raw: bytes) -> DeploymentPlan:
    """Return the plan that ``raw`` holds; it may come from a stranger, and no module is imported.

    Raises:
        ConfigError: its configuration is wrong.
        DataError: it is damaged, or of another version of fedtailor.
    """
    where = Path("plan")
    if len(raw) > LARGEST_PLAN:
        message = f"the plan has {len(raw)} bytes, more than {LARGEST_PLAN}."
        raise DataError(message, key="plan", got=len(raw))

    # The version first: of another one, the rest may be anything.
    record = parse_json(raw, where)
    version = record.get("fedtailor") if isinstance(record, dict) else None
    if version != __version__:
        raise other_version(version)

    with content_of(where):
        plan = DeploymentPlan(
            config=make_config(tomllib.loads(record["config"])),
            inputs=specification_of(record["inputs"], record),
            sites=whole("sites", record["sites"], MOST_SITES),
            new_sites=whole("new_sites", record["new_sites"], record["sites"] - 1),
            run=record["run"],
            lineage=tuple(record["lineage"]),
        )
        are_names = all(name.isalnum() for name in (plan.run, *plan.lineage))
        is_whole = are_names and len(plan.lineage) <= _MOST_ANCESTORS and plan.raw == raw

    # Also values of other types and further fields.
    if not is_whole:
        raise damaged(where, "it is not what a server writes")
    return plan


def read_plan_of(path: Path) -> DeploymentPlan:
    """Return the plan in a file of the server.

    Raises:
        ConfigError: its configuration cannot be used here.
        DataError: it is damaged, or of another version of fedtailor.
    """
    return read_plan(read_file(path, limit=LARGEST_PLAN, within=path.parent))


def other_version(there: object) -> DataError:
    """Return the error for another side that does not have this version."""
    message = f"fedtailor is {there!s:.80} there and {__version__} here: both sides need the same."
    return DataError(message, key="fedtailor", allowed=__version__, got=str(there)[:80])
