"""Records of measurements: ``results/NAME.jsonl`` has a line for each, found by its ``name``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def save_record(benchmark: str, name: str, record: dict[str, Any]) -> None:
    """Add a record to the file of a benchmark. One with the same name is replaced."""
    path = RESULTS / f"{benchmark}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = {line["name"]: line for line in map(json.loads, lines)}
    records[name] = {"name": name, **record}
    path.write_text("".join(f"{json.dumps(records[key])}\n" for key in sorted(records)))


def describe_machine() -> dict[str, Any]:
    """Return the machine, the versions, and the load of the machine before the measurement."""
    from fedtailor.experiment.provenance import machine, versions

    return {"machine": {**machine(), "load_before": os.getloadavg()[0]}, "versions": versions()}
