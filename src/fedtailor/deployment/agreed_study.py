"""The policy of a site that allows one agreed study, and nothing else."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any

from fedtailor.core.errors import ConfigError
from fedtailor.core.reading import read_file
from fedtailor.core.task import Task
from fedtailor.deployment.audit import tally_of
from fedtailor.deployment.options import SITE_FILE, load_federation, load_site
from fedtailor.deployment.plan import LARGEST_PLAN, read_plan
from fedtailor.deployment.policy import (
    SitePolicy,
    Tally,
    leaves_examples_out,
    rates_and_amounts,
    study_settings,
)
from fedtailor.deployment.site_file import write_section
from fedtailor.experiment.assembly import make_algorithm, resolved
from fedtailor.experiment.config import Config
from fedtailor.models import build_model

_PLANS = 10
"""Starts of a study, because a server may begin again before all sites have answered."""
_REQUESTS = 4
"""Of a round, mostly: to train, to score, to make personal models, and one more."""
_MORE_REQUESTS = 10
"""Of a study, beside these, such as where a round is tried again."""


def allow_study(folder: Path, source: Path) -> SitePolicy:
    """Write the policy that allows one study into ``site.toml``, and return it.

    Args:
        folder: of the site.
        source: ``federation.toml`` of the study, or ``plan.json`` of an earlier run of it.

    Raises:
        ConfigError: the study names no model.
        DataError: the plan or the log of the site is damaged.
    """
    # What the site has answered in earlier studies counts against the totals of its policy.
    earlier = tally_of(folder)
    policy = _policy_for(_study(source), load_site(folder).policy, earlier)
    # What is as it is by default needs no line.
    default = dataclasses.asdict(SitePolicy())
    values = {
        name: value for name, value in dataclasses.asdict(policy).items() if value != default[name]
    }
    write_section(folder / SITE_FILE, "policy", values)
    return load_site(folder).policy


def _study(source: Path) -> Config:
    """Return the configuration of a study with the values that a plan of it has."""
    if source.suffix == ".json":
        return read_plan(read_file(source, limit=LARGEST_PLAN)).config

    config = load_federation(source).config
    if not config.model.name:
        message = f"'{source}' names no model, so others would be allowed: set model.name."
        raise ConfigError(message, key="model.name", path=source, allowed="a name", got="''")
    return resolved(config, make_algorithm(config), model_name=config.model.name)


def _policy_for(config: Config, policy: SitePolicy, earlier: Tally) -> SitePolicy:
    """Return a policy with the ranges, fields and numbers that a study needs."""
    algorithm = make_algorithm(config)
    used: dict[str, list[float]] = defaultdict(list)
    for _, kind, value in rates_and_amounts(algorithm):
        used[kind].append(value)
    spans: dict[str, Any] = {kind: (min(values), max(values)) for kind, values in used.items()}

    weighs_classes = algorithm.training.class_weights != "none"

    # The names of the fields are those for every model.
    task = Task(build_model("mlp", (2,), 2, {}), 2, (2,))
    messages = algorithm.messages(algorithm.bind(task))
    sent = [name for name, field in messages.items() if field.reduction != "none"]
    single = [name for name in sent if messages[name].reduction == "each"]
    return dataclasses.replace(
        policy,
        **spans,
        whole_epochs=not leaves_examples_out(algorithm) and not weighs_classes,
        plans=earlier.plans + _PLANS,
        rounds=earlier.rounds + _REQUESTS * config.schedule.rounds + _MORE_REQUESTS,
        counts=config.data.numbers != "standard",
        fields=tuple(sent),
        single_fields=tuple(single),
        study=study_settings(config),
    )
