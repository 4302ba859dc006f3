"""Sites that come and go over Flower, by the commands of the operator: every run has the bits of a
simulation with the history that it has noted.

One deployment serves all tests of this file: its sites stay, and the server is started for every
run.
"""

import json
import random
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from fedtailor.deployment.federation_folder import FederationFolder
from fedtailor.deployment.keys import make_node_key
from fedtailor.deployment.membership import names_of, read_history
from real_sites import Deployment
from sites import NAMES, VALUES, World, assert_same_as_simulation, divide_digits, write_arrays
from waiting import wait_for

LATE = ("annex", "ward")
"""Sites that are not registered when a run begins."""
ROUNDS = 8
SETTINGS = {
    **VALUES,
    "algorithm": {"name": "scaffold"},
    "federation": {"rounds": ROUNDS},
    "evaluation": {"every": ROUNDS},
    "deploy": {"deadline": 300.0},
}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    data = divide_digits((*NAMES, *LATE), rows=40)
    world = World(tmp_path_factory.mktemp("membership"), names=(*NAMES, *LATE), values=SETTINGS)
    world.write(lambda folder, name: write_arrays(folder, *data[name]))
    made = Deployment(world)
    register = made.server / "sites.json"
    sites = [site for site in json.loads(register.read_text())["sites"] if site["name"] in NAMES]
    register.write_text(json.dumps({"sites": sites}))
    made.start_sites()
    yield made
    made.stop()


def command(deployment, *words):
    """Run ``fedtailor deploy ...`` as another process; return whether it was done."""
    name = words[1]
    key = [str(deployment.folder(name) / "site.key.pub")] if words[0] == "add" else []
    arguments = ["-m", "fedtailor", "deploy", words[0], str(deployment.server), name, *key]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    assert len(done.stderr.splitlines()) <= 4, done.stderr
    return done.returncode == 0


def prepare(deployment):
    """Register exactly those with whom a run begins; return the number of the next run."""
    registered = {site.name: site for site in FederationFolder(deployment.server).sites()}
    for name in LATE:
        if name in registered:
            assert command(deployment, "remove", name)

    register = json.loads((deployment.server / "sites.json").read_text())
    for name in {site["name"] for site in register.get("removed", ())}:
        if name in LATE or name not in registered:
            renew(deployment, name)

    for name in NAMES:
        if name not in registered:
            assert command(deployment, "add", name)
        elif registered[name].paused:
            assert command(deployment, "resume", name)
    return len(list(deployment.server.glob("runs/*"))) + 1


def renew(deployment, name):
    """Have a site that was removed make a new key: no key is used twice."""
    deployment.sites[name].stop()
    for path in deployment.folder(name).glob("site.key*"):
        path.unlink()
    make_node_key(deployment.folder(name) / "site.key")
    deployment.start_site(name)


@pytest.mark.parametrize("seed", range(5))
def test_random_histories_have_the_bits_of_a_simulation(deployment, seed):
    choice = random.Random(seed)
    number = prepare(deployment)
    deployment.serve(*(["--new"] if number > 1 else []))
    for round in range(1, ROUNDS - 1):
        deployment.wait_for_round(round, number)
        if round == 1:
            assert command(deployment, "add", LATE[seed % 2])
        for _ in range(choice.choice((1, 1, 2))):
            what = choice.choice(("pause", "resume", "add", "add", "remove"))
            command(deployment, what, choice.choice(LATE if what == "add" else (*NAMES, *LATE)))

        if round == 2:
            # A power cut.
            deployment.kill_all("server")
            deployment.serve()

    assert deployment.serving.wait(900) == 0, deployment.tails()
    run = assert_same_as_simulation(deployment.world, f"{number:04d}", check_states=True)
    assert [line["round"] for line in run.rounds] == list(range(1, ROUNDS + 1))
    print("history", read_history(run.path), [line["seconds"]["train"] for line in run.rounds])


def test_a_silent_site_that_is_paused_and_one_that_joins(deployment):
    number = prepare(deployment)
    deployment.serve(*(["--new"] if number > 1 else []))
    deployment.wait_for_round(1, number)
    assert command(deployment, "add", "annex")
    wait_for(lambda: "annex" in names_of(deployment.run(number)), explain=deployment.tails)

    # Without the command, the round would wait for the deadline.
    deployment.kill_all("clinic")
    assert command(deployment, "pause", "clinic")
    assert deployment.serving.wait(280) == 0, deployment.tails()
    run = assert_same_as_simulation(deployment.world, f"{number:04d}", check_states=True)
    kinds = [line.split(" ", 1)[1] for line in read_history(run.path)]
    assert kinds == ["join annex", "pause clinic"]
    deployment.start_site("clinic")
