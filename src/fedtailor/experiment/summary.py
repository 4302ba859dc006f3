"""Records of a run, from the reports of its rounds: one per round, one per client and evaluation,
and the result.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtailor.core.metrics import (
    HIGHER_IS_BETTER,
    ClassShares,
    Scores,
    across,
    auroc,
    auroc_error,
    by_class,
    confusion,
    is_ranked,
    per_client,
    recall,
    reliability,
    score_bins,
    summarize,
    total,
)
from fedtailor.core.roster import Roster
from fedtailor.experiment.intervals import Interval, auroc_interval, mean_interval, wilson_interval
from fedtailor.simulation.report import Evaluation, RoundReport

Record = dict[str, Any]
_EVENTS = {
    "quarantine": "upload{s} left out",
    "failed": "client{s} failed",
    "absent": "client{s} without an answer",
    "skipped": "client{s} skipped",
}


def round_record(report: RoundReport, roster: Roster) -> Record:
    """Return the line of ``rounds.jsonl`` for a round."""
    record: Record = {
        "round": report.round,
        "cohort": report.cohort,
        "steps": report.steps,
        "bytes": {"up": report.bytes_up, "down": report.bytes_down},
        "seconds": report.seconds,
        "training_metrics": {
            name: _mean(list(values.values())) for name, values in report.metrics.items()
        },
        "evaluations": [
            _evaluation_record(evaluation, roster) for evaluation in report.evaluations
        ],
    }
    best = report.state.selection
    if best is not None:
        record["best"] = {"round": best.round, "validation_accuracy": best.accuracy}

    return record


def selected(last: RoundReport, select: str) -> Record:
    """Return the round of the final models, by what it was selected, and the best round on
    validation examples.
    """
    final = last.final or last
    by = (
        "mean accuracy of personalized models on validation examples"
        if select == "best"
        else "the last round"
    )
    found: Record = {"round": final.round, "by": by}
    best = last.state.selection
    if best is not None:
        found |= {"best_round": best.round, "best_validation_accuracy": best.accuracy}

    return found


def _evaluation_record(evaluation: Evaluation, roster: Roster) -> Record:
    """Return the labels of an evaluation and its figures over all clients."""
    record = {
        **_labels(evaluation),
        "metrics": _summary(evaluation, roster, range(len(evaluation.scores))),
        **_by_condition(evaluation, roster),
    }
    if evaluation.test_set == "complete":  # it belongs to no client, so it has no other line
        record |= _details(evaluation.scores[0])
    return record


def _details(scores: Scores) -> Record:
    """Return what figures are made of: examples by confidence, and by class and prediction."""
    return {"bins": reliability(scores), "confusion": confusion(scores)}


def client_records(report: RoundReport, roster: Roster) -> list[Record]:
    """Return the lines of ``clients.jsonl`` for a round: scores by client, and its training
    metrics.
    """
    records: list[Record] = []
    for evaluation in report.evaluations:
        if evaluation.test_set == "complete":
            continue

        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True):
            record = {"round": report.round, "client": client, **_labels(evaluation)}
            if roster.conditions:
                record["condition"] = roster.conditions[client]

            record["num_train"] = roster.num_train[client]
            record["num_test"] = roster.num_test[client]
            record |= per_client(scores)
            record["recall"] = recall(scores)
            record |= _details(scores)

            if is_ranked(scores):
                record.setdefault("auroc", None)
                record["auroc_by_class"] = {
                    str(label): area for label, area in enumerate(auroc(scores))
                }
                record["score_bins"] = score_bins(scores)

            record |= _of_client("diagnostics", evaluation.diagnostics, client)
            records.append(record)

    for client in sorted({client for values in report.metrics.values() for client in values}):
        record = {"round": report.round, "client": client, "point": "training"}
        records.append(record | _of_client("training_metrics", report.metrics, client))

    return records


def final_metrics(report: RoundReport, roster: Roster) -> tuple[Record, Record]:
    """Return the metrics of a round by evaluation point: of the known clients, and of the new ones.

    ``validation`` holds those of personalized models on validation examples, ``global_complete``
    those of the global model on the complete official test part. ``by_class`` holds AUROC,
    sensitivity and specificity of every class.
    """
    known: Record = {}
    new: Record = {}
    for evaluation in report.evaluations:
        place = known if evaluation.group == "known" else new
        record = _evaluation_record(evaluation, roster)
        labels = {
            name: record[name]
            for name in ("adaptation", "test_set", "conditions")
            if name in record
        }
        place[evaluation_name(record)] = {
            **labels,
            "round": report.round,
            **record["metrics"],
            **_over_sites(evaluation.scores, roster.class_names),
        }

    return known, new


def site_scores(report: RoundReport, roster: Roster) -> Record:
    """Return the scores of the personalized models by the clients' names; empty where clients have
    no names.

    ``accuracy_interval`` is the 95 % interval of an accuracy, and so on: see
    :mod:`fedtailor.experiment.intervals`.
    """
    if not roster.names:
        return {}

    sites: Record = {}
    for evaluation in report.evaluations:
        if evaluation.point != "personalized" or evaluation.test_set != "clients":
            continue

        for client, scores in zip(evaluation.ids, evaluation.scores, strict=True):
            site: Record = {
                "new": client in roster.new,
                "num_train": roster.num_train[client],
                "num_test": roster.num_test[client],
                **per_client(scores),
            }

            if "accuracy" in site:
                site["accuracy_interval"] = wilson_interval(site["accuracy"], _num_examples(scores))
                site.setdefault("auroc", None)
                site["by_class"] = _of_site(scores, roster.class_names)
                site["confusion"] = confusion(scores)

            sites[roster.names[client]] = site

    return sites


def _of_site(scores: Scores, class_names: Sequence[str]) -> Record:
    """Return AUROC, sensitivity and specificity of every class at one site, each with its interval.

    None stands for what has no value, because the site has no example of the class, or no other.
    """
    areas = auroc(scores)
    classes: Record = {}
    for label, counts in enumerate(by_class(scores)):
        entry: Record = _named(label, class_names)
        entry["positives"] = round(counts.positives)
        entry["negatives"] = round(counts.negatives)
        entry["auroc"] = areas[label]
        entry["auroc_interval"] = _auroc_interval(areas[label], scores, label)

        for name, right, examples in _shares(counts):
            entry[name] = right / examples if examples else None
            entry[f"{name}_interval"] = (
                wilson_interval(right / examples, round(examples)) if examples else None
            )

        classes[str(label)] = entry

    return classes


def _over_sites(scores: Sequence[Scores], class_names: Sequence[str]) -> Record:
    """Return AUROC, sensitivity and specificity of every class over clients, with the confusion
    counts of all.

    ``mean`` is over the clients that have the figure, ``pooled`` over all examples; both come with
    an interval.
    """
    scored = [each for each in scores if float(each.class_total.sum()) > 0]
    if not scored:
        return {}

    together = across(total(scored))
    pooled_areas = auroc(together)
    errors = auroc_error(together)
    areas = [auroc(each) for each in scored]
    counts = [by_class(each) for each in scored]
    classes: Record = {}

    for label, pooled in enumerate(by_class(together)):
        entry: Record = _named(label, class_names)
        entry["positives"] = round(pooled.positives)
        entry["negatives"] = round(pooled.negatives)
        entry["auroc"] = {
            "pooled": pooled_areas[label],
            "pooled_error": errors[label],
            "pooled_interval": _auroc_interval(
                pooled_areas[label], together, label, error=errors[label] or 0.0
            ),
            **_mean_over([area[label] for area in areas]),
        }

        for place, (name, right, examples) in enumerate(_shares(pooled)):
            single = [_shares(client[label])[place] for client in counts]
            entry[name] = {
                "pooled": right / examples if examples else None,
                "pooled_interval": wilson_interval(right / examples, round(examples))
                if examples
                else None,
                **_mean_over(
                    [right / examples if examples else None for _, right, examples in single]
                ),
            }

        classes[str(label)] = entry

    return {"by_class": classes, "confusion": confusion(together)}


def _named(label: int, class_names: Sequence[str]) -> Record:
    """Return the name of a class, if the classes have names."""
    return {"class": class_names[label]} if class_names else {}


def _shares(counts: ClassShares) -> tuple[tuple[str, float, float], ...]:
    """Return the shares of a class: name, right examples, all examples."""
    return (
        ("sensitivity", counts.found, counts.positives),
        ("specificity", counts.rejected, counts.negatives),
    )


def _auroc_interval(
    area: float | None, scores: Scores, label: int, *, error: float = 0.0
) -> Interval | None:
    """Return the interval of the AUROC of a class; None where it has no AUROC."""
    if area is None:
        return None
    positives = float(scores.class_total[label])
    negatives = float(scores.class_total.sum()) - positives
    return auroc_interval(area, positives, negatives, error=error)


def _mean_over(values: Sequence[float | None]) -> Record:
    """Return the mean over the clients that have a value, its interval, and how many they are."""
    found = [value for value in values if value is not None]
    if not found:
        return {"mean": None, "mean_interval": None, "clients": 0}
    mean = _mean(found)
    interval = mean_interval(mean, statistics.stdev(found), len(found)) if len(found) > 1 else None
    return {"mean": mean, "mean_interval": interval, "clients": len(found)}


def evaluation_name(evaluation: Mapping[str, Any]) -> str:
    """Return the name of an evaluation among the metrics of a run."""
    point = str(evaluation["point"])
    return {"validation": "validation", "complete": f"{point}_complete"}.get(
        evaluation["test_set"], point
    )


class Totals:
    """Sums over the rounds of a run; the rounds themselves are not kept."""

    def __init__(self) -> None:
        """Start before the first round."""
        self._seconds = {"train": 0.0, "evaluate": 0.0}
        self._bytes = {"up": 0, "down": 0}
        self._steps = 0
        self._events: Counter[str] = Counter()

    def add_round(self, record: Mapping[str, Any]) -> None:
        """Add the record of a round."""
        for name in self._seconds:
            self._seconds[name] += record["seconds"][name]
        for way in self._bytes:
            self._bytes[way] += record["bytes"][way]
        self._steps += record["steps"]

    def add_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Count events."""
        self._events.update(event["kind"] for event in events)

    def record(self) -> Record:
        """Return seconds, bytes and gradient steps, and the number of events of each kind."""
        return {
            "seconds": dict(self._seconds),
            "bytes": dict(self._bytes),
            "steps": self._steps,
            "events": {kind: self._events[kind] for kind in (*_EVENTS, "repeated")},
        }


