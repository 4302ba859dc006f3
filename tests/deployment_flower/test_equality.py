"""Three sites, a new one and a server as real processes with TLS and keys: the bits of a
simulation.

One deployment serves all methods: its sites stay, and the server is started for every run.
"""

import json

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from fedtailor.cli.main import main
from real_sites import PROGRAMS, Deployment
from sites import (
    VALUES,
    World,
    assert_same_run,
    divide_digits,
    write_arrays,
    write_pictures,
    write_table,
)

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
    world = World(
        tmp_path_factory.mktemp("equality"), names=NAMES, new=("hospital",), values=SETTINGS
    )
    world.write(lambda folder, name: write_arrays(folder, *data[name]))
    made = Deployment(world)
    made.start_sites()
    yield made
    made.stop()


def seconds_of(rounds):
    """Return the seconds of training and of evaluation of every round."""
    return [
        tuple(round(line["seconds"][part], 1) for part in ("train", "evaluate")) for line in rounds
    ]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_of_real_sites_has_the_bits_of_a_simulation(deployment, name):
    number = len(list(deployment.server.glob("runs/*"))) + 1
    deployment.configure(algorithm={"name": name})
    seconds = deployment.serve_to_the_end(*(["--new"] if number > 1 else []))
    print(name, f"{seconds:.1f} s;", "rounds", seconds_of(deployment.rounds(number)))
    assert_same_run(
        deployment.world, deployment.world.simulate(out=f"simulation-{name}"), run=f"{number:04d}"
    )


ENCODER = "site_encoder:filters"
OWN_DATA = {
    "pictures": (write_pictures, {"image_size": 8}, {}),
    "tables": (write_table, {}, {"label_column": "diagnosis"}),
    "features": (write_pictures, {"image_size": 8, "encoder": ENCODER}, {"encoders": [ENCODER]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN_DATA)
def test_sites_with_their_own_data_have_the_bits_of_a_simulation(tmp_path, kind, monkeypatch):
    write, data, site = OWN_DATA[kind]
    values = {
        **SETTINGS,
        "algorithm": {"name": "pfedfda"},
        "data": data,
        "federation": {"rounds": 2},
    }
    if kind == "features":
        values |= {"algorithm": {"name": "one_shot_fda"}, "model": {"name": "linear"}}

    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(PROGRAMS)
    world = World(tmp_path, names=NAMES, new=("hospital",), values=values, site=site).write(write)
    deployment = Deployment(world)
    try:
        deployment.start_sites()
        print(
            kind,
            f"{deployment.serve_to_the_end():.1f} s;",
            "rounds",
            seconds_of(deployment.rounds()),
        )
    finally:
        deployment.stop()
    assert_same_run(
        world,
        world.simulate(data={"path": str(tmp_path / "all"), "new_clients": ["hospital"], **data}),
    )


@pytest.mark.slow
def test_the_demonstration_on_features_has_the_bits_of_a_simulation(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FEDTAILOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    monkeypatch.syspath_prepend(PROGRAMS)
    out = str(tmp_path / "demo")
    assert main(["deploy", "demo", "--encoder", ENCODER, "--out", out, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["exchanges"] == result["rounds"] == 2
    assert result["same_as_simulation"] is True
