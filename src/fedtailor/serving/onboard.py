"""The model of a site that never took part, as a run folder; the run stays as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedtailor.baselines import TrainedBaselines
from fedtailor.core.options import wrong_value
from fedtailor.core.schedule import names_of_baselines
from fedtailor.experiment.baselines import InputTables
from fedtailor.experiment.folder import refuse_existing
from fedtailor.experiment.reader import SITE_DATA, RunRecords, refuse_inside_run
from fedtailor.experiment.site_rows import MAJORITY, site_rows
from fedtailor.experiment.worth_it import as_record
from fedtailor.privacy import claims
from fedtailor.serving.model_folder import ClientModel, write_model_folder
from fedtailor.serving.new_client import FinishedRun, all_positions, load_finished_run, onboard
from fedtailor.serving.site_data import (
    OF_COMMAND,
    OF_RUN,
    SiteData,
    absolute,
    load_site,
    options_written_as,
)
from fedtailor.serving.validate import cross_validate, train_own


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
        validate: whether to judge by a cross-validation if the model is better than what the site
            would use alone. With ``serve.fallback = "best"`` it is judged in any case, and not used
            where it is not clearly better: then the result says what the site ``uses``.
    """
    refuse_existing(out)
    refuse_inside_run(out)
    run = load_finished_run(records)
    method = run.method

    # A table needs the column of the groups in any case, because it is not a feature.
    options = method.config.data
    chooses = method.config.serve.fallback == "best"
    validate = validate or chooses
    needs_groups = validate or method.inputs.raw.kind == "table"
    with options_written_as(OF_COMMAND, OF_RUN):
        site = load_site(
            str(data),
            method.inputs,
            label_column=label_column or options.label_column,
            group=options.group if needs_groups else "",
            leave_out=options.leave_out,
        )

    name = name or site.name

    # Reports and predictions tell clients apart by their names.
    if name in records.client_names:
        raise wrong_value("--name", "new", name, "The run has such a client.")

    onboarded = onboard(run, site)
    result: dict[str, Any] = {
        "onboarded": name,
        "steps": onboarded.steps,
        "examples": site.num_train,
        "notes": list(site.warnings),
    }

    # A temperature needs examples that the model was not made from.
    calibration: dict[str, Any] = {"examples": 0}
    own: TrainedBaselines | None = None
    if validate:
        # Of large pictures there is nothing but the majority class to compare with.
        tables = _tables(run, site)
        baselines = tables.trainable(names_of_baselines(method.config.schedule.baselines))
        has_baselines = chooses or any(baseline != MAJORITY for baseline in baselines)
        validation = cross_validate(run, site, tables if has_baselines else None)
        calibration = validation.calibration._asdict()

        measure = method.config.schedule.verdict
        (row,) = site_rows(validation.trainings, [name], measure)
        result["worth_it"] = as_record([row], measure)
        if chooses:
            positions = all_positions(site)
            own = train_own(run, tables, positions.train, positions.test, keep=True)
            if row.verdict != "better":
                result["uses"] = own.best

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
    origin = {"onboarded": _origin(records), SITE_DATA: [absolute(str(data))]}
    card = {"onboarded": True, **claims.of_card(records.result or {})}
    write_model_folder(out, model, provenance=origin, result=result, card=card, own=own)


def _tables(run: FinishedRun, site: SiteData) -> InputTables:
    """Return the inputs of baselines at a new site."""
    federation = run.federation(site, all_positions(site), run.next_number)
    return InputTables.of(site.x, site.y, site.groups, federation.x)


def _origin(records: RunRecords) -> dict[str, Any]:
    """Return which run the model comes from."""
    config = (records.path / "experiment.toml").read_bytes()
    return {
        "run": records.path.name,
        "experiment_sha256": hashlib.sha256(config).hexdigest(),
        "data": records.provenance.get("data"),
        "commit": records.provenance.get("commit"),
    }