def event_sentences(report: RoundReport) -> list[str]:
    """Return what happened to clients in a round: one sentence per kind of event, with the first
    reason.
    """
    sentences = []
    for kind, words in _EVENTS.items():
        found = [event for event in report.events if event["kind"] == kind]
        if found:
            what = f"{len(found)} {words.format(s='' if len(found) == 1 else 's')}"
            more = "; ..." if len(found) > 1 else ""
            first = f"client {found[0]['client']}: {found[0]['reason'].rstrip('.')}"
            sentences.append(f"round {report.round}: {what} ({first}{more})")

    sentences += [
        f"round {report.round}: {event['reason']}"
        for event in report.events
        if event["kind"] == "repeated"
    ]

    return sentences


def average(results: Sequence[Record]) -> Record:
    """Return the mean of results over seeds: every figure, with ``sem`` beside the figures of a
    metric.

    Counts (seconds, bytes, steps) are means too, but events are summed, so that none is lost to
    rounding. ``shared_split`` says whether all seeds had the same split. Values that are not
    numbers are those of the first result.
    """
    first = results[0]
    names = [name for name in first if name != "split_sha256"]
    shared = [
        name for name in names if all(name in result for result in results)
    ]  # not all may have reused a training
    means = {name: _average([result[name] for result in results]) for name in shared}
    if "split_sha256" in first:
        means["shared_split"] = len({result["split_sha256"] for result in results}) == 1

    if "events" in first:
        means["events"] = {
            kind: sum(result["events"][kind] for result in results) for kind in first["events"]
        }

    return means


