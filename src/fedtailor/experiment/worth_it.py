"""Is a federation worth it for each site? Predictions in run folders become verdicts. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedtailor.core.atomic import as_plain
from fedtailor.core.errors import joined, printable
from fedtailor.core.reading import damaged, read_object
from fedtailor.core.schedule import Measure
from fedtailor.core.text import percent
from fedtailor.experiment.predictions import (
    BASELINES_FILE,
    CHOICES_FILE,
    PREDICTIONS_FILE,
    ClientPredictions,
    read_predictions,
)
from fedtailor.experiment.site_rows import (
    LOCAL,
    MAJORITY,
    OWN,
    PERSONALIZED,
    POOLED,
    OwnModel,
    SeedPredictions,
    SiteRow,
    Verdict,
    rule,
    site_rows,
)

Record = dict[str, Any]
_MOSTLY_ONE_CLASS = 0.8
"""Share of a class, from which on accuracy says little."""
_POOLED = "pooled_"
"""Begins the name of a baseline on the data of all sites in one place."""
_MOST_NAMES = 10
"""In a sentence."""


def judge(
    seeds: Mapping[int, Path],
    *,
    others: Sequence[Mapping[int, Path]] = (),
    local: Mapping[int, Path] | None = None,
    measure: Measure = "accuracy",
) -> Record | None:
    """Return the verdict for every site, ready for JSON; None without predictions.

    A site's own model is the baseline that it would choose by its training examples. Where there is
    none but the majority class, as for large pictures, it is its model of the method ``local``.

    Args:
        seeds: folders of the runs of one method, by seed.
        others: those of other methods on the same splits, which may have the baselines.
        local: those of the method ``local``.
        measure: by which the models are compared.

    Raises:
        DataError: a file is damaged.
    """
    sources = [(seed, folder, part) for seed, folder in seeds.items() for part in _parts(folder)]
    for _, folder, part in sources:
        if not (folder / part / PREDICTIONS_FILE).is_file():
            return None

    trainings = []
    for seed, folder, part in sources:
        with_baselines = [folder / part]
        with_baselines += [other[seed] / part for other in others if seed in other]
        own = _baselines(with_baselines)
        if local is not None and seed in local:
            own = _local_models(local[seed] / part) | own

        predictions = read_predictions(folder / part / PREDICTIONS_FILE)
        trainings.append(SeedPredictions(seed, predictions, own))

    # Clients without names are not sites: another split has other clients under their numbers.
    folders = seeds.values()
    splits = [read_object(folder / "split.json", within=folder) for folder in folders]
    names = splits[0].get("client_names") or []
    has_other_splits = len({split.get("split_sha256") for split in splits}) > 1
    if not names and (has_other_splits or not any(training.own for training in trainings)):
        return None

    rows = site_rows(trainings, names, measure)
    return as_record(rows, measure) if rows else None


def _parts(folder: Path) -> list[str]:
    """Return the folders of the folds in that of a seed; one empty name if there are none."""
    folds = sorted(path.name for path in folder.glob("fold-*") if path.is_dir())
    return folds or [""]


def _baselines(sources: Sequence[Path]) -> dict[int, OwnModel]:
    """Return the best baseline of every site, from the first folder that has baselines.

    A site that has nothing but the majority class is left out.
    """
    source = next((folder for folder in sources if (folder / CHOICES_FILE).is_file()), None)
    if source is None:
        return {}

    path = source / CHOICES_FILE
    record = read_object(path, within=source)
    choices = record.get("sites")
    names = record.get("names", [])
    predictions = read_predictions(source / BASELINES_FILE)
    if not isinstance(choices, Mapping) or not isinstance(names, list):
        raise damaged(path, "'sites' must be a table, and 'names' a list")

    own = {}
    for client, content in predictions.items():
        choice = choices.get(str(client))
        if not isinstance(choice, Mapping) or choice.get("best") is None:
            continue

        # None could be trained there but the one that is always there.
        name = choice["best"]
        missing = choice.get("missing") or {}
        if name == MAJORITY and all(one in missing for one in names if one != MAJORITY):
            continue
        if name not in content.probabilities:
            raise damaged(path, f"client {client} has no predictions of {name!r:.80}")
        own[client] = _only(name, name, content)

    return own


def _local_models(source: Path) -> dict[int, OwnModel]:
    """Return the personalized models of the method ``local``."""
    path = source / PREDICTIONS_FILE
    if not path.is_file():
        return {}

    own = {}
    for client, content in read_predictions(path).items():
        if PERSONALIZED in content.probabilities:
            own[client] = _only(LOCAL, PERSONALIZED, content)

    return own


def _only(name: str, model: str, content: ClientPredictions) -> OwnModel:
    """Return one of the models that have predicted, and its pooled kind."""
    probabilities = {model: content.probabilities[model]}
    pooled = content.probabilities.get(_POOLED + model)
    if pooled is not None:
        probabilities[POOLED] = pooled
    return OwnModel(name, ClientPredictions(content.positions, content.labels, probabilities))


def count_verdicts(verdicts: Iterable[Verdict]) -> dict[Verdict, int]:
    """Return at how many sites there is which verdict."""
    counts = Counter(verdicts)
    return {verdict: counts[verdict] for verdict in get_args(Verdict)}


def sentence(record: Mapping[str, Any]) -> str:
    """Return the verdicts of a record in words.

    >>> sentence({"verdicts": {"better": 3, "no clear difference": 1, "worse": 0}})
    'worth it for 3 of 4 sites, unclear for 1, worse for 0'
    """
    verdicts = record["verdicts"]
    total = sum(verdicts.values())
    if total == 1:
        (verdict,) = (name for name, count in verdicts.items() if count)
        than = "from" if verdict == "no clear difference" else "than"
        return f"{verdict} {than} what the site would use alone"

    counts = f"unclear for {verdicts['no clear difference']}, worse for {verdicts['worse']}"
    return f"worth it for {verdicts['better']} of {total} sites, {counts}"


def one_class_caution(record: Mapping[str, Any]) -> str:
    """Say at which sites of a record accuracy misleads: nearly all examples have one class."""
    sites = [site for site in record["sites"] if site["majority"] >= _MOSTLY_ONE_CLASS]
    if record["measure"] != "accuracy" or not sites:
        return ""

    names = []
    for site in sites:
        shares = [site["scores"][model]["balanced_accuracy"] for model in (OWN, PERSONALIZED)]
        balanced = " and ".join(map(percent, shares))
        majority = f"{percent(site['majority'])} % of one class"
        names.append(f"{printable(site['site'])} ({majority}: {balanced} %)")

    return (
        "Accuracy misleads where nearly all examples have one class, because a model that never "
        "finds the others looks good. In brackets, the balanced accuracy of the best own and of "
        f"the personalized model: {joined(names, _MOST_NAMES)}. Two models that differ only in the "
        "threshold between the classes differ in both measures, but not in AUROC: "
        'evaluation.verdict = "auroc" compares them without one.'
    )


def as_record(rows: Sequence[SiteRow], measure: Measure) -> Record:
    """Return the rows of all sites and their verdicts, ready for JSON."""
    return {
        "verdicts": count_verdicts(row.verdict for row in rows),
        "measure": measure,
        "rule": rule(measure, len(rows)),
        "sites": [as_plain(row) for row in rows],
    }
