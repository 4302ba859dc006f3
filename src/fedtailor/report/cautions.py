"""What to know before a comparison is believed: how runs differ, and what the figures are about."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fedtailor.core.errors import one_line
from fedtailor.core.reading import content_of
from fedtailor.core.text import round_figure
from fedtailor.experiment.config import flatten, option_annotations
from fedtailor.experiment.reader import LOST_WORK, RunRecords, chance_over_seeds, chance_warning
from fedtailor.privacy.claims import budget_of, claims_of, promises_of
from fedtailor.report.methods import Method, in_words
from fedtailor.report.records import MetricScores, number
from fedtailor.report.statistics import mean

_BUDGET = ("epochs", "steps", "batch_size", "drop_last", "smallest_batch")
"""Keys of ``[training]``; an algorithm may have one of its own, which then counts."""
_NOT_COMPARED = (
    "federation.rounds",
    "federation.train",
    "evaluation.every",
    "evaluation.personalized_every",
    "evaluation.baselines",
    "evaluation.verdict",
)
"""Keys of a schedule that may differ: results tell the rounds, ``train`` is compared apart because
it matters with some cohorts only, and an evaluation changes no model."""
_PROVENANCE = {
    **{f"versions.{name}": f"the version of {name}" for name in ("fedtailor", "python", "torch")},
    "versions.numpy": "the version of numpy",
    "commit": "the commit of fedtailor",
    "reduction": "the order of addition (reduction)",
    "encoder": "the encoder",
    "engine": "the engine",
    "device": "the device",
}
"""Keys of a provenance, and what they are."""
_PARTICIPATION = "federation.participation"
_WHO_TRAINS = "who trains in a round (federation.train)"
_UNKNOWN = "not recorded"

Scores: TypeAlias = Mapping[str, Mapping[int, MetricScores]]
"""The scores of the known clients, by label and seed."""


def find_warnings(
    methods: Sequence[Method], scores: Scores, *, metric: str, point: str
) -> tuple[str, ...]:
    """Return what makes methods hard to compare, in sentences.

    Args:
        methods: all of them, with and without finished runs.
        scores: of the known clients.
        metric: that is compared.
        point: the evaluation point.
    """
    finished = [method for method in methods if method.finished]
    return (
        *_unfinished(methods),
        *_without_scores(finished, scores, metric, point),
        *_other_seeds(finished),
        *_other_splits(finished),
        *_other_facts(finished, scores),
        *_lost_work(finished),
        *near_chance(finished),
    )


def find_notes(
    methods: Sequence[Method], scores: Scores, *, metric: str, point: str
) -> tuple[str, ...]:
    """Return what the figures are about: what differs between seeds, and which methods are equal.

    Args:
        methods: all of them.
        scores: of the known clients.
        metric: that is compared.
        point: the evaluation point.
    """
    finished = [method for method in methods if scores[method.label]]
    return (
        *_majority(finished, metric),
        *_adaptations(finished, scores, point),
        *_what_varies(finished, scores),
        *_equal_methods(finished, scores, metric),
        *privacy_claims(finished),
    )


def _unfinished(methods: Sequence[Method]) -> Iterator[str]:
    for method in methods:
        open_seeds = [seed for seed in method.runs if seed not in method.finished]
        if not method.runs:
            yield f"{method.label} has no run yet: it is left out."
        elif open_seeds:
            states = sorted({str(method.runs[seed].status.get("state")) for seed in open_seeds})
            which = f"{_seeds(open_seeds)} ({', '.join(states)})"
            yield f"{method.label} has not finished {which}: left out."

        lost = [seed for seed in method.seeds if seed not in method.runs]
        if method.runs and lost:
            yield f"{method.label} has no folder of {_seeds(lost)}: left out."


def _without_scores(
    finished: Sequence[Method], scores: Scores, metric: str, point: str
) -> Iterator[str]:
    for method in finished:
        missing = [seed for seed in method.finished if seed not in scores[method.label]]
        if missing:
            where = f"'{point}' in {_seeds(missing)}"
            yield f"{method.label} has no {metric} of clients at the evaluation point {where}."

        for seed, of_seed in scores[method.label].items():
            count = of_seed.num_clients - len(of_seed.values)
            if count:
                where = f"with {method.label} in seed {seed}"
                yield f"Clients that are left out, because they have no {metric} {where}: {count}."


def _other_seeds(finished: Sequence[Method]) -> Iterator[str]:
    seeds = {method.label: _seeds(method.finished) for method in finished}
    if len(set(seeds.values())) > 1:
        yield f"The methods have different seeds: {_by_value(seeds)}. Common ones are compared."


def _other_splits(finished: Sequence[Method]) -> Iterator[str]:
    """Say that the splits of a seed differ, or are not known."""
    seeds_by_words: dict[str, list[int]] = {}
    for seed in sorted({seed for method in finished for seed in method.finished}):
        # Methods whose splits are the same; those whose split is not recorded are apart.
        groups: dict[str, list[str]] = {}
        for method in finished:
            if seed in method.finished:
                groups.setdefault(method.split_of(seed), []).append(method.label)

        unknown = groups.pop("", [])
        if len(groups) > 1:
            words = "; ".join(", ".join(labels) for labels in groups.values())
            words = f"these groups of methods have different data or splits: {words}. Their means "
            words += "say nothing about each other. Only methods of one group"
            seeds_by_words.setdefault(words, []).append(seed)
        if unknown:
            words = f"the split of {', '.join(unknown)} is not recorded. Only other methods"
            seeds_by_words.setdefault(words, []).append(seed)

    for words, seeds in seeds_by_words.items():
        yield f"In {_seeds(seeds)}, {words} are compared client by client."


def _other_facts(finished: Sequence[Method], scores: Scores) -> Iterator[str]:
    """Say in what budgets, models, rounds, software or machines differ."""
    facts = {method.label: _facts(method, scores[method.label]) for method in finished}
    names = dict.fromkeys(name for of_method in facts.values() for name in of_method)

    # Where all clients take part in every round, it does not matter who trains.
    if all(of_method[_PARTICIPATION] == "all" for of_method in facts.values()):
        names.pop(_WHO_TRAINS, None)

    for name in names:
        words = {label: of_method[name] for label, of_method in facts.items() if name in of_method}
        if len(set(words.values())) > 1:
            yield f"The methods differ in {name}: {_by_value(words)}."


def _facts(method: Method, scores: Mapping[int, MetricScores]) -> dict[str, str]:
    """Return what should be the same for all methods, in words, by what it is."""
    settings = flatten(method.config)
    facts = {}
    for key in _BUDGET:
        value = settings.get(f"algorithm.{key}", settings.get(f"training.{key}", _UNKNOWN))
        facts[f"training.{key}"] = in_words(value)

    for key in option_annotations():
        is_setting = key.startswith(("federation.", "evaluation.", "training."))
        if is_setting and key not in facts and key not in _NOT_COMPARED:
            facts[key] = in_words(settings.get(key, _UNKNOWN))

    facts[_WHO_TRAINS] = in_words(settings.get("federation.train", _UNKNOWN))
    of_model = sorted(key for key in settings if key.startswith("model."))
    facts["the model"] = ", ".join(f"{key}={in_words(settings[key])}" for key in of_model)

    budgets = map(budget_of, _promises(method).values())
    facts["what noise promises"] = "; ".join(budgets) or "nothing"

    # What the runs of several seeds say, which need not be the same.
    of_runs: dict[str, set[str]] = {}
    for seed, run in method.finished.items():
        for name, value in _facts_of_run(run, scores.get(seed)).items():
            of_runs.setdefault(name, set()).add(in_words(value))

    return facts | {name: " or ".join(_in_order(values)) for name, values in of_runs.items()}


def _in_order(values: Iterable[str]) -> list[str]:
    """Return texts in alphabetical order, but whole numbers by size."""
    return sorted(values, key=lambda text: (int(text) if text.isdecimal() else -1, text))


def _facts_of_run(run: RunRecords, scores: MetricScores | None) -> dict[str, Any]:
    """Return what a run says of its data, results and circumstances, by what it is."""
    provenance = flatten(run.provenance)
    data = provenance.get("data.dataset", _UNKNOWN)
    digest = provenance.get("data.sha256")
    result = run.result or {}
    facts = {
        "data": data if digest is None else f"{data} with digest {str(digest)[:8]}",
        "rounds": result.get("rounds", _UNKNOWN),
        "gradient steps of all clients": result.get("steps", _UNKNOWN),
    }
    if scores is not None:
        facts["rounds after which the models were made"] = scores.round

    return facts | {name: provenance.get(key, _UNKNOWN) for key, name in _PROVENANCE.items()}


def _lost_work(finished: Sequence[Method]) -> Iterator[str]:
    """Say that the work of clients was lost."""
    for method in finished:
        total = 0
        for run in method.finished.values():
            counts = (run.result or {}).get("events")
            if isinstance(counts, Mapping):
                numbers = [counts.get(kind) for kind in LOST_WORK]
                total += sum(number for number in numbers if isinstance(number, int))

        if total:
            yield f"{method.label}: work of clients was lost {total} times (see events.jsonl)."


def near_chance(finished: Sequence[Method]) -> Iterator[str]:
    """Say of every method at which clients its models cannot be told from guessing."""
    for method in finished:
        results = [run.result or {} for run in method.finished.values()]
        chances = [result["chance"] for result in results if "chance" in result]
        sentence = chance_warning(chance_over_seeds(chances)) if chances else ""
        if sentence:
            yield f"{method.label}: {sentence}"


def privacy_claims(finished: Sequence[Method]) -> Iterator[str]:
    """Say of every method what noise promises, where there is any."""
    labels: dict[str, list[str]] = {}
    for method in finished:
        for claim in claims_of(_promises(method)):
            labels.setdefault(claim, []).append(method.label)

    for claim, having in labels.items():
        yield f"{', '.join(having)}: {claim}"


def _promises(method: Method) -> dict[str, Any]:
    """Return what noise promises in the finished runs of a method."""
    with content_of(method.path):
        return promises_of([run.result or {} for run in method.finished.values()])


def _majority(finished: Sequence[Method], metric: str) -> Iterator[str]:
    """Say what accuracy a model has that looks at no example."""
    shares = []
    for run in finished[0].finished.values() if finished else ():
        shares.append(number((run.result or {}).get("majority_accuracy")))

    known = [share for share in shares if share is not None]
    if metric == "accuracy" and known:
        share = round_figure(mean(known), in_percent=True)
        yield f"Always the most frequent training class of a client: {share} %, mean over clients."


def _adaptations(finished: Sequence[Method], scores: Scores, point: str) -> Iterator[str]:
    """Say what was done to make the models that are compared."""
    adaptations = {}
    for method in finished:
        kinds = dict.fromkeys(one.adaptation for one in scores[method.label].values())
        adaptations[method.label] = " or ".join(map(one_line, kinds))

    yield f"What was done after the rounds for the point '{point}': {_by_value(adaptations)}."


def _what_varies(finished: Sequence[Method], scores: Scores) -> Iterator[str]:
    """Say what differs between the seeds of a mean."""
    if max((len(by_seed) for by_seed in scores.values()), default=0) == 1:
        yield "There is one seed: no standard error, and no evidence that a method is better."
        return

    words = {}
    for method in finished:
        seeds = list(scores[method.label])
        if len(seeds) > 1:
            words[method.label] = _variation(method, seeds)

    if len(set(words.values())) == 1:
        yield f"Seeds differ in {min(words.values())}."
    elif words:
        yield f"Seeds differ in {_by_value(words)}."


def _variation(method: Method, seeds: Sequence[int]) -> str:
    """Return in words what differs between the seeds of a method, and what does not."""
    cohorts = [[line.get("cohort") for line in method.runs[seed].rounds] for seed in seeds]
    splits = {method.split_of(seed) for seed in seeds}
    # As far as all seeds have trained: some may have stopped early.
    shortest = min(map(len, cohorts))
    facts = {"the cohorts": any(of_seed[:shortest] != cohorts[0][:shortest] for of_seed in cohorts)}
    if "" not in splits:
        facts["the split"] = len(splits) > 1

    varying = ["the initial model", "the order of examples"]
    varying += [name for name, varies in facts.items() if varies]
    constant = [name for name, varies in facts.items() if not varies]
    same = f"; the same in all seeds: {_listed(constant)}" if constant else ""
    return f"{_listed(varying)}{same}"


def _equal_methods(finished: Sequence[Method], scores: Scores, metric: str) -> Iterator[str]:
    """Say that methods have the same score at every client, or are the same run folder."""
    for one, other in itertools.combinations(finished, 2):
        ours = scores[one.label]
        theirs = scores[other.label]
        shared = ours.keys() & theirs.keys()
        pair = f"{one.label} and {other.label}"
        if one.path.resolve() == other.path.resolve():
            yield f"{pair} are the same run folder: a method is compared with itself."
        elif shared and all(ours[seed].values == theirs[seed].values for seed in shared):
            which = f"the same {metric} at every client in {_seeds(shared)}"
            yield f"{pair} have {which}: what tells them apart had no effect."


def _by_value(words: Mapping[str, str]) -> str:
    """Return values, each with the methods that have it in brackets; a majority is the others."""
    labels: dict[str, list[str]] = {}
    for label, value in words.items():
        labels.setdefault(value, []).append(label)

    most = max(labels, key=lambda value: len(labels[value]))
    if len(labels) > 1 and len(labels[most]) > 2:
        del labels[most]
        labels[most] = ["the others"]

    return "; ".join(f"{value} ({', '.join(having)})" for value, having in labels.items())


def _seeds(seeds: Iterable[int]) -> str:
    ordered = sorted(seeds)
    return f"seed{'s' if len(ordered) > 1 else ''} {_listed([str(seed) for seed in ordered])}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
