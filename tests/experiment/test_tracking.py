"""Trackers: what they are told, what they write, and that none of them can stop or change a run."""

import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import finished_runs
from fedtailor import make_config, run
from fedtailor.cli.main import main
from fedtailor.core.errors import ConfigError
from fedtailor.core.extras import install_command
from fedtailor.core.metrics import CLIENT_METRICS
from fedtailor.experiment.tracking import (
    RunProgress,
    TrackedRun,
    check_trackers,
    make_tracker,
    values_of,
)
from marks import quick

EVENTS = ("make", "round", "close")


def config(seeds=(1,), rounds=finished_runs.ROUNDS, algorithm="fedavg_ft"):
    values = finished_runs.settings(algorithm)
    values["evaluation"]["personalized_every"] = 2
    values["federation"]["rounds"] = rounds
    if len(seeds) > 1:
        del values["seed"]
        values["seeds"] = list(seeds)
    return make_config(values)


class Recorder:
    """A tracker that keeps what it is told, and raises at one event."""

    def __init__(self, fails_at="", error=RuntimeError):
        self.fails_at = fails_at
        self.error = error
        self.told = []

    def tell(self, event, *values):
        self.told.append((event, *values))
        print("a library that prints to stdout")
        if event == self.fails_at:
            raise self.error("no room left")

    def on_round(self, number, values):
        self.tell("round", number, values)

    def close(self, scores):
        self.tell("close", scores)

    def of(self, event):
        return [values for name, *values in self.told if name == event]


