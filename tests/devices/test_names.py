"""The names of devices, the option that takes one, and the context of the CPU."""

import pytest
import torch

from fedtailor.cli.main import main
from fedtailor.core import devices
from fedtailor.core.devices import HOST, find, placed
from fedtailor.core.errors import ConfigError
from fedtailor.simulation.engines import EngineOptions


def test_the_context_of_the_cpu_does_nothing():
    with placed(HOST):
        assert torch._C._len_torch_function_stack() == 0


def test_devices_that_are_there():
    assert find("cpu") == HOST
    assert devices.available()[0] == "cpu"


@pytest.fixture
def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def test_auto_takes_the_first_cuda_device_or_the_cpu(monkeypatch, no_accelerator):
    assert find("auto") == HOST
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find("auto") == find("cuda") == torch.device("cuda:0")
    assert find("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="must be auto, cpu, cuda:0, cuda:1 on this machine"):
        find("cuda:2")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_a_device_that_is_not_there_is_refused_by_name(no_accelerator, name):
    with pytest.raises(ConfigError, match=f"auto, cpu on this machine, got '{name}'") as caught:
        find(name)
    assert caught.value.key == "engine.device"


def test_mps_is_refused_because_it_has_no_float64(no_accelerator):
    with pytest.raises(ConfigError, match=r"got 'mps'. Apple's MPS has no float64"):
        find("mps")


@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "", "cuda:0 ", "xpu"]
)
def test_names_of_other_devices_are_refused(name):
    with pytest.raises(
        ConfigError, match=r"engine\.device must be auto, cpu, cuda, cuda:NUMBER or mps, got"
    ):
        EngineOptions(device=name)


@pytest.mark.parametrize("engine", ["workers", "processes", "ray"])
def test_engines_of_threads_and_processes_are_for_the_cpu(engine):
    with pytest.raises(ConfigError, match=f"auto, batched or reference .* got '{engine}'"):
        EngineOptions(name=engine, device="cuda")
    assert EngineOptions(name=engine, device="auto").device == "auto"
    assert EngineOptions(name=engine, device="cpu").device == "cpu"


def test_the_command_says_in_one_sentence_that_a_device_is_not_there(
    tmp_path, capsys, no_accelerator
):
    arguments = [
        "run",
        "-a",
        "fedavg",
        "-d",
        "digits",
        "--device",
        "cuda:1",
        "--out",
        str(tmp_path / "x"),
    ]
    assert main(arguments) == 3
    _, err = capsys.readouterr()
    assert len(err.splitlines()) == 1
    assert err.startswith("error: engine.device must be auto, cpu on this machine, got 'cuda:1'")
    assert not (tmp_path / "x").exists()
