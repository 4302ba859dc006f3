"""``fedtailor serve --from RUN``: a run that begins with the state of the server of another one."""

import json
from functools import partial

import pytest

from fedtailor.core.errors import ConfigError
from fedtailor.deployment.continuation import first_state
from fedtailor.deployment.federation_folder import FederationFolder, Registered
from fedtailor.deployment.membership import register_site, remove_site
from fedtailor.deployment.plan import read_plan_of
from fedtailor.deployment.server import serve_rounds
from fedtailor.deployment.site import DeployedSite
from fedtailor.simulation.checkpoint import read_final_state
from fedtailor.testing.runs import assert_same_bits
from marks import quick
from sites import (
    VALUES,
    FunctionTransport,
    World,
    assert_same_as_simulation,
    divide_digits,
    write_arrays,
)

NAMES = ("clinic", "hospital", "practice")
DATA = divide_digits((*NAMES, "annex"), rows=20)


def world_of(path, name, **values):
    """Return a world in which a run has finished, and a site has come and another gone since."""
    values = {**VALUES, "algorithm": {"name": name}, **values}
    world = World(path, names=(*NAMES, "annex"), values=values)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))
    folder = FederationFolder(world.path / "server")
    remove_site(folder, "annex")
    serve(world, "0001")
    remove_site(folder, "hospital")
    register_site(folder, Registered("annex", "ssh annex", new=False))
    return world


def serve(world, run, start=None):
    """Run to the end; ``start`` is the name of the run that it continues."""
    folder = world.path / "server"

    def transport(numbers):
        names = sorted(numbers, key=numbers.get)
        sites = [DeployedSite(world.path / "sites" / name) for name in names]
        return FunctionTransport([site.answer for site in sites])

    start = None if start is None else folder / "runs" / start
    return serve_rounds(folder, folder / "runs" / run, transport, start=start)


@pytest.mark.parametrize(
    "name", quick(["scaffold", "fedfomo", "pfedhn", "pfedfda", "fedrep"], "scaffold")
)
def test_a_run_goes_on_with_other_sites_and_the_bits_of_a_simulation(tmp_path, name):
    world = world_of(tmp_path, name)
    result = serve(world, "0002", "0001")
    assert set(result["sites"]) == {"annex", "clinic", "practice"}
    run = assert_same_as_simulation(world, "0002", check_states=True)

    # It begins where the other one has ended, but for what is of single sites.
    first, second = (read_plan_of(run.path.parent / number / "plan.json") for number in NUMBERS)
    assert second.lineage == (first.run,)
    before = read_final_state(run.path.parent / "0001" / "checkpoints", modules={"fedtailor"})
    begun = first_state(run.path, second, second.population)
    if name == "scaffold":
        assert_same_bits(begun.server.model, before.server.model)
        assert all(not control.any() for control in begun.server.control.values())
    if name == "pfedfda":
        assert_same_bits(begun.server, before.server)

    # The models say from where they come.
    card = world.path / "sites" / "annex" / "model" / "models" / "annex.json"
    assert json.loads(card.read_text())["lineage"] == [first.run]
    assert run.provenance["lineage"] == [first.run]


NUMBERS = ("0001", "0002")


def test_a_third_run_names_both_others(tmp_path):
    world = world_of(tmp_path, "fedavg")
    serve(world, "0002", "0001")
    serve(world, "0003", "0002")
    runs = world.path / "server" / "runs"
    plans = [read_plan_of(runs / number / "plan.json") for number in (*NUMBERS, "0003")]
    assert plans[2].lineage == (plans[0].run, plans[1].run)
    assert_same_as_simulation(world, "0003")


def test_rounds_may_change_and_sections_of_the_model_may_not(tmp_path):
    world = world_of(tmp_path, "fedavg")
    path = world.path / "server" / "federation.toml"
    text = path.read_text()
    path.write_text(text.replace('name = "mlp"', 'name = "linear"'))
    with pytest.raises(ConfigError, match=r"\[model\] of federation.toml is not the one"):
        serve(world, "0002", "0001")
    path.write_text(text.replace("rounds = 2", "rounds = 3"))
    result = serve(world, "0002", "0001")
    assert result["rounds"] == 3


@pytest.mark.parametrize(
    ("name", "text"), [("local", "the server keeps nothing"), ("fedncm", "after its exchanges")]
)
def test_methods_that_cannot_be_continued(tmp_path, name, text):
    values = {} if name == "local" else {"model": {"name": "linear"}}
    world = world_of(tmp_path, name, **values)
    with pytest.raises(ConfigError, match=text) as caught:
        serve(world, "0002", "0001")
    assert caught.value.key == "from"


def test_only_a_run_across_sites_that_has_finished_can_be_continued(tmp_path):
    world = world_of(tmp_path, "fedavg")
    again = partial(serve, world, "0002")
    with pytest.raises(ConfigError, match="that has finished"):
        again("0007")
    (world.path / "server" / "runs" / "0001" / "result.json").unlink()
    with pytest.raises(ConfigError, match="that has finished"):
        again("0001")
