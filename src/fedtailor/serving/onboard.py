"""The model of a site that never took part, as a run folder; the run stays as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedtailor.core.errors import ConfigError
from fedtailor.experiment.folder import refuse_existing
from fedtailor.experiment.reader import RunRecords, refuse_inside_run
from fedtailor.serving.model_folder import ClientModel, write_model_folder
from fedtailor.serving.new_client import all_positions, load_finished_run, onboard
from fedtailor.serving.site_data import OF_COMMAND, OF_RUN, load_site, options_written_as
from fedtailor.serving.validate import cross_validate, summary


def onboard_site(
    records: RunRecords,
    data: str | Path,
    out: Path,
    *,
    name: str,
    label_column: str,
    validate: bool,
) -> None:
    """Make the model of a new site and write its folder.

    See :meth:`fedtailor.serving.run.Run.onboard`.

    Args:
        records: of a run of one seed.
        data: of the site.
        out: the folder to write.
        name: of the site; empty: the name of the data.
        label_column: of a table; empty: the one of the run.
        validate: whether to compare the model with others.
    """
    refuse_existing(out)
    refuse_inside_run(out)
    run = load_finished_run(records)
    method = run.method

    # A table needs the column of the groups in any case, because it is not a feature.
    options = method.config.data
    needs_groups = validate or method.inputs.kind == "table"
    with options_written_as(OF_COMMAND, OF_RUN):
        site = load_site(
            str(data),
            method.inputs,
            label_column=label_column or options.label_column,
            group=options.group if needs_groups else "",
        )

    name = name or site.name

    # Reports and predictions tell clients apart by their names.
    names = records.split.get("client_names")
    if isinstance(names, list) and name in names:
        message = f"the run has a client '{name}' already: choose another --name."
        raise ConfigError(message, key="name", allowed="a new name", got=name)

    onboarded = onboard(run, site)
    result: dict[str, Any] = {
        "onboarded": name,
        "steps": onboarded.steps,
        "examples": site.num_train,
    }

    # A temperature needs examples that the model was not made from.
    calibration: dict[str, Any] = {"examples": 0}
    if validate:
        validation = cross_validate(run, site)
        result["validation"] = summary(validation)
        calibration = validation.calibration._asdict()

    model = ClientModel(
        onboarded.personal,
        name=name,
        method=method,
        site=site,
        positions=all_positions(site),
        number=run.next_number,
        new=True,
        round=run.state.round,
        participated=False,
        scores=onboarded.scores,
        calibration=calibration,
    )
    origin = {"onboarded": _origin(records)}
    write_model_folder(out, model, provenance=origin, result=result, card={"onboarded": True})


def _origin(records: RunRecords) -> dict[str, Any]:
    """Return which run the model comes from."""
    config = (records.path / "experiment.toml").read_bytes()
    return {
        "run": records.path.name,
        "experiment_sha256": hashlib.sha256(config).hexdigest(),
        "data": records.provenance.get("data"),
        "commit": records.provenance.get("commit"),
    }
