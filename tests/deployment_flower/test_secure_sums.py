"""Sums under masks over Flower: real sites have the bits of a simulation with secure sums, also if
a site or the server is killed in any exchange.

One deployment serves all methods, another one all kills: their sites stay, and the server is
started for every run.
"""

import json

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from fedtailor.cli.main import main
from fedtailor.experiment.reader import read_run
from real_sites import Deployment
from sites import (
    ABSENCES,
    VALUES,
    World,
    assert_same_as_simulation,
    assert_same_run,
    divide_digits,
    write_arrays,
)
from waiting import wait_for

NAMES = ("clinic", "hospital", "office", "practice")
DATA = divide_digits(NAMES, rows=40)
SECURE = {**VALUES, "privacy": {"secure_sums": True}}
ALWAYS = "fedavg"
METHODS = [ALWAYS, "scaffold", "fedrep", "pfedfda", "ifca", "fedpac"]
OPTIONS = {"fedpac": {"combine_heads": False}}
pytestmark = pytest.mark.xdist_group("processes")


def deployment_of(path, **world):
    """Return a deployment of digits whose sites trust each other."""
    made = World(path, names=NAMES, secure=True, **world)
    return Deployment(made.write(lambda folder, name: write_arrays(folder, *DATA[name])))


def begin(deployment, method):
    """Start the server for a new run of a method, and return its number."""
    deployment.configure(algorithm={"name": method, **OPTIONS.get(method, {})})
    number = len(list(deployment.server.glob("runs/*"))) + 1
    deployment.serve(*(["--new"] if number > 1 else []))
    return number


@pytest.fixture(scope="module")
def of_three(tmp_path_factory):
    """Return three sites, all of which must be in a sum, and a new one."""
    values = {
        **SECURE,
        "evaluation": {"every": 1, "personalized_every": 2},
        "data": {"val_fraction": 0.2},
        "deploy": {"deadline": 90.0},
    }
    made = deployment_of(tmp_path_factory.mktemp("secure"), new=("hospital",), values=values)
    made.start_sites()
    yield made
    made.stop()


@pytest.mark.parametrize(
    "name",
    [name if name == ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_sums_under_masks_have_the_bits_of_a_simulation(of_three, name):
    number = begin(of_three, name)
    assert of_three.serving.wait() == 0, of_three.tails()
    world = of_three.world
    print(name, [round(line["seconds"]["train"], 1) for line in of_three.rounds(number)])
    assert_same_run(world, world.simulate(out=f"simulation-{name}"), run=f"{number:04d}")


@pytest.mark.slow
def test_a_site_without_which_there_is_no_sum_is_waited_for(of_three):
    before = len(requests_of(of_three, "office"))
    number = begin(of_three, "fedavg")
    wait_for_request(of_three, "office", "train", 2, before)
    of_three.kill_all("office")
    of_three.start_site("office")
    assert of_three.serving.wait() == 0, of_three.tails()
    assert_same_run(
        of_three.world, of_three.world.simulate(out="simulation-killed"), run=f"{number:04d}"
    )


ROUNDS = 4
KILLS = {
    **SECURE,
    "federation": {"rounds": ROUNDS},
    "evaluation": {"every": ROUNDS},
    "deploy": {"deadline": 90.0, "quorum": 0.75, "grace": 15.0},
}


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    """Return four sites, of which three must answer."""
    made = deployment_of(tmp_path_factory.mktemp("kills"), values=KILLS)
    made.start_sites()
    yield made
    made.stop()


def requests_of(deployment, name):
    """Return kind and round of every request that a site has received."""
    path = deployment.folder(name) / "audit.jsonl"
    text = path.read_text() if path.exists() else ""
    records = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return [
        (record["kind"], record.get("round")) for record in records if record["way"] == "received"
    ]


def wait_for_request(deployment, name, kind, round, before):
    """Wait until a site has received a request, beside those that it had before."""
    wait_for(
        lambda: (kind, round) in requests_of(deployment, name)[before:],
        explain=deployment.tails,
    )


def wait_for_sum(deployment, number, round, has):
    """Wait until the server has begun the sum of a round, and its notes say something."""
    path = deployment.run(number) / "masks" / f"train-{round:06d}-00.json"
    wait_for(lambda: path.exists() and has(json.loads(path.read_text())), explain=deployment.tails)


def wait_for_closed(deployment, number, round):
    """Wait until the server has closed the sum of a round."""
    path = deployment.run(number) / "masks" / f"train-{round:06d}-00.closed"
    wait_for(path.exists, explain=deployment.tails)


def finish(deployment, number):
    """Wait for the end of a run with the bits of a simulation; return round and site of absences."""
    assert deployment.serving.wait(600) == 0, deployment.tails()
    run = assert_same_as_simulation(deployment.world, f"{number:04d}")
    assert [line["round"] for line in run.rounds] == list(range(1, ROUNDS + 1))
    print("trained", [round(line["seconds"]["train"], 1) for line in run.rounds])
    absent = [event for event in run.events if event["kind"] in ABSENCES]
    print("absent", [(event["round"], event["client"], event["reason"]) for event in absent])
    return {(event["round"], NAMES[event["client"]]) for event in absent}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_sites_that_are_killed_in_every_exchange(of_four, method):
    """In each, the site has just received the request, and has perhaps answered."""
    before = {name: len(requests_of(of_four, name)) for name in NAMES}

    def kill_at(name, kind, round):
        wait_for_request(of_four, name, kind, round, before[name])
        of_four.kill_all(name)

    number = begin(of_four, method)
    kill_at("clinic", "keys", None)
    of_four.start_site("clinic")

    # One is lost in the round, so the others agree on the sum; then another one is lost, and the
    # two that are left wait for it.
    kill_at("hospital", "train", 2)
    kill_at("office", "agree", 2)
    of_four.start_site("office")
    wait_for_sum(of_four, number, 2, lambda notes: notes["agreed"])
    of_four.start_site("hospital")

    kill_at("practice", "unmask", 3)
    of_four.start_site("practice")
    assert (2, "hospital") in finish(of_four, number)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_server_that_is_killed_in_every_exchange(of_four, method):
    number = begin(of_four, method)

    def kill():
        of_four.kill_all("server")
        of_four.serve()

    masks = of_four.run(number) / "masks"
    wait_for((masks / "channels.bin").exists, explain=of_four.tails)
    kill()
    wait_for_sum(of_four, number, 1, lambda notes: True)
    kill()
    wait_for_closed(of_four, number, 2)
    kill()

    # One site is lost in the round, so the others agree on the sum.
    before = len(requests_of(of_four, "office"))
    wait_for_request(of_four, "office", "train", 3, before)
    of_four.kill_all("office")
    wait_for_closed(of_four, number, 3)
    assert not json.loads((masks / "train-000003-00.json").read_text())["agreed"]
    kill()
    of_four.start_site("office")
    assert (3, "office") in finish(of_four, number)


@pytest.mark.slow
def test_the_demonstration_has_the_bits_of_a_simulation(tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["deploy", "demo", "--secure", "--rounds", "2", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same_as_simulation"] is True

    run = read_run(out / "server" / "runs" / "0001")
    assert run.config["privacy"]["secure_sums"] is True and len(run.rounds) == 2
