"""The page of the configuration: every section of an experiment, of a server and of a site."""

import dataclasses

from fedtailor.core.options import hints_of
from fedtailor.core.schedule import SCHEDULE_KEYS, Participation, Schedule, Training
from fedtailor.data.options import DataOptions
from fedtailor.deployment.options import DeployOptions, SiteOptions
from fedtailor.deployment.policy import SitePolicy
from fedtailor.deployment.site_privacy import SitePrivacy
from fedtailor.experiment.config import (
    AlgorithmOptions,
    CheckpointOptions,
    ModelOptions,
    ServeOptions,
)
from fedtailor.experiment.sweep_options import SweepOptions
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.engines import EngineOptions
from option_tables import HEAD, option_row, option_table

INTRODUCTION = """# Configuration

Every option of a configuration file. Each is also an option of the command line:
`--set SECTION.OPTION=VALUE`, such as `--set training.lr=0.05`; some have a short form, which
`fedtailor run --help` lists. [A whole file](example.md) shows them in their context. At the top
of a file stands `seeds`, a list of whole numbers: one run for each.
"""

EXPERIMENT = {
    "data": DataOptions,
    "model": ModelOptions,
    "algorithm": AlgorithmOptions,
    "training": Training,
    "federation": Schedule,
    "engine": EngineOptions,
    "evaluation": Schedule,
    "privacy": PrivacyOptions,
    "checkpoint": CheckpointOptions,
    "serve": ServeOptions,
    "sweep": SweepOptions,
}
"""The sections of `experiment.toml`; a sweep reads the last one."""
PARTICIPATION = (
    '| `participation` | `"all"` | number > 0 and <= 1, `"all"`, or `"fixed(10)"` | Who takes part '
    "in a round: each client with this probability, all, or a fixed number of them. |\n"
)
REMARKS = {
    "algorithm": "Every other key is an option of the method ([methods](algorithms/index.md)), or "
    "a field of `[training]` that it overrides.",
    "sweep": "Only `fedtailor sweep` reads it: [sweeping](../howto/sweeping.md).",
}


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    parts = [INTRODUCTION, "## An experiment: `experiment.toml`\n"]
    for section, cls in EXPERIMENT.items():
        rows = schedule_table(section) if section in SCHEDULE_KEYS else table(cls)
        parts += [f"### `[{section}]`\n", REMARKS.get(section, ""), rows]

    parts += ["## A server: `federation.toml`\n", "The sections of an experiment, and:\n"]
    parts += ["### `[deploy]`\n", table(DeployOptions)]

    parts += ["## A site: `site.toml`\n", table(SiteOptions)]
    parts += ["### `[policy]`\n", table(SitePolicy)]
    parts += ["### `[privacy]` of a site\n", table(SitePrivacy)]
    return {"reference/configuration.md": "\n".join(parts)}


def table(cls: type) -> str:
    """Return the table of a section that has the fields of a class."""
    names = [field.name for field in dataclasses.fields(cls)]
    if cls is AlgorithmOptions:
        names.remove("options")  # which stand in the section itself

    return option_table(cls, names)


def schedule_table(section: str) -> str:
    """Return the table of `[federation]` or `[evaluation]`, which together are a schedule."""
    rows = [HEAD]
    for key in SCHEDULE_KEYS[section]:
        name = "evaluate_every" if (section, key) == ("evaluation", "every") else key
        is_limit = name not in hints_of(Schedule)
        row = option_row(Participation if is_limit else Schedule, name, key)
        if key == "participation":
            row = PARTICIPATION
        rows.append(row)

    return "".join(rows)
