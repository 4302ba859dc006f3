"""The personal models of a site: a folder for every version, of which one is in use.

A version is the folder of a run with one client, so everything that takes a run takes it:
``predict``, ``export``. ``model`` is a link to the version in use.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.atomic import synchronize_folder, writing
from fedtailor.core.errors import DataError
from fedtailor.deployment.federation_folder import numbered_runs
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.experiment.reader import read_run
from fedtailor.serving.model_folder import ClientModel, write_model_folder

IN_USE = "model"
"""The link to the version in use."""
_FOLDER = "models"


class ModelVersion(NamedTuple):
    """A version of a site's personal model."""

    number: int
    path: Path
    in_use: bool


def versions(folder: Path) -> list[ModelVersion]:
    """Return the versions of a site's model, the oldest first."""
    link = folder / IN_USE
    used = link.readlink().name if link.is_symlink() else ""
    paths = numbered_runs(folder / _FOLDER)
    return [ModelVersion(int(path.name), path, path.name == used) for path in paths]


def model_in_use(folder: Path) -> Path:
    """Return the folder of the version in use.

    Raises:
        DataError: there is none.
    """
    for version in versions(folder):
        if version.in_use:
            return version.path

    message = f"'{folder}' has no model yet: it is made when a run ends."
    raise DataError(message, key="site", path=folder)


def use(folder: Path, number: int) -> ModelVersion:
    """Put a version of the model in use.

    Raises:
        DataError: there is no such version.
        RunError: the link cannot be made.
    """
    existing = {version.number: version for version in versions(folder)}
    if number not in existing:
        allowed = ", ".join(map(str, existing)) or "none"
        message = f"there is no version {number} of the model; there are: {allowed}."
        path = str(folder / _FOLDER)
        raise DataError(message, key="version", path=path, allowed=allowed, got=number)

    # The link always leads to a whole version.
    chosen = existing[number]
    link = folder / IN_USE
    temporary = folder / f".{IN_USE}.{os.getpid()}.tmp"
    with writing(link):
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path(_FOLDER) / chosen.path.name)
        os.replace(temporary, link)
        synchronize_folder(folder)

    return chosen._replace(in_use=True)


def previous(folder: Path) -> ModelVersion:
    """Return the version before the one in use.

    Raises:
        DataError: there is none.
    """
    # The version in use may be any one, after an earlier restore.
    existing = versions(folder)
    used = [version.number for version in existing if version.in_use]
    older = [version for version in existing if used and version.number < used[0]]
    if not older:
        message = "there is no version of the model before the one in use."
        raise DataError(message, key="version", path=str(folder / _FOLDER))
    return older[-1]


def write_version(
    folder: Path,
    model: ClientModel,
    plan: DeploymentPlan,
    data_digest: str,
    card: Mapping[str, Any],
) -> ModelVersion:
    """Write a personal model and put it in use; made again in the same round, it is replaced.

    Args:
        folder: of the site.
        model: of the site.
        plan: of the run that made it.
        data_digest: SHA-256 of the examples of the site.
        card: what the card of the model says beside what every card says.

    Raises:
        RunError: a file cannot be written.
    """
    existing = versions(folder)
    number = existing[-1].number + 1 if existing else 1
    for version in existing:
        if _made_in(version.path) == (plan.run, model.round):
            number = version.number

    origin = {
        "run": plan.run,
        "plan_sha256": plan.digest,
        "lineage": list(plan.lineage),
        "round": model.round,
        "data_sha256": data_digest,
    }
    result = {"site": model.name, "round": model.round}

    def write(path: Path) -> None:
        facts = {"run": plan.run, "lineage": list(plan.lineage), **card}
        write_model_folder(path, model, provenance={"site": origin}, result=result, card=facts)

    return _put(folder, number, write)


def add_version(folder: Path, write: Callable[[Path], object]) -> ModelVersion:
    """Add a version of the model that does not come from a run, and put it in use.

    Args:
        folder: of the site.
        write: writes the folder of a run with one client.

    Raises:
        RunError: a file cannot be written.
    """
    existing = versions(folder)
    return _put(folder, existing[-1].number + 1 if existing else 1, write)


def _put(folder: Path, number: int, write: Callable[[Path], object]) -> ModelVersion:
    """Write a version and put it in use; the folder appears whole, under its name."""
    made = folder / _FOLDER / f"{number:04d}"
    unfinished = folder / _FOLDER / f".{made.name}.tmp"
    with writing(made):
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(mode=0o700, exist_ok=True)
        write(unfinished)

        # Only where the same round made the model before.
        if made.exists():
            shutil.rmtree(made)

        os.replace(unfinished, made)
        synchronize_folder(made.parent)

    return use(folder, number)


def describe_version(version: ModelVersion) -> dict[str, Any]:
    """Return what is known of a version, ready for JSON.

    Raises:
        DataError: a file is damaged.
    """
    run = read_run(version.path)
    result = run.result or {}
    scores = result.get("metrics", {}).get("personalized", {})
    return {
        "version": version.number,
        "in_use": version.in_use,
        "path": str(version.path),
        "algorithm": str(result.get("algorithm", "")),
        "created": str(run.provenance.get("created", "")),
        "round": result.get("round"),
        "accuracy": scores.get("accuracy"),
        "worth_it": result.get("worth_it"),
    }


def _made_in(path: Path) -> tuple[str, int] | None:
    """Return the run and the round of a version; None if its folder is damaged."""
    try:
        site = read_run(path).provenance["site"]
        return str(site["run"]), int(site["round"])
    except (DataError, KeyError, TypeError, ValueError):
        return None
