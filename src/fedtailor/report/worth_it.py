"""Tables of the verdicts for each site. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from fedtailor.core.errors import printable
from fedtailor.core.metrics import METRICS
from fedtailor.core.text import NOTHING, csv_text, inert, round_figure
from fedtailor.experiment.reader import read_result
from fedtailor.experiment.site_rows import (
    GLOBAL,
    LOCAL,
    MAJORITY,
    MEASURES,
    OWN,
    PERSONALIZED,
    POOLED,
    Measure,
    Verdict,
    measure_name,
)
from fedtailor.experiment.worth_it import judge, one_class_caution, sentence
from fedtailor.report.methods import Method
from fedtailor.report.parts import Cell, ReportTable, show_p_value
from fedtailor.report.records import number
from fedtailor.report.statistics import mean

MOST_SITES = 30
"""Of more sites there are the distribution and the worst ones."""
_WORST = 10
_UNCLEAR: Verdict = "no clear difference"
_QUANTILES = {"10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9}
Record = Mapping[str, Any]


def worth_it_tables(
    records: Mapping[str, Record], shown: str, why_shown: str = ""
) -> list[ReportTable]:
    """Return the verdicts for all sites of one method as tables, and the sentences of all methods.

    Args:
        records: from :func:`judge_methods`.
        shown: the label of the method.
        why_shown: why it is this one, in a sentence.
    """
    record = records[shown]
    sites = record["sites"]
    conclusion = " ".join(verdict_sentences(records, shown, why_shown))
    question = f"Is it worth it, site by site? {printable(shown)}"
    if len(sites) <= MOST_SITES:
        title = f"{question}: {_by_measure(record)}"
        tables = [_verdicts(record, sites, title=title, conclusion=conclusion)]
        if len(records) > 1:
            tables.append(_by_method(records))
        return [*tables, _other_scores(record, shown)]

    worst = sorted(sites, key=_difference)[:_WORST]
    title = f"The {_WORST} sites with the smallest differences: {_by_measure(record)}"
    return [
        _distribution(record, title=question, conclusion=conclusion),
        _verdicts(record, worst, title=title, conclusion=""),
    ]


def verdict_sentences(records: Mapping[str, Record], shown: str, why_shown: str = "") -> list[str]:
    """Return for how many sites each method is worth it, and at which ones accuracy misleads."""
    sentences = [f"{printable(label)}: {sentence(record)}." for label, record in records.items()]
    caution = one_class_caution(records[shown])
    return [*sentences, *filter(None, (why_shown, caution))]


def judge_methods(methods: Sequence[Method], measure: Measure | None = None) -> dict[str, Record]:
    """Return the verdicts of the methods that train together and have predictions, by label.

    The seeds of a method count that have finished. Where a site has no baselines, it is compared
    with its model of the method ``local``.

    Args:
        methods: of a comparison.
        measure: by which models are compared; None: as the runs of each method did.

    Raises:
        DataError: a file is damaged.
    """
    records: dict[str, Record] = {}
    for method in methods:
        folders = {seed: run.path for seed, run in method.finished.items()}
        if method.algorithm == LOCAL or not folders:
            continue

        others = [_on_same_splits(other, method) for other in methods if other is not method]
        local = [_on_same_splits(other, method) for other in methods if other.algorithm == LOCAL]
        record = judge(
            folders,
            others=others,
            local=local[0] if local else None,
            measure=measure or _measure_of(method),
        )
        if record is not None:
            records[method.label] = record

    return records


def _measure_of(method: Method) -> Measure:
    """Return by which measure the run of a method has its verdicts, or is to have them."""
    verdicts = (read_result(method.path) or {}).get("worth_it")
    options = method.config.get("evaluation", {})
    measure = verdicts.get("measure") if isinstance(verdicts, Mapping) else options.get("verdict")
    return cast(Measure, measure) if measure in MEASURES else "accuracy"


def _on_same_splits(method: Method, other: Method) -> dict[int, Path]:
    """Return the folders of a method, by seed, in which it had the data and split of another."""
    folders = {}
    for seed, run in method.finished.items():
        split = method.split_of(seed)
        if seed in other.finished and split and split == other.split_of(seed):
            folders[seed] = run.path

    return folders


class Shown(NamedTuple):
    """The method that has the table."""

    label: str
    """Empty: there is none."""
    reason: str
    """Why it is this one, in a sentence."""


def choose_shown(methods: Sequence[Method]) -> Shown:
    """Choose the method with the best validation accuracy, or else the first one.

    Test examples never decide.
    """
    if len(methods) < 2:
        return Shown(methods[0].label if methods else "", "")

    accuracies = {method.label: _validation_accuracy(method) for method in methods}
    known = {label: value for label, value in accuracies.items() if value is not None}
    if len(known) == len(accuracies):
        best = max(known, key=lambda label: known[label])
        reason = f"The table is of {printable(best)}, the best one on validation examples."
        return Shown(best, reason)

    first = methods[0].label
    reason = (
        f"The table is of {printable(first)}, the first method: without validation examples "
        "(data.val_fraction) no method is known to be the best."
    )
    return Shown(first, reason)


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
            cells = dict(_csv_cells(site))
            rows.append(start | cells | {"measure": record["measure"]})

    columns = dict.fromkeys(name for row in rows for name in row)
    lines = [[row.get(name) for name in columns] for row in rows]
    return csv_text([columns, *lines])


def _csv_cells(site: Record) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a site: names of nested values are joined."""
    for name in ("client", "examples", "groups", "majority"):
        yield name, site[name]

    yield "own_model", " or ".join(site["own"])
    for model, scores in site["scores"].items():
        for metric, value in scores.items():
            yield f"{model}_{metric}", value

    differences = {"difference": site["difference"]}
    for measure, difference in site["other_differences"].items():
        differences[f"{measure}_difference"] = difference
    for name, difference in differences.items():
        paired = difference or dict.fromkeys(("difference", "low", "high"))
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
    columns = ["site", "verdict", "difference (95 % interval)"]
    columns += [f"{_short_name(measure)} own / pers." for measure in MEASURES]
    columns += ["test examples", *(["groups"] if has_groups else [])]
    columns += ["largest class", "best own model"]

    rows: list[Sequence[Cell]] = []
    for site in sites:
        difference = with_interval(site["difference"], record["measure"])
        cells = [_name(site), site["verdict"], difference]
        cells += [_scores(site, (OWN, PERSONALIZED), measure) for measure in MEASURES]
        cells.append(f"{site['examples']:,}")
        if has_groups:
            cells.append(NOTHING if site["groups"] is None else f"{site['groups']:,}")
        majority = round_figure(site["majority"], in_percent=True)
        rows.append([*cells, majority, _own_model(site)])

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
    measure = record["measure"]
    unit = ", in points" if METRICS[measure].in_percent else ""
    sentences = [
        f"difference: {measure_name(measure)} of the personalized model minus that of the best own "
        f"model, on the same examples{unit}. own / pers.: scores of the best own and of the "
        "personalized model. balanced: balanced accuracy, in which every class counts the same. "
        "largest class: share of the most frequent class of the test examples."
    ]
    if used - {LOCAL, MAJORITY}:
        sentences.append("best own model: chosen by the site's own training examples.")
    if LOCAL in used:
        sentences.append("local: the method of this name, which trains at each site alone.")
    if MAJORITY in used:
        sentences.append("majority: a model that always says the most frequent class.")
    if any(len(site["own"]) > 1 for site in sites):
        sentences.append("(3 of 5): chosen in 3 of 5 trainings, by seed and fold.")

    return " ".join([*sentences, record["rule"], _unclear_intervals(record, sites)]).rstrip()


