"""Records of a run, from the reports of its rounds: one per round, one per client, the result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtailor.core.federation import Roster
from fedtailor.core.metrics import (
    CLASS_SHARES,
    CLIENT_METRICS,
    auroc,
    figures_by_class,
    per_client,
    recall,
)
from fedtailor.core.schedule import Schedule
from fedtailor.core.scores import (
    ClassShares,
    Scores,
    across,
    auroc_error,
    by_class,
    confusion,
    is_ranked,
    reliability,
    total,
)
from fedtailor.experiment.estimates import (
    Interval,
    auroc_interval,
    mean_interval,
    mean_of_bounds,
    mean_of_shares_interval,
    summarize,
    summarize_sums,
    wilson_interval,
)
from fedtailor.experiment.reader import LAST_ROUND, chance_over_seeds
from fedtailor.simulation.report import NOBODY, Evaluation, RoundReport

Record = dict[str, Any]

_FEWEST_OF_A_CLASS = 5
"""Test examples of every class without which nobody asks whether a client's model is better than
chance: too few to tell."""
_MISSING = "worst and smallest tenth, minimum and maximum: only a sum over clients is known"
_NO_MEANS = ("split_sha256", "worth_it", "operating_points", "privacy")
"""Parts of a result that have no mean over seeds."""
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
        "training_metrics": _training_metrics(report),
        "evaluations": [_evaluation_record(scored, roster) for scored in report.evaluations],
    }
    if report.privacy:
        record["privacy"] = report.privacy

    best = report.state.selection
    if best is not None:
        record["best"] = {"round": best.state.round, "validation_accuracy": best.accuracy}

    return record


def _training_metrics(report: RoundReport) -> Record:
    """Return the means of the training metrics over clients."""
    means = {}
    for name, values in report.metrics.items():
        means[name] = statistics.fmean(values.values())

    # A mean over all clients counts more than one over those that show their own numbers.
    for name, summed in report.metric_sums.items():
        if summed.clients > len(report.metrics.get(name, ())):
            means[name] = summed.total / summed.clients

    return means


def client_records(report: RoundReport, roster: Roster) -> list[Record]:
    """Return the lines of ``clients.jsonl`` for a round: scores, and metrics of the training."""
    records = []
    for evaluation in report.evaluations:
        if evaluation.test_set == "complete":  # it belongs to no client
            continue

        for client, scores in evaluation.scores.items():
            record = {"round": report.round, "client": client, **_labels(evaluation)}
            if roster.conditions:
                record["condition"] = roster.conditions[client]

            record |= {"num_train": roster.num_train[client], "num_test": roster.num_test[client]}
            record |= {**per_client(scores), "recall": recall(scores), **_details(scores)}

            # AUROC, where scores order the examples; None for a client with one class.
            if is_ranked(scores):
                record.setdefault("auroc", None)
                areas = enumerate(auroc(scores))
                record["auroc_by_class"] = {str(label): area for label, area in areas}

            record |= _of_client("diagnostics", evaluation.diagnostics, client)
            records.append(record)

    # Clients that trained may have no score, so these numbers have lines of their own.
    trained = {client for values in report.metrics.values() for client in values}
    for client in sorted(trained):
        record = {"round": report.round, "client": client, "point": "training"}
        records.append(record | _of_client("training_metrics", report.metrics, client))

    return records


def _of_client(name: str, table: Mapping[str, Mapping[int, float]], client: int) -> Record:
    """Return a client's numbers under a name, or nothing if there are none."""
    numbers = {key: values[client] for key, values in table.items() if client in values}
    return {name: numbers} if numbers else {}


def _evaluation_record(evaluation: Evaluation, roster: Roster) -> Record:
    """Return the labels of an evaluation and its figures over all clients."""
    record = _labels(evaluation)
    record["metrics"] = _summary(evaluation, roster, list(evaluation.scores))
    record |= _by_condition(evaluation, roster)
    if evaluation.test_set == "complete":  # it belongs to no client, so it has no other line
        record |= _details(evaluation.scores[NOBODY])
    return record


def _labels(evaluation: Evaluation) -> Record:
    return {
        "point": evaluation.point,
        "adaptation": evaluation.adaptation,
        "test_set": evaluation.test_set,
        "group": evaluation.group,
    }


def _details(scores: Scores) -> Record:
    """Return what figures are made of: examples by confidence, and by class and prediction."""
    return {"bins": reliability(scores), "confusion": confusion(scores)}


