"""With sums under masks, the server learns scores and training metrics as sums over sites only."""

from types import SimpleNamespace

import pytest

from fedtailor.core.engine import Failure
from fedtailor.core.errors import DataError
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.remote import RemoteClients
from fedtailor.deployment.wire import from_blob
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.what_leaves import what_leaves_run
from fedtailor.report import compare, read_methods
from marks import quick, slow
from sites import (
    VALUES,
    FunctionTransport,
    Killed,
    Losing,
    World,
    assert_same_as_simulation,
    assert_same_bits,
    divide_digits,
    from_bytes,
    read_final_state,
    to_bytes,
    write_arrays,
)

NAMES = ("clinic", "hospital", "office", "practice")
DATA = divide_digits(NAMES, rows=40)
SCHEDULE = {
    "federation": {"rounds": 3, "participation": 0.9, "full_last_round": False},
    "evaluation": {"every": 1, "personalized_every": 2},
    "data": {"val_fraction": 0.2},
    "privacy": {"secure_sums": True},
}
SHARED = ["scores", "metrics"]
LEARNING = {"epochs": 5, "batch_size": 16, "lr": 0.1}
"""So that accuracies differ from 0."""
MISSING = {"worst10", "smallest10", "min", "max", "missing"}


def learning(path, *, new=(), **values):
    """Return a world of four sites."""
    values = {**VALUES, **SCHEDULE, **values}
    site = {"share": SHARED}
    world = World(path, names=NAMES, new=new, values=values, site=site, secure=True)
    return world.write(lambda folder, name: write_arrays(folder, *DATA[name]))


def served(world):
    return read_run(world.path / "server" / "runs" / "0001")


