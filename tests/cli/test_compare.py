"""``fedtailor compare``, as typed: what it trains, what it only reads, and what it says."""

import csv
import io
import json
import shutil
import subprocess
import sys
import time

import pytest

from fedtailor.cli.main import main
from fedtailor.experiment import run as experiment_run
from fedtailor.experiment.folder import exclusive
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.writer import RunWriter
from marks import slow

SMALL = [
    "-d",
    "digits",
    "--clients",
    "4",
    "--rounds",
    "2",
    "--set",
    "data.fraction=0.1",
    "--set",
    "training.epochs=1",
]
SMALL += ["--set", "model.options={hidden=5}", "--engine", "reference"]
THREE = ["-a", "fedavg", "-a", "fedavg_ft", "-a", "fedavg_ft(finetune=head)"]


def compare(*arguments):
    return main(["compare", *arguments])


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return the folder of a finished comparison."""
    folder = tmp_path_factory.mktemp("compare") / "done"
    assert compare(*THREE, *SMALL, "--seeds", "0,1", "--out", str(folder)) == 0
    return folder


def runs_of(folder):
    return [folder / name for name in json.loads((folder / "comparison.json").read_text())["runs"]]


@pytest.fixture
def trained(monkeypatch):
    """Return the list of runs that begin training, as they do."""
    begun = []
    original = experiment_run.simulate

    def simulate(algorithm, *arguments, **named):
        begun.append(type(algorithm).__name__)
        return original(algorithm, *arguments, **named)

    monkeypatch.setattr(experiment_run, "simulate", simulate)
    return begun


def test_a_finished_comparison_is_only_read(done, capsys, trained):
    before = (done / "table.md").read_text()
    assert compare(*THREE, *SMALL, "--seeds", "0,1", "--out", str(done)) == 0
    output = capsys.readouterr()
    assert trained == []
    assert "3 of 3 methods have finished runs" in output.err
    assert "fedavg_ft (finetune='head')" in output.out
    assert (done / "table.md").read_text() == before


def test_methods_and_seeds_can_be_added_and_left_out(tmp_path, trained, capsys):
    folder = tmp_path / "compared"
    out = ["--out", str(folder)]
    assert compare("-a", "fedavg", "-a", "fedavg_ft", *SMALL, "--seeds", "0,1", *out) == 0
    assert compare("-a", "fedavg", "-a", "ditto", *SMALL, "--seeds", "0,1,2", *out) == 0
    assert trained == [*["FedAvg"] * 2, *["FedAvgFT"] * 2, "FedAvg", *["Ditto"] * 3]
    assert [read_run(path).result["seeds"] for path in runs_of(folder)] == [[0, 1, 2], [0, 1, 2]]
    assert f"'{folder}': runs of an earlier comparison (1)." in capsys.readouterr().err


def test_an_interrupted_comparison_is_resumed_with_the_same_table(
    tmp_path, capsys, monkeypatch, done
):
    folder = tmp_path / "it's"
    with monkeypatch.context() as patched:
        patched.setattr(RunWriter, "_save_checkpoint", interrupt)
        assert compare(*THREE, *SMALL, "--seeds", "0,1", "--out", str(folder)) == 6
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.endswith(f"To resume: fedtailor resume '{tmp_path}/it'\"'\"'s'")
    assert main(["resume", str(folder)]) == 0
    assert (folder / "table.json").read_text() == (done / "table.json").read_text()


def test_a_resumed_comparison_is_against_the_same_method_by_the_same_metric(tmp_path, capsys):
    folder = tmp_path / "one"
    two = ["-a", "fedavg", "-a", "local"]
    shown = ["--against", "local", "--metric", "loss"]
    assert compare(*two, *SMALL, *shown, "--out", str(folder)) == 0
    table = (folder / "table.json").read_text()
    (folder / "table.json").unlink()
    assert main(["resume", str(folder)]) == 0
    assert (folder / "table.json").read_text() == table

    record = json.loads((folder / "comparison.json").read_text())
    (folder / "comparison.json").write_text(json.dumps({**record, "shown": {"metric": 1}}))
    capsys.readouterr()
    assert main(["resume", str(folder)]) == 4
    assert "'shown' must be texts by against, point, metric" in capsys.readouterr().err


def interrupt(*arguments, **named):
    raise KeyboardInterrupt


def test_formats(done, capsys):
    written = {"markdown": "md", "latex": "tex", "csv": "csv"}
    for name, ending in written.items():
        assert compare(str(done), "--format", name) == 0
        assert capsys.readouterr().out == (done / f"table.{ending}").read_text()
    assert compare(str(done), "--json") == 0
    assert json.loads(capsys.readouterr().out)["reference"] == "fedavg"


def test_runs_are_read_in_any_combination(done, capsys):
    paths = [str(path) for path in runs_of(done)]
    assert compare(paths[2], paths[0], "--metric", "loss", "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["method"] for row in rows} == {"fedavg", "fedavg_ft"} and rows[0][
        "metric"
    ] == "loss"


def test_a_method_that_fails_does_not_stop_the_others(tmp_path, capsys):
    methods = ["-a", "fedprox(lr=1e30)", "-a", "fedavg", "-a", "local"]
    assert compare(*methods, *SMALL, "--out", str(tmp_path / "compared")) == 5
    output = capsys.readouterr()
    assert "local" in output.out and "Tests against fedavg" in output.out
    assert "a method failed. fedprox: " in output.err
    assert compare(*methods, *SMALL, "--out", str(tmp_path / "compared"), "--json") == 5
    assert json.loads(capsys.readouterr().out)["failures"][0].startswith("fedprox: ")


def write_own_tables(folder, rows=30):
    folder.mkdir()
    for client in ("a", "b", "c"):
        lines = [f"{row % 7},{row % 3},{'yes' if row % 2 else 'no'}\n" for row in range(rows)]
        (folder / f"{client}.csv").write_text("width,height,label\n" + "".join(lines))


def splits_after(folder, *arguments):
    """Return in how many splits the seeds of a comparison of own tables were run."""
    out = folder / "compared"
    settings = ["-a", "fedavg", "-a", "local", "--rounds", "1", "--out", str(out)]
    settings += ["--set", "evaluation.baselines=none"]
    assert compare("--data", str(folder / "own"), *settings, *arguments) == 0
    run = read_run(runs_of(out)[0])
    return len({of_seed.split["split_sha256"] for of_seed in run.seeds.values()})


@pytest.mark.parametrize(
    ("arguments", "rows", "splits"),
    [
        ([], 30, 2),
        (["--folds", "2"], 30, 2),
        slow(["--set", "data.seed=42"], 30, 1),
        slow([], 5010, 1),
    ],
)
def test_few_test_examples_are_drawn_anew_for_every_seed(arguments, rows, splits, tmp_path, capsys):
    write_own_tables(tmp_path / "own", rows)
    assert splits_after(tmp_path, "--seeds", "0,1", *arguments) == splits
    first = capsys.readouterr().err.splitlines()[0]
    assert ("split and training" in first) == (splits == 2)


def test_a_split_that_a_file_fixes_stays(tmp_path):
    write_own_tables(tmp_path / "own")
    (tmp_path / "seed.toml").write_text("data.seed = 7")
    assert splits_after(tmp_path, str(tmp_path / "seed.toml"), "--seeds", "0,1") == 1


def test_data_that_has_changed_is_refused(tmp_path, capsys):
    write_own_tables(tmp_path / "own")
    arguments = [
        "-a",
        "fedavg",
        "-a",
        "local",
        "--data",
        str(tmp_path / "own"),
        "--rounds",
        "1",
        "--seeds",
        "0,1",
        "--set",
        "evaluation.baselines=none",
    ]
    arguments += ["--out", str(tmp_path / "compared")]
    assert compare(*arguments) == 0
    table = tmp_path / "own" / "a.csv"
    table.write_text(table.read_text().replace("yes", "maybe"))
    assert compare(*arguments) == 5
    assert "cannot be resumed: its data had the digest" in capsys.readouterr().err


def test_seeds_cannot_be_left_out_and_the_comparison_stays(tmp_path, capsys):
    two = ["-a", "fedavg", "-a", "local", *SMALL, "--out", str(tmp_path / "compared")]
    assert compare(*two, "--seeds", "2,3") == 0
    assert compare(*two, "--seeds", "0,1,2") == 3
    assert "seeds 2, 3" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "compared")]) == 0


def test_a_seed_whose_folder_is_lost_is_trained_again(tmp_path, capsys):
    folder = tmp_path / "run"
    options = ["--seeds", "2,3", "--set", "evaluation.baselines=none", "--out", str(folder)]
    assert main(["run", "-a", "fedavg", *SMALL, *options]) == 0
    before = (folder / "seed-3" / "clients.jsonl").read_text()
    shutil.rmtree(folder / "seed-3")

    assert main(["compare", str(folder), str(folder)]) == 0
    assert "has no folder of seed 3" in " ".join(capsys.readouterr().err.split())
    assert main(["resume", str(folder)]) == 0
    assert (folder / "seed-3" / "clients.jsonl").read_text() == before


def test_the_folder_of_a_comparison_names_its_runs(done, tmp_path, capsys):
    assert main(["predict", str(done), "x.csv", "--client", "0"]) == 4
    assert f"such as '{done / 'runs'}" in capsys.readouterr().err


def test_two_processes_do_not_share_a_comparison(done, capsys):
    with exclusive(done):
        assert compare(*THREE, *SMALL, "--seeds", "0,1", "--out", str(done)) == 3
        assert main(["resume", str(done)]) == 3
    assert "another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name the methods to train"),
        (["-a", "fedavg"], 2, "two methods or more"),
        (["-a", "fedavg", "-a", "FedAvg"], 3, "the method 'FedAvg' is given twice"),
        (["-a", "fedavg", "-a", "dito"], 3, "did you mean 'ditto'?"),
        (["-a", "fedavg", "-a", "ditto(penalty 2)"], 3, "OPTION=VALUE"),
        (["-a", "fedavg", "-a", "ditto(penalty=2"], 3, "a method must be"),
        (["-a", "fedavg", "-a", "ditto(penalti=2)"], 3, "did you mean 'penalty'?"),
        (
            ["-a", "fedavg_ft", "-a", "fedavg_ft(finetune=all)"],
            2,
            "is the same as a method before it",
        ),
        (["-a", "fedavg", "-a", "ditto", "--metric", "acc"], 3, "unknown metric 'acc'"),
        (["-a", "fedavg", "-a", "ditto", "--point", "nowhere"], 3, "unknown evaluation point"),
        (["-a", "fedavg", "-a", "ditto", "--against", "dito"], 3, "did you mean 'ditto'?"),
        (["-a", "ditto", "-a", "ditto(penalty=2)", "--against", "ditto"], 3, "unknown method"),
        (["-a", "fedavg", "-a", "ditto", "one", "two"], 2, "one configuration or none"),
        (["--rounds", "3", "runs/a"], 2, "--rounds has no effect"),
        (["nothing"], 4, "there is no folder 'nothing'"),
        (["nothing", "--format", "tabel"], 2, "did you mean 'table'?"),
        (["-a", "fedavg", "-a", "ditto", "--out", "."], 3, "already exists"),
    ],
)
def test_mistakes_are_told_at_once(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert compare(*arguments) == code
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_another_kind_of_folder_is_refused(tmp_path, capsys):
    (tmp_path / "comparison.json").write_text('{"kind": "sweep", "runs": []}')
    assert compare("-a", "fedavg", "-a", "ditto", "--out", str(tmp_path)) == 3
    assert "which holds a sweep" in capsys.readouterr().err
    assert main(["resume", str(tmp_path)]) == 3


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"kind": "comparison"}', '{"kind": "comparison", "configs": ["a = ["]}']
)
def test_damaged_comparisons(content, tmp_path, capsys):
    (tmp_path / "comparison.json").write_text(content)
    assert main(["resume", str(tmp_path)]) in (3, 4)
    assert "comparison.json" in capsys.readouterr().err or content == "[]"


@pytest.mark.slow
def test_a_comparison_that_is_killed_twice_has_the_same_table(tmp_path, done):
    command = [
        sys.executable,
        "-m",
        "fedtailor",
        "compare",
        *THREE,
        *SMALL,
        "--seeds",
        "0,1",
        "--out",
        "killed",
    ]
    for files in ("runs/*/seed-0/result.json", "runs/*/seed-1/result.json"):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and not list((tmp_path / "killed").glob(files)):
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert main(["resume", str(tmp_path / "killed")]) == 0
    assert (tmp_path / "killed" / "table.json").read_text() == (done / "table.json").read_text()