def _summary(evaluation: Evaluation, roster: Roster, clients: Sequence[int]) -> Record:
    """Return the figures over some of the clients of an evaluation."""
    summed = evaluation.only_sums
    if summed is not None:
        figures: Record = summarize_sums(summed)
        figures["examples"] = _num_examples(summed.total)
        figures["missing"] = _MISSING
    else:
        scores = [evaluation.scores[client] for client in clients]
        num_train = [0 if client == NOBODY else roster.num_train[client] for client in clients]
        figures = {name: dict(values) for name, values in summarize(scores, num_train).items()}
        figures["examples"] = sum(map(_num_examples, scores))

    # This interval is about the examples, those of the means are about the clients.
    if "accuracy" in figures:
        pooled = figures["accuracy"]["pooled"]
        count = _independence(evaluation, roster, clients) * figures["examples"]
        figures["pooled_interval"] = wilson_interval(pooled, count)

    for name, metric in CLIENT_METRICS.items():
        values = figures.get(name, {})
        if "std" in values:
            count = round(values.get("clients", figures["clients"]["evaluated"]))
            values["mean_interval"] = mean_interval(
                values["mean"], values["std"], count, is_share=metric.is_share
            )

    return figures


def _independence(evaluation: Evaluation, roster: Roster, clients: Sequence[int]) -> float:
    """Return how many independent examples an example of some clients is worth, at least."""
    if evaluation.only_sums is not None or evaluation.test_set == "complete":
        return 1.0

    counts = {client: _num_examples(evaluation.scores[client]) for client in clients}
    independent = sum(roster.independence(client) * count for client, count in counts.items())
    return independent / max(1, sum(counts.values()))


def _by_condition(evaluation: Evaluation, roster: Roster) -> Record:
    """Return the figures by the condition of the clients' examples, where there are several."""
    members: dict[str, list[int]] = {}
    if roster.conditions and evaluation.test_set != "complete":
        for client in evaluation.scores:
            members.setdefault(roster.conditions[client], []).append(client)

    if len(members) < 2:
        return {}

    summaries = {name: _summary(evaluation, roster, clients) for name, clients in members.items()}
    return {"conditions": summaries}


def result(last: RoundReport, roster: Roster, schedule: Schedule) -> Record:
    """Return the scores of a run after its last round; of the selected round, if one was.

    ``metrics`` holds them by evaluation point: ``validation`` those of personalized models on
    validation examples, ``global_complete`` those of the global model on the complete official test
    part. ``by_class`` holds the metrics of every class, such as AUROC. ``new_clients`` is the same
    for clients that never train, and ``sites`` has the scores by the clients' names.
    ``majority_accuracy`` is the mean over the known clients of the accuracy of always predicting
    the most frequent class of the client's training examples. ``chance`` says how many clients
    have enough test examples to ask whether the personalized model is better than chance, and at
    which it is not clear. ``positive_class`` is that of two classes.
    """
    # The round whose models the run gives, which is the best one if that was asked for.
    final = last.final or last
    metrics, new_clients = _final_metrics(final, roster)
    record: Record = {"rounds": last.round, "metrics": metrics}
    if schedule.watches_validation:
        record["selected"] = _selected(last, final, schedule)
    if new_clients:
        record["new_clients"] = new_clients

    personalized = personalized_scores(final)
    record |= _majority_of(personalized, roster)
    record["chance"] = _chance(personalized, roster)
    if len(roster.classes) == 2:
        record["positive_class"] = roster.classes[schedule.positive_of(roster.classes)]
    if roster.names:
        record["sites"] = _site_scores(personalized, roster)

    return record


def personalized_scores(report: RoundReport) -> dict[int, Scores]:
    """Return the scores of the personalized models on the clients' test examples, by client."""
    by_client: dict[int, Scores] = {}
    for evaluation in report.evaluations:
        if evaluation.point == "personalized" and evaluation.test_set == "clients":
            by_client.update(evaluation.scores)

    return by_client


def _majority_of(personalized: Mapping[int, Scores], roster: Roster) -> Record:
    """Return the mean accuracy of the most frequent classes over the known clients, if there is."""
    # Of some clients the class is not known, and some have no test examples.
    accuracies = []
    for client in personalized.keys() & set(roster.known):
        examples = _num_examples(personalized[client])
        label = roster.majority[client] if roster.majority else -1
        if label >= 0 and examples:
            accuracies.append(float(personalized[client].class_total[label]) / examples)

    return {"majority_accuracy": statistics.fmean(accuracies)} if accuracies else {}


