"""A run that begins with the training of another has the bits of a run of its own."""

import hashlib
import json
import shutil

import pytest

import finished_runs
from fedtailor.core.errors import DataError, RunError
from fedtailor.experiment.config import make_config
from fedtailor.experiment.progress import Silence
from fedtailor.experiment.records import read_run
from fedtailor.experiment.run import run
from fedtailor.simulation import checkpoint, rounds

SMALL = {
    "data": {"dataset": "digits", "clients": 4, "new_clients": 1, "fraction": 0.1},
    "model": {"name": "mlp", "options": {"hidden": 5}},
    "training": {"epochs": 1},
    "federation": {"rounds": 3, "participation": "fixed(2)", "full_last_round": False},
    "evaluation": {"every": 2},
    "engine": {"name": "reference"},
}
METHODS = {
    "fedavg": {"name": "fedavg"},
    "tuned": {"name": "fedavg_ft"},
    "head": {"name": "fedavg_ft", "finetune": "head", "finetune_epochs": 2},
    "neighbors": {"name": "knn_per"},
}


def config(algorithm="fedavg", **overrides):
    algorithm = {"name": algorithm} if isinstance(algorithm, str) else algorithm
    return make_config(
        {**SMALL, "algorithm": algorithm},
        [(key.replace("__", "."), value) for key, value in overrides.items()],
    )


def content(folder):
    """Return all that a run leaves but times, notes, and what it says of the reuse."""
    run = read_run(folder)
    records = [{**record, "seconds": None} for record in run.rounds]
    result = {
        key: value for key, value in run.result.items() if key not in ("seconds", "run", "reused")
    }
    return {
        "rounds": records,
        "clients": run.clients,
        "events": [event for event in run.events if event["kind"] != "note"],
        "result": result,
        "models": {path.name: path.read_bytes() for path in sorted((folder / "models").iterdir())},
        "server": [
            finished_runs.server_state(path)
            for path in sorted((folder / "checkpoints").glob("*.safetensors"))
        ],
    }


def reused(settings, out, *others):
    return run(settings, out=out, reuse=others).get("reused")