def _unclear_intervals(record: Record, sites: Sequence[Record]) -> str:
    """Explain rows whose intervals and verdicts seem to contradict each other."""
    number = len(record["sites"])
    unclear = []
    for site in sites:
        paired = site["difference"]
        excludes_0 = paired is not None and (paired["low"] > 0 or paired["high"] < 0)
        if excludes_0 and site["verdict"] == _UNCLEAR:
            unclear.append(f"{_name(site)} (corrected p {show_p_value(site['corrected_p_value'])})")

    if not unclear or number == 1:
        return ""
    return (
        f"Not clear although the interval leaves out 0: {', '.join(unclear)}. An interval is of "
        f"one site alone; among {number} sites, one looks different by chance more often."
    )


def _by_method(records: Mapping[str, Record]) -> ReportTable:
    """Return the verdict of every method at every site."""
    cells: dict[str, dict[str, str]] = {}
    for label, record in records.items():
        for site in record["sites"]:
            difference = NOTHING
            if site["difference"] is not None:
                value = site["difference"]["difference"]
                difference = show_measure(value, record["measure"], signed=True)
            verdict = "unclear" if site["verdict"] == _UNCLEAR else site["verdict"]
            cells.setdefault(_name(site), {})[label] = f"{verdict}, {difference}"

    rows: list[Sequence[Cell]] = []
    for name, of_site in cells.items():
        rows.append([name, *(of_site.get(label, NOTHING) for label in records)])

    return ReportTable(
        title="Verdicts and differences by method",
        columns=["site", *map(printable, records)],
        rows=rows,
        below="Each method has its own correction for the number of sites, and none for the "
        "number of methods: the best of several looks better than it is.",
        name="worth-it-methods",
    )


