"""Every broken folder ends in what docs/own-data.md says of it, never in a traceback."""

import re
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own, read_own

PAGE = Path(__file__).resolve().parents[3] / "docs" / "own-data.md"
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def kinds_in_docs():
    rows = re.findall(
        r"^\| `(\w+)` \| ([a-z, ]+) \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return {(severity, kind) for kind, severities in rows for severity in severities.split(", ")}


def test_a_broken_folder_is_reported_and_loads_accordingly(broken):
    folder, case = broken
    dataset, findings = read_own(str(folder), DataOptions())
    assert (case.severity, case.kind) in findings.counts, findings.problems
    assert set(findings.counts) <= kinds_in_docs()
    for problem in findings.problems:
        assert not CONTROL.search(problem.site + problem.path + problem.message), problem
        assert problem.message.endswith(".") and len(problem.message) < 1000
    errors = [kind for severity, kind in findings.counts if severity == "error"]
    assert (dataset is None) == bool(errors)
    if case.severity != "error":
        assert not errors
    try:
        loaded = load_own(str(folder), DataOptions())
    except DataError as error:
        assert dataset is None and findings.errors[0].message in error.message
    else:
        assert dataset is not None and loaded.digest == dataset.digest
        np.testing.assert_array_equal(loaded.x, dataset.x)
        assert not CONTROL.search(
            "".join((*loaded.class_names, *loaded.domain_names, loaded.name, *loaded.notes))
        )