def _chance(personalized: Mapping[int, Scores], roster: Roster) -> Record:
    """Return at how many clients it was asked whether the model beats chance, and where unclear.

    Asked are clients with at least five test examples of every class that they have, and two such
    classes. It is clear where the 95 % interval of the balanced accuracy lies above one divided by
    the number of these classes: what any prediction reaches that does not look at the example.
    """
    asked = 0
    unclear = []
    for client, scores in sorted(personalized.items()):
        counts = [count for count in scores.class_total.tolist() if count > 0]
        if len(counts) < 2 or min(counts) < _FEWEST_OF_A_CLASS:
            continue

        asked += 1
        interval = _balanced_interval(scores, roster.independence(client))
        if interval["low"] <= 1 / len(counts):
            unclear.append(roster.name_of(client))

    return {"asked": asked, "unclear": unclear}


def intervals_of_site(scores: Scores, independent: float = 1.0) -> dict[str, Interval]:
    """Return the 95 % intervals of accuracy, balanced accuracy and AUROC of a client.

    Without test examples there are none, and of one class there is no AUROC. Of several classes,
    the bounds of the AUROC are means, which is conservative.

    Args:
        scores: of the client.
        independent: how many independent examples one is worth, see :func:`classes_of_site`.
    """
    values = per_client(scores)
    if not values:
        return {}

    count = independent * _num_examples(scores)
    intervals = {
        "accuracy": wilson_interval(values["accuracy"], count),
        "balanced_accuracy": _balanced_interval(scores, independent),
    }
    classes = classes_of_site(scores, (), independent)
    area = mean_of_bounds([one["auroc_interval"] for one in classes.values()])
    return intervals if area is None else {**intervals, "auroc": area}


def _balanced_interval(scores: Scores, independent: float = 1.0) -> Interval:
    """Return the 95 % interval of the balanced accuracy of a client with test examples."""
    present = scores.class_total > 0
    counts = scores.class_total[present]
    recalls = scores.class_correct[present] / counts
    return mean_of_shares_interval(recalls.tolist(), (independent * counts).tolist())


def _selected(last: RoundReport, final: RoundReport, schedule: Schedule) -> Record:
    """Return the round of the final models, by what it was selected, and the best round."""
    by = LAST_ROUND
    if schedule.select == "best":
        by = "mean accuracy of personalized models on validation examples"

    record: Record = {"round": final.round, "by": by}
    best = last.state.selection
    if best is not None:
        record |= {"best_round": best.state.round, "best_validation_accuracy": best.accuracy}

    return record


def _final_metrics(report: RoundReport, roster: Roster) -> tuple[Record, Record]:
    """Return the metrics of a round by evaluation point: of the known clients, of the new ones."""
    of_known: Record = {}
    of_new: Record = {}
    for evaluation in report.evaluations:
        record = _evaluation_record(evaluation, roster)
        labels = ("adaptation", "test_set", "conditions")
        point = {name: record[name] for name in labels if name in record}
        point |= {"round": report.round, **record["metrics"]}
        point |= _classes_over_clients(evaluation, roster)
        group = of_known if evaluation.group == "known" else of_new
        group[evaluation_name(record)] = point

    return of_known, of_new


def evaluation_name(evaluation: Mapping[str, Any]) -> str:
    """Return the name of an evaluation among the metrics of a run."""
    if evaluation["test_set"] == "validation":
        return "validation"
    point = str(evaluation["point"])
    return f"{point}_complete" if evaluation["test_set"] == "complete" else point


def _site_scores(personalized: Mapping[int, Scores], roster: Roster) -> Record:
    """Return the scores of the personalized models by the clients' names.

    ``accuracy_interval`` is the 95 % interval of an accuracy, and so on: see
    :mod:`fedtailor.experiment.estimates`.
    """
    sites: Record = {}
    for client, scores in personalized.items():
        site: Record = {
            "new": client in roster.new,
            "num_train": roster.num_train[client],
            "num_test": roster.num_test[client],
            **per_client(scores),
        }

        if "accuracy" in site:
            # Intervals count a group, such as a patient, once.
            independent = roster.independence(client)
            count = independent * _num_examples(scores)
            site["accuracy_interval"] = wilson_interval(site["accuracy"], count)
            site["balanced_accuracy_interval"] = _balanced_interval(scores, independent)
            site.setdefault("auroc", None)
            site["by_class"] = classes_of_site(scores, roster.class_names, independent)
            site["confusion"] = confusion(scores)

        sites[roster.names[client]] = site

    return sites


