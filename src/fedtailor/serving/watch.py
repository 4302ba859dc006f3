"""Is a client's model still right? Recent inputs, without labels, against held-out examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.experiment.reader import RunRecords
from fedtailor.serving.alarms import RATE, check_inputs, refuse_few_inputs
from fedtailor.serving.encoded import with_encoder
from fedtailor.serving.load import load_method, load_personal
from fedtailor.serving.model import PersonalModel
from fedtailor.serving.signals import HELD_OUT_FILE, Signals, read_held_out, signals
from fedtailor.serving.sources import Sources

ALARMS = ("unusual", "surprise", "doubt", "class_mix")


class Watched(NamedTuple):
    """The model of a client, and what it says of held-out examples and of recent inputs."""

    model: PersonalModel
    """It takes raw inputs."""
    held_out: Signals
    recent: Signals
    sources: Sources
    """The recent inputs."""


def observe(records: RunRecords, client: str | int, paths: Sequence[str]) -> Watched:
    """Return what the personalized model of a client says of held-out and of recent inputs.

    Args:
        records: of a run of one seed, or of a model of one client.
        client: its name, or its number.
        paths: of the recent inputs, as of :class:`Sources`.

    Raises:
        ConfigError: the configuration of the run cannot be used here, or its encoder is not there.
        DataError: there is no such model or no held-out examples, the data have changed, or the
            inputs are not what the model was trained for.
    """
    model = load_personal(records, client)
    raw = with_encoder(model)

    # Mistakes in the inputs are found before the data of the run are read.
    sources = Sources(paths, raw.inputs)
    recent = signals(raw, (named.stored for named in sources.batches()))
    refuse_few_inputs(len(recent.strangeness))
    if (records.path / HELD_OUT_FILE).is_file():
        held_out = read_held_out(records.path, len(model.classes_))
    else:
        held_out = signals(model, _held_out_inputs(records, model))

    return Watched(raw, held_out, recent, sources)


def _held_out_inputs(records: RunRecords, model: PersonalModel) -> Iterator[np.ndarray]:
    """Yield the validation and test examples of a client of a run as stored values.

    Raises:
        DataError: the run does not say where its data are, or they have changed.
    """
    from fedtailor.data.build import build, split_record
    from fedtailor.experiment.provenance import describe_data

    # The folder of one client says nothing about the data of others.
    provenance = records.provenance
    if "data" not in provenance:
        message = f"'{records.path}' holds no held-out examples to compare with"
        problem = model.card.get("held_out", {}).get("problem", "")
        message += f": {problem}." if problem else "."
        raise DataError(message, path=records.path, allowed="held-out examples", got="none")

    config = load_method(records).config
    divided = build(config.data, run_seed=config.seeds[0], late=config.schedule.late)
    if config.data.encoder:
        from fedtailor.data.embedding import embed

        divided = embed(divided)

    now = describe_data(divided.division.dataset)["sha256"]
    split = split_record(divided.division, divided.conditions)["split_sha256"]
    if (now, split) != (provenance["data"].get("sha256"), provenance.get("split_sha256")):
        message = f"the data of '{records.path}' have changed since it was made."
        allowed = provenance["data"].get("sha256")
        raise DataError(message, key="data", path=records.path, allowed=allowed, got=now)

    positions = divided.positions[int(model.card["number"])]
    rows = np.concatenate([positions.val, positions.test])
    yield divided.dataset.x[rows]


def to_record(watched: Watched) -> dict[str, Any]:
    """Return what alarms say of recent inputs, ready for JSON.

    Raises:
        DataError: there are too few inputs.
    """
    model = watched.model
    alarms = check_inputs(watched.held_out, watched.recent)
    rows = {}
    for name in ALARMS:
        alarm = getattr(alarms, name)
        if alarm is None:
            continue
        rows[name] = {**alarm._asdict(), "rings": alarm.rings}

    mix = {}
    for name, before, now in zip(
        model.classes_, alarms.held_out_mix.tolist(), alarms.recent_mix.tolist(), strict=True
    ):
        mix[str(name)] = {"held_out": before, "recent": now}

    return {
        "client": model.client,
        "algorithm": model.card.get("algorithm"),
        "scores": "method" if model.scores_strangers else "softmax",
        "held_out": len(watched.held_out.strangeness),
        "inputs": len(watched.recent.strangeness),
        "rate": RATE,
        "alarm": any(row["rings"] for row in rows.values()),
        "alarms": rows,
        "class_mix": mix,
        "unreadable": [picture._asdict() for picture in watched.sources.unreadable],
        "notes": watched.sources.notes,
    }


def advice(record: Mapping[str, Any]) -> str:
    """Return in words what the alarms of a record mean."""
    rings = {name for name, row in record["alarms"].items() if row["rings"]}
    labels = "With labels of some recent inputs, 'fedtailor evaluate' says by how much."
    if not rings:
        return "No alarm: nothing tells recent inputs from held-out examples."
    if "unusual" in rings:
        return f"Alarm: the inputs have changed, and accuracy may have changed with them. {labels}"

    what = ""
    if "surprise" in rings:
        side = "less" if record["alarms"]["surprise"]["value"] > 0 else "more"
        what = f"the inputs are {side} likely"
    elif "doubt" in rings:
        side = "more" if record["alarms"]["doubt"]["value"] > 0 else "less"
        what = f"the model is in {side} doubt"
    if what:
        return (
            f"Alarm: {what} than before. The inputs have changed, or their classes come in other "
            f"shares; accuracy may have changed with them. {labels}"
        )

    return (
        "Alarm: the classes seem to come in other shares than before. A model with Gaussians of "
        "classes can follow: 'fedtailor adapt'."
    )
