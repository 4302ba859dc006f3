"""The commands as a user meets them, in process."""

import json
import re
import shlex
import signal
import tomllib
from pathlib import Path

import pytest
import torch

import fedtailor
from fedtailor.cli.main import main
from fedtailor.cli.show.results import show_result
from fedtailor.core import tree
from fedtailor.experiment import config
from fedtailor.experiment.config import parse_assignment
from fedtailor.experiment.reader import read_run
from fedtailor.simulation.engines.store import Store
from fedtailor.simulation.rounds import simulate
from written_runs import model_of

BASE = ["run", "--clients", "4", "--partition", "iid", "--set", "training.epochs=1"]
BASE += ["--set", "data.fraction=0.25"]
SMALL = [*BASE, "--rounds", "2"]
ONE_ROUND = [*BASE, "--rounds", "1"]


pytestmark = pytest.mark.usefixtures("folder")


def outcome(arguments, capsys):
    """Run a command line; return exit code, stdout and stderr."""
    code = main(arguments)
    return code, *capsys.readouterr()


def test_run_prints_a_table_and_writes_a_folder(folder, capsys):
    code, out, err = outcome([*SMALL, "--out", "one"], capsys)
    assert code == 0
    assert (
        "pfedfda on digits" in out and "worst" in out and "personalized" in out and "seed 0" in out
    )
    lines = err.splitlines()
    assert lines[0].startswith("pfedfda, digits, seed 0: round 1/2") and "personalized" in lines[1]
    assert len(lines) == 3 and lines[2].endswith("one")
    names = {path.name for path in (folder / "one").iterdir()}
    files = "experiment.toml provenance.json split.json status.json "
    files += "rounds.jsonl clients.jsonl result.json predictions.safetensors"
    assert names == {*files.split(), "inputs.json", "inputs.safetensors", "models", "checkpoints"}
    assert len(list((folder / "one" / "models").glob("*.safetensors"))) == 4


def test_run_json(folder, capsys):
    code, out, _ = outcome(
        [*SMALL, "-a", "fedavg", "--seed", "3", "--json", "--out", "one"], capsys
    )
    assert code == 0
    result = json.loads(out)
    assert (
        result["run"] == "one" and result["algorithm"] == "fedavg" and result["dataset"] == "digits"
    )
    assert (result["clients"], result["rounds"], result["seeds"]) == (4, 2, [3])
    assert set(result["metrics"]) == {"global", "local", "personalized"}
    for point in result["metrics"].values():
        assert {"mean", "pooled", "std", "worst10", "smallest10", "min"} <= set(point["accuracy"])
        assert 0 <= point["accuracy"]["mean"] <= 1 and "sem" not in point["accuracy"]
        assert {"mean", "pooled"} <= set(point["loss"]) and {"mean", "pooled"} <= set(point["ece"])
    assert set(result["seconds"]) == {"total", "train", "evaluate"}
    assert result["bytes"]["up"] > 0 and result["bytes"]["down"] > 0 and result["steps"] > 0
    assert (result["engine"], result["device"]) == ("workers", "cpu")
    assert json.loads((folder / "one" / "result.json").read_text()) == result


