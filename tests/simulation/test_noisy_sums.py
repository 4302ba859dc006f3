"""Runs whose clients are protected as wholes: the same bits anywhere, a ledger that survives, a
budget that ends a run, and refusals."""

import errno
import json
import os
from dataclasses import replace

import pytest
import torch

import fedtailor as ft
from contract.cases import build, small_federation
from fedtailor.cli.main import main
from fedtailor.core import atomic, tree
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.ledger import LEDGER_FILE, Ledger
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.privacy.plan import drawn_from, expected_clients, planned
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import simulate
from finished_runs import assert_same_reports
from marks import quick
from simulation.in_places import InPlaces

NOISY = PrivacyOptions(unit="client", noise=0.5, clip=1.0)


def reports(name, engine=None, privacy=NOISY, ledger=None, **options):
    schedule = Schedule(**{"rounds": 2, "evaluate_every": 1, "personalized_every": 1, **options})
    runs = simulate(
        build(name),
        small_federation("mlp"),
        engine or Reference(),
        schedule,
        seed=3,
        privacy=privacy,
        ledger=ledger,
    )
    return list(runs)


def server_of(runs):
    return tree.paths(runs[-1].state.server)


WEIGHTS = {
    "fedproto": {"prototypes": 5.0},
    "ifca": {"models": 5.0},
    "pfedvem": {"head": 100.0},
}


@pytest.mark.parametrize(
    "name",
    quick(
        ["fedavg", "scaffold", "pfedfda", "fedrep", "fedcgs", *WEIGHTS],
        "fedavg",
        "ifca",
        "fedproto",
    ),
)
def test_places_have_the_bits_of_a_loop(name):
    privacy = replace(NOISY, weights=WEIGHTS.get(name, {}))
    expected = reports(name, privacy=privacy)
    for places in (1, 3):
        assert_same_reports(reports(name, InPlaces(places), privacy), expected)


@pytest.mark.parametrize("name", quick(["fedavg", "pfedfda", "fedproto"], "fedavg"))
def test_noise_on_secure_sums_is_that_on_sums_of_floats(name):
    floats = replace(NOISY, weights=WEIGHTS.get(name, {}))
    plain = server_of(reports(name, privacy=floats))
    secure = replace(floats, secure_sums=True, smallest_sum=2)
    for path, tensor in server_of(reports(name, privacy=secure)).items():
        torch.testing.assert_close(tensor, plain[path], rtol=1e-4, atol=1e-5)


def test_without_noise_a_wide_bound_changes_the_server_little():
    # Equal weights and a fixed divisor, so a method whose weights are equal is the same.
    wide = PrivacyOptions(unit="client", noise=1e-13, clip=1e6)
    exact = server_of(reports("feddyn", privacy=PrivacyOptions()))
    for path, tensor in server_of(reports("feddyn", privacy=wide)).items():
        torch.testing.assert_close(tensor, exact[path], rtol=1e-3, atol=1e-3)


def test_records_hold_what_the_accountant_says():
    (first, second) = reports("fedavg", participation=Participation(plan="all"))
    one = epsilon_of(1e-5, [Release(0.5, 1.0, 1)])
    two = epsilon_of(1e-5, [Release(0.5, 1.0, 2)])
    assert first.privacy["epsilon"] == pytest.approx(one)
    assert second.privacy["epsilon"] == pytest.approx(two)


def test_a_budget_that_earlier_releases_have_used_up_ends_the_run():
    privacy = PrivacyOptions(unit="client", epsilon=10.0, clip=1.0)
    ledger = Ledger()
    reports("fedavg", privacy=privacy, ledger=ledger)
    assert ledger.spent(1e-5).epsilon <= 10.0

    with pytest.raises(RunError, match=r"privacy\.epsilon = 10 is used up after 0 of 2 rounds"):
        reports("scaffold", privacy=privacy, ledger=ledger)