def _average(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        shared = [name for name in values[0] if all(name in value for value in values)]
        # a mean of intervals is not an interval, and counts of one seed are not those of all
        names = [name for name in shared if not name.endswith("interval") and name != "confusion"]
        merged = {name: _average([value[name] for value in values]) for name in names}
        if "mean" in merged and "pooled" in merged:
            numbers = [name for name in names if isinstance(merged[name], float)]
            merged["sem"] = {
                name: _standard_error([value[name] for value in values]) for name in numbers
            }

        return merged

    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        mean = _mean(values)
        return round(mean) if all(isinstance(value, int) for value in values) else mean

    return None if None in values else values[0]


def _labels(evaluation: Evaluation) -> Record:
    """Return the labels of an evaluation: point, adaptation, test set and group of clients."""
    return {
        "point": evaluation.point,
        "adaptation": evaluation.adaptation,
        "test_set": evaluation.test_set,
        "group": evaluation.group,
    }


def _summary(evaluation: Evaluation, roster: Roster, places: Iterable[int]) -> Record:
    """Return the figures over some of the clients of an evaluation."""
    chosen = list(places)
    sizes = [roster.num_train[client] for client in evaluation.ids] or [
        0
    ]  # the complete set has no client
    num_train = [sizes[place] for place in chosen]
    scores = [evaluation.scores[place] for place in chosen]
    figures: Record = {name: dict(values) for name, values in summarize(scores, num_train).items()}
    figures["examples"] = sum(_num_examples(each) for each in scores)

    if "accuracy" in figures:
        figures["pooled_interval"] = wilson_interval(
            figures["accuracy"]["pooled"], figures["examples"]
        )

    for name in HIGHER_IS_BETTER:
        if "std" in figures.get(name, {}):
            metric = figures[name]
            count = round(metric.get("clients", figures["clients"]["evaluated"]))
            metric["mean_interval"] = mean_interval(
                metric["mean"], metric["std"], count, is_share=name != "loss"
            )

    return figures


def _num_examples(scores: Scores) -> int:
    """Return the number of test examples that scores are of."""
    return round(float(scores.class_total.sum()))


def _by_condition(evaluation: Evaluation, roster: Roster) -> Record:
    """Return the figures by the condition of the clients' examples, where there are several."""
    if not roster.conditions:
        return {}

    places: dict[str, list[int]] = {}
    for place, client in enumerate(evaluation.ids):
        places.setdefault(roster.conditions[client], []).append(place)

    if len(places) < 2:
        return {}

    return {
        "conditions": {
            name: _summary(evaluation, roster, chosen) for name, chosen in places.items()
        }
    }


def _of_client(name: str, table: Mapping[str, Mapping[int, float]], client: int) -> Record:
    """Return a client's numbers under a name, or nothing if there are none."""
    numbers = {key: values[client] for key, values in table.items() if client in values}
    return {name: numbers} if numbers else {}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over seeds."""
    center = _mean(values)
    return math.sqrt(
        math.fsum((value - center) ** 2 for value in values) / (len(values) - 1) / len(values)
    )
