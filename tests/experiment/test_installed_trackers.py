"""The trackers with their own libraries, where these are installed: what a run logs is read
back."""

from pathlib import Path

import pytest

import finished_runs
from fedtailor import make_config, run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Interrupt:
    """Interrupts a run after round 2."""

    def __getattr__(self, name):
        return lambda *values: None

    def round(self, record):
        if record["round"] == 2:
            raise KeyboardInterrupt


@pytest.fixture
def run_twice(tmp_path, monkeypatch):
    """Return a function that runs with a tracker, is interrupted, and resumes."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)

    def track(name):
        config = make_config(finished_runs.settings("fedavg"))
        with pytest.raises(KeyboardInterrupt):
            run(config, out="one", track=[name], progress=Interrupt())
        result = run(config, out="one", track=[name])
        return result["metrics"]["personalized"]["accuracy"]["mean"]

    return track


def test_tensorboard_reads_what_a_run_logs(run_twice):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    expected = run_twice("tensorboard")
    events = accumulators.EventAccumulator("one/tracking/tensorboard/seed-1")
    events.Reload()
    assert [event.step for event in events.Scalars("global/accuracy_mean")] == [1, 2, 3]
    (final,) = events.Scalars("final/personalized/accuracy_mean")
    assert final.value == pytest.approx(expected, abs=1e-6) and final.step == 3
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")


def test_mlflow_reads_what_a_run_logs(run_twice):
    tracking = pytest.importorskip("mlflow.tracking")
    pytest.importorskip("alembic")
    expected = run_twice("mlflow")
    client = tracking.MlflowClient(f"sqlite:///{Path('one/tracking/mlflow/mlflow.db').resolve()}")
    (logged,) = client.search_runs([client.get_experiment_by_name("fedtailor").experiment_id])
    assert logged.info.status == "FINISHED" and logged.data.params["training.epochs"] == "1"
    history = client.get_metric_history(logged.info.run_id, "global/accuracy_mean")
    assert [metric.step for metric in history] == [1, 2, 3]
    assert logged.data.metrics["final/personalized/accuracy_mean"] == expected


def test_wandb_keeps_one_offline_run(run_twice):
    pytest.importorskip("wandb")
    run_twice("wandb")
    (folder,) = Path("one/tracking/wandb/wandb").glob("offline-run-*")
    (log,) = folder.glob("run-*.wandb")
    content = log.read_bytes()
    assert b"final/personalized/accuracy_mean" in content and b"global/accuracy_worst10" in content
