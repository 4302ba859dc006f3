"""Every broken folder ends in what docs/howto/own-data.md says of it, never in a traceback."""

import re
from pathlib import Path

import numpy as np

from fedtailor.core.errors import DataError
from fedtailor.data.options import DataOptions
from fedtailor.data.own.kinds import KINDS
from fedtailor.data.own.read import load_own, read_own

ROOT = Path(__file__).resolve().parents[3]
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


def test_a_broken_folder_is_reported_and_loads_accordingly(broken):
    folder, severity, kind = broken
    dataset, findings = read_own(str(folder), DataOptions())
    assert (severity, kind) in findings.counts, findings.problems
    assert all(severity in KINDS[kind].severities for severity, kind in findings.counts)
    for problem in findings.problems:
        assert not CONTROL.search(problem.site + problem.path + problem.message), problem
        assert problem.message.endswith(".") and len(problem.message) < 1000

    assert (dataset is None) == findings.has_errors
    if severity != "error":
        assert not findings.has_errors

    try:
        loaded = load_own(str(folder), DataOptions())
    except DataError as error:
        assert dataset is None and findings.errors[0].message in error.message
    else:
        assert loaded.digest == dataset.digest
        np.testing.assert_array_equal(loaded.x, dataset.x)
        names = (*loaded.class_names, *loaded.domain_names, loaded.name, *loaded.notes)
        assert not CONTROL.search("".join(names))


def test_every_kind_is_reported_somewhere():
    folder = ROOT / "src/fedtailor/data/own"
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.py")}
    code = "".join(text for name, text in sources.items() if name != "kinds.py")
    assert [name for name in KINDS if f'"{name}"' not in code] == []
