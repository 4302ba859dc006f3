"""Runs that are spoiled at every file operation, at random moments, on full disks, and together:
all of them go on.

Full counts: ``make test-faults-full``, which sets FEDTAILOR_FAULTS=full.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults import file_operations, spoiled_runs
from finished_runs import ROUNDS

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs fork and /proc")

FULL = os.environ.get("FEDTAILOR_FAULTS") == "full"
ENGINES = ("reference", "workers", "batched", "processes")
NOISE = {"unit": "client", "noise": 2.0}
NOISY_STEPS = {"unit": "example", "epsilon": 4.0, "noise_from": "sites"}
PERSONAL = ("scaffold", "fedpac", "fedrep", "pfedfda")
"""Methods whose clients keep something, or whose server does."""


def spoil(folder, jobs, algorithm="scaffold", engine="reference", **options):
    """Do jobs in a process of their own; check that there are no problems, and return the
    outcomes."""
    run = {"algorithm": algorithm, "engine": engine, **options}
    specification = {"run": run, "jobs": jobs}
    command = [sys.executable, spoiled_runs.__file__, str(folder), json.dumps(specification)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(json.dumps(found))
    assert found["problems"] == []
    return found["outcomes"]


def test_a_kill_and_a_damaged_checkpoint(tmp_path):
    jobs = [
        {"kind": "operations", "fault": "kill", "moments": [0.45]},
        {"kind": "damage", "count": 1, "seed": 0},
    ]
    outcomes = spoil(tmp_path, jobs)
    assert [outcome["cases"] for outcome in outcomes] == [1, 1]
    assert outcomes[0]["operations"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("fault", file_operations.FAULTS)
def test_faults_at_file_operations(tmp_path, fault):
    """All operations in the full version, else one in nine."""
    (outcome,) = spoil(
        tmp_path, [{"kind": "operations", "fault": fault, "parts": 1 if FULL else 9}]
    )
    signals = 2 if fault in ("kill", "SIGINT", "SIGTERM") else 1
    assert outcome["cases"] >= signals * outcome["operations"] // (1 if FULL else 9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in PERSONAL if name != "scaffold"])
def test_other_methods_are_killed_at_file_operations(tmp_path, algorithm):
    moments = [number / 60 for number in range(60)] if FULL else [0.2, 0.4, 0.6, 0.9]
    spoil(tmp_path, [{"kind": "operations", "fault": "kill", "moments": moments}], algorithm)


@pytest.mark.slow
def test_full_disks(tmp_path):
    budgets = (
        [number / 100 for number in range(150)] if FULL else [number / 10 for number in range(15)]
    )
    (outcome,) = spoil(tmp_path, [{"kind": "disks", "budgets": budgets}])
    assert outcome["ended"]["5"] >= 8


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", PERSONAL)
@pytest.mark.parametrize("engine", ENGINES)
def test_killed_at_random_moments(tmp_path, engine, algorithm):
    """In the full version 208 moments: 13 for each of four methods on four engines."""
    if not FULL and ENGINES.index(engine) != PERSONAL.index(algorithm):
        pytest.skip("a part of the full version")
    spoil(tmp_path, [{"kind": "moments", "count": 13 if FULL else 4, "seed": 0}], algorithm, engine)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["scaffold", "fedpac"])
def test_damaged_checkpoints(tmp_path, algorithm):
    (outcome,) = spoil(
        tmp_path, [{"kind": "damage", "count": 250 if FULL else 30, "seed": 0}], algorithm
    )
    # Both checkpoints can need a damaged file of a store: then the run begins again.
    assert set(outcome["outcomes"]) == {"checkpoint before used", "began again"}


@pytest.mark.slow
def test_races(tmp_path):
    (outcome,) = spoil(tmp_path, [{"kind": "races", "count": 200 if FULL else 20}])
    assert outcome["ended"]["0"] >= outcome["cases"]


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [NOISE, NOISY_STEPS])
def test_the_ledger_is_killed_at_fifty_moments(tmp_path, privacy):
    """No release is lost or doubled, epsilons and final bits are those of an uninterrupted run.

    Fifty moments of the whole run, all of the ledger, and six from outside, whatever happens then.
    With a checkpoint every other round, rounds that were released run again.
    """
    moments = [number / 50 for number in range(50)]
    jobs = [
        {"kind": "operations", "fault": "kill", "moments": moments},
        {"kind": "operations", "fault": "kill", "file": "privacy.jsonl"},
        {"kind": "moments", "count": 6, "seed": 0},
    ]
    outcomes = spoil(tmp_path, jobs, algorithm="scaffold", privacy=privacy, every=2)
    assert outcomes[0]["cases"] == 50
    assert outcomes[1]["cases"] == 2 * 3 * ROUNDS, "to open, write and synchronize, in each round"
    assert all(code == "-9" for outcome in outcomes[:2] for code in outcome["ended"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "broken"])
def test_a_ledger_that_cannot_be_written_ends_the_run(tmp_path, fault):
    job = {"kind": "operations", "fault": fault, "file": "privacy.jsonl"}
    (outcome,) = spoil(tmp_path, [job], privacy=NOISE)
    assert outcome["ended"] == {"5": outcome["cases"]}


@pytest.mark.slow
def test_a_disk_that_is_full_when_the_ledger_is_written(tmp_path):
    # The first entry is not opened, the second not written whole, the third not synchronized.
    moments = [0, 0.5, 0.99]
    job = {"kind": "operations", "fault": "ENOSPC", "file": "privacy.jsonl", "moments": moments}
    (outcome,) = spoil(tmp_path, [job], privacy=NOISE)
    assert outcome["ended"] == {"5": 3} and outcome["rounds"] == [0, 1, 2]
    assert "No space left on device" in (tmp_path / "output.log").read_text()
