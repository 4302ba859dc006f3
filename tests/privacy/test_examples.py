"""Noise in every step of training: found for a budget, by client, counted before it is used."""

import json
from collections import Counter

import pytest
import torch

import fedtailor as ft
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.cli.main import main
from fedtailor.core import atomic
from fedtailor.core.errors import RunError
from fedtailor.core.federation import Roster
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Training
from fedtailor.experiment.assembly import assemble
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.examples import epsilon_of_steps, plan_examples
from fedtailor.privacy.ledger import LEDGER_FILE, Ledger
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.rounds import simulate
from marks import slow

SIZES = (5, 40, 41, 200, 0)
AT_SITES = {"unit": "example", "epsilon": 3.0, "noise_from": "sites"}
SHARES = {"unit": "example", "epsilon": 3.0, "secure_sums": True}
ONE_STEP = {"steps": 1, "batch_size": 0}


def plan_of(privacy, algorithm, sizes=SIZES, **schedule):
    roster = Roster(None, sizes)
    return plan_examples(PrivacyOptions(**privacy), Schedule(**schedule), algorithm, roster)


@pytest.mark.parametrize(
    "algorithm",
    [
        slow(FedAvg(training=Training(epochs=2, batch_size=20))),
        slow(FedAvg(training=Training(steps=7, batch_size=20))),
        FedRep(training=Training(epochs=1, batch_size=20), head_epochs=3),
    ],
)
def test_every_client_keeps_to_the_budget_and_uses_it_up(algorithm):
    plan = plan_of(AT_SITES, algorithm, rounds=3)
    assert plan.releases.keys() == {0, 1, 2, 3}, "a client without examples sends nothing"
    for client, release in plan.releases.items():
        size = SIZES[client]
        assert release.rate == min(20, size) / size
        all_rounds = release._replace(times=3 * algorithm.bounded_steps(size))
        assert 2.99 < epsilon_of(1e-5, [all_rounds]) <= 3.0

    # All examples of the smallest are in every step, so it needs the most noise.
    noises = [plan.releases[client].noise for client in range(4)]
    assert max(noises) == noises[0] > 1.5 * noises[3] and min(noises) == noises[3]


def test_a_noise_that_is_given_is_that_of_all():
    privacy = {"unit": "example", "noise": 2.0, "noise_from": "sites"}
    plan = plan_of(privacy, FedAvg(training=Training(epochs=1, batch_size=20)), rounds=3)
    assert {release.noise for release in plan.releases.values()} == {2.0}
    record = plan.record(plan.epsilons())
    assert record["epsilon"] == epsilon_of(1e-5, [Release(2.0, 1.0, 3)])
    assert record["by_client"]["1"] == epsilon_of(1e-5, [Release(2.0, 0.5, 6)])


@pytest.mark.parametrize(
    ("colluding", "min_clients", "shares"),
    [("third", 1, 2), ("third", 7, 4), ("none", 1, 3), ("none", 10, 10), (2, 1, 2)],
)
def test_shares_are_those_of_clients_that_keep_them(colluding, min_clients, shares):
    algorithm = FedAvg(training=Training(**ONE_STEP))
    privacy = {**SHARES, "colluding": colluding}
    participation = Participation(min_clients=min_clients)
    plan = plan_of(privacy, algorithm, [50] * 10, rounds=4, participation=participation)
    assert plan.shares == shares

    # What they add up to keeps to the budget.
    bound = plan.bound(0)
    released = Release(bound.noise * shares**0.5, bound.rate, 4 * bound.steps)
    assert epsilon_of(1e-5, [released]) == pytest.approx(3.0, rel=1e-3)


def test_steps_of_different_noise_add_up():
    steps = Counter({(1.5, 0.2): 10, (2.0, 1.0): 3})
    expected = epsilon_of(1e-5, [Release(1.5, 0.2, 10), Release(2.0, 1.0, 3)])
    assert epsilon_of_steps(1e-5, steps) == expected
    assert epsilon_of_steps(1e-5, Counter()) == 0


def config_of(privacy, training=None, **sections):
    values = {
        "data": {"dataset": "digits", "clients": 4, "fraction": 0.25, "partition": "iid"},
        "algorithm": {"name": "fedavg"},
        "training": {"epochs": 1, "batch_size": 20, **(training or {})},
        "federation": {"rounds": 3},
        "engine": {"name": "reference"},
        "evaluation": {"baselines": "none"},
        "privacy": privacy,
        **sections,
    }
    return ft.make_config(values)


def reports(config, ledger, events=()):
    prepared = assemble(config, 0)
    return list(
        simulate(
            prepared.algorithm,
            prepared.federation,
            prepared.engine,
            prepared.config.schedule,
            seed=0,
            privacy=prepared.config.privacy,
            ledger=ledger,
            events=events,
        )
    )


def test_the_ledger_of_uneven_clients_has_their_own_steps_and_keeps_to_the_budget():
    ledger = Ledger()
    data = {"clients": 4, "fraction": 0.25, "partition": "dirichlet(alpha=0.3)"}
    config = config_of(AT_SITES, data=data, federation={"rounds": 2})
    last = reports(config, ledger)[-1]

    told = last.privacy["by_client"]
    assert len(ledger.entries) == 2 * 4, "their numbers of examples differ"
    for client, steps in ledger.steps_by_client().items():
        epsilon = epsilon_of_steps(1e-5, steps)
        assert told[str(client)] == epsilon
        assert 2.99 < epsilon <= 3.0
    assert last.privacy["epsilon"] == max(told.values())


