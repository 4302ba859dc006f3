"""Whole runs on the stand-in device: files, records, resuming, and the option that names the
device."""

import json
import tomllib
from pathlib import Path

import pytest

import finished_runs
import stand_in_device
from fedtailor.core.devices import HOST
from fedtailor.experiment import assembly
from fedtailor.experiment.config import make_config
from fedtailor.experiment.run import run
from fedtailor.experiment.tracking import RunProgress

DEVICE = stand_in_device.register()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def on_stand_in(monkeypatch):
    """Make every run take place on the stand-in device, whatever its options name."""
    monkeypatch.setattr(assembly, "choose_device", lambda options, schedule: DEVICE)
    return DEVICE


def settings(algorithm="scaffold", **engine):
    values = finished_runs.settings(algorithm)
    values["evaluation"] |= {"select": "best", "personalized_every": 1}
    values["data"] |= {"val_fraction": 0.2}
    return make_config({**values, "engine": {"name": "reference", **engine}})


class Stop(RunProgress):
    """Interrupts a run after its second round."""

    def round(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


def content(path):
    """Return what a run folder holds, without the device."""
    found = finished_runs.content(Path(path))
    device = found["result"].pop("device")
    return device, found


def test_a_run_writes_the_same_files_and_is_resumed(folder, monkeypatch):
    run(settings(), out="on-cpu")
    monkeypatch.setattr(assembly, "choose_device", lambda options, schedule: DEVICE)
    with pytest.raises(KeyboardInterrupt):
        run(settings(), out="there", progress=Stop())
    run(settings(), out="there")
    device, found = content("there")
    expected_device, expected = content("on-cpu")
    assert (device, expected_device) == ("stand_in:0", "cpu")
    for part, value in expected.items():
        assert found[part] == value, part
    provenance = json.loads(Path("there/provenance.json").read_text())
    assert provenance["device"] == "stand_in:0"


def test_auto_takes_the_engine_batched_on_another_device(folder, on_stand_in):
    prepared = assembly.assemble(settings(name="auto"), 1)
    assert prepared.engine.name == "batched"
    assert (
        prepared.choice.reason
        == "engine batched: on the device stand_in:0, many clients at a time."
    )
    assert prepared.config.engine.name == "batched"


def test_the_resolved_configuration_names_the_device_that_auto_took(folder, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert assembly.assemble(settings(device="auto"), 1).config.engine.device == "cpu"
    run(make_config({**finished_runs.settings("fedavg"), "engine": {"device": "auto"}}), out="one")
    assert tomllib.loads(Path("one/experiment.toml").read_text())["engine"]["device"] == "cpu"


def test_auto_takes_the_cpu_for_engines_that_have_nothing_else(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    prepared = assembly.assemble(settings(name="workers", device="auto"), 1)
    assert prepared.device == HOST and prepared.config.engine.device == "cpu"
    prepared.engine.close()
