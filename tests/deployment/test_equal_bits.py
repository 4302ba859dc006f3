"""A run across sites has the bits of a simulation: server state, scores, personal models, bytes."""

import json

import pytest

import fedtailor
from fedtailor.algorithms import ALGORITHMS
from fedtailor.experiment.reader import read_run
from marks import quick
from sites import VALUES, World, assert_same_run, divide_digits, write_arrays

NAMES = ("clinic", "hospital", "office", "practice")
DATA = divide_digits(NAMES, rows=40)
SCHEDULE = {
    "federation": {"rounds": 3, "participation": 0.7, "full_last_round": False},
    "evaluation": {"every": 1, "personalized_every": 2},
    "data": {"val_fraction": 0.2},
}


def world_of(path, **values):
    """Return a world of digits with a new site."""
    world = World(path, names=NAMES, new=("hospital",), values={**VALUES, **SCHEDULE, **values})
    return world.write(lambda folder, name: write_arrays(folder, *DATA[name]))


@pytest.mark.parametrize("name", quick(sorted(ALGORITHMS), "pfedfda"))
def test_every_method_has_the_bits_of_a_simulation(tmp_path, name):
    world = world_of(tmp_path, algorithm={"name": name})
    world.serve()
    assert_same_run(world, world.simulate())
    if name == "pfedfda":
        check_loaded_model(world)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_has_the_bits_of_a_simulation_with_convolutions(tmp_path, name):
    larger = {site: (x.repeat(2, axis=1).repeat(2, axis=2), y) for site, (x, y) in DATA.items()}
    values = {**VALUES, **SCHEDULE, "algorithm": {"name": name}, "model": {"name": "lenet"}}
    world = World(tmp_path, names=NAMES, new=("hospital",), values=values)
    world.write(lambda folder, site: write_arrays(folder, *larger[site]))
    world.serve()
    assert_same_run(world, world.simulate())


def check_loaded_model(world):
    """Check that the model of a site can be loaded, and that its card says how good it is."""
    result = read_run(world.path / "server" / "runs" / "0001").result
    x, _ = DATA["clinic"]
    folder = world.path / "sites" / "clinic" / "model"
    model = fedtailor.load(folder).model("clinic")
    assert len(model.predict(x)) == len(x)
    assert model.card["scores"]["accuracy"] == result["sites"]["clinic"]["accuracy"]
    assert model.card["participated"] and not model.card["new"]
    new = world.path / "sites" / "hospital" / "model" / "models" / "hospital.json"
    assert json.loads(new.read_text())["new"]


@pytest.mark.parametrize("name", quick(["scaffold", "fedpac"], "scaffold"))
def test_a_run_that_selects_the_best_round_goes_back_to_it(tmp_path, name):
    evaluation = {"every": 1, "personalized_every": 1, "select": "best"}
    federation = {"rounds": 4, "participation": 0.7, "full_last_round": False}
    world = world_of(
        tmp_path, algorithm={"name": name}, evaluation=evaluation, federation=federation
    )
    world.serve()
    assert_same_run(world, world.simulate())