def test_several_seeds(folder, capsys):
    code, out, _ = outcome([*SMALL, "--seeds", "0,1", "--json", "--out", "two"], capsys)
    assert code == 0
    result = json.loads(out)
    single = [
        json.loads((folder / "two" / f"seed-{seed}" / "result.json").read_text()) for seed in (0, 1)
    ]
    means = [each["metrics"]["personalized"]["accuracy"]["mean"] for each in single]
    accuracy = result["metrics"]["personalized"]["accuracy"]
    assert means[0] != means[1], "seeds differ"
    assert accuracy["mean"] == pytest.approx(sum(means) / 2, abs=1e-12)
    assert accuracy["sem"]["mean"] == pytest.approx(abs(means[0] - means[1]) / 2, abs=1e-12)
    assert set(accuracy["sem"]) == set(accuracy) - {"sem"}
    assert result["seeds"] == [0, 1] and result["run"] == "two"
    run = read_run("two")
    assert list(run.seeds) == [0, 1] and run.status["state"] == "finished"
    assert run.seeds[0].split == run.seeds[1].split, "data.seed is fixed"
    assert [(record["seed"], record["round"]) for record in run.rounds] == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]
    assert run.clients[0] == {"seed": 0, **run.seeds[0].clients[0]}
    assert len(run.clients) == 2 * len(run.seeds[0].clients)
    assert (
        model_of(run, 3, seed=1)[1]
        == model_of(run.seeds[1], 3)[1]
        != model_of(run.seeds[0], 3, seed=0)[1]
    )
    with pytest.raises(fedtailor.FedtailorError, match="the seeds 0, 1: say which one is meant"):
        model_of(run, 3)
    with pytest.raises(
        fedtailor.FedtailorError, match=r"one of those that 'two' holds \(0, 1\), got 2\."
    ):
        model_of(run, 3, seed=2)
    assert result["shared_split"] is True and "split_sha256" not in result
    show_result(result)
    assert "± standard error, the same split in all" in capsys.readouterr().out
    show_result({**result, "shared_split": False})
    assert "± standard error, a different split for each seed" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_bits_from_the_written_configuration(folder, capsys):
    assert main([*SMALL, "--set", "algorithm.lr=0.03", "--out", "one"]) == 0
    assert main(["run", "one/experiment.toml", "--out", "two"]) == 0
    one = read_run("one")
    two = read_run("two")
    assert one.config == two.config and one.clients == two.clients
    for client in range(4):
        assert model_of(one, client)[1]["sha256"] == model_of(two, client)[1]["sha256"]


