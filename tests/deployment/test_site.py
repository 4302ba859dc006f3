"""What a site keeps and what leaves it: states, models, the log, the share policy."""

import hashlib
import json
import logging
import shutil
from dataclasses import replace

import pytest
import torch

import fedtailor
from fedtailor.core.atomic import to_json
from fedtailor.core.errors import DataError
from fedtailor.core.message import tree_bytes
from fedtailor.deployment import site_models
from fedtailor.deployment.audit import Audit, broken_line, page
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import Exchange
from fedtailor.deployment.federation_folder import read_attendance, write_attendance
from fedtailor.deployment.limits import LARGEST_ROUND, MOST_ATTEMPTS
from fedtailor.deployment.options import DeployOptions
from fedtailor.deployment.policy import SitePolicy
from fedtailor.deployment.shared_verdicts import ask_verdicts
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.site_memory import MEMORY_FILE, SiteMemory
from fedtailor.deployment.state import SiteState, Version
from fedtailor.deployment.wire import from_blob
from fedtailor.experiment.predictions import read_predictions
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.what_leaves import to_markdown, what_leaves_run
from sites import (
    VALUES,
    FunctionTransport,
    World,
    assert_same_run,
    divide_digits,
    write_arrays,
    write_table,
)

DATA = divide_digits(rows=20)
MODULES = {"fedtailor"}
TEST_LINE = 5


