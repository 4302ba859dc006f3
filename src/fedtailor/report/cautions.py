"""What to know before a comparison is believed: differences between the runs, and what its figures
are about.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fedtailor.core.errors import one_line
from fedtailor.core.options import show
from fedtailor.report.methods import Method, settings_of
from fedtailor.report.scores import ClientScores

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
Scores = Mapping[str, Mapping[int, ClientScores]]
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
    return tuple(
        itertools.chain(
            _unfinished(methods),
            _without_scores(finished, scores, metric, point),
            _other_seeds(finished),
            _other_data(finished),
            _other_settings(finished),
            _other_rounds(finished, scores),
            _other_software(finished),
            _lost_work(finished),
        )
    )


def find_notes(
    methods: Sequence[Method], scores: Scores, *, metric: str, point: str
) -> tuple[str, ...]:
    """Return what the figures are about, in sentences: what a mean over seeds varies, and equal
    methods.

    Args:
        methods: all of them.
        scores: of the known clients.
        metric: that is compared.
        point: the evaluation point.
    """
    finished = [method for method in methods if scores[method.label]]
    return tuple(
        itertools.chain(
            _adaptations(finished, scores, point),
            _what_varies(finished, scores),
            _equal_methods(finished, scores, metric),
        )
    )


def _unfinished(methods: Sequence[Method]) -> Iterator[str]:
    for method in methods:
        open_seeds = [seed for seed in method.runs if seed not in method.finished]
        if not method.runs:
            yield f"{method.label} has no run yet: it is left out."
        elif open_seeds:
            states = sorted({str(method.runs[seed].status.get("state")) for seed in open_seeds})
            left_out = "they are" if len(open_seeds) > 1 else "it is"
            yield f"{method.label} has not finished {_seeds(open_seeds)} ({', '.join(states)}): {left_out} left out."


def _without_scores(
    finished: Sequence[Method], scores: Scores, metric: str, point: str
) -> Iterator[str]:
    for method in finished:
        missing = [seed for seed in method.finished if seed not in scores[method.label]]
        if missing:
            yield f"{method.label} has no {metric} of clients at the evaluation point '{point}' in {_seeds(missing)}."

        for seed, found in scores[method.label].items():
            number = found.num_clients - len(found.values)
            if number:
                words = "1 client has" if number == 1 else f"{number} clients have"
                left_out = "is" if number == 1 else "are"
                yield f"{words} no {metric} with {method.label} in seed {seed}, and {left_out} left out."


def _other_seeds(finished: Sequence[Method]) -> Iterator[str]:
    """Say that methods have other seeds."""
    found = {method.label: _seeds(method.finished) for method in finished}
    if len(set(found.values())) > 1:
        yield (
            f"The methods have different seeds: {_by_value(found)}. Means are over all seeds of a method; methods are "
            "compared client by client in the seeds that they share."
        )


def _other_data(finished: Sequence[Method]) -> Iterator[str]:
    """Say that the data or the splits of a seed differ."""
    yield from _differing(
        "data", {method.label: _in_provenance(method, _data) for method in finished}
    )
    seeds_by_groups: dict[str, list[int]] = {}
    seeds_by_unknown: dict[str, list[int]] = {}

    for seed in sorted({seed for method in finished for seed in method.finished}):
        digests = {
            method.label: method.split_of(seed) for method in finished if seed in method.finished
        }
        unknown = [label for label, digest in digests.items() if not digest]
        if unknown:
            seeds_by_unknown.setdefault(", ".join(unknown), []).append(seed)

        groups = [
            [label for label in digests if digests[label] == one]
            for one in dict.fromkeys(digests.values())
            if one
        ]

        if len(groups) > 1:
            seeds_by_groups.setdefault("; ".join(", ".join(group) for group in groups), []).append(
                seed
            )

    for words, seeds in seeds_by_groups.items():
        yield (
            f"In {_seeds(seeds)}, these groups of methods have different data or splits: {words}. Only methods of one "
            "group are compared client by client."
        )

    for words, seeds in seeds_by_unknown.items():
        yield f"In {_seeds(seeds)}, the split of {words} is not recorded: there is no comparison client by client."


def _other_settings(finished: Sequence[Method]) -> Iterator[str]:
    """Say that budgets or models differ."""
    settings = {method.label: settings_of(method.config) for method in finished}
    for key in _TRAINING:
        values = {
            label: own.get(f"algorithm.{key}", own.get(f"training.{key}", "not recorded"))
            for label, own in settings.items()
        }
        yield from _differing(f"training.{key}", values)

    for key in _FEDERATION:
        yield from _differing(
            key, {label: own.get(key, "not recorded") for label, own in settings.items()}
        )

    if any(own.get("federation.participation") != "all" for own in settings.values()):
        trains = {
            label: own.get("federation.train", "not recorded") for label, own in settings.items()
        }
        yield from _differing("who trains in a round (federation.train)", trains)

    for key in _MODEL:
        yield from _differing(key, {label: _section(own, key) for label, own in settings.items()})

    yield from _differing(
        "rounds", {method.label: _results(method, "rounds") for method in finished}
    )
    yield from _differing(
        "gradient steps of all clients", {each.label: _results(each, "steps") for each in finished}
    )


def _section(settings: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, or a table of what is below it."""
    below = {
        name.removeprefix(f"{key}."): value
        for name, value in settings.items()
        if name.startswith(f"{key}.")
    }
    return settings.get(key, below)


def _results(method: Method, name: str) -> str:
    """Return a number of the results of all seeds, in words."""
    found = {show((run.result or {}).get(name, "not recorded")) for run in method.finished.values()}
    return " or ".join(sorted(found))


