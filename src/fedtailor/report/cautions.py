"""What to know before a comparison is believed: how runs differ, and what the figures are about."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fedtailor.core.errors import one_line
from fedtailor.core.options import show
from fedtailor.report.methods import Method, settings_of
from fedtailor.report.records import MetricScores

_TRAINING = ("epochs", "steps", "batch_size", "drop_last")
"""Keys of ``[training]``, or of an algorithm, that are part of its budget."""
_FEDERATION = (
    "federation.participation",
    "federation.min_clients",
    "federation.full_last_round",
    "federation.client_timeout",
    "federation.robust",
    "evaluation.select",
    "evaluation.patience",
)
_MODEL = ("model.name", "model.options", "model.others", "training.precision")
_SOFTWARE = ("fedtailor", "python", "torch", "numpy")
_CIRCUMSTANCES = {
    "commit": "the commit of fedtailor",
    "reduction": "the order of addition (reduction)",
    "engine": "the engine",
    "device": "the device",
}
"""Keys of a provenance, and what they are."""
_LOST_WORK = ("quarantine", "failed", "absent")
"""Events by which the work of a client is lost."""
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
        *_other_data(finished),
        *_other_settings(finished),
        *_other_rounds(finished, scores),
        *_other_software(finished),
        *_lost_work(finished),
    )


def find_notes(
    methods: Sequence[Method], scores: Scores, *, metric: str, point: str
) -> tuple[str, ...]:
    """Return what the figures are about, in sentences: what a mean varies, and equal methods.

    Args:
        methods: all of them.
        scores: of the known clients.
        metric: that is compared.
        point: the evaluation point.
    """
    finished = [method for method in methods if scores[method.label]]
    return (
        *_adaptations(finished, scores, point),
        *_what_varies(finished, scores),
        *_equal_methods(finished, scores, metric),
    )


def _unfinished(methods: Sequence[Method]) -> Iterator[str]:
    for method in methods:
        open_seeds = [seed for seed in method.runs if seed not in method.finished]
        if not method.runs:
            yield f"{method.label} has no run yet: it is left out."
        elif open_seeds:
            states = sorted({str(method.runs[seed].status.get("state")) for seed in open_seeds})
            left_out = "they are" if len(open_seeds) > 1 else "it is"
            yield (
                f"{method.label} has not finished {_seeds(open_seeds)} ({', '.join(states)}): "
                f"{left_out} left out."
            )


def _without_scores(
    finished: Sequence[Method], scores: Scores, metric: str, point: str
) -> Iterator[str]:
    for method in finished:
        missing = [seed for seed in method.finished if seed not in scores[method.label]]
        if missing:
            yield (
                f"{method.label} has no {metric} of clients at the evaluation point '{point}' in "
                f"{_seeds(missing)}."
            )

        for seed, of_seed in scores[method.label].items():
            count = of_seed.num_clients - len(of_seed.values)
            if count:
                words = "1 client has" if count == 1 else f"{count} clients have"
                left_out = "is" if count == 1 else "are"
                yield (
                    f"{words} no {metric} with {method.label} in seed {seed}, and {left_out} left "
                    "out."
                )


def _other_seeds(finished: Sequence[Method]) -> Iterator[str]:
    seeds = {method.label: _seeds(method.finished) for method in finished}
    if len(set(seeds.values())) > 1:
        yield (
            f"The methods have different seeds: {_by_value(seeds)}. Means are over all seeds of a "
            "method; methods are compared client by client in the seeds that they share."
        )


def _other_data(finished: Sequence[Method]) -> Iterator[str]:
    """Say that the data or the splits of a seed differ."""
    yield from _differences("data", finished, _over_runs(_data))

    # Methods whose splits are the same, and those whose split is not known, by what they are.
    seeds_by_groups: dict[str, list[int]] = {}
    seeds_by_unknown: dict[str, list[int]] = {}
    for seed in sorted({seed for method in finished for seed in method.finished}):
        groups: dict[str, list[str]] = {}
        for method in finished:
            if seed in method.finished:
                groups.setdefault(method.split_of(seed), []).append(method.label)

        unknown = groups.pop("", [])
        if unknown:
            seeds_by_unknown.setdefault(", ".join(unknown), []).append(seed)

        if len(groups) > 1:
            words = "; ".join(", ".join(labels) for labels in groups.values())
            seeds_by_groups.setdefault(words, []).append(seed)

    for words, seeds in seeds_by_groups.items():
        yield (
            f"In {_seeds(seeds)}, these groups of methods have different data or splits: {words}. "
            "Only methods of one group are compared client by client."
        )

    for words, seeds in seeds_by_unknown.items():
        yield (
            f"In {_seeds(seeds)}, the split of {words} is not recorded: there is no comparison "
            "client by client."
        )


def _other_settings(finished: Sequence[Method]) -> Iterator[str]:
    """Say that budgets or models differ."""

    def setting(key: str) -> Callable[[Method], Any]:
        return lambda method: settings_of(method.config).get(key, _UNKNOWN)

    def budget(key: str) -> Callable[[Method], Any]:
        own = setting(f"algorithm.{key}")
        shared = setting(f"training.{key}")
        return lambda method: shared(method) if own(method) == _UNKNOWN else own(method)

    for key in _TRAINING:
        yield from _differences(f"training.{key}", finished, budget(key))

    for key in _FEDERATION:
        yield from _differences(key, finished, setting(key))

    if any(setting("federation.participation")(method) != "all" for method in finished):
        what = "who trains in a round (federation.train)"
        yield from _differences(what, finished, setting("federation.train"))

    for key in _MODEL:
        yield from _differences(key, finished, _section(key))

    yield from _differences("rounds", finished, _results("rounds"))
    yield from _differences("gradient steps of all clients", finished, _results("steps"))


def _section(key: str) -> Callable[[Method], Any]:
    """Return the reader of a key, or of a table of what is below it."""

    def read(method: Method) -> Any:
        settings = settings_of(method.config)
        start = f"{key}."
        below = {
            name.removeprefix(start): value
            for name, value in settings.items()
            if name.startswith(start)
        }
        return settings.get(key, below)

    return read


def _results(name: str) -> Callable[[Method], str]:
    """Return the reader of a number of the results of all seeds, in words."""

    def read(method: Method) -> str:
        runs = method.finished.values()
        return " or ".join(sorted({show((run.result or {}).get(name, _UNKNOWN)) for run in runs}))

    return read


def _other_rounds(finished: Sequence[Method], scores: Scores) -> Iterator[str]:
    """Say that the models are of different rounds."""

    def rounds(method: Method) -> str:
        of_seeds = sorted({one.round for one in scores[method.label].values()})
        return " or ".join(map(str, of_seeds))

    having = [method for method in finished if scores[method.label]]
    yield from _differences("rounds after which the models were made", having, rounds)


def _other_software(finished: Sequence[Method]) -> Iterator[str]:
    """Say that versions, engines or devices differ."""
    for name in _SOFTWARE:
        yield from _differences(f"the version of {name}", finished, _over_runs(_version(name)))

    for key, words in _CIRCUMSTANCES.items():
        yield from _differences(words, finished, _over_runs(_circumstance(key)))


def _over_runs(read: Callable[[Mapping[str, Any]], Any]) -> Callable[[Method], str]:
    """Return the reader of what the provenance of the finished runs of a method says, in words."""

    def in_words(method: Method) -> str:
        values = {_in_words(read(run.provenance)) for run in method.finished.values()}
        return " or ".join(sorted(values))

    return in_words


def _data(provenance: Mapping[str, Any]) -> str:
    """Return the name of the data, and the first digits of their digest."""
    data = provenance.get("data")
    if not isinstance(data, Mapping):
        return _UNKNOWN

    return f"{data.get('dataset')} with digest {str(data.get('sha256'))[:8]}"


def _version(name: str) -> Callable[[Mapping[str, Any]], Any]:
    def read(provenance: Mapping[str, Any]) -> Any:
        versions = provenance.get("versions")
        return versions.get(name, _UNKNOWN) if isinstance(versions, Mapping) else _UNKNOWN

    return read


def _circumstance(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda provenance: provenance.get(key, _UNKNOWN)


def _lost_work(finished: Sequence[Method]) -> Iterator[str]:
    """Say that the work of clients was lost."""
    for method in finished:
        total = 0
        for run in method.finished.values():
            counts = (run.result or {}).get("events")
            if isinstance(counts, Mapping):
                numbers = [counts.get(kind) for kind in _LOST_WORK]
                total += sum(number for number in numbers if isinstance(number, int))

        if total:
            yield (
                f"{method.label}: work of clients was lost {total} times (see events.jsonl in "
                f"'{method.path}')."
            )


def _adaptations(finished: Sequence[Method], scores: Scores, point: str) -> Iterator[str]:
    """Say what was done to make the models that are compared."""
    adaptations = {}
    for method in finished:
        kinds = dict.fromkeys(one.adaptation for one in scores[method.label].values())
        adaptations[method.label] = " or ".join(map(one_line, kinds))

    yield (
        f"What was done after the rounds to make the models of the evaluation point '{point}': "
        f"{_by_value(adaptations)}."
    )


def _what_varies(finished: Sequence[Method], scores: Scores) -> Iterator[str]:
    """Say what a mean over seeds varies."""
    if max((len(by_seed) for by_seed in scores.values()), default=0) == 1:
        yield (
            "There is one seed, so there is no standard error. One seed is no evidence that a "
            "method is better: another initial model may turn the order."
        )
        return

    labels_by_words: dict[str, list[str]] = {}
    for method in finished:
        seeds = list(scores[method.label])
        if len(seeds) > 1:
            labels_by_words.setdefault(_variation(method, seeds), []).append(method.label)

    for words, labels in labels_by_words.items():
        whose = f" of {', '.join(labels)}" if len(labels_by_words) > 1 else ""
        yield f"A mean over seeds{whose} varies {words}."


def _variation(method: Method, seeds: Sequence[int]) -> str:
    """Return what the runs of several seeds of a method vary, in words."""
    varying = ["the initial model", "the order of examples"]
    constant = []

    cohorts = [[line.get("cohort") for line in method.runs[seed].rounds] for seed in seeds]
    if any(of_seed != cohorts[0] for of_seed in cohorts):
        varying.append("the cohorts")
    else:
        constant.append("the cohorts")

    splits = {method.split_of(seed) for seed in seeds}
    if "" not in splits:
        if len(splits) > 1:
            varying.append("the split (so a client of one seed is not that of another)")
        else:
            constant.append("the split")

    if not constant:
        return _listed(varying)

    verb = "is" if constant == ["the split"] else "are"
    return f"{_listed(varying)}; {_listed(constant)} {verb} the same in all seeds"


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
            yield (
                f"{pair} have the same {metric} at every client in {_seeds(shared)}: either a "
                "method is compared with itself, or what tells them apart had no effect."
            )


def _differences(
    what: str, methods: Sequence[Method], read: Callable[[Method], Any]
) -> Iterator[str]:
    """Say that values differ, and which methods have which."""
    words = {method.label: _in_words(read(method)) for method in methods}
    if len(set(words.values())) > 1:
        yield f"The methods differ in {what}: {_by_value(words)}."


def _in_words(value: Any) -> str:
    return one_line(value) if isinstance(value, str) else show(value)


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
