"""What a new site needs of a finished run, as a folder that can be given away.

The folder of a run also tells scores, predictions, names and examples of the sites that trained.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor.data.input_specification import write_input_specification
from fedtailor.data.split import bare_split
from fedtailor.experiment.config import Config, to_toml
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.provenance import describe
from fedtailor.experiment.reader import FOR_NEW_SITES, RunRecords, refuse_inside_run
from fedtailor.serving.new_client import FinishedRun, load_finished_run
from fedtailor.simulation.checkpoint import Checkpoints, readable_modules


def hand_over(records: RunRecords, out: Path) -> list[str]:
    """Write what a new site needs of a run: configuration, inputs, final state of the server.

    A model that a site makes from the folder has the same bits as from the whole run.

    Args:
        records: of a run of one seed.
        out: the folder to write.

    Returns:
        The fields of the messages of which the server gets the value of each site. Its state, and
        so the folder, may hold them.

    Raises:
        ConfigError: ``out`` exists, or the configuration of the run cannot be used here.
        DataError: the run has not finished, has no checkpoint, or a file is damaged.
        RunError: a file cannot be written.
    """
    refuse_inside_run(out)
    run = load_finished_run(records)
    provenance = {**describe(), FOR_NEW_SITES: _numbers(run)}
    config = to_toml(_without_sites(run.method.config))

    with RunFolder.create(out, config=config, provenance=provenance) as folder:
        # The inputs also say how the tables of each site were written.
        inputs = run.method.inputs.for_site("")
        write_input_specification(out, inputs)
        folder.write_split(bare_split(inputs.dataset, [], [], new_clients=0))

        # Who took part, and what the server's optimizer keeps, matters to no new site.
        state = replace(run.state, participated=frozenset(), selection=None, moments={})
        modules = readable_modules(run.method.algorithm)
        Checkpoints(out / "checkpoints", {}, modules=modules).save(state, {})

        # A model's card says what noise promises.
        result = records.result or {}
        folder.finish({key: result[key] for key in ("privacy",) if key in result})

    algorithm = run.method.algorithm
    messages = algorithm.messages(run.method.task(run.next_number))
    return [name for name, field in messages.items() if field.reduction == "each"]


def _without_sites(config: Config) -> Config:
    """Return a configuration that names no site, and does not say where the data were."""
    data = config.data
    path = "each-site" if data.path else ""
    data = replace(data, path=path, split="", new_clients=0)
    return replace(config, data=data, schedule=replace(config.schedule, history=()))


def _numbers(run: FinishedRun) -> dict[str, Any]:
    """Return the numbers of clients, of which the split of the run is not needed then."""
    return {
        "population": run.population,
        "trainable": run.trainable,
        "next_number": run.next_number,
    }
