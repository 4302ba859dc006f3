"""Tables of the verdicts for each site. No torch."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedtailor.core.errors import printable
from fedtailor.data.own.names import inert
from fedtailor.experiment.site_rows import GLOBAL, MAJORITY, OWN, PERSONALIZED, Verdict
from fedtailor.experiment.worth_it import judge, sentence
from fedtailor.report.methods import Method
from fedtailor.report.parts import NOTHING, Cell, ReportTable, round_figure, show_p_value
from fedtailor.report.records import number
from fedtailor.report.statistics import mean

MOST_SITES = 30
"""Of more sites there are the distribution and the worst ones."""
_WORST = 10
_LOCAL = "local"
"""The method that trains at each site alone."""
_MODELS = {OWN: "own", GLOBAL: "global", PERSONALIZED: "personalized"}
_QUANTILES = {"10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9}
Record = Mapping[str, Any]


def worth_it_tables(records: Mapping[str, Record], shown: str) -> list[ReportTable]:
    """Return the verdicts for all sites of one method as tables, and the sentences of all methods.

    Args:
        records: from :func:`judge_methods`.
        shown: the label of the method.
    """
    record = records[shown]
    sites = record["sites"]
    conclusion = " ".join(verdict_sentences(records))
    question = f"Is it worth it, site by site? {printable(shown)}"
    if len(sites) <= MOST_SITES:
        title = f"{question}: accuracy in %"
        first = _verdicts(record, sites, title=title, conclusion=conclusion)
        return [first, _other_scores(sites, shown)]

    worst = sorted(sites, key=_difference)[:_WORST]
    title = f"The {_WORST} sites with the smallest differences: accuracy in %"
    return [
        _distribution(record, title=question, conclusion=conclusion),
        _verdicts(record, worst, title=title, conclusion=""),
    ]


def verdict_sentences(records: Mapping[str, Record]) -> list[str]:
    """Return for how many sites each method is worth it."""
    return [f"{printable(label)}: {sentence(record)}." for label, record in records.items()]


def judge_methods(methods: Sequence[Method]) -> dict[str, Record]:
    """Return the verdicts of the methods that train together and have predictions, by label.

    The seeds of a method count that have finished. Where a site has no baselines, it is compared
    with its model of the method ``local``.

    Raises:
        DataError: a file is damaged.
    """
    records: dict[str, Record] = {}
    for method in methods:
        folders = {seed: run.path for seed, run in method.finished.items()}
        if method.algorithm == _LOCAL or not folders:
            continue

        others = [_on_same_splits(other, method) for other in methods if other is not method]
        local = [_on_same_splits(other, method) for other in methods if other.algorithm == _LOCAL]
        record = judge(folders, others=others, local=local[0] if local else None)
        if record is not None:
            records[method.label] = record

    return records


def _on_same_splits(method: Method, other: Method) -> dict[int, Path]:
    """Return the folders of a method, by seed, in which it had the data and split of another."""
    folders = {}
    for seed, run in method.finished.items():
        split = method.split_of(seed)
        if seed in other.finished and split and split == other.split_of(seed):
            folders[seed] = run.path

    return folders


def best_by_validation(methods: Sequence[Method]) -> str:
    """Return the label of the method with the best validation accuracy; else of the first one.

    Test examples never decide which method has the table.
    """
    accuracies = {method.label: _validation_accuracy(method) for method in methods}
    known = {label: value for label, value in accuracies.items() if value is not None}
    if len(known) < len(accuracies):
        return methods[0].label
    return max(known, key=lambda label: known[label])


def _validation_accuracy(method: Method) -> float | None:
    """Return the mean accuracy on validation examples over seeds; None if a seed has none."""
    values = []
    for run in method.finished.values():
        metrics = (run.result or {}).get("metrics", {})
        values.append(number(metrics.get("validation", {}).get("accuracy", {}).get("mean")))

    numbers = [value for value in values if value is not None]
    return mean(numbers) if numbers and len(numbers) == len(values) else None


def sites_csv(records: Mapping[str, Record]) -> str:
    """Return the rows of all methods and sites as CSV that is safe to open in a spreadsheet.

    Numbers are not in percent.

    Args:
        records: by the label of the method.
    """
    rows = []
    for method, record in records.items():
        for site in record["sites"]:
            start = {"method": inert(printable(method)), "site": inert(printable(site["site"]))}
            rows.append(start | dict(_csv_cells(site)))

    text = io.StringIO()
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_cells(site: Record) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a site: names of nested values are joined."""
    for name in ("client", "examples", "groups", "majority"):
        yield name, site[name]

    yield "own_model", " or ".join(site["own"])
    for model, scores in site["scores"].items():
        for metric, value in scores.items():
            yield f"{model}_{metric}", value

    for name in ("difference", "from_global", "auroc_difference"):
        paired = site[name] or dict.fromkeys(("difference", "low", "high"))
        yield name, paired["difference"]
        yield f"{name}_low", paired["low"]
        yield f"{name}_high", paired["high"]

    for name in ("p_value", "corrected_p_value", "verdict"):
        yield name, site[name]


