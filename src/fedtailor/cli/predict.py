"""The command ``fedtailor predict``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtailor.cli.options import Json, argument, check_is_new, number_option, text_option
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import DataError
from fedtailor.core.text import counted

ClientName = Annotated[str, text_option("NAME", "Name or number of the client.")]
RunSeed = Annotated[int | None, number_option("--seed", "Which of several seeds.")]
RunPath = Annotated[str, argument("RUN", "Folder of the run.")]

if TYPE_CHECKING:
    from fedtailor.serving.model import PersonalModel
    from fedtailor.serving.predict import Prediction
    from fedtailor.serving.sources import Sources


def check_out(out: str) -> None:
    """Check that a file to write is new, and does not lie in a run; empty: none is written.

    Raises:
        ConfigError: the file exists, or lies in the folder of a run.
    """
    from fedtailor.experiment.reader import refuse_inside_run

    if out:
        refuse_inside_run(Path(out))
        check_is_new(out)


def predict(
    run: RunPath,
    paths: Annotated[
        list[str],
        argument(
            "PATH...",
            "Pictures, folders of pictures, .npz files with an array x, CSV or Parquet tables.",
        ),
    ],
    client: ClientName,
    keep: Annotated[
        list[str] | None,
        text_option(
            "COLUMN,...",
            "Columns of the table to print first in each line, such as patient_id. "
            "May be repeated.",
        ),
    ] = None,
    out: Annotated[str, text_option("FILE", "File to write (default: stdout).")] = "",
    seed: RunSeed = None,
    json: Json = False,
) -> None:
    """Predict with a client's personal model: class and probabilities, as CSV."""
    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.core.atomic import to_json, write_whole
    from fedtailor.serving.predict import predictions, to_csv, to_record
    from fedtailor.serving.run import load
    from fedtailor.serving.sources import Sources

    check_out(out)
    model = load(run).model(client, seed=seed)
    columns = [name.strip() for names in keep or () for name in names.split(",") if name.strip()]
    columns = list(dict.fromkeys(columns))
    sources = Sources(paths, model.inputs, columns)
    rows: list[Prediction] = []
    with CountLine() as line:
        for named in sources.batches(lambda count: line("predicting files", count, sources.count)):
            rows += predictions(model, named)

    if not rows and sources.unreadable:
        count = len(sources.unreadable)
        first = sources.unreadable[0].reason
        message = f"none of {counted(count, 'picture')} can be read; the first: {first}"
        raise DataError(message, key="path", got=count)

    record = to_record(model, rows, columns)
    record["unreadable"] = [picture._asdict() for picture in sources.unreadable]
    record["notes"] = sources.notes
    text = to_json(record, indent=2) + "\n" if json else to_csv(model, rows, columns)
    if out:
        write_whole(Path(out), text)
        if json:
            told = {name: record[name] for name in ("unreadable", "notes")}
            print_json({"out": out, "predictions": len(rows), **told})
    elif json:
        print_json(record)
    else:
        typer.echo(text, nl=False)

    for note in sources.warnings:
        say(f"warning: {note}", style="yellow")

    say(_summary(model, rows, sources, out))


def _summary(model: PersonalModel, rows: Sequence[Prediction], sources: Sources, out: str) -> str:
    """Return one line about all predictions: what a reader must know before using them."""
    where = f" in {out}" if out else ""
    facts = [counted(len(rows), "prediction") + where]

    if model.card.get("instead_of"):
        facts.append(_why_own(model))

    point = model.operating_point
    if point:
        facts.append(_how_classes_were_chosen(model, point))

    # What the model did not see as it stands in the file; --json names the columns.
    if sources.missing:
        cells = counted(sources.missing.total(), "empty cell")
        columns = counted(len(sources.missing), "column")
        facts.append(f"{cells} in {columns} filled as in training")

    if sources.unseen:
        cells = counted(sources.unseen.total(), "cell")
        facts.append(f"{cells} with a category that no training example had")

    if sources.unreadable:
        pictures = counted(len(sources.unreadable), "picture")
        facts.append(f"{pictures} left out, the first: {sources.unreadable[0].reason.rstrip('.')}")

    if model.ood_threshold is not None:
        facts.append(counted(sum(row.unusual or False for row in rows), "unusual input"))
    elif model.scores_strangers:
        facts.append(f"unusual inputs not known ({_how_to_know_unusual(model)})")

    if not model.is_calibrated:
        facts.append(f"probabilities not calibrated ({_why_uncalibrated(model)})")

    if sources.missing or sources.unseen or len(sources.unreadable) > 1:
        facts.append("--json lists them")

    return f"{'; '.join(facts)}."


def _why_own(model: PersonalModel) -> str:
    """Return which model predicts in place of the personalized one, and why."""
    name = str(model.card["algorithm"]).replace("_", " ")
    verdict = {"worse": "is worse"}.get(model.card["verdict"], "is not clearly better")
    return f"by the site's own {name} (the model of {model.card['instead_of']} {verdict})"


def _how_classes_were_chosen(model: PersonalModel, point: Mapping[str, Any]) -> str:
    """Return by which probability an input is positive, or why there is no threshold."""
    if point["log_odds"] is None:
        return f"class is the most probable one ({point['problem']})"

    return (
        f"class is {model.positive_class} from a probability of {point['probability']:.3g}, for a "
        f"sensitivity of {point['sensitivity']:g} (chosen on {point['positives']} validation "
        "examples)"
    )


def _how_to_know_unusual(model: PersonalModel) -> str:
    if model.card.get("onboarded"):
        return "fedtailor onboard --validate finds a threshold"
    return "the client had fewer than 10 validation examples"


def _why_uncalibrated(model: PersonalModel) -> str:
    if model.card.get("instead_of"):
        return "the site's own models never are"
    if model.card.get("onboarded"):
        return "fedtailor onboard --validate calibrates them"
    return "the client had fewer than 30 validation examples"
