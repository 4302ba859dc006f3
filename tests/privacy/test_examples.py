"""What steps with bounded examples tell: by client, and of sums."""

import json
import math

import pytest

from fedtailor.cli.main import main
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.examples import DELTA, ClientRound, epsilon_by_client, epsilon_of_sums

TRAIN = ["--clients", "4", "--partition", "iid", "--set", "data.fraction=0.25"]
NOISY = ["--set", "training.example_clip=1.0", "--set", "training.example_noise=2.0"]


def test_a_client_has_its_own_rate_and_rounds():
    history = [ClientRound(1, 0, 10, 0.2), ClientRound(2, 0, 10, 0.2), ClientRound(1, 1, 10, 0.5)]
    found = epsilon_by_client(1.5, 1e-5, history)
    assert found == {
        0: epsilon_of(1e-5, [Release(1.5, 0.2, 20)]),
        1: epsilon_of(1e-5, [Release(1.5, 0.5, 10)]),
    }


def test_without_noise_there_is_no_bound():
    assert epsilon_by_client(0.0, 1e-5, [ClientRound(1, 0, 1, 1.0)]) == {0: math.inf}


def test_sums_have_the_noise_of_all_that_took_part():
    history = [ClientRound(round, client, 1, 1.0) for round in (1, 2) for client in range(4)]
    history.append(ClientRound(3, 0, 1, 1.0))
    found = epsilon_of_sums(3.0, 1e-5, history)
    assert found == epsilon_of(1e-5, [Release(6.0, 1.0, 2), Release(3.0, 1.0, 1)])


@pytest.mark.parametrize("done", [ClientRound(1, 0, 2, 1.0), ClientRound(1, 0, 1, 0.9)])
def test_sums_of_several_steps_have_no_common_noise(done):
    assert epsilon_of_sums(3.0, 1e-5, [done, ClientRound(1, 1, 1, 1.0)]) is None


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def privacy_of(folder, *options):
    assert main(["run", *TRAIN, *NOISY, *options, "--out", "one"]) == 0
    return json.loads((folder / "one" / "result.json").read_text())["example_privacy"]


def test_a_run_says_what_it_told(folder, capsys):
    options = ["-a", "fedrep", "--rounds", "2", "--set", "training.batch_size=20"]
    record = privacy_of(folder, *options, "--set", "training.epochs=1")
    assert "per example" in capsys.readouterr().err

    lines = [
        json.loads(line) for line in (folder / "one" / "clients.jsonl").read_text().splitlines()
    ]
    sizes = {line["client"]: line["num_train"] for line in lines if "num_train" in line}
    for client, size in sizes.items():
        # Ten epochs of the head and one of the body, in each of two rounds.
        steps = 2 * 11 * math.ceil(size / 20)
        expected = epsilon_of(DELTA, [Release(2.0, 20 / size, steps)])
        assert record["by_client"][str(client)] == pytest.approx(expected, rel=1e-9)

    assert record["epsilon"] == max(record["by_client"].values())
    assert "epsilon_of_sums" not in record


def test_one_step_a_round_under_secure_sums(folder):
    one_step = ["--set", "training.steps=1", "--set", "training.batch_size=0"]
    secure = ["--set", "privacy.secure_sums=true"]
    record = privacy_of(folder, "-a", "fedavg", "--rounds", "3", *one_step, *secure)
    assert record["epsilon"] == epsilon_of(DELTA, [Release(2.0, 1.0, 3)])
    assert record["epsilon_of_sums"] == epsilon_of(DELTA, [Release(4.0, 1.0, 3)])


@pytest.mark.parametrize(
    "options",
    [
        ["-a", "scaffold"],  # equal weights
        ["-a", "moon"],  # the earlier model has the noise of one client, and steers the next step
        ["-a", "fedper"],  # so has the personal head
        ["-a", "fedavg", "--set", "training.optimizer=adam"],
        ["-a", "fedavg", "--set", "training.clip_norm=1.0"],
    ],
)
def test_noise_that_does_not_add_up_is_not_claimed(folder, options):
    one_step = ["--set", "training.steps=1", "--set", "training.batch_size=0"]
    secure = ["--set", "privacy.secure_sums=true", "--rounds", "1"]
    record = privacy_of(folder, *options, *one_step, *secure)
    assert "epsilon_of_sums" not in record and record["epsilon"] > 0


def test_runs_without_noise_say_nothing_of_it(folder):
    assert main(["run", *TRAIN, "-a", "fedavg", "--rounds", "1", "--out", "one"]) == 0
    assert "example_privacy" not in json.loads((folder / "one" / "result.json").read_text())
