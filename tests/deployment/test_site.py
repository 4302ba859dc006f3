"""What a site keeps and what leaves it: states, models and their versions, the log, the share
policy."""

import hashlib
import json

import pytest
import torch

import fedtailor
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.message_bytes import tree_bytes
from fedtailor.deployment import site_models
from fedtailor.deployment.audit import broken_line, page
from fedtailor.deployment.federation_folder import read_attendance, write_attendance
from fedtailor.deployment.options import load_site
from fedtailor.deployment.state import SiteState, Version
from fedtailor.deployment.wire import from_blob
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.what_leaves import what_leaves_run
from fedtailor.simulation.checkpoint import read_final_state
from fedtailor.testing.runs import assert_same_bits
from sites import VALUES, FunctionTransport, World, assert_same_run, divide_digits, write_arrays

DATA = divide_digits(rows=20)
MODULES = {"fedtailor"}


def world_of(path, name="pfedfda", site=None, **values):
    """Return a world of three sites."""
    world = World(path, values={**VALUES, "algorithm": {"name": name}, **values}, site=site or {})
    return world.write(lambda folder, each: write_arrays(folder, *DATA[each]))


def lines_of(folder):
    """Return the lines of a site's log."""
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def test_the_log_names_everything_that_was_sent_by_digest_and_size(tmp_path):
    world = world_of(tmp_path, site={"share": ["scores", "metrics", "errors"]})
    world.serve()
    folder = tmp_path / "sites" / "clinic"
    sent = [line for line in lines_of(folder) if line["way"] == "sent"]
    received = [line for line in lines_of(folder) if line["way"] == "received"]
    answers = [answer for client, answer in world.transport.received if client == 0]
    requests = [request for client, request in world.transport.sent if client == 0]
    for lines, messages in ((sent, answers), (received, requests)):
        assert len(lines) == len(messages)
        for line, message in zip(lines, messages, strict=True):
            assert line["blobs"] == {
                name: hashlib.sha256(blob).hexdigest() for name, blob in message.blobs.items()
            }
            assert line["bytes"] == sum(map(len, message.blobs.values()))
    for line in sent:
        if line["bytes"]:
            assert sum(line["contents"].values()) == line["bytes"]


def test_the_bytes_that_a_run_reports_are_those_of_the_numbers_that_were_sent(tmp_path):
    world = world_of(tmp_path)
    world.serve()
    rounds = read_run(tmp_path / "server" / "runs" / "0001").rounds
    for line in rounds:
        number = line["round"]
        uploads = 0
        for _, answer in world.transport.received:
            if answer.head.get("kind") == "train" and answer.head["round"] == number:
                uploads += tree_bytes(from_blob(answer.blobs["out"], MODULES)["upload"])
        downloads = 0
        for _, request in world.transport.sent:
            if request.head.get("kind") == "train" and request.head["round"] == number:
                downloads += tree_bytes(from_blob(request.blobs["shared"], MODULES))
        assert (uploads, downloads) == (line["bytes"]["up"], line["bytes"]["down"])


def test_a_site_that_shares_nothing_sends_the_messages_of_the_method_only(tmp_path):
    world = world_of(
        tmp_path,
        site={"share": []},
        evaluation={"every": 1, "personalized_every": 1},
    )
    result = world.serve()
    assert result["sites"] == {}
    for _, answer in world.transport.received:
        out = from_blob(answer.blobs["out"], MODULES) if "out" in answer.blobs else {}
        assert out.get("metrics", {}) == {}
        assert not out.get("scores")
        assert set(out.get("diagnostics", {})) <= {"steps"}
    simulated = world.simulate(evaluation={"every": 1, "personalized_every": 1})
    states = [
        read_final_state(path / "checkpoints", modules=MODULES)
        for path in (tmp_path / "server" / "runs" / "0001", simulated)
    ]
    assert_same_bits(states[0].server, states[1].server)
    text = page(tmp_path / "sites" / "clinic", "clinic", ())
    assert "upload: body" in text
    assert "scores" not in text
    assert "this site shares: nothing" in text


def test_a_changed_line_of_the_log_is_noticed(tmp_path):
    world_of(tmp_path).serve()
    folder = tmp_path / "sites" / "clinic"
    assert broken_line(folder) is None
    path = folder / "audit.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], *lines[4:]]))
    assert broken_line(folder) == 4
    path.write_text(
        "".join([*lines[:3], lines[3].replace('"way":"sent"', '"way":"lost"'), *lines[4:]])
    )
    assert broken_line(folder) == 5


def test_a_line_that_was_not_finished_is_cut(tmp_path):
    world = world_of(tmp_path)
    world.serve()
    folder = tmp_path / "sites" / "clinic"
    path = folder / "audit.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"time": "2026')
    world.open()
    assert path.read_bytes() == whole


