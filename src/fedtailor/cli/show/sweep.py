"""The result of a sweep, as tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.cli.show.console import duration, say, shortened, table
from fedtailor.cli.show.results import warn
from fedtailor.core.text import percent, with_error
from fedtailor.privacy.claims import claims_of

_MOST_TRIALS = 30
"""Rows of a table."""


def show_sweep(result: Mapping[str, Any]) -> None:
    """Print the trials of every method, what was chosen, and the spread of what was tried."""
    folder = Path(result["sweep"])
    for method in result["methods"]:
        is_last = method is result["methods"][-1]
        _show_trials(method, result, below=_explanation(result) if is_last else "")

    _show_methods(result)
    runs = []
    for method in result["methods"]:
        for trial in method["trials"]:
            for step in trial["steps"]:
                runs.append({"events": step["events"], "run": folder / step["run"]})

    warn(runs)
    for claim in claims_of(result):
        say(f"All trials together promise {claim}")
    say(f"Trained {result['trained_rounds']} rounds. Everything is in {result['sweep']}")

    if result["best"] is not None:
        path = folder / result["best"]["config"]
        say(f"The best: fedtailor run {shlex.quote(str(path))}")


def _explanation(result: Mapping[str, Any]) -> str:
    """Return what the columns of the trials are."""
    seeds = result["seeds"]
    which = f"seed {seeds[0]}"
    if len(seeds) > 1:
        which = f"mean of {len(seeds)} seeds ± standard error"

    sentences = [
        f"validation: mean accuracy of personalized models over clients, {which}.",
        "trained: rounds that were trained for this trial, over all seeds.",
    ]

    return " ".join(sentences)


def _show_trials(method: Mapping[str, Any], result: Mapping[str, Any], *, below: str) -> None:
    """Print the trials of a method, the best first, and what the columns are."""
    keys = list(method["trials"][0]["values"])

    # Those that failed have no rank, and come last.
    ranked = sorted(
        method["trials"], key=lambda trial: (trial["rank"] is None, trial["rank"] or trial["trial"])
    )
    rows = [_trial_row(trial, keys) for trial in ranked[:_MOST_TRIALS]]
    names = [key.removeprefix("algorithm.") for key in keys]
    columns = ["rank", "trial", *names, "validation", "rounds", "trained", "seconds"]
    number = len(ranked)
    title = (
        f"{method['method']} on {result['dataset']}: {number} trials, "
        "accuracy in % on validation examples"
    )
    more = f"And {number - _MOST_TRIALS} more, in sweep.json. " if number > _MOST_TRIALS else ""
    table(title, columns, rows, below=more + below)

    for trial in ranked:
        if trial["error"]:
            failed = f"trial {trial['trial']} of {method['method']} failed"
            say(f"{failed}: {trial['error']}", style="yellow")


def _trial_row(trial: Mapping[str, Any], keys: list[str]) -> list[str]:
    """Return the cells of a trial."""
    values = [shortened(_value(trial["values"][key])) for key in keys]
    rank = "failed" if trial["error"] else str(trial["rank"])
    rounds = "-" if trial["rounds"] is None else str(trial["rounds"])
    numbers = [_score(trial), rounds, str(trial["trained_rounds"]), duration(trial["seconds"])]
    return [rank, str(trial["trial"]), *values, *numbers]


def _value(value: Any) -> str:
    """Return a value with at most four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _score(trial: Mapping[str, Any]) -> str:
    """Return the validation score of a trial, with its standard error over seeds."""
    return with_error(trial["validation"], trial["standard_error"], in_percent=True)


def _show_methods(result: Mapping[str, Any]) -> None:
    """Print what was chosen for every method, the best first, and the spread of what was tried."""
    methods = sorted(
        result["methods"],
        key=lambda method: -(method["best"] or {"validation": -1.0})["validation"],
    )
    rows = []

    for method in methods:
        spread = method["spread"]
        names = ("min", "lower_quartile", "median", "upper_quartile", "max")
        figures = ["-"] * len(names)
        if spread is not None:
            figures = [percent(spread[name]) for name in names]

        best = method["best"]
        choice = ["-", "-"] if best is None else [str(best["trial"]), _score(best)]
        failed = f" ({method['failed']} failed)" if method["failed"] else ""
        trials = f"{len(method['trials'])}{failed}"
        words = [method["method"], method["config"] or "-", trials]
        rows.append([*words, *figures, *choice, _test(method)])

    columns = ["method", "best configuration", "trials"]
    columns += ["min", "lower\nquartile", "median", "upper\nquartile", "max"]
    columns += ["best\ntrial", "validation", "test"]

    when = "on validation examples"
    if result["halving"]:
        when = "after the first rounds, whose number is the same for all"

    below = (
        "Validation scores chose; test scores did not decide, and are read after the choice. "
        f"min to max: of all trials that did not fail, {when}. "
        "The best of many validation scores is too high by chance; its test score is not."
    )
    table("What was chosen: accuracy in %", columns, rows, left=2, below=below)


def _test(method: Mapping[str, Any]) -> str:
    """Return the accuracy of the best trial's personalized models on test examples."""
    accuracy = method.get("test", {}).get("personalized", {})
    return with_error(accuracy.get("mean"), accuracy.get("sem", {}).get("mean"), in_percent=True)