def world_of(path, name="pfedfda", site=None, **values):
    """Return a world of three sites."""
    world = World(path, values={**VALUES, "algorithm": {"name": name}, **values}, site=site or {})
    return world.write(lambda folder, name: write_arrays(folder, *DATA[name]))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a finished world whose sites share everything; nobody changes it."""
    world = world_of(tmp_path_factory.mktemp("w"), site={"share": ["scores", "metrics", "errors"]})
    world.serve()
    return world


@pytest.fixture
def clinic(served, tmp_path):
    """Return a copy of the folder of a site of that world."""
    shutil.copytree(served.path / "sites" / "clinic", tmp_path / "clinic", symlinks=True)
    return tmp_path / "clinic"


def test_the_log_names_everything_that_was_sent_by_digest_and_size(served):
    path = served.path / "sites" / "clinic" / "audit.jsonl"
    log = [json.loads(line) for line in path.read_text().splitlines()]
    messages = {
        "sent": [answer for client, answer in served.transport.received if client == 0],
        "received": [request for client, request in served.transport.sent if client == 0],
    }
    for way in messages:
        lines = [line for line in log if line["way"] == way]
        for line, message in zip(lines, messages[way], strict=True):
            for name, blob in message.blobs.items():
                assert line["blobs"][name] == hashlib.sha256(blob).hexdigest()
            assert line["bytes"] == sum(map(len, message.blobs.values()))
            if way == "sent" and line["bytes"]:
                assert sum(line["sizes"].values()) == line["bytes"]


def test_the_bytes_that_a_run_reports_are_those_of_the_numbers_that_were_sent(served):
    ways = {
        "up": [
            (answer.head, from_blob(answer.blobs["out"], MODULES)["upload"])
            for _, answer in served.transport.received
            if answer.head.get("kind") == "train"
        ],
        "down": [
            (request.head, from_blob(request.blobs["shared"], MODULES))
            for _, request in served.transport.sent
            if request.head.get("kind") == "train"
        ],
    }
    for line in read_run(served.path / "server" / "runs" / "0001").rounds:
        for way, messages in ways.items():
            sizes = [tree_bytes(tree) for head, tree in messages if head["round"] == line["round"]]
            assert sum(sizes) == line["bytes"][way]


def test_a_site_that_shares_nothing_sends_the_messages_of_the_method_only(tmp_path):
    evaluation = {"every": 1, "personalized_every": 1}
    world = world_of(tmp_path, site={"share": []}, evaluation=evaluation)
    result = world.serve()
    assert result["sites"] == {}
    for _, answer in world.transport.received:
        out = from_blob(answer.blobs["out"], MODULES) if "out" in answer.blobs else {}
        assert not out.get("metrics") and not out.get("scores")
        assert set(out.get("diagnostics", {})) <= {"steps"}
    text = page(tmp_path / "sites" / "clinic", "clinic", (), SitePolicy(), [])
    assert "upload: body" in text and "scores" not in text


def test_a_changed_line_of_the_log_is_noticed_and_an_unfinished_one_is_cut(clinic):
    assert broken_line(clinic) is None
    path = clinic / "audit.jsonl"
    raw = path.read_bytes()
    path.write_bytes(raw + b'{"time": "2026')
    Audit(clinic)
    assert path.read_bytes() == raw

    lines = raw.decode().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], *lines[4:]]))
    assert broken_line(clinic) == 4
    lines[3] = lines[3].replace("sent", "lost")
    path.write_text("".join(lines))
    assert broken_line(clinic) == 4


def add_line(log):
    """Add a line to a log."""
    log.add("sent", Envelope({"kind": "train"}), {})


def test_the_end_of_the_log_is_covered(clinic):
    path = clinic / "audit.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    count = len(lines)

    path.write_text("".join([*lines[:-1], lines[-1].replace("sent", "lost")]))
    assert broken_line(clinic) == count

    # Somebody has made the digest of the changed line again.
    record = json.loads(lines[-1])
    del record["digest"]
    record["bytes"] += 1
    digest = hashlib.sha256(to_json(record, compact=True).encode()).hexdigest()
    record["digest"] = digest
    path.write_text("".join([*lines[:-1], to_json(record, compact=True) + "\n"]))
    assert broken_line(clinic) == count

    # A site that continues does not hide what is missing.
    path.write_text("".join(lines[:-2]))
    assert broken_line(clinic) == count - 1
    add_line(Audit(clinic))
    assert broken_line(clinic) == count - 1

    path.write_text("".join(lines))
    (clinic / "audit.state.json").unlink()
    assert broken_line(clinic) is not None


def test_a_log_is_whole_after_a_kill_between_its_two_files(clinic):
    count = len((clinic / "audit.jsonl").read_text().splitlines())
    state = clinic / "audit.state.json"
    before = state.read_bytes()
    add_line(Audit(clinic))
    state.write_bytes(before)
    assert broken_line(clinic) is None

    log = Audit(clinic)
    add_line(log)
    assert broken_line(clinic) is None
    assert json.loads(state.read_bytes())["lines"] == count + 2

    # A line more than a kill can leave.
    state.write_bytes(before)
    assert broken_line(clinic) == count + 2


def test_models_have_versions_and_the_previous_one_can_be_put_back(tmp_path):
    world = world_of(tmp_path)
    folder = tmp_path / "sites" / "clinic"
    file = folder / "model" / "models" / "clinic.safetensors"
    world.serve()
    first = file.read_bytes()
    federation = tmp_path / "server" / "federation.toml"
    federation.write_text(federation.read_text().replace("epochs = 1", "epochs = 2"))
    world.serve(run="0002")
    assert file.read_bytes() != first
    versions = site_models.versions(folder)
    assert [(version.number, version.in_use) for version in versions] == [(1, False), (2, True)]

    site_models.use(folder, site_models.previous(folder).number)
    assert file.read_bytes() == first
    with pytest.raises(DataError):
        site_models.previous(folder)
    with pytest.raises(DataError, match="1, 2"):
        site_models.use(folder, 9)


def test_a_site_joins_a_finished_run_without_a_server(served, tmp_path):
    write_arrays(tmp_path / "late" / "practice", *DATA["practice"])
    run = fedtailor.load(served.path / "server" / "runs" / "0001")
    onboarded = run.onboard(tmp_path / "late", tmp_path / "out", name="late")
    assert len(onboarded.model("late").predict(DATA["practice"][0])) == len(DATA["practice"][1])


def test_a_run_across_sites_says_where_models_and_pages_are(served):
    run = served.path / "server" / "runs" / "0001"
    with pytest.raises(DataError, match="site"):
        fedtailor.load(run).model("clinic")

    record = what_leaves_run(run)
    assert [site["site"] for site in record["sites"]] == ["clinic", "hospital", "practice"]
    assert {site["rounds"] for site in record["sites"]} == {2}
    sent = sum(line["bytes"]["up"] for line in read_run(run).rounds)
    assert sent == sum(site["bytes"] for site in record["sites"])
    assert (run / "what-leaves.md").read_text() == to_markdown(record)


def test_states_are_kept_by_round_and_damage_is_noticed(tmp_path):
    state = SiteState(tmp_path / "states", modules=MODULES)
    for number in range(1, 9):
        state.save(Version(number, 0), {"w": torch.full((3,), float(number))})
    for value in (31.0, 32.0):
        state.save(Version(8, 1), {"w": torch.full((3,), value)})

    state.keep([Version(2, 0)])
    assert state.versions() == [*(Version(number, 0) for number in (2, 6, 7, 8)), Version(8, 1)]
    assert state.load(Version(8, 1))["w"].tolist() == [32.0] * 3
    with pytest.raises(DataError, match="2, 6, 7, 8, 8"):
        state.load(Version(1, 0))

    path = next((tmp_path / "states").glob("round-000002*"))
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="SHA-256"):
        state.load(Version(2, 0))


def test_states_of_the_largest_round_and_attempt_are_found(tmp_path):
    state = SiteState(tmp_path / "states", modules=MODULES)
    last = Version(LARGEST_ROUND, MOST_ATTEMPTS)
    for value in (1.0, 2.0):
        state.save(last, {"w": torch.full((3,), value)})
    assert state.versions() == [last] and len(list((tmp_path / "states").iterdir())) == 1
    assert state.load(last)["w"].tolist() == [2.0] * 3


def test_a_late_request_of_an_earlier_round_harms_nothing_and_few_states_stay(tmp_path):
    world = world_of(tmp_path, "scaffold", federation={"rounds": 8})

    class Late(FunctionTransport):
        """Sends the request of the second round again after that of the third, as a network may."""

        def send(self, requests):
            super().send(requests)
            if requests[0].head.get("kind") == "train" and requests[0].head["round"] == 3:
                earlier = [message for client, message in self.sent if client == 0]
                earlier = [message for message in earlier if message.head.get("round") == 2]
                self.answers[0](earlier[0])

    world.serve(lambda sites: Late([site.answer for site in sites]))
    assert_same_run(world, world.simulate())
    (folder,) = (tmp_path / "sites" / "clinic" / "states").iterdir()
    assert len(list(folder.glob("round-*"))) <= 5


def test_attendance_counts_while_the_server_lives_and_a_new_one_knows_it(tmp_path):
    sites = {"clinic": {"online": True, "heard": 7.5, "waiting_since": 5.0, "problem": "late"}}
    world = world_of(tmp_path, "fedavg", federation={"rounds": 1})
    server = tmp_path / "server"
    path = server / "attendance.json"
    write_attendance(server, sites)
    assert read_attendance(server) == sites
    path.write_text("[1]")
    assert read_attendance(server) == {}
    path.write_text(json.dumps({"process": None, "time": 5.0, "sites": sites}))
    away = {"online": False, "waiting_since": None}
    assert read_attendance(server)["clinic"] == {**sites["clinic"], **away}

    seen = []

    class Noting(FunctionTransport):
        def send(self, requests):
            seen.append(read_attendance(server))
            super().send(requests)

    world.serve(lambda sites: Noting([site.answer for site in sites]))
    assert seen[0]["clinic"]["heard"] == 7.5
    last = read_attendance(server)
    assert set(last) == set(world.names)
    assert all(site["heard"] > 1e9 and site["waiting_since"] is None for site in last.values())


def write_tables(folder, name):
    """Write a table; one of the two sites has one class only, but for a test example."""
    write_table(folder, name)
    path = folder.with_suffix(".csv")
    if name == "office":
        lines = path.read_text().replace("benign", "malignant").splitlines()
        lines[TEST_LINE] = lines[TEST_LINE].replace("malignant", "benign")
        path.write_text("\n".join(lines) + "\n")


def test_a_site_judges_its_model_as_a_simulation_and_sends_nothing_of_it(tmp_path, caplog):
    options = {"label_column": "diagnosis", "baselines": "logistic_regression, majority"}
    options["fallback"] = "best"
    values = {**VALUES, "federation": {"rounds": 1}}
    world = World(tmp_path, names=("clinic", "office"), values=values, site=options)
    world.write(write_tables)
    world.serve()
    simulation = world.simulate(
        data={"path": str(tmp_path / "all"), "label_column": "diagnosis"},
        evaluation={**VALUES["evaluation"], "baselines": options["baselines"]},
    )

    caplog.set_level(logging.INFO)
    for number, site in enumerate(world.open()):
        log = (site.folder / "audit.jsonl").read_bytes()
        site.judge()
        assert (site.folder / "audit.jsonl").read_bytes() == log

        # The same bits, so the same row; one site has no correction for the number of sites.
        model = site.folder / "model"
        for file in ("predictions.safetensors", "baselines.safetensors"):
            here = read_predictions(model / file)[0].probabilities
            there = read_predictions(simulation / file)[number].probabilities
            for name in here:
                assert (here[name] == there[name]).all(), name

        (row,) = read_run(model).result["worth_it"]["sites"]
        simulated = read_run(simulation).result["worth_it"]["sites"][number]
        assert row["corrected_p_value"] == simulated["p_value"]
        for key in ("examples", "own", "difference", "p_value", "other_differences"):
            assert row[key] == simulated[key], key

    # It uses what it would use alone.
    model = fedtailor.load(tmp_path / "sites" / "clinic" / "model").model("clinic")
    assert model.card["algorithm"] in ("logistic_regression", "majority")
    assert model.card["instead_of"] == "fedavg"
    assert (
        "not trained: logistic regression (all 32 training examples have one class" in caplog.text
    )


def test_a_site_with_a_single_class_takes_part(tmp_path):
    def write(folder, name):
        write_table(folder, name)
        if name == "office":
            path = folder.with_suffix(".csv")
            path.write_text(path.read_text().replace("benign", "malignant"))

    values = {**VALUES, "federation": {"rounds": 1}}
    site = {"label_column": "diagnosis"}
    world = World(tmp_path, names=("clinic", "office"), values=values, site=site)
    world.write(write)
    world.serve()
    office = fedtailor.load(tmp_path / "sites" / "office" / "model").model("office")
    assert office.classes_.tolist() == ["benign", "malignant"]


def test_sites_that_all_have_the_same_class_alone_are_refused(tmp_path):
    def write(folder, name):
        write_table(folder, name)
        path = folder.with_suffix(".csv")
        path.write_text(path.read_text().replace("benign", "malignant"))

    site = {"label_column": "diagnosis"}
    world = World(tmp_path, names=("clinic", "office"), values=VALUES, site=site)
    world.write(write)
    with pytest.raises(DataError, match="of all sites are of class 'malignant'"):
        world.serve()


def test_a_model_is_judged_on_the_examples_with_which_it_was_made_only(clinic, caplog):
    x, y = DATA["clinic"]
    shutil.rmtree(clinic / "data" / "clinic")
    write_arrays(clinic / "data" / "clinic", x[::-1], y[::-1])
    caplog.set_level(logging.INFO)
    DeployedSite(clinic).judge()
    assert "no verdict: the examples of this site are not those" in caplog.text
    assert read_run(clinic / "model").result["worth_it"] is None


def test_a_verdict_is_on_the_division_that_the_site_keeps(clinic):
    """A site that begins anew draws one secret seed, also if a verdict is due first."""
    site = DeployedSite(clinic)
    (clinic / MEMORY_FILE).unlink()
    site._memory = SiteMemory(clinic, replace(site.options.policy, split_seed="secret"))
    site.judge()

    kept = json.loads((clinic / MEMORY_FILE).read_text())
    assert kept["seed"] == kept["division"]["seed"] == site._memory.seed


def test_a_site_that_shares_its_verdict_sends_that_row_only(tmp_path):
    values = {**VALUES, "federation": {"rounds": 1}}
    own = {"label_column": "diagnosis", "share": ["verdict"], "baselines": "logistic_regression"}
    world = World(tmp_path, names=("clinic", "hospital"), values=values, site=own)
    shared = world.write(write_table).serve()["shared_verdicts"]
    assert shared["verdicts"] == {"better": 0, "no clear difference": 2, "worse": 0}

    run = tmp_path / "server" / "runs" / "0001"
    names = ("own", "examples", "p_value", "difference", "low", "high")
    for name, row in shared["sites"].items():
        folder = tmp_path / "sites" / name
        (kept,) = read_run(folder / "model").result["worth_it"]["sites"]
        paired = [round(value, 5) for value in kept["difference"].values()]
        expected = ["logistic_regression", kept["examples"], kept["p_value"], *paired]
        assert [row[key] for key in names] == expected
        assert "verdict" in {value["name"] for value in what_leaves_run(run)["sent"]}
        assert "| verdict of the site | 1 |" in page(folder, name, ("verdict",), SitePolicy(), [])


@pytest.mark.parametrize("change", [{"own": "<b>"}, {"p_value": 2.0}, {"low": "x"}, {"more": 1}])
def test_a_lying_site_changes_its_own_row_only(change):
    row = {"own": "majority", "examples": 9, "p_value": 0.03, "difference": 0.3}
    row |= {"low": 0.1, "high": 0.5}
    answers = [row, {**row, **change}, None]

    def answer_of(verdict):
        return lambda request: Envelope({**request.head, "verdict": verdict})

    transport = FunctionTransport([answer_of(verdict) for verdict in answers])
    exchange = Exchange(transport, DeployOptions())
    shared = ask_verdicts(exchange, "run", ["a", "b", "c"], [0, 1, 2], "accuracy")
    assert set(shared["sites"]) == {"a"} and shared["sites"]["a"]["verdict"] == "better"
