"""Results of runs, comparisons and onboarding, as tables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtailor.cli.show.console import interval, line_of_note, say, shortened, table
from fedtailor.core.metrics import CLIENT_METRICS, HEADINGS
from fedtailor.core.text import percent, round_figure, with_error
from fedtailor.experiment.reader import LAST_ROUND, LOST_WORK, chance_warning

if TYPE_CHECKING:
    from fedtailor.report.comparison import Comparison
    from fedtailor.report.parts import ReportTable

_MOST_SITES = 30
_FEW_EXAMPLES = 200
"""A pooled accuracy of fewer test examples is printed with its interval."""


def show_result(result: Mapping[str, Any]) -> None:
    """Print the result of a run: one row per evaluation point, then one per site."""
    new_clients = result.get("new_clients", {})
    rows = [_result_row(point, metrics) for point, metrics in result["metrics"].items()]
    if "majority_accuracy" in result:
        share = percent(result["majority_accuracy"])
        rows.insert(0, ["majority class", "", share, *["-"] * (3 + len(HEADINGS))])
    for point, metrics in new_clients.items():
        rows.append(_result_row(f"{point}, new clients", metrics))

    # New clients by what was done to their examples, if that differs.
    for metrics in new_clients.values():
        for condition, part in metrics.get("conditions", {}).items():
            rows.append(_result_row(f"- {condition}", part))

    columns = ["model", "clients", "mean", *HEADINGS, "worst\n10 %", "smallest\n10 %", "pooled"]
    title = f"{result['algorithm']} on {result['dataset']}: accuracy in %, {_which_seeds(result)}"
    table(title, columns, rows, below=_explanation(result))
    _show_sites(result.get("sites", {}), result.get("positive_class", ""))
    _show_operating_points(result)
    if result.get("worth_it"):
        method = str(result["algorithm"])
        show_verdicts({method: result["worth_it"]}, method)

    models = "predictions" if "folds" in result else _models_of(result)
    say(f"Scores and {models} are in {result['run']}")
    show_claims(result)
    warn([result])


def _models_of(result: Mapping[str, Any]) -> str:
    """Return which models the folder of a run holds: some clients may have got none."""
    run = Path(result["run"])
    folders = [run]
    if len(result["seeds"]) > 1:
        folders = [run / f"seed-{seed}" for seed in result["seeds"]]

    models = sum(len(list(folder.glob("models/*.safetensors"))) for folder in folders)
    expected = len(folders) * result["clients"]
    if models >= expected:
        return "a model for every client"

    held = f"{models} of {expected} models" if models else "no model"
    return f"{held} (events.jsonl says why)"


def show_claims(result: Mapping[str, Any]) -> None:
    """Print what noise promises, if there is any."""
    if "privacy" in result:
        from fedtailor.privacy.claims import claims_of

        for claim in claims_of(result):
            say(claim)


def show_verdicts(records: Mapping[str, Mapping[str, Any]], shown: str) -> None:
    """Print the verdicts of a method; see :func:`fedtailor.report.worth_it.worth_it_tables`."""
    from fedtailor.report.worth_it import worth_it_tables

    for part in worth_it_tables(records, shown):
        _show_table(part, below=part.below)


def _which_seeds(result: Mapping[str, Any]) -> str:
    """Return which seeds the numbers are of, and whether the seeds shared a split."""
    seeds = result["seeds"]
    if len(seeds) == 1:
        return f"seed {seeds[0]}"

    splits = "the same split in all"
    if not result["shared_split"]:
        splits = "a different split for each seed"

    return f"mean of {len(seeds)} seeds ± standard error, {splits}"


def _explanation(result: Mapping[str, Any]) -> str:
    """Return what the rows of a result are."""
    metrics = result["metrics"]
    new_clients = result.get("new_clients", {})
    sentences = [f"{_which_round(result)}, on each client's own test examples."]
    if "folds" in result:
        sentences = [
            f"{_which_round(result)}, in {result['folds']} trainings. Each has left out another "
            f"fold of each client's own examples, and every example was tested once."
        ]
    if "validation" in metrics:
        sentences.append("validation: the personalized models on validation examples.")

    if "local" in metrics:
        sentences.append("local: a client's model right after its training, before averaging.")

    if "personalized" in metrics:
        adaptation = metrics["personalized"]["adaptation"]
        if adaptation == "none":
            adaptation = "as trained, without adaptation"
        sentences.append(f"personalized: {adaptation}.")

    if "personalized" in new_clients:
        adaptation = new_clients["personalized"]["adaptation"]
        if adaptation == "none":
            adaptation = "no training"
        sentences.append(f"New clients: {adaptation}.")

    points = [*metrics.values(), *new_clients.values()]
    if any(_has_few_examples(point) for point in points):
        interval = "95 % interval (Wilson) of an accuracy from few test examples"
        sentences.append(f"In brackets: {interval}.")

    if "majority_accuracy" in result:
        always = "always the most frequent class of the client's training examples"
        sentences.append(f"majority class: {always}.")

    missing = sorted({point["missing"] for point in points if "missing" in point})
    sentences += [f"Missing: {reason}." for reason in missing]

    balanced = "balanced accuracy, in which every class counts the same"
    error = "expected calibration error in %, the gap between confidence and accuracy"
    sentences.append(f"balanced: {balanced}. ECE: {error}.")
    sentences.append("balanced, loss, ECE and AUROC are means over clients.")
    return " ".join(sentences)


def _which_round(result: Mapping[str, Any]) -> str:
    """Return after which round the models were made."""
    selected = result.get("selected")
    if selected is None:
        return f"After round {result['rounds']}"

    # One of each training.
    rounds = sorted(set(selected.get("rounds") or [selected["round"]]))
    words = " or ".join(map(str, rounds))
    if selected["by"] == LAST_ROUND or rounds == [result["rounds"]]:
        return f"After round {words}, the last one"
    return f"After round {words} of {result['rounds']}, the best on validation examples"


def _show_sites(sites: Mapping[str, Mapping[str, Any]], positive: str) -> None:
    """Print a row per site, if the clients have names; with the positive one of two classes."""
    if not sites:
        return

    columns = ["site", "training\nexamples", "test\nexamples", "accuracy", "95 %\ninterval"]
    columns += ["balanced", "AUROC"]
    below = "interval: 95 % interval (Wilson) of the site's accuracy, from its test examples."

    # Two classes: what clinicians read, of the class that they call positive.
    if positive:
        has_intervals = any("accuracy_interval" in site for site in sites.values())
        intervals = ", with their intervals" if has_intervals else ""
        columns += ["sensi-\ntivity", "speci-\nficity"]
        below += (
            " Sensitivity and specificity (in %) are of the class "
            f"{shortened(positive)} (--positive names another); result.json holds them for both "
            f"classes{intervals}."
        )

    if len(sites) > _MOST_SITES:
        below = f"and {len(sites) - _MOST_SITES:,} more, in clients.jsonl. {below}"

    rows = []
    for name, site in list(sites.items())[:_MOST_SITES]:
        row = [
            shortened(name) + (" (new)" if site.get("new") else ""),
            f"{site['num_train']:,}",
            f"{site['num_test']:,}",
            percent(site.get("accuracy")),
            interval(site.get("accuracy_interval")),
            percent(site.get("balanced_accuracy")),
            round_figure(site.get("auroc"), in_percent=False),
        ]
        rows.append(row + _shares_of_class(site, positive) if positive else row)

    table("Personalized models by site: accuracy in %", columns, rows, below=below)


def _show_operating_points(result: Mapping[str, Any]) -> None:
    """Print the thresholds for a wanted sensitivity, and what they reach on test examples."""
    points = result.get("operating_points", {})
    if not points:
        return

    rows = []
    for name, point in list(points.items())[:_MOST_SITES]:
        test = point.get("test") or {}
        shares = []
        for right, examples in (("found", "positives"), ("rejected", "negatives")):
            count = test.get(examples, 0)
            shares.append(f"{percent(test[right] / count)} % of {count}" if count else "-")

        chosen = point["probability"]
        threshold = "not chosen" if chosen is None else f"{chosen:.3g}"
        if "folds" in point:
            threshold = f"of {point['folds']} folds"
        rows.append([shortened(name), f"{point['positives']}", threshold, *shares])

    below = (
        f"An input is of class {shortened(result['positive_class'])} from this probability on. "
        "The threshold is chosen on the validation examples of that class; sensitivity and "
        "specificity are on test examples."
    )
    if any("folds" in point for point in points.values()):
        below += " Each fold has its own threshold; the fewest validation examples of a fold count."
    problems = {point["problem"] for point in points.values()} - {""}
    if problems:
        below += f" Not chosen: {'; '.join(sorted(problems))}. Then the most probable class counts."

    wanted = next(iter(points.values()))["sensitivity"]
    columns = ["client", "validation\nexamples", "threshold", "sensitivity", "specificity"]
    table(f"Operating points for a sensitivity of {wanted:g}", columns, rows, below=below)


def _shares_of_class(site: Mapping[str, Any], positive: str) -> list[str]:
    """Return sensitivity and specificity of a class at a site, or dashes."""
    of_class: Mapping[str, Any] = {}
    for number, scores in site.get("by_class", {}).items():
        if scores.get("class", number) == positive:
            of_class = scores

    return [percent(of_class.get(name)) for name in ("sensitivity", "specificity")]


def _has_few_examples(metrics: Mapping[str, Any]) -> bool:
    return "pooled_interval" in metrics and metrics["examples"] < _FEW_EXAMPLES


def _result_row(name: str, metrics: Mapping[str, Any]) -> list[str]:
    """Return the cells of an evaluation."""
    accuracy = metrics.get("accuracy")
    if accuracy is None:
        return [f"{name} (no test examples)", "0", *["-"] * (4 + len(HEADINGS))]

    errors = accuracy.get("sem", {})
    cells = []
    for part in ("mean", "worst10", "smallest10", "pooled"):
        cells.append(with_error(accuracy.get(part), errors.get(part), in_percent=True))

    if _has_few_examples(metrics):
        cells[-1] += f" [{interval(metrics['pooled_interval'])}]"

    others = []
    for key in HEADINGS.values():
        mean = metrics.get(key, {}).get("mean")
        others.append(round_figure(mean, CLIENT_METRICS[key].in_percent))

    return [name, scored_clients(metrics), cells[0], *others, *cells[1:]]


def scored_clients(metrics: Mapping[str, Any]) -> str:
    """Return the number of clients behind the figures; a mean over seeds need not be whole."""
    return f"{metrics['clients']['evaluated']:.1f}".removesuffix(".0")


def warn(results: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for models no better than chance, and one for work that was lost."""
    for result in results:
        sentence = chance_warning(result.get("chance", {}))
        if sentence:
            say(f"warning: {sentence}", style="yellow")

    affected = []
    for result in results:
        if any(result["events"][kind] for kind in LOST_WORK):
            affected.append(result)

    if not affected:
        return

    left_out = sum(result["events"]["quarantine"] for result in affected)
    failed = sum(result["events"]["failed"] + result["events"]["absent"] for result in affected)
    folders = ", ".join(str(result["run"]) for result in affected)
    counts = f"uploads left out: {left_out}, failures: {failed}"
    say(f"warning: {counts}; see events.jsonl in {folders}", style="yellow")