def test_a_resumed_run_counts_no_release_twice(tmp_path):
    values = {
        "data": {"clients": 4},
        "algorithm": {"name": "fedavg"},
        "federation": {"rounds": 4},
        "checkpoint": {"every": 3},
        "evaluation": {"baselines": "none"},
        "privacy": {"unit": "client", "noise": 2.0},
    }

    class Stop(Exception):
        pass

    from fedtailor.experiment.tracking import RunProgress

    class Interrupting(RunProgress):
        def round(self, record):
            if record["round"] == 2:
                raise Stop

    config = ft.make_config(values)
    whole = ft.run(config, out=tmp_path / "whole")
    with pytest.raises(Stop):
        ft.run(config, out=tmp_path / "twice", progress=Interrupting())
    resumed = ft.run(config, out=tmp_path / "twice")

    ledger = (tmp_path / "twice" / "privacy.jsonl").read_bytes()
    assert ledger == (tmp_path / "whole" / "privacy.jsonl").read_bytes()
    assert len(ledger.splitlines()) == 4
    assert resumed["privacy"] == whole["privacy"]
    assert resumed["metrics"] == whole["metrics"]

    # Also after each round that was run again.
    told = []
    for name in ("twice", "whole"):
        lines = (tmp_path / name / "rounds.jsonl").read_text().splitlines()
        told.append([json.loads(line)["privacy"] for line in lines])
    assert told[0] == told[1]