def test_of_sums_there_is_one_entry_a_round():
    ledger = Ledger()
    last = reports(config_of(SHARES, ONE_STEP), ledger)[-1]
    assert [entry.cohort for entry in ledger.entries] == [(0, 1, 2, 3)] * 3
    assert 2.99 < last.privacy["epsilon"] <= 3.0
    assert (last.privacy["fewest"], last.privacy["shares"]) == (3, 2)


def test_a_repeated_round_counts_and_ends_the_run_at_its_budget():
    ledger = Ledger()
    absent = {"kind": "absent", "round": 2, "client": 0, "stage": "local_update", "reason": "x"}
    config = config_of(AT_SITES, federation={"rounds": 3, "min_clients": 4})
    with pytest.raises(RunError, match=r"privacy\.epsilon = 3 is used up after 2 of 3 rounds"):
        reports(config, ledger, [absent])

    # What the clients have sent in the first attempt at round 2 is known.
    assert {(entry.round, entry.attempt) for entry in ledger.entries} == {(1, 0), (2, 0), (2, 1)}
    for steps in ledger.steps_by_client().values():
        assert epsilon_of_steps(1e-5, steps) <= 3.0


def test_a_wide_bound_with_hardly_any_noise_is_a_plain_step():
    wide = {"unit": "example", "noise": 1e-9, "noise_from": "sites", "clip": 1e3}
    private = reports(config_of(wide, ONE_STEP), Ledger())[-1].state.server.model
    plain = reports(config_of({}, ONE_STEP), Ledger())[-1]
    assert plain.privacy == {}
    for name, leaf in plain.state.server.model.items():
        torch.testing.assert_close(private[name], leaf, rtol=1e-4, atol=1e-5)


class Killed(BaseException):
    pass


def test_a_run_that_is_killed_between_ledger_and_training_counts_once(tmp_path, monkeypatch):
    config = config_of(AT_SITES, checkpoint={"every": 1})
    whole = ft.run(config, out=tmp_path / "whole")

    # The ledger has the steps of round 2, and then the process ends: nobody has trained.
    append = atomic.append_lines

    def kill_after(path, records):
        append(path, records)
        if path.name == LEDGER_FILE and any(record["round"] == 2 for record in records):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("fedtailor.privacy.ledger.append_lines", kill_after)
        with pytest.raises(Killed):
            ft.run(config, out=tmp_path / "killed")

    rounds = (tmp_path / "killed" / "rounds.jsonl").read_text().splitlines()
    lines = (tmp_path / "killed" / LEDGER_FILE).read_text().splitlines()
    assert len(rounds) == 1 and json.loads(lines[-1])["round"] == 2, "the ledger comes first"

    again = ft.run(config, out=tmp_path / "killed")
    assert again["privacy"] == whole["privacy"] and again["metrics"] == whole["metrics"]
    for name in (LEDGER_FILE, "models/0.safetensors", "models/0.json"):
        expected = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "killed" / name).read_bytes() == expected, name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


TRAIN = ["--clients", "4", "--partition", "iid", "--set", "data.fraction=0.25"]
BUDGET = ["--set", "privacy.unit=example", "--set", "privacy.epsilon=4"]
OPTIONS = [*TRAIN, *BUDGET, "--rounds", "2", "-d", "digits"]


def test_a_run_says_what_it_told_and_a_plan_says_it_before(folder, capsys):
    sites = ["-a", "fedrep", *OPTIONS, "--set", "privacy.noise_from=sites"]
    assert main(["run", *sites, "--out", "one"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    claim = "epsilon 4.00 (delta 1e-05) per example, for whoever sees uploads or the global models"
    assert claim in said and "several examples of one person" in said

    result = json.loads((folder / "one" / "result.json").read_text())
    card = json.loads((folder / "one" / "models" / "0.json").read_text())
    assert claim in result["privacy"]["claim"] == card["privacy"]["claim"]
    assert main(["privacy", "plan", "one/experiment.toml", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    told = {key: value for key, value in result["privacy"].items() if key != "claim"}
    assert plan == {**told, "budget": 4.0}

    assert main(["what-leaves", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"] == [result["privacy"]["claim"]]


def test_a_plan_names_the_noise_of_the_smallest_and_of_the_largest_client(folder, capsys):
    sites = ["--set", "algorithm.name=fedavg", *BUDGET, "--set", "privacy.noise_from=sites"]
    uneven = ["--set", "data.clients=4", "--set", "data.partition=dirichlet(alpha=0.5)"]
    assert main(["privacy", "plan", *sites, *uneven, "--rounds", "2"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "epsilon" in line]
    least, most = line.removeprefix("noise ").partition(":")[0].split(" to ")
    assert float(least) < float(most)
    assert line.endswith("epsilon 4.00 (delta 1e-05) per example.")


def test_sums_are_claimed_for_whoever_sees_sums(folder, capsys):
    shares = ["--set", "privacy.secure_sums=true", "--set", "training.steps=1"]
    shares += ["--set", "training.batch_size=0", "-a", "fedavg"]
    assert main(["run", *OPTIONS, *shares, "--out", "one"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "for whoever sees sums over at least 3 clients and the global models, if 2 clients" in said
    )
