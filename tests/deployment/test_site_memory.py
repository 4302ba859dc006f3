"""What a site remembers of its answers is on the disk before it is used, and tells no numbers."""

import json

import pytest

from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.data.options import DataOptions
from fedtailor.deployment import site_memory
from fedtailor.deployment.policy import SitePolicy
from fedtailor.deployment.site_memory import MEMORY_FILE, SiteMemory
from fedtailor.deployment.site_run import _has_begun

DATA = DataOptions(path="each-site")


def options(**values):
    return DataOptions(path="each-site", **values)


def test_what_cannot_be_written_is_not_used(tmp_path, monkeypatch):
    memory = SiteMemory(tmp_path, SitePolicy())
    monkeypatch.setattr(site_memory, "write_json", full_disk)
    parts = {"train": 80, "val": 0, "test": 20, "all": 100}
    for _ in range(2):
        with pytest.raises(RunError, match="full"):
            memory.noise_secret("release")
        with pytest.raises(RunError, match="full"):
            memory.answer_once("means", "question", lambda: 1)
        with pytest.raises(RunError, match="full"):
            memory.keep_division(DATA, parts)

    # Nothing is there, so the next start may draw anything.
    assert not (tmp_path / MEMORY_FILE).exists()
    monkeypatch.undo()
    secret = memory.noise_secret("release")
    assert memory.answer_once("means", "question", lambda: 2) == 2
    again = SiteMemory(tmp_path, SitePolicy())
    assert again.noise_secret("release") == secret
    assert again.answer_once("means", "question", lambda: 3) == 2


def full_disk(*arguments):
    raise RunError("the disk is full.")


def test_an_answer_may_ask_for_others(tmp_path):
    memory = SiteMemory(tmp_path, SitePolicy())

    def answer():
        memory.keep_division(DATA, {"train": 80, "val": 0, "test": 20, "all": 100})
        return memory.answer_once("inner", "question", lambda: 1) + 1

    assert memory.answer_once("outer", "question", answer) == 2
    record = json.loads((tmp_path / MEMORY_FILE).read_text())
    assert set(record["answers"]) == {"inner", "outer", "ways to divide"}
    assert record["division"]["examples"]["train"] == 80


def test_refused_divisions_tell_no_numbers_and_are_few(tmp_path):
    memory = SiteMemory(tmp_path, SitePolicy())
    reasons = []
    for val in range(2, 9):
        parts = {"train": 900 - val, "val": val, "test": 100, "all": 1000}
        with pytest.raises((ConfigError, DataError)) as refused:
            memory.keep_division(options(val_fraction=val / 1000), parts)
        reasons.append(refused.value.message)

    assert sum("this plan uses fewer" in reason for reason in reasons) == 3
    assert all("ways to divide" in reason for reason in reasons[3:])
    numbers = ("998", "900", "1000", "uses 2")
    assert not any(number in reason for number in numbers for reason in reasons)


def test_another_division_is_refused_without_numbers(tmp_path):
    memory = SiteMemory(tmp_path, SitePolicy(least_share=0.5))
    memory.keep_division(DATA, {"train": 80, "val": 0, "test": 20, "all": 100})
    with pytest.raises(DataError, match=r"numbers of examples would change\. Only its operator"):
        memory.keep_division(DATA, {"train": 79, "val": 0, "test": 20, "all": 99})

    # Even one that leaves too few examples: a server must not try where the limit is.
    with pytest.raises(DataError, match=r"data\.fraction would change, 1\.0 then and 0\.1 now"):
        memory.keep_division(options(fraction=0.1), {"train": 8, "val": 0, "test": 20, "all": 100})


def test_a_full_disk_does_not_lock_a_site_out_of_a_run(tmp_path, monkeypatch):
    path = tmp_path / "run" / "data.sha256"
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", no_space)
        with pytest.raises(RunError):
            _has_begun(path, "digest")

    assert not _has_begun(path, "digest")
    assert _has_begun(path, "digest")


def no_space(descriptor):
    raise OSError(28, "No space left on device")