def classes_of_site(scores: Scores, class_names: Sequence[str], independent: float = 1.0) -> Record:
    """Return the metrics of every class at one site, with intervals.

    None stands for what has no value, because the site has no example of the class, or no other.

    Args:
        scores: of the site.
        class_names: empty if classes have no names.
        independent: how many independent examples one example is worth, below 1 where examples come
            in groups; intervals count these.
    """
    counts = by_class(scores)
    classes: Record = {}
    for label, figures in enumerate(figures_by_class(scores)):
        entry = _class_entry(label, counts[label], class_names)
        for name, value in figures.items():
            entry[name] = value
            entry[f"{name}_interval"] = _interval_of(name, value, counts[label], independent)

        classes[str(label)] = entry

    return classes


def _classes_over_clients(evaluation: Evaluation, roster: Roster) -> Record:
    """Return the metrics of every class over clients, and all confusions.

    ``mean`` is over the clients that have the figure, ``pooled`` over all examples; both come with
    an interval.
    """
    summed = evaluation.only_sums
    scores = list(evaluation.scores.values()) if summed is None else [summed.total]
    scored = [client for client in scores if float(client.class_total.sum()) > 0]
    if not scored:
        return {}

    # All clients as one, for the pooled figures.
    together = across(total(scored))
    counts = by_class(together)
    errors = auroc_error(together)
    of_clients = [figures_by_class(client) for client in scored]
    independent = _independence(evaluation, roster, list(evaluation.scores))
    classes: Record = {}

    for label, pooled in enumerate(figures_by_class(together)):
        entry = _class_entry(label, counts[label], roster.class_names)
        for name, value in pooled.items():
            entry[name] = {"pooled": value}
            error = 0.0
            if name == "auroc":  # of all examples it is that of binned scores
                entry[name]["pooled_error"] = errors[label]
                error = errors[label] or 0.0

            interval = _interval_of(name, value, counts[label], independent, error=error)
            if summed is None:
                means = _mean_over([figures[label][name] for figures in of_clients])
            else:
                figure = summed.by_class[label][name]
                means = _mean_record(figure.total, figure.deviation, figure.clients)
            entry[name] |= {"pooled_interval": interval, **means}

        classes[str(label)] = entry

    return {"by_class": classes, "confusion": confusion(together)}


def _class_entry(label: int, counts: ClassShares, class_names: Sequence[str]) -> Record:
    """Return the name of a class, if classes have names, and its numbers of examples."""
    entry: Record = {"class": class_names[label]} if class_names else {}
    entry["positives"] = round(counts.positives)
    entry["negatives"] = round(counts.negatives)
    return entry


def _interval_of(
    name: str,
    value: float | None,
    counts: ClassShares,
    independent: float,
    *,
    error: float = 0.0,
) -> Interval | None:
    """Return the interval of a figure of a class; None where it has no value.

    ``independent`` is what an example counts, and ``error`` the most by which an AUROC can be
    wrong.
    """
    if value is None:
        return None

    counts = ClassShares(*(independent * count for count in counts))
    if name == "auroc":
        return auroc_interval(value, counts.positives, counts.negatives, error=error)
    _, examples = CLASS_SHARES[name](counts)
    return wilson_interval(value, examples)


def _mean_over(values: Sequence[float | None]) -> Record:
    """Return the mean over the clients that have a value, its interval, and how many they are."""
    numbers = [value for value in values if value is not None]
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return _mean_record(math.fsum(numbers), deviation, len(numbers))


def _mean_record(total: float, deviation: float, clients: int) -> Record:
    """Return a mean over clients from their sum, its interval, and how many they are."""
    if not clients:
        return {"mean": None, "mean_interval": None, "clients": 0}

    mean = total / clients
    interval = mean_interval(mean, deviation, clients)
    return {"mean": mean, "mean_interval": interval, "clients": clients}


def _num_examples(scores: Scores) -> int:
    """Return the number of test examples that scores are of."""
    return round(float(scores.class_total.sum()))