def test_models_have_versions_and_the_previous_one_can_be_put_back(tmp_path):
    world = world_of(tmp_path)
    folder = tmp_path / "sites" / "clinic"
    with pytest.raises(DataError, match="has no model yet"):
        site_models.in_use(folder)
    world.serve()
    first = (folder / "model" / "models" / "clinic.safetensors").read_bytes()
    federation = tmp_path / "server" / "federation.toml"
    federation.write_text(federation.read_text().replace("epochs = 1", "epochs = 2"))
    world.serve(run="0002")
    assert (folder / "model" / "models" / "clinic.safetensors").read_bytes() != first
    assert [(each.number, each.in_use) for each in site_models.versions(folder)] == [
        (1, False),
        (2, True),
    ]
    site_models.use(folder, site_models.previous(folder).number)
    assert (folder / "model" / "models" / "clinic.safetensors").read_bytes() == first
    assert fedtailor.load(folder / "model").model("clinic").predict(DATA["clinic"][0]).shape == (
        len(DATA["clinic"][1]),
    )
    with pytest.raises(DataError, match="no version of the model before"):
        site_models.previous(folder)
    with pytest.raises(DataError, match="no version 9 of the model; there are: 1, 2"):
        site_models.use(folder, 9)


def test_a_site_joins_a_finished_run_without_a_server(tmp_path):
    names = ("clinic", "hospital", "practice")
    values = {**VALUES, "algorithm": {"name": "pfedfda"}}
    world = World(tmp_path / "world", names=names[:2], values=values)
    world.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    world.serve()
    write_arrays(tmp_path / "late" / "practice", *DATA["practice"])
    run = fedtailor.load(tmp_path / "world" / "server" / "runs" / "0001")
    onboarded = run.onboard(tmp_path / "late", tmp_path / "out", name="practice")
    assert onboarded.model("practice").predict(DATA["practice"][0]).shape == (
        len(DATA["practice"][1]),
    )
    whole = World(
        tmp_path / "whole",
        names=names,
        new=("practice",),
        values={**values, "data": {"test_share": 0.0}},
    )
    assert whole.order[-1] == "practice"


def test_states_are_kept_by_round_and_damage_is_noticed(tmp_path):
    state = SiteState(tmp_path / "states", modules=MODULES)
    for number in range(1, 9):
        state.save(Version(number, 0), {"w": torch.full((3,), float(number))})
    state.save(Version(8, 1), {"w": torch.full((3,), 31.0)})
    state.save(Version(8, 1), {"w": torch.full((3,), 32.0)})
    state.keep([Version(2, 0)])
    assert state.versions() == [
        Version(2, 0),
        Version(6, 0),
        Version(7, 0),
        Version(8, 0),
        Version(8, 1),
    ]
    assert state.load(Version(8, 1))["w"].tolist() == [32.0] * 3
    with pytest.raises(DataError, match=r"2, 6, 7, 8, 8"):
        state.load(Version(1, 0))
    path = next((tmp_path / "states").glob("round-000002*"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="SHA-256"):
        state.load(Version(2, 0))


def test_a_site_keeps_few_states(tmp_path):
    world = world_of(tmp_path, "scaffold", federation={"rounds": 8})
    world.serve()
    (folder,) = (tmp_path / "sites" / "clinic" / "states").iterdir()
    assert len(list(folder.glob("round-*"))) <= 5


def test_a_request_of_an_earlier_round_that_comes_late_harms_nothing(tmp_path):
    world = world_of(tmp_path, "scaffold", federation={"rounds": 4})

    class Late(FunctionTransport):
        """Sends the request of the second round again after that of the third, as a network may."""

        def send(self, requests):
            super().send(requests)
            if requests[0].head.get("kind") == "train" and requests[0].head["round"] == 3:
                kept = [
                    request
                    for client, request in self.sent
                    if client == 0 and request.head.get("round") == 2
                ]
                self.answers[0](kept[0])

    world.serve(lambda sites: Late([site.answer for site in sites]))
    assert_same_run(world, world.simulate())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = "d"', "must say name"),
        ('name = "a"\ndata = ""', "site.data must not be empty"),
        ('name = "a"\ndata = "d"\nserve = "x"', "did you mean 'server'"),
        ('name = "a"\ndata = "d"\nshare = ["score"]', "site.share must be"),
        ("name = ", "site.toml"),
    ],
)
def test_a_wrong_site_file_is_refused(tmp_path, text, message):
    (tmp_path / "site.toml").write_text(text + "\n")
    with pytest.raises(ConfigError, match=message):
        load_site(tmp_path)


def test_a_run_across_sites_says_where_models_and_pages_are(tmp_path):
    world_of(tmp_path).serve()
    run = tmp_path / "server" / "runs" / "0001"
    with pytest.raises(DataError, match="every site keeps its own"):
        fedtailor.load(run).model("clinic")
    with pytest.raises(ConfigError, match="fedtailor site leaves"):
        what_leaves_run(run)


def test_nobody_is_connected_to_a_server_that_does_not_run(tmp_path):
    sites = {"clinic": {"online": True, "heard": 5.0, "waiting_since": 7.0, "problem": ""}}
    write_attendance(tmp_path, sites)
    assert read_attendance(tmp_path) == sites
    path = tmp_path / "attendance.json"
    path.write_text(json.dumps({"process": None, "time": 5.0, "sites": sites}))
    assert read_attendance(tmp_path)["clinic"] == {
        "online": False,
        "heard": 5.0,
        "waiting_since": None,
        "problem": "",
    }
    path.write_text("[1]")
    assert read_attendance(tmp_path) == {}