def show_comparison(comparison: Comparison) -> None:
    """Print the tables of a comparison, its notes and its warnings."""
    from fedtailor.report.tables import tables_of  # imports what it needs of numpy

    # The tables of new clients need no second explanation.
    explained = {""}
    for part in tables_of(comparison):
        _show_table(part, below="" if part.below in explained else part.below)
        explained.add(part.below)

    for sentence in comparison.notes:
        say(f"note: {sentence}")

    for sentence in comparison.warnings:
        say(f"warning: {sentence}", style="yellow")


def _show_table(part: ReportTable, *, below: str) -> None:
    """Print a table of a report."""
    columns = [name.replace(" ", "\n", 1) for name in part.columns]
    rows = [[str(cell) for cell in row] for row in part.rows]
    table(part.title, columns, rows, conclusion=part.conclusion, below=below)


def show_handed_over(record: Mapping[str, Any]) -> None:
    """Print what a folder for new sites holds, and how to use it."""
    if record["values_of_sites"]:
        values = ", ".join(record["values_of_sites"])
        say(
            f"warning: the server gets single values of the sites ({values}), and its state may "
            "hold them. A new site needs this state, so it is in the folder."
        )

    say(f"{record['out']} holds what a new site needs of {record['run']}. At the site:")
    say(f"  fedtailor onboard {shlex.quote(record['out'])} --data DATA --name NAME --out FOLDER")


def show_onboarded(result: Mapping[str, Any]) -> None:
    """Print what was made for a new site, and how good it is."""
    name = result["onboarded"]
    method = str(result["algorithm"])
    for note in result["notes"]:
        say(line_of_note(note))

    if result.get("worth_it"):
        show_verdicts({method: result["worth_it"]}, method)
        say("By 5-fold cross-validation: every example was tested once, by models made without it.")
    if result.get("uses"):
        say(
            f"The model of {method} is not clearly better, so {name} uses what it would use alone: "
            f'{result["uses"].replace("_", " ")} (serve.fallback = "best").'
        )

    examples = f"{result['examples']} examples, {result['steps']} gradient steps"
    say(f"{name}: a model of {result['algorithm']} from {examples}.")
    if "metrics" in result:
        scores = result["metrics"]["personalized"]
        figures = f"accuracy {percent(scores['accuracy'])} %"
        figures += f", balanced accuracy {percent(scores['balanced_accuracy'])} %"
        if scores.get("auroc") is not None:
            figures += f", AUROC {scores['auroc']:.3f}"
        say(f"on its test examples: {figures}")

    folder = shlex.quote(result["run"])
    say(f"To use it: fedtailor predict {folder} --client {shlex.quote(name)} PATH...")
