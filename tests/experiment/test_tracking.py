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
from fedtailor.experiment import trackers
from fedtailor.experiment.progress import Several, Silence
from fedtailor.experiment.trackers.base import Log, TrackedRun, final_values, values_of
from fedtailor.experiment.tracking import Tracked

EVENTS = ("make", "start", "write", "finish", "close")


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
        self.rounds = {}

    def _tell(self, event, *values):
        self.told.append((event, *values))
        if event == self.fails_at:
            raise self.error("no room left")

    def start(self, run, known_as, last):
        self._tell("start", run, known_as, last)
        print("a library that prints to stdout")
        return Log("the log", last)

    def write(self, rounds):
        self._tell("write", [number for number, _ in rounds])
        self.rounds.update(rounds)

    def finish(self, values):
        self._tell("finish", values)

    def close(self, *, finished):
        self._tell("close", finished)


class Notes(Silence):
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
        def make(name):
            if tracker.fails_at == "make":
                raise tracker.error("broken library")
            return tracker

        monkeypatch.setattr("fedtailor.experiment.tracking.make_tracker", make)
        return tracker

    return put


def test_a_tracker_is_told_every_round_once_and_the_result(use, capsys):
    tracker = use(Recorder())
    result = run(config(), out="one", track=["TensorBoard"])
    assert sorted(tracker.rounds) == [1, 2, 3]
    assert {
        "global/accuracy_mean",
        "global/accuracy_worst10",
        "global/accuracy_pooled",
    } <= tracker.rounds[1].keys()
    assert {
        "global/loss",
        "global/ece",
        "training/loss",
        "seconds/train",
        "bytes/up",
    } <= tracker.rounds[1].keys()
    assert (
        "personalized/accuracy_mean" not in tracker.rounds[1]
        and "personalized/accuracy_mean" in tracker.rounds[2]
    )
    _, tracked, known_as, last = tracker.told[0]
    assert (known_as, last, tracked.name, tracked.title) == (
        "",
        0,
        "seed-1",
        "fedavg_ft, digits, seed 1",
    )
    assert (
        tracked.options["training.epochs"] == 1 and tracked.options["algorithm.name"] == "fedavg_ft"
    )
    kinds = [told[0] for told in tracker.told]
    assert kinds[-2:] == ["finish", "close"] and tracker.told[-1] == ("close", True)
    final = tracker.told[-2][1]
    assert (
        final["final/personalized/accuracy_mean"]
        == result["metrics"]["personalized"]["accuracy"]["mean"]
    )
    assert capsys.readouterr().out == "", "what a library prints is kept from stdout"


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    """A run without a tracker."""
    folder = tmp_path_factory.mktemp("runs") / "untracked"
    run(config(), out=folder)
    return finished_runs.content(folder)


@pytest.mark.parametrize(
    ("event", "error"), [*((event, RuntimeError) for event in EVENTS), ("write", SystemExit)]
)
def test_a_failing_tracker_never_stops_or_changes_a_run(use, untracked, event, error):
    use(Recorder(event, error))
    progress = Notes()
    run(config(), out="tracked", progress=progress, track=["wandb", "mlflow"])
    assert finished_runs.content(Path("tracked")) == untracked
    switched_off = [text for text in progress.texts if "switched off" in text]
    assert len(switched_off) == 2, "each tracker has one note"
    assert switched_off[0].startswith(
        f"Weights & Biases is switched off, and the run goes on: {error.__name__}: "
    )