class Notes(RunProgress):
    """Keeps notes, and may interrupt the run."""

    def __init__(self, stop_at=0):
        self.texts = []
        self.stop_at = stop_at

    def note(self, text):
        self.texts.append(text)

    def round(self, record):
        if record["round"] == self.stop_at:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _installed(monkeypatch, tmp_path):
    """Every library counts as installed, and the current folder is an empty one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: ModuleSpec(name, None))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def use(monkeypatch):
    """Return a function that puts a tracker in the place of all trackers."""

    def put(tracker):
        def make(name, tracked):
            tracker.tell("make", tracked)
            return tracker

        monkeypatch.setattr("fedtailor.experiment.tracking.make_tracker", make)
        return tracker

    return put


def test_a_tracker_is_told_every_round_once_and_the_result(use, capsys):
    tracker = use(Recorder())
    result = run(config(), out="one", track=["TensorBoard"])
    rounds = dict(tracker.of("round"))
    assert list(rounds) == [1, 2, 3]
    assert {"training/loss", "seconds/train", "bytes/up"} <= rounds[1].keys()
    assert {f"global/accuracy_{name}" for name in ("mean", "worst10", "pooled")} <= rounds[1].keys()
    assert "personalized/accuracy_mean" not in rounds[1]
    others = CLIENT_METRICS.keys() - {"accuracy"}
    assert {f"personalized/{name}" for name in others} <= rounds[3].keys()

    ((tracked,),) = tracker.of("make")
    assert (tracked.name, tracked.title) == ("seed-1", "fedavg_ft, digits, seed 1")
    assert tracked.options["training.epochs"] == 1
    ((scores,),) = tracker.of("close")
    mean = result["metrics"]["personalized"]["accuracy"]["mean"]
    assert scores["final/personalized/accuracy_mean"] == mean
    assert capsys.readouterr().out == "", "what a library prints is kept from stdout"


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    """A run without a tracker."""
    folder = tmp_path_factory.mktemp("runs") / "untracked"
    run(config(), out=folder)
    return finished_runs.content(folder)


@pytest.mark.parametrize(
    ("event", "error"),
    quick(
        [*((event, RuntimeError) for event in EVENTS), ("round", SystemExit)],
        ("round", RuntimeError),
        ("round", SystemExit),
    ),
)
def test_a_failing_tracker_never_stops_or_changes_a_run(use, untracked, event, error):
    use(Recorder(event, error))
    progress = Notes()
    run(config(), out="tracked", progress=progress, track=["wandb", "mlflow"])
    assert finished_runs.content(Path("tracked")) == untracked
    switched_off = [text for text in progress.texts if "switched off" in text]
    assert len(switched_off) == 2, "each tracker has one note"
    assert "Weights & Biases" in switched_off[0] and error.__name__ in switched_off[0]


def test_ctrl_c_in_a_tracker_interrupts_the_run(use):
    use(Recorder("round", KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(config(), out="one", track=["wandb"])
    assert json.loads(Path("one/status.json").read_text())["state"] == "interrupted"


def test_a_resumed_run_logs_the_earlier_rounds_again(use):
    first = use(Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(config(rounds=5), out="one", track=["mlflow"], progress=Notes(stop_at=4))
    assert [number for number, _ in first.of("round")] == [1, 2, 3]
    assert first.of("close") == [[None]]
    second = use(Recorder())
    run(config(rounds=5), out="one", track=["mlflow", "wandb"])
    numbers = [number for number, _ in second.of("round")]
    assert sorted(numbers) == sorted(2 * [1, 2, 3, 4, 5])
    keys = {tracked.key for recorder in (first, second) for (tracked,) in recorder.of("make")}
    assert len(keys) == 1


def test_every_seed_has_its_log_in_one_folder(use):
    tracker = use(Recorder())
    run(config(seeds=(3, 1)), out="both", track=["mlflow"])
    runs = [tracked for (tracked,) in tracker.of("make")]
    assert [tracked.name for tracked in runs] == ["seed-3", "seed-1"]
    assert {str(tracked.folder) for tracked in runs} == {"both/tracking/mlflow"}
    assert len({tracked.key for tracked in runs}) == 2
    assert "track" not in Path("both/experiment.toml").read_text()


def test_unknown_and_missing_trackers_are_named_before_anything_is_made(
    monkeypatch, capsys, tmp_path
):
    assert main(["run", "--track", "tensorbord", "--out", "one"]) == 3
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, library in [("wandb", "wandb"), ("tensorboard", "tensorboard"), ("mlflow", "mlflow")]:
        assert main(["run", "--track", name, "--out", "one"]) == 3
        told = capsys.readouterr().err
        assert f"needs {library}" in told and install_command(name) in told
    with pytest.raises(ConfigError, match="pip install"):
        run(config(), out="one", track=["wandb"])
    assert list(tmp_path.iterdir()) == []


def test_a_server_needs_no_database_library(monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: ModuleSpec(name, None) if name == "mlflow" else None,
    )
    with pytest.raises(ConfigError, match="needs sqlalchemy, alembic"):
        check_trackers(["mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert check_trackers(["mlflow", "MLflow"]) == ("mlflow",)


def test_the_command_line_tracks_and_prints_one_object(use, capsys):
    tracker = use(Recorder())
    command = [
        "run",
        "-a",
        "fedavg",
        "--clients",
        "3",
        "--rounds",
        "1",
        "--seeds",
        "4,2",
        "--out",
        "one",
        "--json",
    ]
    assert main([*command, "--track", "wandb", "--track", "mlflow"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["run"] == "one" and told.out.count("\n") == 1
    assert "fedavg, digits, run 1 of 2, seed 4: round 1/1" in told.err
    assert "fedavg, digits, run 2 of 2, seed 2: round 1/1" in told.err
    assert len(tracker.of("close")) == 4


def test_numbers_that_are_not_finite_are_left_out():
    metrics = {"loss": {"mean": None}}
    metrics["accuracy"] = {"mean": 0.5, "worst10": float("nan"), "pooled": 0.25}
    evaluation = {"point": "global", "test_set": "clients", "group": "new", "metrics": metrics}
    record = {"evaluations": [evaluation], "training_metrics": {}, "bytes": {"up": 3}}
    assert values_of({**record, "seconds": {"train": float("inf")}}) == {
        "new_clients/global/accuracy_mean": 0.5,
        "new_clients/global/accuracy_pooled": 0.25,
        "bytes/up": 3.0,
    }


def track_twice(name, tmp_path):
    """Log three rounds with a tracker of the package, as two processes would that were interrupted
    after round 2."""
    folder = tmp_path / name
    folder.mkdir()
    settings = {"seed": 0, "training": {"lr": 0.1}}
    tracked = TrackedRun("seed-0", "fedavg, digits, seed 0", "key-seed-0", folder, settings)
    for rounds, scores in ((2, None), (3, {"final/global/loss": 1.0})):
        tracker = make_tracker(name, tracked)
        for number in range(1, rounds + 1):
            tracker.on_round(number, {"global/loss": 4.0 - number})
        tracker.close(scores)


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that puts modules in the place of a library, and imports the tracker
    again."""

    def put(tracker, **modules):
        for name, content in modules.items():
            module = types.ModuleType(name.replace("__", "."))
            vars(module).update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.delitem(sys.modules, f"fedtailor.experiment.trackers.{tracker}", raising=False)

    return put


