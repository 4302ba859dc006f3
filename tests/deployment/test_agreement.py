"""The agreement before the first round: what does not fit is refused at once, with both values."""

import json

import pytest

import fedtailor
from fedtailor.core.errors import ConfigError, DataError, RunError
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.options import load_federation
from fedtailor.experiment.reader import read_run
from sites import VALUES, FunctionTransport, World, divide_digits, write_arrays

DATA = divide_digits(rows=20)


def world_of(path, **values):
    """Return a world of three sites."""
    world = World(path, values={**VALUES, **values})
    return world.write(lambda folder, name: write_arrays(folder, *DATA[name]))


def saying(**changes):
    """Return a transport in which site 1 says something else of itself, and site 2 is never
    there."""

    def make(sites):
        def answer(request):
            reply = sites[1].answer(request)
            head = {
                key: value for key, value in {**reply.head, **changes}.items() if value is not None
            }
            return Envelope(head, reply.blobs)

        return FunctionTransport([sites[0].answer, answer, lambda request: None])

    return make


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"torch": "1.0"}, "hospital.*torch 1.0.*allow_mixed"),
        ({"site": "practice"}, "hospital.*practice"),
        ({"data": None}, "site 'hospital'.*deploy pause"),
        ({"data": {"kind": "images"}}, "site 'hospital'.*deploy pause"),
        ({"refused": "no\nthank you."}, "hospital.*no thank you"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused_before_all_sites_are_there(tmp_path, changes, message):
    world = world_of(tmp_path)
    with pytest.raises((DataError, RunError), match=message):
        world.serve(saying(**changes))
    asked = [client for client, _ in world.transport.sent]
    assert asked.count(2) == 1, "the server waits for nobody"
    assert not (tmp_path / "server" / "runs").exists()


COUNTS = {"train": 15, "val": 0, "test": 5}


@pytest.mark.parametrize(
    "changes",
    [
        {"share": ["all"]},
        {"counts": {"train": -1}},
        {"counts": {**COUNTS, "test_groups": 6}},
        {"counts": {**COUNTS, "test_groups": 0}},
    ],
)
def test_a_site_that_says_what_cannot_be_is_named(tmp_path, changes):
    world = world_of(tmp_path)

    def make(sites):
        def answer(request):
            reply = sites[1].answer(request)
            return Envelope({**reply.head, **changes}, reply.blobs)

        return FunctionTransport([sites[0].answer, answer, sites[2].answer])

    with pytest.raises(DataError, match=r"site 'hospital': a message must say .*deploy pause"):
        world.serve(make)


def test_sites_with_another_build_are_noted_if_that_is_allowed(tmp_path):
    world = world_of(tmp_path, deploy={"allow_mixed": True})

    def make(sites):
        def answer(request):
            reply = sites[1].answer(request)
            if "torch" in reply.head:
                reply.head["torch"] = "2.12.0"
                reply.head["capability"] = "NEON"
            return reply

        return FunctionTransport([sites[0].answer, answer, sites[2].answer])

    world.serve(make)
    notes = [
        event["text"]
        for event in read_run(tmp_path / "server" / "runs" / "0001").events
        if event["kind"] == "note"
    ]
    assert any("torch 2.12.0, NEON" in note and "last bits" in note for note in notes)


def test_a_site_that_was_updated_in_the_middle_of_a_run_is_left_out(tmp_path, monkeypatch):
    world = world_of(tmp_path)

    def make(sites):
        def answer(request):
            if request.head.get("round") == 2:
                sites[1]._run = None
                monkeypatch.setattr("fedtailor.deployment.plan.__version__", "9.9.9")
            reply = sites[1].answer(request)
            monkeypatch.setattr("fedtailor.deployment.plan.__version__", fedtailor.__version__)
            return reply

        return FunctionTransport([sites[0].answer, answer, sites[2].answer])

    world.serve(make)
    reasons = [
        event["reason"]
        for event in read_run(tmp_path / "server/runs/0001").events
        if event["kind"] == "failed"
    ]
    assert reasons
    assert all("9.9.9" in reason and fedtailor.__version__ in reason for reason in reasons)


def test_data_that_change_during_a_run_are_refused(tmp_path):
    world = world_of(tmp_path)
    world.serve()
    plan = (tmp_path / "server" / "runs" / "0001" / "plan.json").read_bytes()
    x, y = DATA["clinic"]
    (tmp_path / "sites" / "clinic" / "data" / "clinic" / "train.npz").unlink()
    write_arrays(tmp_path / "other", x[::-1], y[::-1])
    (tmp_path / "other" / "train.npz").rename(
        tmp_path / "sites" / "clinic" / "data" / "clinic" / "train.npz"
    )
    answer = world.open()[0].answer(Envelope({"kind": "begin", "client": 0}, {"plan": plan}))
    assert "refused" in answer.head


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shift", "cifar_s(clients=50)"),
        ("partition", "iid"),
        ("split", "x.json"),
        ("subset", 100),
        ("clients", 3),
    ],
)
def test_options_that_need_all_data_in_one_place_are_refused(tmp_path, key, value):
    path = tmp_path / "federation.toml"
    path.write_text(f"[data]\n{key} = {json.dumps(value)}\n")
    with pytest.raises(ConfigError, match=f"data.{key}"):
        load_federation(path)


def test_an_experiment_file_of_a_simulation_is_a_federation_file(tmp_path):
    path = tmp_path / "federation.toml"
    path.write_text(
        '[data]\npath = "all"\nlabel_column = "y"\nimage_size = 8\n[engine]\nname = "workers"\n'
    )
    config = load_federation(path).config
    assert config.data.image_size == 8
    assert config.engine.name == "reference"


def test_selection_by_validation_needs_sites_that_share_scores(tmp_path):
    evaluation = {"every": 1, "personalized_every": 1, "select": "best"}
    world = World(
        tmp_path,
        values={**VALUES, "evaluation": evaluation, "data": {"val_fraction": 0.2}},
        site={"share": ["metrics"]},
    )
    world.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    with pytest.raises(DataError, match="site 'clinic' does not share scores"):
        world.serve()
