"""Records of measurements: ``results/NAME.jsonl`` has a line for each, found by its ``name``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import to_json, write_whole
from fedtailor.core.folders import locked
from fedtailor.core.reading import read_lines

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]


def read_records(benchmark: str) -> dict[str, Record]:
    """Return the records of a benchmark by name."""
    path = RESULTS / f"{benchmark}.jsonl"
    return {record["name"]: record for record in read_lines(path)} if path.exists() else {}


def save_record(benchmark: str, name: str, record: Record) -> None:
    """Add a record to the file of a benchmark. One with the same name is replaced."""
    with locked(RESULTS):  # another process may add a record at the same time
        records = read_records(benchmark)
        records[name] = {"name": name, **record}
        lines = (f"{to_json(records[key])}\n" for key in sorted(records))
        write_whole(RESULTS / f"{benchmark}.jsonl", "".join(lines))


def describe_machine() -> Record:
    """Return the machine, the versions, and the load of the machine before the measurement."""
    from fedtailor.experiment.provenance import machine, versions

    return {"machine": {**machine(), "load_before": os.getloadavg()[0]}, "versions": versions()}
