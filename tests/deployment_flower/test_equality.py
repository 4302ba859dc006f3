"""Three sites, a new one and a server as real processes with TLS and keys: the bits of a simulation.

One deployment serves all methods: its sites stay, and the server is started for every run.
"""

import time

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from real_sites import Deployment
from sites import VALUES, World, assert_same_run, divide_digits, write_arrays

NAMES = ("clinic", "hospital", "office", "practice")
METHODS = ["fedavg", "scaffold", "fedrep", "pfedfda", "fedpac"]
SETTINGS = {
    **VALUES,
    "federation": {"rounds": 4, "participation": 0.7, "full_last_round": False},
    "evaluation": {"every": 2, "personalized_every": 4},
    "data": {"val_fraction": 0.2},
    "deploy": {"deadline": 90.0},
}
pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    data = divide_digits(NAMES, rows=40)
    world = World(tmp_path_factory.mktemp("equality"), names=NAMES, new=("hospital",), values=SETTINGS)
    world.write(lambda folder, name: write_arrays(folder, *data[name]))
    made = Deployment(world)
    made.start_sites()
    yield made
    made.stop()


@pytest.mark.parametrize("name", METHODS)
def test_a_run_of_real_sites_has_the_bits_of_a_simulation(deployment, name):
    number = METHODS.index(name) + 1
    deployment.configure(algorithm={"name": name})
    begun = time.monotonic()
    deployment.serve_to_the_end(*(["--new"] if number > 1 else []))
    print(name, f"{time.monotonic() - begun:.1f} s;", "rounds", [line["seconds"] for line in deployment.rounds(number)])
    assert_same_run(deployment.world, deployment.world.simulate(out=f"simulation-{name}"), run=f"{number:04d}")
