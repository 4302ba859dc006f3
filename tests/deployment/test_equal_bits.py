"""A run across sites has the bits of a simulation: server state, scores, personal models, bytes."""

import json

import pytest

import fedtailor
from fedtailor.algorithms import ALGORITHMS
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


ALWAYS = {"fedpac", "knn_per", "pfedfda", "pfedvem", "scaffold"}
"""Methods that differ in what they send and keep; the others are tested with the slow tests."""


def methods(always):
    """Return all methods; those not in ``always`` are slow."""
    return [
        name if name in always else pytest.param(name, marks=pytest.mark.slow)
        for name in sorted(ALGORITHMS)
    ]


@pytest.mark.parametrize("name", methods(ALWAYS))
def test_every_method_has_the_bits_of_a_simulation(tmp_path, name):
    world = world_of(tmp_path, algorithm={"name": name})
    world.serve()
    assert_same_run(world, world.simulate())


@pytest.mark.parametrize("name", methods({"pfedfda"}))
def test_every_method_has_the_bits_of_a_simulation_with_convolutions(tmp_path, name):
    larger = {site: (x.repeat(2, axis=1).repeat(2, axis=2), y) for site, (x, y) in DATA.items()}
    values = {**VALUES, **SCHEDULE, "algorithm": {"name": name}, "model": {"name": "lenet"}}
    world = World(tmp_path, names=NAMES, new=("hospital",), values=values)
    world.write(lambda folder, site: write_arrays(folder, *larger[site]))
    world.serve()
    assert_same_run(world, world.simulate())


def test_the_model_of_a_site_can_be_loaded_and_its_card_says_how_good_it_is(tmp_path):
    world = world_of(tmp_path, algorithm={"name": "pfedfda"})
    result = world.serve()
    x, _ = DATA["clinic"]
    folder = tmp_path / "sites" / "clinic" / "model"
    model = fedtailor.load(folder).model("clinic")
    assert len(model.predict(x)) == len(x)
    card = json.loads((folder / "models" / "clinic.json").read_text())
    assert card["scores"]["accuracy"] == result["sites"]["clinic"]["accuracy"]
    assert card["participated"]
    assert not card["new"]
    assert json.loads((tmp_path / "sites/hospital/model/models/hospital.json").read_text())["new"]


@pytest.mark.parametrize(
    "name",
    [
        "scaffold",
        pytest.param("fedavg", marks=pytest.mark.slow),
        pytest.param("fedpac", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_selects_the_best_round_goes_back_to_it(tmp_path, name):
    evaluation = {"every": 1, "personalized_every": 1, "select": "best"}
    federation = {"rounds": 4, "participation": 0.7, "full_last_round": False}
    world = world_of(
        tmp_path, algorithm={"name": name}, evaluation=evaluation, federation=federation
    )
    world.serve()
    assert_same_run(world, world.simulate())
