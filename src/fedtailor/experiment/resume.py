"""Resuming: whether a folder holds the run that a configuration describes."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.errors import ConfigError, DataError, joined
from fedtailor.core.options import show
from fedtailor.experiment.config import Config, flatten, keys_without_result, load_config, to_toml
from fedtailor.experiment.folder import refuse_existing
from fedtailor.experiment.reader import CONFIG_FILE, holds_run, read_provenance

_MOST_DIFFERENCES = 3
_WITHOUT_DEFAULTS = ("model.options.", "data.missing_values.")
"""Beginnings of keys that a configuration has only where they are given."""


def begun_config(path: Path) -> Config | None:
    """Return the configuration of the run in a folder; None if it is empty or missing.

    Raises:
        ConfigError: the folder holds something else, or its configuration cannot be read, or is not
            that with which the run began.
    """
    if holds_run(path):
        config = load_config(path / CONFIG_FILE)
        _refuse_edited(config, path)
        return config

    refuse_existing(path)
    return None


def values_at_start(config: Config) -> dict[str, Any]:
    """Return what is kept of a configuration beside it: the values that decide the results."""
    # Seeds can be added, and data may move: their digest is compared.
    ignored = {*keys_without_result(), "seeds", "data.path", "data.split"}
    values = flatten(tomllib.loads(to_toml(config)))
    kept = {key: value for key, value in values.items() if key not in ignored}

    # A run of one seed stays of that seed.
    if len(config.seeds) == 1:
        kept["seed"] = config.seeds[0]

    return kept


def _refuse_edited(config: Config, path: Path) -> None:
    """Check that a configuration has the values with which the run in its folder began."""
    begun = read_provenance(path).get("config", {})
    now = values_at_start(config)

    # These have no defaults, so one that was added has no value at the beginning.
    added = [key for key in now if key.startswith(_WITHOUT_DEFAULTS) and key not in begun]
    for key, value in {**begun, **dict.fromkeys(added)}.items():
        if now.get(key) == value:
            continue

        file = path / CONFIG_FILE
        raise ConfigError(
            f"'{file}' was edited: {key} was {_show(begun, key)} when the run began, and is "
            f"{_show(now, key)} now. Change it back to resume the run. Another run with the new "
            f"value: fedtailor run {shlex.quote(str(file))} --out FOLDER.",
            key=key,
            path=file,
            allowed=value,
            got=now.get(key),
        )


def with_first_choices(config: Config, begun: Config, path: Path) -> Config:
    """Return a configuration with the engine, device and order of seeds of the first start.

    Args:
        config: as it was given now.
        begun: of the run in the folder.
        path: the folder.

    Raises:
        ConfigError: the run has other seeds.
    """
    # A folder of one seed has no place for another.
    missing = [seed for seed in begun.seeds if seed not in config.seeds]
    added = tuple(seed for seed in config.seeds if seed not in begun.seeds)
    if missing or (added and len(begun.seeds) == 1):
        what = "seeds" if len(begun.seeds) > 1 else "seed"
        seeds = ", ".join(map(str, begun.seeds))
        hint = "" if missing else " Seeds can be added to a run of several seeds."
        raise ConfigError(
            f"'{path}' holds a run with {what} {seeds}.{hint} Choose another folder with --out.",
            key="seeds",
            allowed=list(begun.seeds),
            got=list(config.seeds),
        )

    # "auto" must not choose again: another engine or device would give other bits.
    engine = config.engine
    if engine.name == "auto":
        device = begun.engine.device if engine.device == "auto" else engine.device
        engine = dataclasses.replace(begun.engine, workers=engine.workers, device=device)
    elif engine.device == "auto":
        engine = dataclasses.replace(engine, device=begun.engine.device)
    return dataclasses.replace(config, seeds=begun.seeds + added, engine=engine)


def refuse_other_configuration(config: Config, begun: Config, path: Path) -> None:
    """Check that a configuration is that of the run in a folder, but for what changes no result.

    Raises:
        ConfigError: it is not; the message names the keys.
    """
    refuse_other_values(
        tomllib.loads(to_toml(config)), tomllib.loads(to_toml(begun)), path, what="a run"
    )


def refuse_other_values(
    now: Mapping[str, Any], begun: Mapping[str, Any], path: Path, *, what: str
) -> None:
    """Check that nested tables are those of a folder, but for what changes no result.

    Args:
        now: the tables as they are given now.
        begun: those of the folder.
        path: the folder.
        what: is in the folder, for the message.

    Raises:
        ConfigError: they are not; the message names the keys.
    """
    here = flatten(now)
    there = flatten(begun)
    ignored = keys_without_result()
    different = [
        key for key in {**there, **here} if key not in ignored and here.get(key) != there.get(key)
    ]
    if not different:
        return

    # A few keys are enough to see what is different.
    sentences = [
        f"{key} is {_show(there, key)} there and {_show(here, key)} here" for key in different
    ]
    raise ConfigError(
        f"'{path}' holds {what} with another configuration: "
        f"{joined(sentences, _MOST_DIFFERENCES)}. Choose another folder with --out.",
        key=different[0],
        allowed=_show(there, different[0]),
        got=_show(here, different[0]),
    )


def refuse_other_inputs(begun: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Check by their digests that a run began with these data, split, encoder and own code.

    Args:
        begun: the provenance of the run.
        now: what its provenance would be today.
        path: the run folder.

    Raises:
        DataError: it did not; the message says what differs.
    """
    digests = {
        "data": (begun.get("data", {}).get("sha256"), now["data"]["sha256"]),
        "split": (begun.get("split_sha256"), now["split_sha256"]),
    }
    if "encoder" in begun:
        digests["encoder"] = (begun["encoder"], now.get("encoder"))
    for key, before in begun.get("own_code", {}).items():
        digests[f"file of {key}"] = (before, now["own_code"].get(key))

    for what, (before, today) in digests.items():
        if before != today:
            raise DataError(
                f"'{path}' cannot be resumed: its {what} had the digest {before}, and has {today} "
                "now. Choose another folder with --out.",
                path=path,
                allowed=before,
                got=today,
            )


def changed_software(begun: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in words what differs between two provenances and can change bits."""
    versions = begun.get("versions", {})
    changes = [
        f"{name} {versions.get(name, 'unknown')} then, {version} now"
        for name, version in now["versions"].items()
        if versions.get(name) != version
    ]

    # Kernels are chosen by what the processor can do.
    before = begun.get("machine", {}).get("torch_cpu_capability")
    today = now["machine"]["torch_cpu_capability"]
    if before != today:
        changes.append(f"processor capability {before} then, {today} now")
    if begun.get("reduction") != now["reduction"]:
        changes.append(f"order of addition {begun.get('reduction')} then, {now['reduction']} now")

    return ", ".join(changes)


def _show(values: Mapping[str, Any], key: str) -> str:
    return show(values[key]) if key in values else "not given"
