"""The command ``fedtailor predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedtailor.cli.options import Debug, Json, whole_number
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import ConfigError, DataError

ClientName = Annotated[
    str,
    typer.Option(
        "--client", metavar="NAME", show_default=False, help="Name or number of the client."
    ),
]
RunSeed = Annotated[
    int | None,
    typer.Option(parser=whole_number("--seed"), metavar="NUMBER", help="Which of several seeds."),
]
RunPath = Annotated[
    str, typer.Argument(metavar="RUN", show_default=False, help="Folder of the run.")
]

_MOST_LISTED = 5


def predict(
    run: RunPath,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            show_default=False,
            help="Pictures, folders of pictures, .npz files with an array x, "
            "CSV or Parquet tables.",
        ),
    ],
    client: ClientName,
    out: Annotated[str, typer.Option(metavar="FILE", help="File to write (default: stdout).")] = "",
    seed: RunSeed = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict with a client's personal model: class and probability for each input, as CSV."""
    from fedtailor.cli.show.console import say
    from fedtailor.cli.show.progress import CountLine
    from fedtailor.core.atomic import to_json, write_whole
    from fedtailor.experiment.reader import refuse_inside_run
    from fedtailor.serving.predict import Prediction, predictions, to_csv, to_record
    from fedtailor.serving.run import load
    from fedtailor.serving.sources import Sources

    if out:
        refuse_inside_run(Path(out))
        if any(Path(out).resolve() == Path(path).resolve() for path in paths):
            message = f"--out '{out}' is one of the inputs: choose another file."
            raise ConfigError(message, key="out", got=out)

    model = load(run).model(client, seed=seed)
    sources = Sources(paths, model.inputs)
    rows: list[Prediction] = []
    with CountLine() as line:
        for named in sources.batches(lambda count: line("predicting files", count, sources.count)):
            rows += predictions(model, named)

    if not rows and sources.unreadable:
        count = len(sources.unreadable)
        first = sources.unreadable[0].reason
        message = f"none of the {count} pictures can be read; the first: {first}"
        raise DataError(message, key="path", got=count)

    record = to_record(model, rows)
    record["unreadable"] = [picture._asdict() for picture in sources.unreadable]
    record["notes"] = sources.notes
    text = to_json(record, indent=2) + "\n" if json else to_csv(model, rows)
    if out:
        write_whole(Path(out), text)
        say(f"{len(rows):,} predictions are in {out}")
    elif json:
        print_json(record)
    else:
        typer.echo(text, nl=False)

    for note in sources.notes:
        say(f"note: {note}")

    for picture in sources.unreadable[:_MOST_LISTED]:
        say(f"left out: {picture.reason}")

    more = len(sources.unreadable) - _MOST_LISTED
    if more > 0:
        say(f"left out: {more} more; --json lists all")

    if not model.is_calibrated:
        reason = "the client had fewer than 30 validation examples."
        if model.card.get("participated") is False and model.card.get("onboarded"):
            reason = "fedtailor onboard --validate calibrates them."

        say(f"note: the probabilities are uncalibrated: {reason}")
