"""The folder of an onboarded site: a run folder with one client, which can be loaded as any
other.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedtailor.core.codec import encode
from fedtailor.core.errors import ConfigError
from fedtailor.data.input_specification import write_input_specification
from fedtailor.data.split import ClientRecord, split_digest
from fedtailor.experiment.config import to_toml
from fedtailor.experiment.folder import RunFolder, refuse_existing
from fedtailor.experiment.model_card import model_card
from fedtailor.experiment.provenance import describe
from fedtailor.experiment.reader import RunRecords, refuse_inside_run
from fedtailor.serving.onboard import Onboarded, Server, load_server, onboard
from fedtailor.serving.site_data import SiteData, load_site
from fedtailor.serving.validate import Validation, cross_validate, summary


def onboard_site(
    records: RunRecords,
    data: str | Path,
    out: Path,
    *,
    name: str,
    label_column: str,
    validate: bool,
) -> None:
    """Make the model of a new site and write its folder; see
    :meth:`fedtailor.serving.run.Run.onboard`.

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
    server = load_server(records)
    data_options = server.method.config.data
    is_needed = validate or server.method.inputs.kind == "table"  # where its column is no feature
    site = load_site(
        str(data),
        server.method.inputs,
        label_column=label_column or data_options.label_column,
        group=data_options.group if is_needed else "",
    )
    name = name or site.name
    taken = records.split.get("client_names")

    if isinstance(taken, list) and name in taken:
        message = f"the run has a client '{name}' already: choose another --name."
        raise ConfigError(message, key="name", allowed="a new name", got=name)

    onboarded = onboard(server, site)
    validation = cross_validate(server, site) if validate else None
    write_onboarded(out, records, server, site, onboarded, name, validation)


def write_onboarded(
    out: Path,
    records: RunRecords,
    server: Server,
    site: SiteData,
    onboarded: Onboarded,
    name: str,
    validation: Validation | None,
) -> None:
    """Write the folder of an onboarded site."""
    config = server.method.config
    provenance = {**describe(), "onboarded": _origin(records)}
    folder = RunFolder.create(out, config=to_toml(config), provenance=provenance)
    clients = [
        ClientRecord(
            train=list(range(site.num_train)), val=[], test=list(range(site.num_train, len(site.y)))
        )
    ]

    with folder:
        folder.write_split(
            {
                "dataset": site.name,
                "split_sha256": split_digest(clients, 1),
                "new_clients": 1,
                "client_names": [name],
                "conditions": [],
                "clients": clients,
            }
        )
        write_input_specification(out, server.method.inputs)
        card = _card(server, site, onboarded, validation)
        folder.write_models([(name, encode(onboarded.personal), card)])
        result: dict[str, Any] = {
            "run": str(out),
            "algorithm": config.algorithm.name,
            "onboarded": name,
            "steps": onboarded.steps,
            "examples": site.num_train,
        }
        if onboarded.scores:
            result["metrics"] = {"personalized": onboarded.scores}
        if validation is not None:
            result["validation"] = summary(validation)

        folder.finish(result)


def _card(
    server: Server, site: SiteData, onboarded: Onboarded, validation: Validation | None
) -> dict[str, Any]:
    method = server.method
    card = model_card(
        onboarded.personal,
        config=method.config,
        algorithm=method.algorithm,
        task=method.task(server.next_number),
        inputs=method.inputs,
        dataset=site.name,
        number=server.next_number,
        new=True,
        round=server.state.round,
        participated=False,
        class_counts=[
            int((site.y[: site.num_train] == label).sum())
            for label in range(method.inputs.num_classes)
        ],
        scores=onboarded.scores,
        calibration={"examples": 0} if validation is None else validation.calibration._asdict(),
    )

    return {**card, "onboarded": True}


def _origin(records: RunRecords) -> dict[str, Any]:
    """Return which run the model comes from."""
    config = (records.path / "experiment.toml").read_bytes()
    return {
        "run": records.path.name,
        "experiment_sha256": hashlib.sha256(config).hexdigest(),
        "data": records.provenance.get("data"),
        "commit": records.provenance.get("commit"),
    }