def _other_scores(record: Record, method: str) -> ReportTable:
    """Return the scores of the same sites and models by the measures that do not decide."""
    sites = record["sites"]
    others = [measure for measure in MEASURES if measure != record["measure"]]
    models = _other_models(sites)
    columns = ["site", "p", "corrected p"]
    columns += [f"{_short_name(measure)} difference" for measure in others]
    if models:
        columns += [f"{_short_name(measure)} {' / '.join(models)}" for measure in MEASURES]

    rows: list[Sequence[Cell]] = []
    for site in sites:
        cells = [_name(site), show_p_value(site["p_value"])]
        cells.append(show_p_value(site["corrected_p_value"]))
        cells += [with_interval(site["other_differences"][name], name) for name in others]
        if models:
            cells += [_scores(site, models, measure) for measure in MEASURES]
        rows.append(cells)

    sentences = [
        f"p, corrected p: of the difference in {measure_name(record['measure'])}, which decides. "
        "The differences here, personalized minus best own model, decide no verdict."
    ]
    if GLOBAL in models:
        sentences.append("global: the model of the server.")
    if POOLED in models:
        sentences.append("pooled: the own kind of model on all sites' data in one place.")

    return ReportTable(
        title=f"More of the same sites, {printable(method)}",
        columns=columns,
        rows=rows,
        below=" ".join(sentences),
        name="worth-it-scores",
    )


def _distribution(record: Record, *, title: str, conclusion: str) -> ReportTable:
    """Return the verdicts and differences of many sites."""
    import numpy as np

    measure = record["measure"]
    in_percent = METRICS[measure].in_percent
    rows: list[Sequence[Cell]] = []
    for verdict in ("all", *get_args(Verdict)):
        chosen = [site for site in record["sites"] if verdict in ("all", site["verdict"])]
        differences = [_difference(site) for site in chosen if site["difference"] is not None]
        cells = [NOTHING] * len(_QUANTILES)
        if differences:
            quantiles = np.quantile(differences, list(_QUANTILES.values())).tolist()
            cells = [round_figure(value, in_percent, signed=True) for value in quantiles]
        rows.append([verdict, f"{len(chosen):,}", *cells])

    return ReportTable(
        title=f"{title}: differences in {measure_name(measure)}{', in points' * in_percent}",
        columns=["verdict", "sites", *_QUANTILES],
        rows=rows,
        conclusion=conclusion,
        below="10 % to 90 %: quantiles over sites. All sites are in the files.",
        name="worth-it-distribution",
    )


def _other_models(sites: Sequence[Record]) -> list[str]:
    """Return what else has predicted; a global model is left out if it is the personalized one."""
    scores = [site["scores"] for site in sites]
    models = []
    if any(
        of_site.get(GLOBAL, of_site[PERSONALIZED]) != of_site[PERSONALIZED] for of_site in scores
    ):
        models.append(GLOBAL)
    if any(POOLED in of_site for of_site in scores):
        models.append(POOLED)
    return models


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
    """Return the difference of a site; of one without AUROC it is above all others."""
    return float(site["difference"]["difference"]) if site["difference"] else math.inf


def _scores(site: Record, models: Sequence[str], measure: Measure) -> str:
    values = [site["scores"].get(model, {}).get(measure) for model in models]
    return " / ".join(show_measure(value, measure) for value in values)


def _short_name(measure: Measure) -> str:
    """Return a measure as the heading of a column has it."""
    return METRICS[measure].heading or measure_name(measure)


def _by_measure(record: Record) -> str:
    """Return by what the verdicts are, and in which unit the differences."""
    measure = record["measure"]
    points = ", differences in points" if METRICS[measure].in_percent else ""
    return f"by {measure_name(measure)}{points}"


def show_measure(value: float | None, measure: str, *, signed: bool = False) -> str:
    """Return a value of a measure as tables show it: in percent, or with three places."""
    return round_figure(value, METRICS[measure].in_percent, signed=signed)


def with_interval(paired: Record | None, measure: str) -> str:
    """Return a difference with its interval in brackets."""
    if paired is None:
        return NOTHING

    names = ("difference", "low", "high")
    texts = [show_measure(paired[name], measure, signed=True) for name in names]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"