def _verdicts(
    record: Record, sites: Sequence[Record], *, title: str, conclusion: str
) -> ReportTable:
    """Return the table that answers the question."""
    has_groups = any(site["groups"] is not None for site in sites)
    models = _shown_models(sites)
    columns = ["site", "verdict", "difference (95 % interval)", "test examples"]
    columns += [*(["groups"] if has_groups else []), "majority class", "best own model"]
    columns += [f"{name} accuracy" for name in models.values()]

    rows: list[Sequence[Cell]] = []
    for site in sites:
        cells = [_name(site), site["verdict"], _with_interval(site["difference"], in_percent=True)]
        cells.append(f"{site['examples']:,}")
        if has_groups:
            cells.append(NOTHING if site["groups"] is None else f"{site['groups']:,}")
        cells += [_percent(site["majority"]), _own_model(site)]
        cells += [_percent(_score(site, model, "accuracy")) for model in models]
        rows.append(cells)

    return ReportTable(
        title=title,
        columns=columns,
        rows=rows,
        conclusion=conclusion,
        below=_explanation(record, sites),
        name="worth-it",
    )


def _explanation(record: Record, sites: Sequence[Record]) -> str:
    """Return what the columns are."""
    used = {name for site in sites for name in site["own"]}
    sentences = [
        "difference: accuracy of the personalized model minus that of the best own model, on the "
        "same examples, in points."
    ]
    if used - {"local", MAJORITY}:
        sentences.append("best own model: chosen by the site's own training examples.")
    if "local" in used:
        sentences.append("local: the method of this name, which trains at each site alone.")
    if MAJORITY in used:
        sentences.append("majority: a model that always says the most frequent class.")
    if any(len(site["own"]) > 1 for site in sites):
        sentences.append("(3 of 5): in so many trainings, as seeds and folds choose anew.")

    sentences.append(record["rule"])
    if len(record["sites"]) > 1:
        sentences.append(
            "An interval is of one site alone, so it may leave out 0 where the corrected verdict "
            "is not clear."
        )
    return " ".join(sentences)


def _other_scores(sites: Sequence[Record], method: str) -> ReportTable:
    """Return balanced accuracy and AUROC of the same sites and models."""
    models = _shown_models(sites)
    columns = ["site"]
    columns += [f"{name} balanced" for name in models.values()]
    columns += [f"{name} AUROC" for name in models.values()]
    columns += ["AUROC difference", "p", "corrected p"]
    rows: list[Sequence[Cell]] = []
    for site in sites:
        cells = [_name(site)]
        cells += [_percent(_score(site, model, "balanced_accuracy")) for model in models]
        cells += [_area(_score(site, model, "auroc")) for model in models]
        cells.append(_with_interval(site["auroc_difference"], in_percent=False))
        cells += [show_p_value(site["p_value"]), show_p_value(site["corrected_p_value"])]
        rows.append(cells)

    return ReportTable(
        title=f"The same sites, {printable(method)}: balanced accuracy in %, and AUROC",
        columns=columns,
        rows=rows,
        below="AUROC difference: personalized minus best own model, with its 95 % interval "
        "(DeLong, 1.15 times as wide), for two classes with ten examples each. It decides no "
        "verdict. p, corrected p: of the difference in accuracy; a verdict is by the corrected "
        "one.",
        name="worth-it-scores",
    )


def _distribution(record: Record, *, title: str, conclusion: str) -> ReportTable:
    """Return the verdicts and differences of many sites."""
    import numpy as np

    rows: list[Sequence[Cell]] = []
    for verdict in ("all", *get_args(Verdict)):
        chosen = [site for site in record["sites"] if verdict in ("all", site["verdict"])]
        differences = [_difference(site) for site in chosen]
        cells = [NOTHING] * len(_QUANTILES)
        if differences:
            quantiles = np.quantile(differences, list(_QUANTILES.values())).tolist()
            cells = [round_figure(value, in_percent=True, signed=True) for value in quantiles]
        rows.append([verdict, f"{len(chosen):,}", *cells])

    return ReportTable(
        title=f"{title}: differences in accuracy, in points",
        columns=["verdict", "sites", *_QUANTILES],
        rows=rows,
        conclusion=conclusion,
        below="10 % to 90 %: quantiles over sites. All sites are in the files.",
        name="worth-it-distribution",
    )


def _shown_models(sites: Sequence[Record]) -> dict[str, str]:
    """Return the models that have columns: a global one that is the personalized one has none."""
    shown = dict(_MODELS)
    for scores in (site["scores"] for site in sites):
        if scores.get(GLOBAL, scores[PERSONALIZED]) != scores[PERSONALIZED]:
            return shown

    del shown[GLOBAL]
    return shown


def _name(site: Record) -> str:
    name = printable(site["site"])
    return name if len(name) <= 40 else f"{name[:39]}…"


def _own_model(site: Record) -> str:
    """Return the name of the own model; the most frequent one, and how often, if it varies."""
    name, count = next(iter(site["own"].items()))
    total = sum(site["own"].values())
    text = printable(name).replace("_", " ")
    return text if count == total else f"{text} ({count} of {total})"


def _difference(site: Record) -> float:
    return float(site["difference"]["difference"])


def _score(site: Record, model: str, metric: str) -> float | None:
    value: float | None = site["scores"].get(model, {}).get(metric)
    return value


def _percent(value: float | None) -> str:
    return NOTHING if value is None else round_figure(value, in_percent=True)


def _area(value: float | None) -> str:
    return NOTHING if value is None else round_figure(value, in_percent=False)


def _with_interval(paired: Record | None, *, in_percent: bool) -> str:
    """Return a difference with its interval in brackets."""
    if paired is None:
        return NOTHING

    names = ("difference", "low", "high")
    texts = [round_figure(paired[name], in_percent, signed=True) for name in names]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"