def test_a_disk_that_is_full_when_the_ledger_is_written(tmp_path, monkeypatch, capsys):
    options = ["-a", "fedavg", "--clients", "4", "--rounds", "3", "--partition", "iid"]
    options += ["--set", "privacy.unit=client", "--set", "privacy.noise=2.0"]
    assert main(["run", *options, "--out", str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    write_all = atomic._write_all

    def write_half(file, data):
        if file.name.endswith(LEDGER_FILE) and b'"round":2' in data:
            file.write(data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(file, data)

    folder = tmp_path / "full"
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "_write_all", write_half)
        assert main(["run", *options, "--out", str(folder)]) == 5

    # One sentence, and nothing of the second round, whose noisy sum was never made.
    errors = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert errors == [f"error: cannot write '{folder}/{LEDGER_FILE}': No space left on device."]
    assert len((folder / LEDGER_FILE).read_bytes().splitlines()) == 1
    assert len((folder / "rounds.jsonl").read_bytes().splitlines()) == 1

    assert main(["run", *options, "--out", str(folder)]) == 0
    for name in (LEDGER_FILE, "clients.jsonl", "models/0.safetensors", "models/0.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("local", "sends nothing to the server"),
        ("fedpac", "shows the server what single clients send"),
        ("fedproto", r"set the largest weight that counts, .* privacy\.weights\.prototypes = 100"),
        ("pfedvem", "weighs 'head' by numbers of its clients"),
    ],
)
def test_methods_that_cannot_be_protected_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        reports(name)


def test_scales_of_unknown_fields_are_refused():
    privacy = PrivacyOptions(unit="client", noise=1.0, scales={"modle": 2.0})
    with pytest.raises(ConfigError, match="did you mean 'model'"):
        reports("fedavg", privacy=privacy)


def test_weights_of_fields_that_have_none_are_refused():
    privacy = replace(NOISY, weights={"prototypes": 5.0, "known": 2.0})
    with pytest.raises(ConfigError, match=r"unknown field in privacy\.weights 'known'"):
        reports("fedproto", privacy=privacy)
    with pytest.raises(ConfigError, match=r"privacy\.weights\.head must be a number above 0"):
        replace(NOISY, weights={"head": 0})


def test_options_that_look_at_single_clients_are_refused():
    with pytest.raises(ConfigError, match=r"federation\.robust"):
        reports("fedavg", robust="median")
    with pytest.raises(ConfigError, match="look at scores"):
        NOISY.check(Schedule(patience=2, personalized_every=1), num_trainable=10)
    with pytest.raises(ConfigError, match="changes who can be drawn"):
        reports("fedavg", history=("2 pause 0",))


def test_noise_or_a_budget_is_needed():
    with pytest.raises(ConfigError, match=r"privacy\.epsilon must be above 0"):
        PrivacyOptions(unit="client")


def plan(clients, privacy=NOISY, **options):
    """Return rates and numbers of the releases of five rounds among some clients."""
    schedule = Schedule(rounds=5, participation=Participation(**options))
    drawn = drawn_from(privacy, schedule, population=clients, trainable=clients)
    return planned(privacy, schedule, drawn)


def test_only_independent_draws_hide_who_takes_part():
    drawn = {"plan": "bernoulli", "probability": 0.3, "full_last_round": False}
    assert plan(300, plan="all") == [(1.0, 5)]
    assert plan(300, plan="fixed", count=2) == [(1.0, 5)]
    assert plan(300, **drawn) == [(0.3, 5)]
    assert plan(300, **{**drawn, "full_last_round": True}) == [(0.3, 4), (1.0, 1)]


def test_draws_that_are_repeated_hide_nobody():
    """A cohort that is too small is drawn again, which takes part in with a higher probability."""
    drawn = {"plan": "bernoulli", "probability": 0.3, "full_last_round": False}
    assert plan(20, **drawn) == [(1.0, 5)], "nobody may have been drawn"
    assert plan(300, min_clients=2, **drawn) == [(0.3, 5)], "that hardly happens"
    assert plan(300, min_clients=60, **drawn) == [(1.0, 5)]
    masked = replace(NOISY, secure_sums=True, smallest_sum=60)
    assert plan(300, masked, **drawn) == [(1.0, 5)]

    # With these numbers, a draw by itself has 3 of 6 clients in every round.
    result = reports("fedavg", participation=Participation(plan="bernoulli", probability=0.3))
    assert result[-1].privacy["epsilon"] == result[-1].privacy["epsilon_known_cohort"]


def test_means_by_weights_of_their_own_are_those_without_noise():
    """Clients say how many examples of a class they have; the server divides by the sum."""
    federation = small_federation("mlp")
    clients = range(federation.roster.population)
    counts = torch.stack([federation.info(client).class_counts for client in clients])
    weights = {"prototypes": float(counts.max())}
    wide = PrivacyOptions(unit="client", noise=1e-12, clip=1e6, weights=weights)
    exact = server_of(reports("fedproto", privacy=PrivacyOptions(), rounds=1))
    noisy = server_of(reports("fedproto", privacy=wide, rounds=1))

    # A sum of weights below that of one client is taken for noise.
    sure = counts.sum(0) > counts.max()
    assert sure.any()
    means = [server["prototypes/means"][sure] for server in (noisy, exact)]
    torch.testing.assert_close(*means, rtol=1e-4, atol=1e-4)


def test_fedcr_runs_with_noise():
    assert server_of(reports("fedcr"))["means"].isfinite().all()


def test_the_divisor_counts_clients_that_cannot_train():
    """They are drawn too, and then have nothing to send."""
    schedule = Schedule(rounds=5, participation=Participation(plan="fixed", count=10))
    drawn = drawn_from(NOISY, schedule, population=40, trainable=20)
    assert expected_clients(schedule, drawn, 1) == 5.0


def test_means_of_a_full_last_round_are_over_all_clients():
    drawn = Participation(plan="bernoulli", probability=0.3, full_last_round=True)
    schedule = Schedule(rounds=5, participation=drawn)
    twenty = drawn_from(NOISY, schedule, population=20, trainable=20)
    expected = [expected_clients(schedule, twenty, round) for round in (1, 4, 5)]
    assert expected == [6.0, 6.0, 20.0]

    # One round, and so a full one: the mean is that of a run in which all take part.
    wide = PrivacyOptions(unit="client", noise=1e-13, clip=1e6)
    everybody = Participation(plan="all")
    expected = server_of(reports("feddyn", privacy=wide, rounds=1, participation=everybody))
    for path, tensor in server_of(
        reports("feddyn", privacy=wide, rounds=1, participation=drawn)
    ).items():
        torch.testing.assert_close(tensor, expected[path], rtol=1e-5, atol=1e-5)


def test_what_is_sent_does_not_tell_how_many_clients_took_part():
    schedule = {"rounds": 4, "participation": Participation(plan="bernoulli", probability=0.5)}
    told = []
    for seed in (3, 4):
        options = Schedule(**schedule)
        hidden = Spy()
        runs = simulate(
            build("fedbn"), small_federation("mlp"), hidden, options, seed=seed, privacy=NOISY
        )
        sizes = [len(report.cohort) for report in runs]
        told.append((hidden.rounds, sizes))

    assert len(told[0][0]) == 4, "the test sees what is sent"
    assert told[0][0] == told[1][0] and told[0][1] != told[1][1]


class Spy(Reference):
    """Keeps the number of rounds that the server sends to those who train."""

    def __init__(self):
        super().__init__()
        self.rounds = []

    def map(self, program, common, jobs):
        rounds = float(getattr(common.shared, "rounds", -1.0))
        if rounds >= 0 and rounds not in self.rounds:
            self.rounds.append(rounds)
        return super().map(program, common, jobs)