class Totals:
    """Sums over the rounds of a run; the rounds themselves are not kept."""

    def __init__(self) -> None:
        """Start before the first round."""
        self.record: Record = {
            "seconds": {"train": 0.0, "evaluate": 0.0},
            "bytes": {"up": 0, "down": 0},
            "steps": 0,
            "events": dict.fromkeys([*_EVENTS, "repeated"], 0),
        }
        """Seconds, bytes and gradient steps, and the number of events of each kind."""

    def add_round(self, record: Mapping[str, Any]) -> None:
        """Add the record of a round."""
        for section in ("seconds", "bytes"):
            sums = self.record[section]
            for name in sums:
                sums[name] += record[section][name]

        self.record["steps"] += record["steps"]

    def add_events(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Count events; notes are not counted."""
        counts = self.record["events"]
        for event in events:
            if event["kind"] in counts:
                counts[event["kind"]] += 1


def event_sentences(report: RoundReport, roster: Roster) -> list[str]:
    """Return what happened to clients in a round: a sentence per kind, with the first reason."""
    sentences = []

    # One sentence a kind, however many clients it concerns.
    for kind, words in _EVENTS.items():
        events = [event for event in report.events if event["kind"] == kind]
        if events:
            what = f"{len(events)} {words.format(s='' if len(events) == 1 else 's')}"
            more = "; ..." if len(events) > 1 else ""
            first = f"{_whose(events[0], roster)}: {events[0]['reason'].rstrip('.')}"
            sentences.append(f"round {report.round}: {what} ({first}{more})")

    for event in report.events:
        if event["kind"] == "repeated":
            sentences.append(f"round {report.round}: {event['reason']}")
        if event["kind"] == "no sum":
            sentences.append(f"round {report.round}: no sum of scores ({event['reason']})")

    return sentences


def _whose(event: Mapping[str, Any], roster: Roster) -> str:
    """Return whom an event concerns, in words."""
    if event["client"] == NOBODY:
        return "the complete test part"

    return f"client {roster.name_of(event['client'])}"


def average(results: Sequence[Record]) -> Record:
    """Return the mean of results over seeds: every figure, with ``sem`` beside those of a metric.

    Counts (seconds, bytes, steps) are means too, but events are summed, so that none is lost to
    rounding. ``shared_split`` says whether all seeds had the same split. Values that are not
    numbers are those of the first result.
    """
    first = results[0]
    means = {}
    for name in first:
        if name not in _NO_MEANS and all(name in result for result in results):
            means[name] = _average([result[name] for result in results])

    # Trainings may end after different rounds, and a mean of them is no round.
    if "rounds" in first:
        means["rounds"] = max(result["rounds"] for result in results)
    if "selected" in means:
        means["selected"] = selected_rounds(results)

    if "split_sha256" in first:
        means["shared_split"] = len({result["split_sha256"] for result in results}) == 1

    if all("chance" in result for result in results):
        means["chance"] = chance_over_seeds([result["chance"] for result in results])

    # Few runs have noise, and others do not import this.
    if "privacy" in first:
        from fedtailor.privacy.claims import promises_of

        means |= promises_of(results)

    # Events are rare: a mean would round them to none.
    if "events" in first:
        for kind in first["events"]:
            means["events"][kind] = sum(result["events"][kind] for result in results)

    return means


def selected_rounds(results: Sequence[Mapping[str, Any]]) -> Record:
    """Return the rounds whose models several trainings give, and what decided."""
    rounds: list[int] = []
    for result in results:
        selected = result["selected"]
        rounds += selected.get("rounds") or [selected["round"]]

    return {"rounds": rounds, "by": results[0]["selected"]["by"]}


def _average(values: Sequence[Any]) -> Any:
    """Return the mean of values over seeds, which may be nested tables of numbers."""
    if isinstance(values[0], Mapping):
        return _average_tables(values)

    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        mean = statistics.fmean(values)
        return round(mean) if all(isinstance(value, int) for value in values) else mean

    return None if None in values else values[0]


def _average_tables(tables: Sequence[Mapping[str, Any]]) -> Record:
    # A mean of intervals is not an interval, and counts of one seed are not those of all.
    merged: Record = {}
    for name in tables[0]:
        is_shared = all(name in table for table in tables)
        if is_shared and not name.endswith("interval") and name != "confusion":
            merged[name] = _average([table[name] for table in tables])

    if len({table.get("round") for table in tables}) > 1:
        merged.pop("round", None)

    if "mean" in merged and "pooled" in merged and len(tables) > 1:
        numbers = [name for name, value in merged.items() if isinstance(value, float)]
        merged["sem"] = {
            name: _standard_error([table[name] for table in tables]) for name in numbers
        }

    return merged


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over seeds."""
    center = statistics.fmean(values)
    squares = math.fsum((value - center) ** 2 for value in values)
    return math.sqrt(squares / (len(values) - 1) / len(values))