def _other_rounds(finished: Sequence[Method], scores: Scores) -> Iterator[str]:
    """Say that the models are of different rounds."""
    rounds = {
        method.label: " or ".join(
            map(str, sorted({found.round for found in scores[method.label].values()}))
        )
        for method in finished
        if scores[method.label]
    }
    yield from _differing("rounds after which the models were made", rounds)


def _other_software(finished: Sequence[Method]) -> Iterator[str]:
    """Say that versions, engines or devices differ."""
    for name in _SOFTWARE:
        versions = {
            method.label: _in_provenance(method, partial(_version, name=name))
            for method in finished
        }
        yield from _differing(f"the version of {name}", versions)

    for key, words in _CIRCUMSTANCES.items():
        found = {
            method.label: _in_provenance(method, partial(_circumstance, key=key))
            for method in finished
        }
        yield from _differing(words, found)


def _in_provenance(method: Method, read: Callable[[Mapping[str, Any]], Any]) -> str:
    """Return what the provenance of the finished runs of a method says, in words."""
    found = {_shown(read(run.provenance)) for run in method.finished.values()}
    return " or ".join(sorted(found))


def _data(provenance: Mapping[str, Any]) -> str:
    """Return the name of the data, and the first digits of their digest."""
    data = provenance.get("data")
    if not isinstance(data, Mapping):
        return "not recorded"
    return f"{data.get('dataset')} with digest {str(data.get('sha256'))[:8]}"


def _version(provenance: Mapping[str, Any], name: str) -> Any:
    versions = provenance.get("versions")
    return versions.get(name, "not recorded") if isinstance(versions, Mapping) else "not recorded"


def _circumstance(provenance: Mapping[str, Any], key: str) -> Any:
    return provenance.get(key, "not recorded")


def _lost_work(finished: Sequence[Method]) -> Iterator[str]:
    """Say that the work of clients was lost."""
    for method in finished:
        events = [(run.result or {}).get("events") for run in method.finished.values()]
        counts = [
            table.get(kind, 0)
            for table in events
            if isinstance(table, Mapping)
            for kind in _LOST_WORK
        ]
        number = sum(count for count in counts if isinstance(count, int))
        if number:
            yield f"{method.label}: work of clients was lost {number} times (see events.jsonl in '{method.path}')."


def _adaptations(finished: Sequence[Method], scores: Scores, point: str) -> Iterator[str]:
    """Say what was done to make the models that are compared."""
    found = {}
    for method in finished:
        kinds = dict.fromkeys(each.adaptation for each in scores[method.label].values())
        found[method.label] = " or ".join(map(one_line, kinds))
    yield f"What was done after the rounds to make the models of the evaluation point '{point}': {_by_value(found)}."


def _what_varies(finished: Sequence[Method], scores: Scores) -> Iterator[str]:
    """Say what a mean over seeds varies."""
    most = max((len(by_seed) for by_seed in scores.values()), default=0)
    if most == 1:
        yield (
            "There is one seed, so there is no standard error. One seed is no evidence that a method is better: "
            "another initial model may turn the order."
        )

        return

    varied: dict[str, list[str]] = {}
    for method in finished:
        seeds = list(scores[method.label])
        if len(seeds) > 1:
            varied.setdefault(_varied(method, seeds), []).append(method.label)

    for words, labels in varied.items():
        whose = "" if len(varied) == 1 else f" of {', '.join(labels)}"
        yield f"A mean over seeds{whose} varies {words}."


def _varied(method: Method, seeds: Sequence[int]) -> str:
    """Return what the runs of several seeds of a method vary, in words."""
    splits = [method.split_of(seed) for seed in seeds]
    cohorts = [[line.get("cohort") for line in method.runs[seed].rounds] for seed in seeds]
    parts = {"the cohorts": any(other != cohorts[0] for other in cohorts)}
    if all(splits):  # they are recorded
        parts["the split (so a client of one seed is not that of another)"] = len(set(splits)) > 1

    changing = [
        "the initial model",
        "the order of examples",
        *(words for words, varies in parts.items() if varies),
    ]
    constant = [words.partition(" (")[0] for words, varies in parts.items() if not varies]
    is_one = constant == ["the split"]
    same = (
        f"; {_listed(constant)} {'is' if is_one else 'are'} the same in all seeds"
        if constant
        else ""
    )

    return f"{_listed(changing)}{same}"


def _equal_methods(finished: Sequence[Method], scores: Scores, metric: str) -> Iterator[str]:
    """Say that methods have the same score at every client, or are the same run folder."""
    for one, other in itertools.combinations(finished, 2):
        ours = scores[one.label]
        theirs = scores[other.label]
        shared = ours.keys() & theirs.keys()
        if one.path.resolve() == other.path.resolve():
            yield f"{one.label} and {other.label} are the same run folder: a method is compared with itself."
        elif shared and all(ours[seed].values == theirs[seed].values for seed in shared):
            yield (
                f"{one.label} and {other.label} have the same {metric} at every client in {_seeds(shared)}: either a "
                "method is compared with itself, or what tells them apart had no effect."
            )


def _differing(what: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Say that values differ, and which methods have which."""
    words = {label: _shown(value) for label, value in values.items()}
    if len(set(words.values())) > 1:
        yield f"The methods differ in {what}: {_by_value(words)}."


def _shown(value: Any) -> str:
    """Return a value in words."""
    return one_line(value) if isinstance(value, str) else show(value)


def _by_value(words: Mapping[str, str]) -> str:
    """Return values, each with the methods that have it in brackets."""
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
