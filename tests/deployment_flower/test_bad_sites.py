"""A site that answers wrongly in five ways, over Flower: the others train as if it had not
answered."""

import json

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

from real_sites import PROGRAMS, Deployment
from sites import ABSENCES, VALUES, World, assert_same_as_simulation, divide_digits, write_arrays

NAMES = ("clinic", "hospital", "practice")
KINDS = ("nan", "another shape", "garbage", "another round", "failed")
ROUNDS = len(KINDS) + 1
DEADLINE = 45.0
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.mark.parametrize("method", ["fedpac", "scaffold"])
def test_the_bad_answers_of_a_site_change_nothing_for_the_others(tmp_path, method):
    data = divide_digits(NAMES, rows=40)
    values = {
        **VALUES,
        "algorithm": {"name": method},
        "federation": {"rounds": ROUNDS},
        "evaluation": {"every": ROUNDS},
        "deploy": {"deadline": DEADLINE},
    }
    world = World(tmp_path, values=values).write(
        lambda folder, name: write_arrays(folder, *data[name])
    )
    deployment = Deployment(world)
    bad = deployment.folder("hospital")
    (bad / "behaves.json").write_text(json.dumps(dict(enumerate(KINDS, start=1))))
    try:
        deployment.start_sites("clinic", "practice")
        deployment.start_site("hospital", PROGRAMS / "start_site.py", bad)
        deployment.serve_to_the_end()
    finally:
        deployment.stop()
    run = assert_same_as_simulation(world)
    found = [(event["round"], event["client"]) for event in run.events if event["kind"] in ABSENCES]
    assert found == [(number, NAMES.index("hospital")) for number in range(1, len(KINDS) + 1)]
    for event in run.events:
        print(event.get("round"), event["kind"], event.get("reason", ""))
    assert all(line["seconds"]["train"] < DEADLINE + 2 for line in run.rounds)