def assert_close(actual, expected, where=""):
    """Assert that a record is that of a simulation to 1e-9, but for what single scores tell."""
    if isinstance(expected, dict):
        assert actual.keys() - MISSING == expected.keys() - MISSING, where
        for key in expected.keys() - MISSING:
            assert_close(actual[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, float):
        # Squares lose digits, and with them deviations and intervals.
        is_exact = "std" not in where and "interval" not in where
        assert actual == pytest.approx(expected, abs=1e-9 if is_exact else 1e-5), where
    else:
        assert actual == expected, where


def assert_sums_of_simulation(world):
    """Assert that the server has the means of a simulation, and its state; return the run."""
    run = served(world)
    simulation = read_run(world.simulate())
    assert_close(run.result["metrics"], simulation.result["metrics"])
    for name in ("bytes", "steps", "selected"):
        assert run.result.get(name) == simulation.result.get(name)

    for line, expected in zip(run.rounds, simulation.rounds, strict=True):
        assert_close(line["training_metrics"], expected["training_metrics"])
        assert_close(line["evaluations"][0], expected["evaluations"][0])

    states = [
        read_final_state(one.path / "checkpoints", modules={"fedtailor"})
        for one in (run, simulation)
    ]
    assert_same_bits(states[0].server, states[1].server)
    return run


@pytest.mark.parametrize("name", quick(["fedavg", "pfedfda", "fedrep"], "fedavg"))
def test_the_server_has_the_means_of_a_simulation_and_no_score_of_a_site(tmp_path, name):
    world = learning(tmp_path, algorithm={"name": name}, training=LEARNING)
    world.serve()
    run = assert_sums_of_simulation(world)
    assert run.result["metrics"]["personalized"]["accuracy"]["mean"] > 0.3
    assert run.result["sites"] == {}
    assert list(run.clients) == []

    # What needs single scores says why it cannot be made.
    paths = [run.path, world.path / "simulation"]
    with pytest.raises(DataError, match="sites show scores of their own only if 'share'"):
        compare(read_methods(paths))

    for site in run.provenance["sites"]:
        assert (site["num_train"], site["num_val"], site["num_test"]) == (1, 1, 1)
        assert not site["counts_known"]
    assert {site["examples"] for site in what_leaves_run(run.path)["sites"]} == {None}

    for _, answer in world.transport.received:
        if answer.head["kind"] == "begin":
            assert set(answer.head["counts"].values()) == {1}
        if "out" in answer.blobs:
            out = from_blob(answer.blobs["out"], {"fedtailor"})
            assert all(len(value) == 0 for value in out.values())


@pytest.mark.parametrize(
    "evaluation",
    [slow({"select": "best"}), slow({"patience": 1}), {"select": "best", "patience": 1}],
)
def test_validation_scores_decide_as_in_a_simulation(tmp_path, evaluation):
    evaluation = {"every": 1, "personalized_every": 1, **evaluation}
    world = learning(tmp_path, evaluation=evaluation, federation={"rounds": 4}, training=LEARNING)
    world.serve()
    run = assert_sums_of_simulation(world)
    assert run.result["selected"]["best_validation_accuracy"] > 0


def test_new_sites_have_no_sum_and_show_nothing(tmp_path):
    world = learning(tmp_path, new=("hospital",))
    world.serve()
    run = served(world)
    assert run.result["new_clients"]["personalized"]["clients"]["evaluated"] == 0
    assert run.result["metrics"]["personalized"]["clients"]["evaluated"] == 3
    assert (world.path / "sites" / "hospital" / "model").exists()


def share(world, name, words):
    """Have one site share something else."""
    path = world.path / "sites" / name / "site.toml"
    text = path.read_text()
    old = 'share = ["scores", "metrics"]'
    assert old in text
    path.write_text(text.replace(old, f"share = {words}".replace("'", '"')))


def test_a_site_that_shares_no_scores_is_not_in_their_sum(tmp_path):
    world = learning(tmp_path)
    share(world, "office", ["metrics"])
    world.serve()
    run = assert_same_as_simulation(world)
    for point in ("local", "global", "personalized"):
        assert run.result["metrics"][point]["clients"] == {"evaluated": 3, "skipped": 0}


def test_a_site_may_show_its_own_scores(tmp_path):
    world = learning(tmp_path)
    share(world, "office", [*SHARED, "single"])
    world.serve()
    run = assert_sums_of_simulation(world)
    assert set(run.result["sites"]) == {"office"}
    known = [site["name"] for site in run.provenance["sites"] if site["counts_known"]]
    assert known == ["office"]
    assert run.result["sites"]["office"]["num_train"] > 1
    assert {line["client"] for line in run.clients} == {sorted(NAMES).index("office")}


def test_too_few_sites_that_share_scores_make_no_sum(tmp_path):
    world = learning(tmp_path)
    for name in ("office", "practice"):
        share(world, name, [])
    world.serve()
    run = assert_same_as_simulation(world)
    reasons = {event["reason"] for event in run.events if event["kind"] == "no sum"}
    assert reasons
    assert all("2 sites have sent keys for the sum, and 3 are needed" in one for one in reasons)
    for point in ("global", "personalized"):
        assert run.result["metrics"][point]["clients"]["evaluated"] == 0


def test_validation_needs_scores_of_all_sites(tmp_path):
    world = learning(tmp_path, evaluation={"personalized_every": 1, "select": "best"})
    share(world, "office", ["metrics"])
    with pytest.raises(DataError, match="'office' does not share scores"):
        world.serve()


@pytest.mark.slow
def test_a_site_that_is_lost_is_not_in_the_sum_of_scores(tmp_path):
    world = learning(tmp_path, deploy={"deadline": 0.1, "grace": 0.02, "resend": 0.03})

    def lost(client, request):
        return (client, request.head["kind"], request.head.get("round")) == (2, "score", 2)

    world.serve(lambda sites: Losing([site.answer for site in sites], lost))
    run = assert_same_as_simulation(world)
    (line,) = [line for line in run.rounds if line["round"] == 2]
    evaluated = {
        evaluation["point"]: evaluation["metrics"]["clients"]["evaluated"]
        for evaluation in line["evaluations"]
        if evaluation["test_set"] == "clients"
    }
    assert evaluated["global"] == 3
    assert evaluated["personalized"] == 4


@pytest.mark.parametrize("kind", quick(["score", "personalize"], "personalize"))
def test_a_server_that_is_killed_in_a_sum_of_scores_makes_the_same_one(tmp_path, kind):
    world = learning(tmp_path)

    def killed(client, request):
        head = request.head
        if (head["kind"], head.get("of"), head.get("round")) == ("unmask", f"final-{kind}", 3):
            raise Killed
        return False

    with pytest.raises(Killed):
        world.serve(lambda sites: Losing([site.answer for site in sites], killed))
    world.serve()
    assert_sums_of_simulation(world)


def test_without_who_is_in_the_sum_a_site_sends_no_score(tmp_path):
    """A server that leaves it out gets neither scores nor metrics, nor masks."""
    world = learning(tmp_path)
    seen = set()

    class Curious(FunctionTransport):
        def send(self, requests):
            for client, request in requests.items():
                kind = request.head["kind"]
                if kind in ("train", "score", "personalize"):
                    blobs = {name: blob for name, blob in request.blobs.items() if name != "cohort"}
                    bare = from_bytes(to_bytes(Envelope(dict(request.head), blobs)))
                    answer = self.answers[client](bare)
                    assert "masked" not in answer.blobs
                    out = from_blob(answer.blobs["out"], {"fedtailor"}) if answer.blobs else {}
                    assert all(len(value) == 0 for value in out.values())
                    refused = "this site shares scores under masks only" in str(answer.head)
                    assert refused == (kind == "score")
                    seen.add(kind)
            super().send(requests)

    world.serve(lambda sites: Curious([site.answer for site in sites]))
    assert seen == {"train", "score", "personalize"}


def test_a_site_that_a_closed_sum_did_not_ask_is_absent():
    """It was paused when the sum was closed, and is asked after a new start of the server."""
    masked = SimpleNamespace(is_closed=True, answers={0: "an answer"})
    question = SimpleNamespace(clients=[0, 2])
    replies = RemoteClients._masked_replies(None, masked, question, lambda client, answer: answer)
    assert replies[0] == "an answer" and isinstance(replies[2], Failure)