class Stop(Silence):
    """Interrupts a run after a round."""

    def __init__(self, round):
        self.round_to_stop = round

    def round(self, record):
        if record["round"] == self.round_to_stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run of FedAvg."""
    folder = tmp_path_factory.mktemp("trained") / "fedavg"
    run(config(), out=folder)
    return folder


@pytest.mark.parametrize("method", list(METHODS)[1:])
def test_methods_that_share_a_training_train_once(method, trained, tmp_path):
    settings = config(METHODS[method])
    taken = reused(settings, tmp_path / "reused", trained)
    assert (taken["run"], taken["rounds"]) == (str(trained), 3) and taken["seconds"] > 0
    run(settings, out=tmp_path / "alone")
    assert content(tmp_path / "reused") == content(tmp_path / "alone")


def test_nothing_is_trained_again(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds._Server, "begin_round", None)
    assert reused(config("fedavg_ft"), tmp_path / "reused", trained)


@pytest.mark.parametrize("algorithm", ["fedrep", "scaffold", "pfedfda"])
def test_more_rounds_continue_fewer(algorithm, tmp_path):
    run(config(algorithm), out=tmp_path / "short")
    longer = config(algorithm, federation__rounds=5)
    assert reused(longer, tmp_path / "reused", tmp_path / "short")["rounds"] == 3
    run(longer, out=tmp_path / "alone")
    assert content(tmp_path / "reused") == content(tmp_path / "alone")


def test_a_run_that_was_interrupted_is_continued(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(config("fedavg_ft", federation__rounds=5), out=tmp_path / "cut", progress=Stop(3))
    tuned = config("knn_per", federation__rounds=5)
    assert reused(tuned, tmp_path / "reused", tmp_path / "cut")["rounds"] == 2
    run(tuned, out=tmp_path / "alone")
    assert content(tmp_path / "reused") == content(tmp_path / "alone")


def test_a_last_round_with_everybody_is_not_continued(tmp_path):
    everybody = {"federation__full_last_round": True}
    run(config(**everybody), out=tmp_path / "short")
    assert (
        reused(config(federation__rounds=5, **everybody), tmp_path / "longer", tmp_path / "short")
        is None
    )


@pytest.mark.parametrize(
    "other",
    [
        {"training__lr": 0.02},
        {"seed": 1},
        {"data__seed": 1},
        {"federation__participation": "fixed(3)"},
        {"federation__robust": "norm_clip", "federation__participation": "fixed(3)"},
        {"model__options": {"hidden": 6}},
        {"engine__name": "batched"},
        {"evaluation__every": 1},
        {"evaluation__personalized_every": 2},
        {"federation__rounds": 2},
    ],
)
def test_another_training_is_not_reused(other, trained, tmp_path):
    assert reused(config("fedavg_ft", **other), tmp_path / "run", trained) is None


def test_another_method_is_not_reused(trained, tmp_path):
    assert reused(config("fedprox"), tmp_path / "run", trained) is None


def test_engines_with_the_same_bits_share_a_training(trained, tmp_path):
    settings = config("fedavg_ft", engine__name="workers")
    assert reused(settings, tmp_path / "reused", trained)
    run(settings, out=tmp_path / "alone")
    assert content(tmp_path / "reused")["models"] == content(tmp_path / "alone")["models"]


def test_a_damaged_training_is_passed_over(tmp_path):
    folder = tmp_path / "trained"
    run(config(), out=folder)
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0] + "{" + "".join(lines[1:]))
    assert reused(config("fedavg_ft"), tmp_path / "run", folder) is None
    assert [record["round"] for record in read_run(tmp_path / "run").rounds] == [1, 2, 3]


def test_the_personalization_is_resumed(trained, tmp_path, monkeypatch):
    settings = config("fedavg_ft")
    run(settings, out=tmp_path / "alone")
    stopped_before_its_models(settings, tmp_path / "reused", trained, monkeypatch)
    assert len(read_run(tmp_path / "reused").rounds) == 2
    assert run(settings, out=tmp_path / "reused")["reused"]["rounds"] == 3
    assert content(tmp_path / "reused") == content(tmp_path / "alone")


def test_the_run_says_what_it_took_over(trained, tmp_path):
    run(config("fedavg_ft"), out=tmp_path / "run", reuse=[trained])
    notes = [
        event["text"] for event in read_run(tmp_path / "run").events if event["kind"] == "note"
    ]
    assert any(str(trained) in note and "after round 3 of" in note for note in notes)


def stopped_before_its_models(settings, out, trained, monkeypatch):
    """Leave a run that has taken over a complete training, and has not made its own models yet."""
    with monkeypatch.context() as patched:
        patched.setattr("fedtailor.experiment.run.personalize_after", fail)
        with pytest.raises(RunError, match="stop here"):
            run(settings, out=out, reuse=[trained])


def fail(*arguments, **named):
    raise RunError("stop here")


@pytest.mark.parametrize("algorithm", ["fedper", "fedrep"])
def test_a_training_that_waits_for_its_models_is_taken_over_too(algorithm, tmp_path, monkeypatch):
    run(config(algorithm), out=tmp_path / "first")
    tuned = config({"name": algorithm, "finetune_epochs": 1})
    stopped_before_its_models(tuned, tmp_path / "second", tmp_path / "first", monkeypatch)
    other = config({"name": algorithm, "finetune_epochs": 2})
    assert reused(other, tmp_path / "third", tmp_path / "second")["rounds"] == 3
    run(other, out=tmp_path / "alone")
    assert content(tmp_path / "third") == content(tmp_path / "alone")


def test_nothing_is_left_of_a_training_that_cannot_be_used(tmp_path, monkeypatch):
    """The states of its clients would change the own training."""
    run(config("fedrep"), out=tmp_path / "first")
    monkeypatch.setattr("fedtailor.experiment.reuse._as_own", raise_data_error)
    longer = config("fedrep", federation__rounds=5)
    assert reused(longer, tmp_path / "second", tmp_path / "first") is None
    monkeypatch.undo()
    run(longer, out=tmp_path / "alone")
    assert content(tmp_path / "second") == content(tmp_path / "alone")


def raise_data_error(*arguments):
    raise DataError("damaged")


def test_lost_answers_are_not_taken_over(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "copy")
    manifest = next((folder / "checkpoints").glob("*.json"))
    absent = {
        "kind": "absent",
        "round": 2,
        "client": 0,
        "stage": "local_update",
        "reason": "local_update: no answer",
    }
    lines = json.dumps(absent) + "\n"
    (folder / "events.jsonl").write_text(lines)
    record = json.loads(manifest.read_text())
    digest = hashlib.sha256(lines.encode()).hexdigest()
    record["notes"]["records"]["events.jsonl"] = [len(lines.encode()), digest]
    record["notes"]["result"].pop("sha256", None)
    del record["sha256"]
    manifest.write_text(checkpoint._signed(record))
    assert reused(config("fedavg_ft"), tmp_path / "run", folder) is None
    run(config("fedavg_ft"), out=tmp_path / "alone")
    assert content(tmp_path / "run") == content(tmp_path / "alone")


def test_a_run_that_two_programs_have_trained_is_not_reused(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("fedtailor.experiment.reuse._digest_of_code", lambda: "another")
        with pytest.raises(KeyboardInterrupt):
            run(config(), out=tmp_path / "trained", progress=Stop(3))
    run(config(), out=tmp_path / "trained")
    assert (
        json.loads((tmp_path / "trained" / "provenance.json").read_text())["training_sha256"] == ""
    )
    assert reused(config("fedavg_ft"), tmp_path / "run", tmp_path / "trained") is None


def test_a_neighbour_that_cannot_be_read_is_passed_over(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "copy")
    (folder / "experiment.toml").write_text("x = [")
    assert reused(config("fedavg_ft"), tmp_path / "run", folder) is None


def test_the_code_of_users_is_trained_each_time(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from fedtailor.algorithms.fedavg import FedAvg as Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    run(config("mine:Mine"), out=tmp_path / "first")
    assert json.loads((tmp_path / "first" / "provenance.json").read_text())["training_sha256"] == ""
    assert reused(config("mine:Mine"), tmp_path / "second", tmp_path / "first") is None