def test_records_of_a_run(folder, capsys):
    arguments = [
        *SMALL,
        "--participation",
        "fixed(2)",
        "--set",
        "evaluation.personalized_every=1",
        "--out",
        "one",
    ]
    assert main([*arguments, "--set", "data.new_clients=1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    run = read_run("one")
    assert [len(record["cohort"]) for record in run.rounds] == [2, 3], (
        "everybody takes part in the last round"
    )
    scored = [record for record in run.clients if record["point"] == "personalized"]
    assert [(r["round"], r["group"], r["client"]) for r in scored] == [
        (round, "new" if client == 3 else "known", client)
        for round in (1, 2)
        for client in range(4)
    ]
    assert all(0 <= record["accuracy"] <= 1 and record["num_test"] > 0 for record in scored)
    assert result["new_clients"]["personalized"]["clients"] == {"evaluated": 1.0, "skipped": 0.0}
    assert (
        model_of(run, 3)[1]["participated"] is False and model_of(run, 0)[1]["participated"] is True
    )
    assert run.provenance["split_sha256"] == run.split["split_sha256"]
    assert run.provenance["data"]["subset"] is False and run.provenance["reduction"] == 2
    assert result["split_sha256"] == run.split["split_sha256"] and "shared_split" not in result
    with open("one/experiment.toml", "rb") as file:
        assert tomllib.load(file)["federation"]["participation"] == "fixed(2)"


@pytest.mark.parametrize("name", ["pfedfda", "fedlda"])
def test_a_preset_that_needs_a_warning_warns(name, capsys):
    options = [f"algorithm.name={name}", "--set", "algorithm.preset=paper", "--out", "one"]
    code, _, err = outcome([*SMALL, "--set", *options], capsys)
    assert code == 0 and f"note: {name}, preset 'paper'" in err
    assert "paper" in read_run("one").events[0]["text"]


OWN = """
import dataclasses
import torch
from fedtailor.algorithms.fedavg import FedAvg

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(FedAvg):
    knob: int = 3

def network(input_shape, num_classes, width=5):
    size = torch.Size(input_shape).numel()
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, width), torch.nn.ReLU(),
                               torch.nn.Linear(width, num_classes))
"""


def test_own_algorithm_and_model(folder, capsys):
    (folder / "own_parts.py").write_text(OWN)
    own = [
        "-a",
        "own_parts:Mine",
        "--model",
        "own_parts:network",
        "--set",
        "model.options.width=7",
        "--out",
        "one",
    ]
    code, out, err = outcome([*SMALL, *own, "--set", "algorithm.knob=4", "--json"], capsys)
    assert code == 0, err
    config = read_run("one").config
    assert config["algorithm"]["knob"] == 4 and config["model"]["options"] == {"width": 7}
    assert json.loads(out)["algorithm"] == "own_parts:Mine"
    code, _, _ = outcome([*SMALL, *own[:4]], capsys)
    assert code == 0
    assert len(list((folder / "runs").glob("own_parts%3AMine-digits-*"))) == 1


def test_interruption_is_said_and_recorded(folder, capsys, monkeypatch):
    def interrupted(*arguments, **named):
        for report in simulate(*arguments, **named):
            yield report
            raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.experiment.run.simulate", interrupted)
    code, out, err = outcome([*SMALL, "--seeds", "0,1", "--out", "one"], capsys)
    assert code == 6 and out == ""
    assert err.splitlines()[-1].endswith(" fedtailor resume one") and "Traceback" not in err
    run = read_run("one")
    assert run.status["state"] == run.seeds[0].status["state"] == "interrupted"
    assert len(run.seeds[0].rounds) == 1 and 1 not in run.seeds
    code, out, _ = outcome([*SMALL, "--json", "--out", "two"], capsys)
    assert code == 6 and json.loads(out)["error"]["kind"] == "interrupted"


def test_the_command_that_an_interruption_names_goes_on(folder, capsys, monkeypatch):
    def interrupted(*arguments, **named):
        for report in simulate(*arguments, **named):
            yield report
            if report.round == 2:
                raise KeyboardInterrupt

    given = [*BASE, "--rounds", "3", "--seeds", "0,1", "-a", "fedrep"]
    given += ["--set", "algorithm.head_epochs=1", "--json"]
    assert main([*given, "--out", "whole"]) == 0
    whole = json.loads(capsys.readouterr().out)
    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.experiment.run.simulate", interrupted)
        code, _, err = outcome([*given[:-1], "--out", "my run"], capsys)
    assert code == 6
    command = shlex.split(err.splitlines()[-1].removeprefix("interrupted. To resume: "))
    assert command == ["fedtailor", "resume", "my run"]
    code, out, err = outcome([*command[1:], "--json"], capsys)
    assert code == 0 and "note: resumed after round 2 of 3." in err.splitlines()
    again = json.loads(out)
    assert {**again, "run": "", "seconds": {}} == {**whole, "run": "", "seconds": {}}
    code, out, err = outcome([*given, "--out", "my run"], capsys)
    assert code == 0 and json.loads(out) == again and "holds this run, and it has finished" in err


def test_checkpoints_may_be_rarer_or_left_out(folder, capsys):
    for every, expected in (("2", ["000004.json"]), ("0", [])):
        command = [
            *BASE,
            "-a",
            "fedavg",
            "--rounds",
            "4",
            "--checkpoint-every",
            every,
            "--out",
            every,
        ]
        assert outcome(command, capsys)[0] == 0
        assert [path.name for path in Path(every).glob("checkpoints/*.json")] == expected
    code, _, err = outcome([*SMALL, "--checkpoint-every", "-1", "--out", "one"], capsys)
    assert code == 3 and "checkpoint.every must be >= 0, got -1" in err


def test_a_dry_run_prints_the_resolved_experiment_and_writes_nothing(folder, capsys):
    command = [*SMALL, "-a", "fedavg", "--seeds", "3,4", "--dry-run"]
    code, out, err = outcome(command, capsys)
    assert code == 0, err
    code, as_json, _ = outcome([*command, "--json"], capsys)
    assert code == 0 and json.loads(as_json) == tomllib.loads(out)
    assert list(folder.iterdir()) == []
    Path("resolved.toml").write_text(out)
    assert outcome(["run", "resolved.toml", "--out", "one"], capsys)[0] == 0
    assert Path("one/experiment.toml").read_text() == out


def test_only_runs_are_resumed(folder, capsys):
    code, _, err = outcome(["resume", "nothing"], capsys)
    assert (code, err) == (
        3,
        "error: there is no folder 'nothing'.\n",
    )


def test_a_run_that_fails_says_so_in_its_folder(folder, capsys, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("division by zero")
        yield

    monkeypatch.setattr("fedtailor.experiment.run.simulate", broken)
    code, _, err = outcome([*SMALL, "--out", "one"], capsys)
    assert code == 5 and "ZeroDivisionError" in err and "Traceback" not in err
    assert read_run("one").status == {
        "state": "failed",
        "rounds_done": 0,
        "reason": "division by zero",
    }


@pytest.fixture
def one_client_sends_nonsense(monkeypatch):
    """Client 1 uploads NaN in every round, and client 2 in the first."""
    from fedtailor.algorithms.fedavg import FedAvg

    whole = FedAvg.local_update

    def local_update(self, task, download, state, data, key):
        update = whole(self, task, download, state, data, key)
        bad = (key.client == 1) | ((key.client == 2) & (key.round == 1))
        factor = torch.where(bad, torch.nan, 1.0)
        upload = {
            name: field._replace(value=tree.map(lambda leaf: leaf * factor, field.value))
            for name, field in update.upload.items()
        }
        return update._replace(upload=upload)

    monkeypatch.setattr(FedAvg, "local_update", local_update)


def test_clients_left_out_are_not_passed_over_in_silence(folder, capsys, one_client_sends_nonsense):
    command = [*SMALL, "-a", "fedavg", "--engine", "reference"]
    code, out, err = outcome([*command, "--out", "one"], capsys)
    assert code == 0
    assert len([line for line in err.splitlines() if line.startswith("note: ")]) == 3
    assert "warning: uploads left out: 3, failures: 0" in err
    run = read_run("one")
    assert run.result["events"]["quarantine"] == 3
    participated = [model_of(run, client)[1]["participated"] for client in range(4)]
    assert participated == [True, False, True, True]
    code, out, _ = outcome([*command, "--seeds", "0,1", "--json", "--out", "two"], capsys)
    assert json.loads(out)["events"]["quarantine"] == 6
    assert "rounds_done" not in read_run("two").status


def test_a_client_that_raises_is_said_to_have_failed(folder, capsys, monkeypatch):
    from fedtailor.algorithms.fedavg import FedAvg

    whole = FedAvg.local_update

    def local_update(self, task, download, state, data, key):
        if int(key.client) == 1 and int(key.round) == 1:
            raise ArithmeticError("no luck")
        return whole(self, task, download, state, data, key)

    monkeypatch.setattr(FedAvg, "local_update", local_update)
    code, _, err = outcome(
        [*SMALL, "-a", "fedavg", "--engine", "reference", "--out", "one"], capsys
    )
    assert code == 0
    reason = "local_update: ArithmeticError: no luck"
    assert f"note: round 1: 1 client failed (client 1: {reason})" in err.splitlines()
    assert "failures: 1; see events.jsonl in one" in err.splitlines()[-1]
    assert read_run("one").result["events"] == {
        "quarantine": 0,
        "failed": 1,
        "absent": 0,
        "skipped": 0,
        "repeated": 0,
    }


def test_who_took_part_is_who_trained(folder):
    few = [*ONE_ROUND, "--participation", "fixed(1)", "--set", "federation.full_last_round=false"]
    assert main([*few, "-a", "fedavg", "--out", "one"]) == 0
    run = read_run("one")
    drawn = run.rounds[0]["cohort"]
    assert [
        client for client in range(4) if model_of(run, client)[1]["participated"]
    ] == drawn and len(drawn) == 1
    assert main([*few, "-a", "local", "--out", "two"]) == 0
    run = read_run("two")
    assert all(model_of(run, client)[1]["participated"] for client in range(4)), (
        "all train, whoever is drawn"
    )


def test_the_table_counts_the_clients_that_were_scored(capsys):
    assert main([*SMALL, "--set", "data.new_clients=1", "-a", "fedavg"]) == 0
    out = capsys.readouterr().out
    for name, count in (("global", "3"), ("local", "3"), ("personalized, new clients", "1")):
        assert re.search(rf"^ {name} +{count} ", out, re.MULTILINE), name


@pytest.mark.parametrize("command", [["doctor"], [*SMALL, "--out", "one"]], ids=lambda c: c[0])
@pytest.mark.parametrize(
    "becomes", [KeyboardInterrupt, ImportError], ids=["kept", "turned into another"]
)
def test_an_early_interruption_is_one_sentence(command, becomes, capsys, monkeypatch):
    """A library that is being imported may turn the interruption into an error of its own."""
    from fedtailor.experiment import catalog, doctor

    def interrupted(*_, **__):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise becomes("cannot import") from None

    for place, name in ((doctor, "examine"), (catalog, "list_table"), (config, "make_config")):
        monkeypatch.setattr(place, name, interrupted)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert outcome(command, capsys) == (6, "", "interrupted.\n")
    code, out, err = outcome([*command, "--json"], capsys)
    assert code == 6 and json.loads(out)["error"]["kind"] == "interrupted" and err == ""
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_demo(folder, capsys, monkeypatch):
    from fedtailor.experiment import demo

    monkeypatch.setitem(demo.SETTINGS, "federation", {"rounds": 2})
    monkeypatch.setitem(demo.SETTINGS["training"], "epochs", 1)
    monkeypatch.setitem(demo.SETTINGS["data"], "clients", 4)
    code, out, err = outcome(["demo", "--out", "shown"], capsys)
    assert code == 0
    for name in demo.ALGORITHMS:
        assert f"\n {name} " in out
        assert read_run(f"shown/{name}").status["state"] == "finished"
    accuracy = read_run("shown/pfedfda").result["metrics"]["personalized"]["accuracy"]["mean"]
    assert f"{100 * accuracy:.1f}" in out

    # The commands that it suggests repeat what it has done.
    suggested = [line for line in err.splitlines() if "fedtailor run -a" in line]
    assert len(suggested) == 2
    for line in suggested:
        same = ("training.momentum=0.5", "training.weight_decay=5e-4", "data.fraction=0.25")
        for key, value in map(parse_assignment, same):
            section, name = key.split(".")
            assert f"--set {key}=" in line and demo.SETTINGS[section][name] == value
        assert all(f"--set {assignment} " in line for assignment in same)

    folders = []
    monkeypatch.setattr(demo, "run_demo", lambda out, **_: folders.append(out) or ["a result"])
    code, out, _ = outcome(["demo", "--json"], capsys)
    assert code == 0 and json.loads(out) == {"runs": ["a result"]}
    assert len(folders) == 1 and folders[0].startswith("runs/demo-")


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("algorithms", {"fedavg", "fedavg_ft", "fedcr", "fedlda", "local", "pfedfda", "pfedvem"}),
        ("datasets", {"cifar10", "cifar100", "digits", "fashion_mnist", "mnist"}),
        ("models", {"cifar_cnn", "emnist_cnn", "mlp"}),
        ("partitions", {"classes", "dirichlet", "iid"}),
        ("engines", {"auto", "batched", "processes", "reference", "workers"}),
    ],
)
def test_list(kind, known, capsys):
    code, out, _ = outcome(["list", kind, "--json"], capsys)
    assert code == 0
    entries = json.loads(out)[kind]
    names = [entry["name"] for entry in entries]
    assert known <= set(names) and names == sorted(names)
    assert all(entry["description"] for entry in entries)
    code, out, _ = outcome(["list", kind.upper()], capsys)
    assert code == 0 and all(name in out for name in names)


def test_list_shows_one_algorithm_with_its_options(capsys):
    code, out, _ = outcome(["list", "algorithms", "FedRep"], capsys)
    assert code == 0 and "head_epochs" in out and "Collins" in out
    assert outcome(["list", "algorithms", "fedrap"], capsys)[0] == 3
    assert outcome(["list", "models", "mlp"], capsys)[0] == 2


def test_list_algorithms_discloses_what_the_server_sees(capsys):
    _, out, _ = outcome(["list", "algorithms", "--json"], capsys)
    entries = {entry["name"]: entry for entry in json.loads(out)["algorithms"]}
    assert entries["local"]["uploads"] == {} and entries["local"]["kept_by_clients"] == ["model"]
    assert entries["pfedfda"]["uploads"] == {"body": "mean", "means": "mean", "covariance": "mean"}
    assert entries["pfedfda"]["options"]["cov_ridge"] == 1.0
    single = {name: entry["server_sees_single_clients"] for name, entry in entries.items()}
    assert {name: fields for name, fields in single.items() if fields} == {
        "fedcof": ["counts", "means"],
        "fedfomo": ["model", "weights"],
        "fedpac": ["head", "statistics"],
        "pfedhn": ["change"],
    }
    assert not entries["fedpac"]["secure_aggregation"]
    assert all(
        entries[name]["primary_evaluation"] == "global"
        for name in ("fedavg", "fedprox", "scaffold")
    )
    _, out, _ = outcome(["list", "algorithms"], capsys)
    assert "head*" in out and "statistics*" in out


def test_list_algorithms_counts_the_bytes_of_a_model(capsys):
    """FedAvg sends a model and a count; pFedFDA a body, means, half a covariance with its diagonal,
    and a count."""
    _, out, _ = outcome(["list", "algorithms", "--json"], capsys)
    entries = {entry["name"]: entry for entry in json.loads(out)["algorithms"]}
    body = 106_400
    d = 128
    classes = 10
    model = body + classes * (d + 1)
    assert (entries["fedavg"]["bytes_down"], entries["fedavg"]["bytes_up"]) == (
        4 * model,
        4 * (model + 1),
    )
    gaussian = classes * d + d * (d + 1) // 2
    assert entries["pfedfda"]["bytes_up"] == 4 * (body + gaussian + 1)


@pytest.mark.parametrize(("columns", "has_bytes"), [(80, False), (100, True)])
def test_the_list_of_algorithms_fits_a_terminal(columns, has_bytes, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = outcome(["list", "algorithms"], capsys)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    header, _, _ = plain.partition("apfl")
    rows = [
        line for line in plain.splitlines() if "*: the server" not in line
    ]  # the text below wraps
    assert "\x1b" in out and ("KiB" in header) == has_bytes and max(map(len, rows)) <= columns


def test_doctor(folder, capsys):
    code, out, _ = outcome(["doctor", "--json", "--data-dir", "."], capsys)
    report = json.loads(out)
    assert code == 0
    assert report["datasets"]["digits"] == "included" and report["datasets"]["mnist"] == "absent"
    assert report["engine"] == "workers" and report["machine"]["physical_cores"] >= 1
    assert report["versions"]["fedtailor"] == fedtailor.__version__
    code, out, _ = outcome(["doctor"], capsys)
    assert code == 0 and out.count(report["versions"]["torch"]) == 1
    rows = [
        re.split(r"  +", line.strip(), maxsplit=1)
        for line in out.splitlines()
        if line.startswith(" ")
    ]
    facts = [row[-1] for row in rows[2:] if row != [""]]
    assert len(set(facts)) == len(facts), "each fact is there once"
    names = re.findall(r"[a-z]\w+", out.partition("data sets")[2])
    assert all(names.count(name) == 1 for name in report["datasets"] if name != "digits"), names


def test_no_colors_in_pipes(capsys):
    for arguments in (["--help"], [*ONE_ROUND, "-a", "fedavg"], ["list", "engines"]):
        _, out, err = outcome(arguments, capsys)
        assert "\x1b" not in out + err


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_does_not_fit_into_memory_goes_into_the_run_folder_meanwhile(
    folder, monkeypatch, interrupted
):
    """The same models come of it, and nothing of it stays."""
    command = [*SMALL, "-a", "fedrep"]
    assert main([*command, "--out", "memory"]) == 0
    seen = []

    class Small(Store):
        def __init__(self, path, name, *, modules, in_memory):
            super().__init__(path, name, modules=modules, in_memory=0)

        def __setitem__(self, client, value):
            super().__setitem__(client, value)
            seen.extend(self.folder.glob("*"))
            if interrupted and seen:
                raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.experiment.writer.Store", Small)
    assert main([*command, "--out", "files"]) == (6 if interrupted else 0)
    assert (
        not Path("files/state").exists() and Path("files/checkpoints").exists() is not interrupted
    )
    if not interrupted:
        assert {
            (path.parent.name, path.name.partition("-")[0])
            for path in seen
            if path.suffix == ".trees"
        } == {
            ("checkpoints", "states"),
            ("state", "personal"),
        }
        for model in Path("memory/models").glob("*.safetensors"):
            assert model.read_bytes() == Path("files/models", model.name).read_bytes()


def test_training_without_effect_is_noted(folder, capsys):
    _, _, err = outcome([*ONE_ROUND, "-a", "fedavg", "--set", "federation.train=all"], capsys)
    assert "note: with federation.train 'all'" in err
