"""The data and options of the demonstration, in this process: who is better off, and what a site
with shuffled labels does."""

import pytest

from fedtailor.deployment import demo
from fedtailor.serving.run import load
from sites import World, assert_same_run, write_arrays


@pytest.mark.slow
def test_a_site_with_shuffled_labels_keeps_its_own_model_and_the_others_are_untouched(tmp_path):
    parts = demo.divide_digits()
    values = {
        **demo._TRAINED,
        "training": {**demo._TRAINED["training"], "smallest_batch": 10},
        "data": {"test_share": demo._TEST_SHARE},
        "federation": {"rounds": 3},
        "evaluation": {"every": 3},
    }
    site = {
        "fallback": "best",
        "share": ["scores", "metrics", "verdict"],
        "baselines": "logistic_regression",
    }
    world = World(tmp_path, names=demo.SITES, values=values, site=site)
    world.write(lambda folder, name: write_arrays(folder, *parts[name]))
    result = world.serve()

    # Clearly better at the others, which use their personalized models: those of a simulation.
    verdicts = {name: row["verdict"] for name, row in result["shared_verdicts"]["sites"].items()}
    uses = {name: demo.model_of(tmp_path / "sites" / name) for name in demo.SITES}
    mixed_up = verdicts.pop(demo._MIXED_UP)
    assert set(verdicts.values()) == {"better"} and mixed_up != "better"
    assert uses.pop(demo._MIXED_UP) in ("majority", "logistic_regression")
    assert set(uses.values()) == {"pfedfda"}
    assert_same_run(world, world.simulate())

    # The personalized model stays there beside the one that is used.
    run = load(tmp_path / "sites" / demo._MIXED_UP / "model")
    assert run.model(0).card["instead_of"] == "pfedfda"