def test_ctrl_c_in_a_tracker_interrupts_the_run(use):
    use(Recorder("write", KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(config(), out="one", track=["wandb"])
    assert json.loads(Path("one/status.json").read_text())["state"] == "interrupted"


def test_a_resumed_run_goes_on_with_the_log(use):
    first = use(Recorder())
    with pytest.raises(KeyboardInterrupt):
        run(config(rounds=5), out="one", track=["mlflow"], progress=Notes(stop_at=4))
    assert first.told[-1] == ("close", False) and sorted(first.rounds) == [1, 2, 3, 4]
    second = use(Recorder())
    run(config(rounds=5), out="one", track=["mlflow"])
    assert second.told[0][2:] == ("the log", 4)
    assert sorted(second.rounds) == [5], "round 4 ran again, but is in the log"


def test_a_tracker_that_comes_later_gets_the_earlier_rounds(use):
    with pytest.raises(KeyboardInterrupt):
        run(config(rounds=5), out="one", progress=Notes(stop_at=4))
    tracker = use(Recorder())
    run(config(rounds=5), out="one", track=["mlflow"])
    assert sorted(tracker.rounds) == [1, 2, 3, 4, 5]
    assert "global/accuracy_mean" in tracker.rounds[1]


def test_a_run_with_other_trackers_is_the_same_run(use):
    use(Recorder())
    first = run(config(), out="one", track=["mlflow"])
    again = run(config(), out="one")
    assert again == first and "track" not in Path("one/experiment.toml").read_text()


def test_every_seed_has_its_log_in_one_folder(use):
    tracker = use(Recorder())
    run(config(seeds=(3, 1)), out="both", track=["mlflow"])
    started = [told[1] for told in tracker.told if told[0] == "start"]
    assert [each.name for each in started] == ["seed-3", "seed-1"]
    assert {str(each.folder) for each in started} == {"both/tracking/mlflow"}
    assert started[1].title == "fedavg_ft, digits, run 2 of 2, seed 1"


def test_a_mark_that_cannot_be_read_starts_a_new_log(use, tmp_path):
    tracker = use(Recorder())
    for content in ("{", '{"round": "3"}', ""):
        (tmp_path / "tensorboard-seed-0.json").write_text(content)
        tracked = Tracked(
            "tensorboard",
            TrackedRun("seed-0", "", tmp_path / "tensorboard", {}),
            earlier=lambda: [{"round": 1}, {"round": 2}],
            warn=pytest.fail,
        )
        tracked.begin("run", 5, done=1)
        assert tracker.told[-2][2:] == ("", 0) and tracker.told[-1] == ("write", [1])


def test_unknown_and_missing_trackers_are_named_before_anything_is_made(
    monkeypatch, capsys, tmp_path
):
    assert main(["run", "--track", "tensorbord", "--out", "one"]) == 3
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name, library in [("wandb", "wandb"), ("tensorboard", "tensorboard"), ("mlflow", "mlflow")]:
        assert main(["run", "--track", name, "--out", "one"]) == 3
        told = capsys.readouterr().err
        assert f"needs {library}" in told and f"pip install 'fedtailor[{name}]'" in told
    with pytest.raises(ConfigError, match="pip install"):
        run(config(), out="one", track=["wandb"])
    assert list(tmp_path.iterdir()) == []


def test_a_server_needs_no_database_library(monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name: ModuleSpec(name, None) if name == "mlflow" else None,
    )
    with pytest.raises(ConfigError, match="needs sqlalchemy, alembic"):
        trackers.check_trackers(["mlflow"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert trackers.check_trackers(["mlflow", "MLflow"]) == ("mlflow",)


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
    assert [event[0] for event in tracker.told].count("close") == 4


def test_several_receive_every_event_and_all_of_them_the_end():
    class Ends(Silence):
        ended = 0

        def end(self):
            Ends.ended += 1
            raise ValueError

    notes = [Notes(), Notes()]
    both = Several([Ends(), *notes, Ends()])
    both.begin("run", 3, 0)
    both.prepare("reading pictures", 1, 2)
    both.note("text")
    both.round({"round": 1})
    with pytest.raises(ValueError):
        both.end()
    assert [each.texts for each in notes] == [["text"], ["text"]] and Ends.ended == 2


def test_numbers_that_are_not_finite_are_left_out():
    evaluation = {
        "point": "global",
        "test_set": "clients",
        "group": "new",
        "metrics": {"loss": {"mean": None}},
    }
    evaluation["metrics"]["accuracy"] = {"mean": 0.5, "worst10": float("nan")}
    record = {"evaluations": [evaluation], "seconds": {"train": float("inf")}, "bytes": {"up": 3}}
    assert values_of(record) == {"new_clients/global/accuracy_mean": 0.5, "bytes/up": 3.0}
    result = {"metrics": {}, "new_clients": {"personalized": {"ece": {"mean": 0.25}}}}
    assert final_values(result) == {"final/new_clients/personalized/ece": 0.25}


def tracked_twice(name, tmp_path):
    """Track three rounds with a tracker of the package, as two processes would that were
    interrupted after round 2."""
    folder = tmp_path / name
    folder.mkdir()
    tracked = TrackedRun(
        "seed-0", "fedavg, digits, seed 0", folder, {"seed": 0, "training": {"lr": 0.1}}
    )
    tracker = trackers.make_tracker(name)
    log = tracker.start(tracked, "", 0)
    tracker.write([(1, {"global/loss": 3.0}), (2, {"global/loss": 2.0})])
    tracker.close(finished=False)
    again = trackers.make_tracker(name)
    log = again.start(tracked, log.known_as, 2)
    again.write([(number, {"global/loss": 4.0 - number}) for number in range(log.last + 1, 4)])
    again.finish({"final/global/loss": 1.0})
    again.close(finished=True)
    return folder, log


@pytest.fixture
def stand_in(monkeypatch):
    """Return a function that puts modules in the place of a library, and imports the tracker
    anew."""

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
        def __init__(self, folder, purge_step):
            calls.append(("open", folder.removeprefix(str(tmp_path)), purge_step))

        def __getattr__(self, name):
            return lambda *values, **named: calls.append((name, *values))

    stand_in("tensorboard", torch__utils__tensorboard={"SummaryWriter": Writer})
    tracked_twice("tensorboard", tmp_path)
    assert [call for call in calls if call[0] == "open"] == [
        ("open", "/tensorboard/seed-0", None),
        ("open", "/tensorboard/seed-0", 3),
    ]
    scalars = [call[1:] for call in calls if call[0] == "add_scalar"]
    assert scalars == [("global/loss", 3.0, 1), ("global/loss", 2.0, 2), ("global/loss", 1.0, 3)]
    assert ("add_hparams", {"seed": 0, "training.lr": 0.1}, {"final/global/loss": 1.0}) in calls
    (text,) = (call for call in calls if call[0] == "add_text")
    assert text[1] == "configuration" and "    lr = 0.1" in text[2]


def test_mlflow_goes_on_with_the_same_run(stand_in, tmp_path):
    calls = []

    class Client:
        def __init__(self, address):
            calls.append(("open", address))

        def get_experiment_by_name(self, name):
            return None

        def create_run(self, experiment, run_name):
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

        def __getattr__(self, name):
            return lambda *values, **named: calls.append((name, *values, named))

    named = {
        "Metric": lambda key, value, when, step: (key, value, step),
        "Param": lambda key, value: (key, value),
    }
    stand_in("mlflow", mlflow={}, mlflow__entities=named, mlflow__tracking={"MlflowClient": Client})
    _, log = tracked_twice("mlflow", tmp_path)
    assert log == ("abc", 2)
    assert calls[0] == ("open", f"sqlite:///{tmp_path / 'mlflow' / 'mlflow.db'}")
    metrics = [
        metric for call in calls if call[0] == "log_batch" for metric in call[2].get("metrics", [])
    ]
    assert metrics == [("global/loss", 4.0 - step, step) for step in (1, 2, 3)] + [
        ("final/global/loss", 1.0, 0)
    ]
    assert ("log_batch", "abc", {"params": [("seed", "0"), ("training.lr", "0.1")]}) in calls
    assert [call[1:3] for call in calls if call[0] == "set_terminated"] == [
        ("abc", "KILLED"),
        ("abc", "FINISHED"),
    ]


def test_wandb_is_offline_and_writes_an_unfinished_run_again(stand_in, tmp_path, monkeypatch):
    opened = []

    class Run:
        def __init__(self, **options):
            self.options = options
            self.steps = []
            self.summary = {}
            opened.append(self)
            (tmp_path / "wandb" / "wandb" / f"offline-run-{len(opened)}-{options['id']}").mkdir(
                parents=True
            )

        def log(self, values, step, commit):
            self.steps.append((step, values["global/loss"]))

        def finish(self, exit_code):
            self.exit_code = exit_code

    stand_in("wandb", wandb={"init": Run, "Settings": dict})
    folder, log = tracked_twice("wandb", tmp_path)
    first, second = opened
    assert (
        first.options["mode"] == "offline"
        and first.options["id"] == second.options["id"] == log.known_as
    )
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert second.steps == [(1, 3.0), (2, 2.0), (3, 1.0)] and second.summary == {
        "final/global/loss": 1.0
    }
    assert [path.name for path in (folder / "wandb").iterdir()] == [f"offline-run-2-{log.known_as}"]
    monkeypatch.setenv("WANDB_MODE", "online")
    trackers.make_tracker("wandb").start(TrackedRun("seed-1", "", folder, {}), "", 0)
    assert opened[-1].options["mode"] == "online"
