"""Audits of members: what leaks is found, what does not is not accused, kills cost nothing."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedtailor.cli.main import main
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.experiment.audits import audit_members, read_members_plan
from fedtailor.experiment.config import make_config
from fedtailor.experiment.methods import read_method, to_text
from fedtailor.experiment.tracking import RunProgress
from marks import quick

SETTINGS = {
    "data": {"clients": 3, "fraction": 0.2},
    "federation": {"rounds": 2},
    "training": {"lr": 0.2, "epochs": 5},
    "engine": {"name": "reference"},
}


def config_of(method, **sections):
    return make_config({**SETTINGS, "algorithm": {"name": method}, **sections})


class InterruptedAt(RunProgress):
    """Interrupts at a round, counted over all trainings."""

    def __init__(self, rounds):
        self.left = rounds

    def round(self, record):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_models_that_remember_are_found_and_untrained_ones_tell_nothing(tmp_path):
    training = {"lr": 1e-9, "epochs": 1}
    still = audit_members([config_of("local", training=training)], trainings=8, out=tmp_path / "a")
    leaking = audit_members([config_of("local")], trainings=8, out=tmp_path / "b")

    # The seed alone changes the untrained models.
    numbers = still["methods"][0]["points"]["personalized"]
    assert abs(numbers["auc"] - 0.5) < 0.05
    told = leaking["methods"][0]["points"]["personalized"]
    assert told["auc"] - 4 * told["auc_standard_error"] > 0.55
    assert 0.5 < told["accuracy"] <= 1
    assert "global" not in leaking["methods"][0]["points"], "the method has no global model"

    # The worst client is the one with the highest number.
    clients = told["clients"]
    assert clients[told["worst_client"]]["auc"] == max(client["auc"] for client in clients)
    assert "no proof of privacy" in leaking["limits"]


def test_examples_that_were_out_were_not_trained_on(tmp_path):
    audit_members([config_of("fedavg")], trainings=4, out=tmp_path / "audit")
    paths = sorted((tmp_path / "audit").glob("runs/*/training-*.safetensors"))
    inside = np.array([load_file(path)["inside"] for path in paths])
    assert inside.shape[0] == 4 and 0.35 < inside.mean() < 0.65
    assert len({row.tobytes() for row in inside}) == 4

    # FedAvg's personal model is the global one.
    tensors = load_file(paths[0])
    np.testing.assert_array_equal(tensors["signals/personalized"], tensors["signals/global"])


@pytest.mark.parametrize("rounds", quick([1, 4, 7], 4))
def test_an_interrupted_audit_ends_with_the_same_record(tmp_path, monkeypatch, rounds):
    monkeypatch.chdir(tmp_path)
    configs = [config_of("fedavg"), config_of("fedrep")]
    whole = audit_members(configs, trainings=4, out="whole")
    with pytest.raises(KeyboardInterrupt):
        audit_members(configs, trainings=4, out="killed", progress=InterruptedAt(rounds))

    assert not (tmp_path / "killed" / "result.json").exists()
    begun, trainings = read_members_plan(tmp_path / "killed")
    resumed = audit_members(begun, trainings=trainings, out="killed")
    assert {**resumed, "folder": "whole"} == whole


def test_trainings_and_methods_can_be_added(tmp_path):
    folder = tmp_path / "audit"
    audit_members([config_of("fedavg")], trainings=4, out=folder)
    first = {path: path.read_bytes() for path in folder.glob("runs/*/*.safetensors")}
    more = audit_members([config_of("fedavg"), config_of("local")], trainings=5, out=folder)
    assert [method["method"] for method in more["methods"]] == ["fedavg", "local"]
    assert all(path.read_bytes() == content for path, content in first.items())
    assert len(list(folder.glob("runs/*/*.safetensors"))) == 10


def test_wrong_options_are_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "audit"
    seeds = make_config({**SETTINGS, "seeds": [0, 1]})
    for config, trainings in ((seeds, 8), (config_of("fedavg"), 3)):
        with pytest.raises(ConfigError):
            audit_members([config], trainings=trainings, out=folder)
    best = config_of("fedavg", evaluation={"select": "best", "personalized_every": 1})
    with pytest.raises(ConfigError, match="last round"):
        audit_members([best], out=folder)
    assert not folder.exists()

    folder.mkdir()
    (folder / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match="never overwritten"):
        audit_members([config_of("fedavg")], out=folder)


def test_a_folder_of_other_data_and_damaged_files_are_refused(tmp_path):
    folder = tmp_path / "audit"
    audit_members([config_of("fedavg")], trainings=4, out=folder)
    other = config_of("fedavg", data={"clients": 4, "fraction": 0.2})
    with pytest.raises(ConfigError, match="same data"):
        audit_members([other], trainings=4, out=folder)

    path = next(folder.glob("runs/*/training-2.safetensors"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="training-2"):
        audit_members([config_of("fedavg")], trainings=4, out=folder)


def test_trainings_of_another_version_of_a_method_are_not_mixed_in(tmp_path, monkeypatch):
    source = "from fedtailor.algorithms.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
    (tmp_path / "changing_audited.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = config_of("changing_audited:Mine")
    audit_members([own], trainings=4, out=tmp_path / "audit")
    (tmp_path / "changing_audited.py").write_text(f"{source}    # another version\n")
    with pytest.raises(DataError, match=r"its file of algorithm\.name had"):
        audit_members([own], trainings=5, out=tmp_path / "audit")

    (inputs,) = (tmp_path / "audit").glob("runs/*/inputs.json")
    inputs.unlink()
    with pytest.raises(DataError, match="does not say what its trainings were made from"):
        audit_members([own], trainings=5, out=tmp_path / "audit")


def test_the_command_ends_with_what_it_does_not_say_and_resume_prints_the_same(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    small = ["--clients", "3", "--rounds", "1", "--set", "data.fraction=0.2"]
    command = ["audit", "members", "-a", "fedavg_ft(finetune=head)", "-a", "fedrep", *small]
    assert main([*command, "--trainings", "4", "--out", "one"]) == 0
    out = capsys.readouterr().out
    assert "lower bound" in out.splitlines()[-1] and "own model file" in out.splitlines()[-1]
    assert "fedavg_ft(finetune=head)" in out and "worst client" in out

    assert main(["resume", "one", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "one" / "result.json").read_text())
    assert main(["resume", "one", "--track", "tensorboard"]) == 2
    assert main([*command, "--trainings", "two"]) == 2


def test_methods_are_written_as_they_are_read():
    for text in ("pfedfda(preset=tuned)", "fedpac(combine_heads=false)", "ditto"):
        assert to_text(read_method(text)) == text
