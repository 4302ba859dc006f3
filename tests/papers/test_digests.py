"""Every record in the repository still belongs to the settings that it was made with."""

import dataclasses
import json
from pathlib import Path

import pytest

from fedtailor.experiment.config import make_config
from fedtailor.papers.records import describe, read_records, read_score, unused
from fedtailor.papers.tables import cells, expand, load_paper

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
RECORDS = sorted((FOLDER / "results").glob("*/*.json"))


def test_there_are_records():
    assert len(RECORDS) >= 17


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_digest_of_a_record_is_that_of_its_cell(path):
    record = json.loads(path.read_bytes())
    cell = expand(
        load_paper(record["paper"], FOLDER),
        record["table"],
        record["column"],
        record["method"],
        record["seed"],
    )
    assert cell.digest == record["digest"] and path.stem.endswith(f"-{cell.digest[:8]}")
    assert cell.values == record["config"]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_scores_of_a_record_are_read_as_its_paper_reads_them_today(path):
    record = json.loads(path.read_bytes())
    cell = expand(
        load_paper(record["paper"], FOLDER),
        record["table"],
        record["column"],
        record["method"],
        record["seed"],
    )
    read = {
        reading.name: describe(reading, read_score(reading, record["result"]))
        for reading in cell.readings
    }
    assert record["scores"] == read
    assert record["inferred"] == list(cell.inferred)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_settings_of_a_record_can_still_be_run(path):
    record = json.loads(path.read_bytes())
    config = make_config(record["config"])
    assert (
        config.seeds == (record["seed"],) and config.algorithm.name == record["result"]["algorithm"]
    )


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_no_record_is_of_data_that_only_resemble_the_papers(path):
    """Without the photographs of frost, a run draws textures; its number cannot be compared with
    the paper's."""
    notes = json.loads(path.read_bytes())["provenance"]["notes"]
    assert not [note for note in notes if "is an approximation" in note]


@pytest.mark.parametrize("name", sorted({path.parent.name for path in RECORDS}))
def test_no_record_is_orphaned(name):
    assert unused(load_paper(name, FOLDER), read_records(FOLDER / "results", name)) == []


def test_a_digest_is_of_settings_that_change_a_result_only():
    cell = cells(load_paper("pfedfda", FOLDER), "1")[0]
    data = {**cell.values["data"], "dir": "elsewhere"}
    values = {**cell.values, "data": data, "seed": 7, "evaluation": {"every": 1}}
    assert dataclasses.replace(cell, values=values, seed=7).digest == cell.digest
    values = {**cell.values, "training": {**cell.values["training"], "lr": 0.5}}
    assert dataclasses.replace(cell, values=values).digest != cell.digest