def test_tensorboard_writes_scalars_by_round(stand_in, tmp_path):
    calls = []

    class Writer:
        def __init__(self, folder):
            calls.append(("open", folder.removeprefix(str(tmp_path))))

        def __getattr__(self, name):
            return lambda *values, **named: calls.append((name, *values))

    stand_in("tensorboard", torch__utils__tensorboard={"SummaryWriter": Writer})
    track_twice("tensorboard", tmp_path)
    assert calls.count(("open", "/tensorboard/seed-0")) == 2
    scalars = [call[1:] for call in calls if call[0] == "add_scalar"]
    assert scalars[2:] == [("global/loss", 4.0 - number, number) for number in (1, 2, 3)]
    assert ("add_hparams", {"seed": 0, "training.lr": 0.1}, {"final/global/loss": 1.0}) in calls
    text = next(call for call in calls if call[0] == "add_text")
    assert text[1] == "configuration" and "    lr = 0.1" in text[2]


def test_mlflow_replaces_an_unfinished_run(stand_in, tmp_path):
    calls = []
    runs = []

    class Client:
        def __init__(self, address):
            calls.append(("open", address))

        def get_experiment_by_name(self, name):
            return None

        def search_runs(self, experiments, filter_string):
            assert "key-seed-0" in filter_string
            return list(runs)

        def create_run(self, experiment, run_name, tags):
            runs.append(types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"{len(runs)}")))
            return runs[-1]

        def __getattr__(self, name):
            return lambda *values, **named: calls.append((name, *values, named))

    named = {
        "Metric": lambda key, value, when, step: (key, value, step),
        "Param": lambda key, value: (key, value),
    }
    stand_in("mlflow", mlflow={}, mlflow__entities=named, mlflow__tracking={"MlflowClient": Client})
    track_twice("mlflow", tmp_path)
    assert calls[0] == ("open", f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    assert ("delete_run", "0", {}) in calls
    batches = [call for call in calls if call[:2] == ("log_batch", "1")]
    metrics = [metric for *_, batch in batches for metric in batch.get("metrics", [])]
    assert metrics[:3] == [("global/loss", 4.0 - step, step) for step in (1, 2, 3)]
    assert metrics[3:] == [("final/global/loss", 1.0, 0)]
    assert ("log_batch", "1", {"params": [("seed", "0"), ("training.lr", "0.1")]}) in calls
    ends = [call[1:3] for call in calls if call[0] == "set_terminated"]
    assert ends == [("0", "KILLED"), ("1", "FINISHED")]


def test_wandb_is_offline_and_writes_an_unfinished_run_again(stand_in, tmp_path, monkeypatch):
    opened = []

    class Run:
        def __init__(self, **options):
            self.options = options
            self.steps = []
            self.summary = {}
            opened.append(self)
            folder = tmp_path / "wandb" / "wandb" / f"offline-run-{len(opened)}-{options['id']}"
            folder.mkdir(parents=True)

        def log(self, values, step, commit):
            self.steps.append((step, values["global/loss"]))

        def finish(self, exit_code):
            self.exit_code = exit_code

    stand_in("wandb", wandb={"init": Run, "Settings": dict})
    track_twice("wandb", tmp_path)
    first, second = opened
    assert (first.options["mode"], first.options["id"]) == ("offline", "key-seed-0")
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert second.steps == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert second.summary == {"final/global/loss": 1.0}
    (files,) = (tmp_path / "wandb" / "wandb").iterdir()
    assert files.name == "offline-run-2-key-seed-0"
    monkeypatch.setenv("WANDB_MODE", "online")
    make_tracker("wandb", TrackedRun("seed-1", "", "key-seed-1", tmp_path, {}))
    assert opened[-1].options["mode"] == "online"
