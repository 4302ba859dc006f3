"""The verdict of a site on its own model: is it better than what the site would use alone?

The site trains its baselines when a model was made, and compares both on its test examples by the
rule of a simulation. All files lie in the folder of the model's version, and none of them leaves
the site.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.engine import one_thread
from fedtailor.core.federation import Federation
from fedtailor.core.metrics import METRICS
from fedtailor.core.schedule import names_of_baselines
from fedtailor.deployment.options import SiteOptions
from fedtailor.deployment.site_data import PreparedData, prepare
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.deployment.site_models import versions
from fedtailor.deployment.site_run import SiteRun
from fedtailor.experiment.baselines import InputTables, add_baselines_of_one
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.predictions import PREDICTIONS_FILE, predict_client, write_predictions
from fedtailor.experiment.reader import RunRecords, read_run
from fedtailor.experiment.site_rows import measure_name
from fedtailor.experiment.worth_it import judge, one_class_caution, sentence
from fedtailor.serving.load import TrainedMethod, load_method, load_personal
from fedtailor.serving.site_data import federation_of_one

_CLIENT = 0
"""The number of the site in the folder of its model, which has one client."""


def add_verdict(folder: Path, options: SiteOptions, memory: SiteMemory, run: SiteRun | None) -> str:
    """Judge the newest model of a site, if that was not done yet, and return what came out.

    Args:
        folder: of the site.
        options: of the site.
        memory: of the site: a second one could draw another division.
        run: the one of which the data are in memory, if any.

    Returns:
        Sentences for the operator; empty if there was nothing to do.

    Raises:
        DataError: the data cannot be read, or a file is damaged.
        RunError: a file cannot be written.
    """
    existing = versions(folder)
    if not existing:
        return ""

    records = read_run(existing[-1].path)
    result = dict(records.result or {})
    origin = records.provenance.get("site", {})
    if "worth_it" in result or "data_sha256" not in origin:
        return ""

    method = load_method(records)
    if run is not None and run.plan.run == origin["run"]:
        prepared = run.prepared
    else:
        prepared = prepare(options, method, memory, folder)

    problem = ""
    notes: list[str] = []
    if prepared.digest != origin["data_sha256"]:
        problem = "the examples of this site are not those with which the model was made"
    elif not len(prepared.positions.test):
        problem = "this site has no test examples"
    else:
        notes = _write_files(records, method, prepared, options)

    measure = method.config.schedule.verdict
    folders = {method.config.seeds[0]: records.path}
    result["worth_it"] = None if problem else judge(folders, measure=measure)
    RunFolder(records.path).finish(result)
    if result["worth_it"] is None:
        return f"no verdict: {problem or 'there are no predictions'}."
    sentences = [*notes, in_words(result["worth_it"]), one_class_caution(result["worth_it"])]
    return " ".join(filter(None, sentences))


def in_words(worth_it: Mapping[str, Any]) -> str:
    """Return the verdict of a single site as a sentence.

    Args:
        worth_it: of a result.
    """
    (site,) = worth_it["sites"]
    own = next(iter(site["own"])).replace("_", " ")
    start = f"verdict: {sentence(worth_it)} ({own}), by {measure_name(worth_it['measure'])}"
    if site["difference"] is None:  # of AUROC
        return f"{start}: all {site['examples']} test examples have one class."

    in_percent = METRICS[worth_it["measure"]].in_percent
    numbers = []
    for key in ("difference", "low", "high"):
        value = site["difference"][key]
        numbers.append(f"{100 * value:+.1f}" if in_percent else f"{value:+.3f}")

    difference = f"{numbers[0]} points" if in_percent else numbers[0]
    interval = f"95 % interval {numbers[1]} to {numbers[2]}"
    return f"{start}: {difference} ({interval}), {site['examples']} test examples."


def _write_files(
    records: RunRecords, method: TrainedMethod, prepared: PreparedData, options: SiteOptions
) -> list[str]:
    """Write what the model and the baselines say about the test examples.

    Returns:
        Sentences about baselines that could not be trained.
    """
    model = load_personal(records, records.client_names[_CLIENT])
    number = int(model.card["number"])
    site = prepared.site
    federation = federation_of_one(
        site,
        prepared.positions,
        method.inputs,
        method.task(number),
        number,
        population=number + 1,
    )
    with one_thread():
        models = {"personalized": model.module.tree()}
        predictions = predict_client(method.algorithm, federation, number, models, site.groups)

    write_predictions(records.path / PREDICTIONS_FILE, {_CLIENT: predictions})
    return _write_baselines(records.path, method, prepared, federation, options)


def _write_baselines(
    path: Path,
    method: TrainedMethod,
    prepared: PreparedData,
    federation: Federation,
    options: SiteOptions,
) -> list[str]:
    """Train the baselines of the site as a simulation does, and write what they say."""
    names = names_of_baselines(options.baselines)
    if not names:
        return []

    site = prepared.site
    missing = add_baselines_of_one(
        path,
        names,
        InputTables.of(site.x, site.y, site.groups, federation.x),
        prepared.positions,
        num_classes=method.inputs.num_classes,
        keep=options.fallback == "best",
    )

    # One sentence for each reason.
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason.rstrip("."), []).append(name.replace("_", " "))
    return [f"not trained: {', '.join(same)} ({why})." for why, same in by_reason.items()]
