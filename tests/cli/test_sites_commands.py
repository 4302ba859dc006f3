"""``fedtailor deploy``, ``site`` and ``serve``, as typed. Nothing here starts Flower."""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedtailor.cli.main import main
from fedtailor.cli.show.sites import show_sites_demo
from fedtailor.core.folders import this_process
from fedtailor.deployment import demo
from fedtailor.deployment.federation_folder import FederationFolder, write_attendance
from fedtailor.deployment.options import FEDERATION_FILE, SITE_FILE, load_federation, load_site
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.site_check import check_site
from fedtailor.deployment.trust import pinned_roster
from fedtailor.experiment.reader import read_run
from sites import NAMES, VALUES, World, divide_digits, write_arrays

CONFIG = 3
DATA = 4
FAILED = 5


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a world in which two runs have finished."""
    parts = divide_digits(rows=20)
    world = World(tmp_path_factory.mktemp("world")).write(
        lambda folder, name: write_arrays(folder, *parts[name])
    )
    world.serve()
    world.serve(run="0002")
    return world


@pytest.fixture
def world(served, tmp_path, monkeypatch):
    """Return the folder with a copy of that world, and work in it."""
    shutil.copytree(served.path, tmp_path / "world", symlinks=True)
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path / "world"


@pytest.fixture
def keys(tmp_path, monkeypatch, capsys):
    """Return a folder with a server, and the folder of a site, made by the commands."""
    monkeypatch.chdir(tmp_path)
    write_arrays(tmp_path / "digits" / "clinic", *divide_digits()["clinic"])
    assert main("deploy init server --host localhost --port 8123".split()) == 0
    command = "site init clinic --name clinic --data digits --server localhost:8123"
    assert main(command.split()) == 0
    capsys.readouterr()
    return tmp_path


def failed(command, code, capsys):
    """Run a command that must fail in one sentence, with and without --json; return it."""
    words = command.split() if isinstance(command, str) else command
    assert main(words) == code, command
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ")
    assert len(output.err.splitlines()) == 1, output.err

    assert main([*words, "--json"]) == code
    message = json.loads(capsys.readouterr().out)["error"]["message"]
    shown, _, _ = output.err.removeprefix("error: ").strip().partition(" See ")
    assert message == shown
    return message


def json_of(command, capsys, code=0):
    assert main([*command.split(), "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("deploy sites nowhere", "federation.toml"),
        ("deploy renew nowhere", "federation.toml"),
        ("deploy remove nowhere A", "federation.toml"),
        ("serve nowhere", "federation.toml"),
        ("site check nowhere", "site.toml"),
        ("site start nowhere", "site.toml"),
        ("site leaves nowhere", "site.toml"),
        ("site status nowhere", "site.toml"),
        ("site models nowhere", "site.toml"),
        ("site init sites/clinic --name a --data x", "already exists"),
        ("deploy init server --host localhost", "already exists"),
        ("deploy init new --host a --experiment none.toml", "none.toml"),
        ("site init new --name Charité --data x", "'Charite'"),
        (["site", "init", "new", "--name", "../a b", "--data", "x"], "'a-b'"),
        ("site init new --name a --data x --server host", "host:port"),
        ("site init new --name a --data x --server host:70000", "host:port"),
        ("deploy remove server clinik", "'clinic'"),
        ("site start sites/clinic", "server"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_leaves_nothing(world, command, name, capsys):
    before = sorted(world.rglob("*"))
    assert name in failed(command, CONFIG, capsys)
    assert sorted(world.rglob("*")) == before


def test_a_site_without_its_data_does_not_connect(world, capsys):
    """The server asks for them when a run begins, and a refusal then stops all sites."""
    assert main("site init new --name new --data gone --server localhost:9".split()) == 0
    (world / "new" / "ca.crt").write_text("of a server")
    assert f"warning: there is no folder or table '{world / 'gone'}'" in capsys.readouterr().err
    assert f"the data of this site are not there: '{world / 'gone'}'" in failed(
        "site start new", DATA, capsys
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('name = "clinic"\ndata = "data"\nshares = ["scores"]', "'share'"),
        ('name = "clinic"\ndata = "data"\nshare = ["score"]', "site.share"),
        ('name = "clinic"\ndata = ""', "site.data"),
        ('data = "data"', "name"),
        ("name = ", "site.toml"),
    ],
)
def test_mistakes_in_site_toml(world, text, name, capsys):
    (world / "sites" / "clinic" / "site.toml").write_text(text + "\n")
    assert name in failed("site leaves sites/clinic", CONFIG, capsys)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[deploy]\nquorom = 1.0", "'quorum'"),
        ("[deploy]\nquorum = 2.0", "deploy.quorum"),
        ('[deploy]\nclasses = ["a", "a"]', "deploy.classes"),
        ("[data]\npartition = 'iid'", "data.partition"),
        ("seeds = [0, 1]", "seeds"),
        ("[federation]\nclient_timeout = 5", "deploy.deadline"),
        ("[algorithm]\nname = 'pfedfdaa'", "pfedfda"),
        ("deploy = 3", "[deploy]"),
    ],
)
def test_mistakes_in_federation_toml(world, text, name, capsys):
    (world / "server" / "federation.toml").write_text(text + "\n")
    assert name in failed("serve server", CONFIG, capsys)


def test_a_finished_run_is_not_served_again(world, capsys):
    assert main(["serve", "server"]) == 0
    output = capsys.readouterr()
    assert "server/runs/0002" in output.err and "--new" in output.err
    assert all(name in output.out for name in NAMES)
    assert set(json_of("serve server", capsys)["sites"]) == set(NAMES)

    (world / "server" / "runs" / "0002" / "result.json").unlink()
    assert "0002" in failed("serve server --new", CONFIG, capsys)
    (world / "server" / "sites.json").unlink()
    assert "deploy add" in failed("serve server", CONFIG, capsys)
    assert main(["deploy", "sites", "server"]) == 0


def test_what_has_left_a_site(world, capsys):
    assert main(["site", "leaves", "sites/clinic"]) == 0
    text = capsys.readouterr().out
    assert "for 4 rounds" in text and "| upload: model |" in text
    assert json_of("site leaves sites/clinic", capsys) == {"text": text, "complete": True}

    log = world / "sites" / "clinic" / "audit.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([*lines[:3], *lines[4:]]) + "\n")
    assert json_of("site leaves sites/clinic", capsys)["complete"] is False
    checks = json_of("site check sites/clinic", capsys, FAILED)["checks"]
    assert "line 4" in next(check["text"] for check in checks if check["what"] == "log")

    log.write_text("\n".join(lines[:-2]) + "\n")
    assert json_of("site leaves sites/clinic", capsys)["complete"] is False
    assert main(["site", "leaves", "sites/clinic"]) == 0
    assert f"line {len(lines) - 1}" in capsys.readouterr().err

    log.unlink()
    assert main(["site", "leaves", "sites/clinic"]) == 0
    assert "|" not in capsys.readouterr().out


def test_what_a_site_has_sent_and_how_well_it_does(world, capsys):
    record = json_of("site status sites/clinic", capsys)
    assert record["site"] == "clinic" and not record["started"]
    assert [message["kind"] for message in record["messages"]][-1] == "personalize"
    (upload,) = [one for one in record["sent"] if one["what"] == "upload: model"]
    assert upload["times"] == 4 and upload["first"] <= upload["last"]

    # The curve is that of the newest run, from the scores that the server has of this site.
    scores = read_run(world / "server" / "runs" / "0002").result["sites"]["clinic"]
    assert record["curves"]["personalized"] == [[2, scores["accuracy"]]]
    assert record["own"] is None

    assert main(["site", "status", "sites/clinic", "--out", "clinic.html"]) == 0
    output = capsys.readouterr()
    assert "upload" not in output.out and "personalize" in output.out
    assert "known when a run ends" in output.out and "not started" in output.err
    assert "What was sent" in (world / "clinic.html").read_text()
    (world / "mine.html").write_text("mine")
    failed("site status sites/clinic --out mine.html", CONFIG, capsys)
    assert (world / "mine.html").read_text() == "mine"

    # Beside what the site would use alone, once it has judged its model.
    DeployedSite(world / "sites" / "clinic").judge()
    own = json_of("site status sites/clinic", capsys)["own"]
    assert own["version"] == 2 and 0 <= own["accuracy"] <= 1
    assert main(["site", "status", "sites/clinic"]) == 0
    assert "Alone it would use" in capsys.readouterr().out

    for name in ("audit.jsonl", "curve.jsonl"):
        (world / "sites" / "clinic" / name).unlink()
    assert main(["site", "status", "sites/clinic"]) == 0
    assert "Nothing was sent yet" in capsys.readouterr().err
    (world / "sites" / "clinic" / "curve.jsonl").write_text('{"run": 1}\n')
    assert "curve.jsonl" in failed("site status sites/clinic", DATA, capsys)


def test_models_are_listed_and_restored(world, capsys):
    assert main(["site", "models", "sites/clinic"]) == 0
    output = capsys.readouterr()
    assert "fedtailor predict sites/clinic/model --client clinic" in output.err
    assert [line.split()[0] for line in output.out.splitlines() if "fedavg" in line] == ["1", "2"]

    def in_use():
        versions = json_of("site models sites/clinic", capsys)["versions"]
        return [version["version"] for version in versions if version["in_use"]]

    assert in_use() == [2]
    assert main(["site", "restore", "sites/clinic"]) == 0
    capsys.readouterr()
    assert in_use() == [1]
    failed("site restore sites/clinic", DATA, capsys)
    assert "1, 2" in failed("site restore sites/clinic --version 7", DATA, capsys)
    assert json_of("site restore sites/clinic --version 2", capsys)["version"] == 2
    assert in_use() == [2]

    shutil.rmtree(world / "sites" / "clinic" / "models")
    (world / "sites" / "clinic" / "model").unlink()
    assert main(["site", "models", "sites/clinic"]) == 0


def test_a_site_watches_its_inputs(world, tmp_path, monkeypatch, capsys):
    np.savez("recent.npz", x=divide_digits(rows=20)["clinic"][0])
    message = failed("site watch sites/clinic recent.npz", DATA, capsys)
    assert "at least 20 held-out examples" in message

    parts = divide_digits(rows=120)
    larger = World(tmp_path / "larger")
    larger.path.mkdir()
    larger.write(lambda folder, name: write_arrays(folder, *parts[name])).serve()
    monkeypatch.chdir(larger.path)
    x = parts["clinic"][0]
    np.savez("recent.npz", x=x)
    np.savez("changed.npz", x=x.max() - x)
    record = json_of("site watch sites/clinic recent.npz", capsys)
    assert record["client"] == "clinic" and record["inputs"] == len(x)
    assert json_of("site watch sites/clinic changed.npz", capsys)["alarm"]

    assert "Gaussians" in failed("site adapt sites/clinic recent.npz", CONFIG, capsys)

    # The data of the site are not needed: what the model said of them lies beside it.
    shutil.rmtree("sites/clinic/data")
    assert json_of("site watch sites/clinic recent.npz", capsys) == record
    Path("sites/clinic/model").unlink()
    assert "no model yet" in failed("site watch sites/clinic recent.npz", DATA, capsys)


def test_a_site_adapts_its_model_and_takes_it_back(tmp_path, monkeypatch, capsys):
    parts = divide_digits(rows=120)
    world = World(tmp_path / "world", values={**VALUES, "algorithm": {"name": "pfedfda"}})
    world.path.mkdir()
    world.write(lambda folder, name: write_arrays(folder, *parts[name])).serve()
    monkeypatch.chdir(world.path)
    monkeypatch.setenv("NO_COLOR", "1")

    # Of the site's classes, one alone.
    x, y = parts["clinic"]
    np.savez("recent.npz", x=x[y == y[0]])
    version = Path("sites/clinic/models/0001")
    before = {path.name: path.read_bytes() for path in version.rglob("*") if path.is_file()}
    record = json_of("site adapt sites/clinic recent.npz", capsys)
    assert record["version"] == 2 and record["adapted"]["to"] == "class mix"
    assert record["adapted"]["class_mix"][str(y[0])]["now"] > 0.5
    listed = json_of("site models sites/clinic", capsys)["versions"]
    assert [one["in_use"] for one in listed] == [False, True] and listed[1]["accuracy"] is None
    assert not json_of("site watch sites/clinic recent.npz", capsys)["alarm"]

    # The version before has its old bits.
    assert json_of("site restore sites/clinic", capsys)["version"] == 1
    after = {path.name: path.read_bytes() for path in version.rglob("*") if path.is_file()}
    assert after == before

    # The same inputs again, from the version before.
    assert main(["site", "adapt", "sites/clinic", "recent.npz"]) == 0
    assert "fedtailor site restore" in capsys.readouterr().err
    assert "nothing says" in failed("site adapt sites/clinic recent.npz", DATA, capsys)


def test_check_says_what_is_missing(world, capsys):
    record = json_of("site check sites/clinic", capsys, FAILED)
    checks = {check["what"]: check for check in record["checks"]}
    assert record["ok"] is False
    expected = [
        "site.toml",
        "policy",
        "data",
        "key",
        "privacy",
        "certificate",
        "server",
        "log",
        "Flower",
        "versions",
    ]
    assert list(checks) == expected
    assert not any(checks[what]["ok"] for what in ("key", "certificate", "server"))
    assert checks["data"]["ok"] and checks["log"]["ok"]
    assert "ca.crt" in checks["certificate"]["text"]
    assert main(["site", "check", "sites/clinic"]) == FAILED
    assert "key, certificate, server" in capsys.readouterr().err

    shutil.copytree("all", "sites/clinic/all")
    for data in ("all", "nothing"):
        text = f'name = "clinic"\ndata = "{data}"\n'
        (world / "sites" / "clinic" / "site.toml").write_text(text)
        checks = json_of("site check sites/clinic", capsys, FAILED)["checks"]
        assert not next(check["ok"] for check in checks if check["what"] == "data")

    # What a comma is, the server may say, or the site.
    cells = "".join(f'"1,{row}50",{"xy"[row % 2]}\n' for row in range(1, 9))
    (world / "sites" / "clinic" / "own.csv").write_text(f"dose,label\n{cells}")
    for decimal, is_unclear in (("auto", True), ("point", False)):
        text = f'name = "clinic"\ndata = "own.csv"\ndecimal = "{decimal}"\n'
        (world / "sites" / "clinic" / "site.toml").write_text(text)
        (check,) = [one for one in check_site(world / "sites" / "clinic") if one.what == "data"]
        assert check.ok and ('decimal = "comma" in site.toml' in check.text) == is_unclear


def test_sites_are_connected_only_while_a_server_runs(world, capsys, monkeypatch):
    heard = time.time() - 5
    site = {"online": True, "heard": heard, "waiting_since": None, "problem": "it <is> slow " * 9}
    write_attendance(world / "server", {"clinic": site})
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["deploy", "sites", "server"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 70
    assert re.search(r"clinic +trains +yes +\d+ s ago +it <is> slow", out)
    assert re.search(r"hospital +trains +no +never", out)

    record = json.loads((world / "server" / "attendance.json").read_text())
    record["process"] = {**this_process(), "started": "long ago"}
    (world / "server" / "attendance.json").write_text(json.dumps(record))
    sites = {site["name"]: site for site in json_of("deploy sites server", capsys)["sites"]}
    assert sites["clinic"]["online"] is False and sites["clinic"]["heard"] == heard
    assert set(sites) == set(NAMES)


def test_what_was_stopped_says_how_to_continue(world, capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.deployment.supervise_server.supervise_server", stopped)
    monkeypatch.setattr("fedtailor.deployment.supervise_site.supervise_site", stopped)
    for command in ("serve server", "serve server --new", "site start sites/clinic"):
        assert main(command.split()) == 6
        assert capsys.readouterr().err.endswith(f"fedtailor {command}\n")

    (world / "server" / "runs" / "0002" / "result.json").unlink()
    assert main("serve server --new".split()) == 6
    assert capsys.readouterr().err.endswith("fedtailor serve server\n"), "the new run has begun"


def test_sites_are_removed(world, capsys):
    assert main("deploy remove server clinic".split()) == 0
    capsys.readouterr()
    assert json_of("deploy remove server hospital", capsys) == {"removed": "hospital"}
    assert [site.name for site in FederationFolder(world / "server").sites()] == ["practice"]


def test_only_a_finished_run_is_continued(world, capsys):
    error = failed("serve server --from server/runs/0009", CONFIG, capsys)
    assert "'server/runs/0009' cannot be continued" in error
    (world / "server" / "runs" / "0002" / "result.json").unlink()
    assert "cannot be continued" in failed("serve server --from server/runs/0002", CONFIG, capsys)
    assert "has not finished" in failed("serve server --from server/runs/0001", CONFIG, capsys)


def test_sites_are_paused_and_resumed(world, capsys):
    assert main("deploy pause server clinic".split()) == 0
    assert "nothing is asked of it" in capsys.readouterr().err
    (clinic, *others) = json_of("deploy sites server", capsys)["sites"]
    assert clinic["paused"] and not any(site["paused"] for site in others)
    assert main("deploy sites server".split()) == 0
    assert "trains, paused" in capsys.readouterr().out

    assert "paused already" in failed("deploy pause server clinic", CONFIG, capsys)
    assert json_of("deploy resume server clinic", capsys) == {"resumed": "clinic"}
    assert "is not paused" in failed("deploy resume server clinic", CONFIG, capsys)
    assert "unknown site 'klinic'" in failed("deploy pause server klinic", CONFIG, capsys)


@pytest.mark.parametrize(
    "command",
    [
        "deploy init new --host localhost",
        "deploy add server new key.pub",
        "site init new --name new --data x",
        "serve server --new",
    ],
)
def test_without_cryptography_the_extra_is_named(world, command, capsys, monkeypatch):
    for name in ("keys", "init", "roster", "supervise_server"):
        monkeypatch.delitem(sys.modules, f"fedtailor.deployment.{name}", raising=False)

    monkeypatch.delitem(sys.modules, "fedtailor.cli.show.sites", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert "flwr" in failed(command, FAILED, capsys)
    assert not (world / "new").exists()


# In a process of its own: this one has imported the package already.
WITHOUT_CRYPTOGRAPHY = """
import sys
sys.modules["cryptography"] = None
from fedtailor.cli.main import main
for command in ("deploy sites server", "site status {0}", "site models {0}"):
    assert main(command.format("sites/clinic").split()) == 0, command
sys.exit(main("site check sites/clinic --json".split()))
"""


def test_what_needs_no_keys_runs_without_cryptography(world):
    (world / "sites" / "clinic" / "ca.crt").write_text("")
    command = [sys.executable, "-c", WITHOUT_CRYPTOGRAPHY]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == FAILED, ended.stderr

    # The check goes on to its end, and lists what is missing.
    checks = json.loads(ended.stdout.splitlines()[-1])["checks"]
    assert [check["what"] for check in checks][-2:] == ["Flower", "versions"]
    problems = {check["what"]: check["text"] for check in checks if not check["ok"]}
    assert "needs the package cryptography" in problems["certificate"]
    assert not problems.keys() & {"data", "log", "versions"}


@pytest.mark.parametrize("command", ["deploy demo --out demo", "site start sites/clinic"])
def test_without_flower_the_extra_is_named(world, command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(world / "bin" / "python"))
    clinic = world / "sites" / "clinic"
    (clinic / "site.toml").write_text('name = "clinic"\ndata = "data"\nserver = "localhost:1"\n')
    for name in ("ca.crt", "site.key"):
        (clinic / name).write_text("")
    assert "flwr" in failed(command, FAILED, capsys)
    assert not (world / "demo").exists()


def test_a_server_and_a_site_are_made_and_registered(keys, capsys):
    assert main("deploy init second --host fl.example.org".split()) == 0
    assert "second/keys/ca.crt" in capsys.readouterr().err
    assert main("site init oslo --name Oslo --data digits".split()) == 0
    (fingerprint,) = re.findall(r"(SHA256:\S+)", capsys.readouterr().err)
    assert str(keys / "digits") in (keys / "oslo" / "site.toml").read_text()
    assert main("deploy add server clinic oslo/site.key.pub".split()) == 0
    assert fingerprint in capsys.readouterr().err

    made = json_of("site init new --name new --data digits", capsys)
    added = json_of(f"deploy add server new {made['key']} --new", capsys)
    expected = {"site": "new", "new": True, "fingerprint": made["fingerprint"], "joins": False}
    assert added == expected
    sites = FederationFolder(keys / "server").sites()
    assert [(site.name, site.new) for site in sites] == [("clinic", False), ("new", True)]


def test_names_and_keys_are_registered_once(keys, capsys):
    assert main("deploy add server clinic clinic/site.key.pub".split()) == 0
    capsys.readouterr()
    add = "deploy add server"
    assert "clinic" in failed(f"{add} clinic clinic/site.key.pub", CONFIG, capsys)
    assert "clinic" in failed(f"{add} other clinic/site.key.pub", CONFIG, capsys)
    assert "clinic/site.key" in failed(f"{add} other clinic/site.key", DATA, capsys)
    assert "none.pub" in failed(f"{add} other none.pub", DATA, capsys)
    (keys / "other.pub").write_bytes((keys / "clinic" / "site.key.pub").read_bytes()[:60])
    assert "other.pub" in failed(f"{add} other other.pub", DATA, capsys)


def test_a_key_under_a_wrong_name_is_free_again_until_the_server_has_been_started(keys, capsys):
    key = "clinic/site.key.pub"
    for name in ("klinic", "clinic"):
        assert main(f"deploy add server {name} {key}".split()) == 0
        assert main(f"deploy remove server {name}".split()) == 0

    assert main(f"deploy add server clinic {key}".split()) == 0
    (keys / "server" / "flower").mkdir()
    assert main("deploy remove server clinic".split()) == 0
    capsys.readouterr()
    assert "no key is used twice" in failed(f"deploy add server clinic {key}", CONFIG, capsys)


def test_a_server_begins_with_an_experiment(keys, capsys):
    (keys / "own.toml").write_text(
        "[algorithm]\nname = 'ditto'\n[engine]\nname = 'workers'\n"
        "[data]\ndataset = 'digits'\nclients = 3\nval_fraction = 0.2\n"
        "[training]\nsmallest_batch = 1\n"
    )
    command = "deploy init second --host fl.example.org --experiment own.toml"
    assert json_of(command, capsys)["server"] == "fl.example.org:8000"
    text = (keys / "second" / "federation.toml").read_text()
    assert "ditto" in text and "val_fraction" in text
    assert "clients" not in text and "digits" not in text
    assert "smallest_batch = 10" in text

    (keys / "own.toml").write_text("[algorithm]\nname = 'dittoo'\n")
    command = "deploy init third --host localhost --experiment own.toml"
    assert "'ditto'" in failed(command, CONFIG, capsys)
    assert "a:1" in failed("deploy init third --host a:1", CONFIG, capsys)
    assert not (keys / "third").exists()


def test_a_certificate_is_renewed(keys, capsys):
    files = [keys / "server" / "keys" / name for name in ("server.pem", "ca.crt")]
    before = [path.read_bytes() for path in files]
    assert 824 < json_of("deploy renew server", capsys)["days"] <= 825
    after = [path.read_bytes() for path in files]
    assert after[0] != before[0] and after[1] == before[1]
    (keys / "server" / "keys" / "ca.key").unlink()
    assert "ca.key" in failed("deploy renew server", DATA, capsys)


def test_check_of_a_site_whose_server_is_away(keys, capsys):
    shutil.copy(keys / "server" / "keys" / "ca.crt", keys / "clinic")
    (keys / "clinic" / "site.key").chmod(0o644)
    checks = json_of("site check clinic", capsys, FAILED)["checks"]
    problems = {check["what"] for check in checks if not check["ok"]}
    assert {"key", "server"} <= problems and not problems & {"certificate", "data", "log"}
    (keys / "clinic" / "ca.crt").write_text("no certificate")
    assert main(["site", "check", "clinic"]) == FAILED
    assert "clinic/ca.crt" in capsys.readouterr().err


@pytest.mark.slow
def test_the_sites_of_the_demonstration_trust_each_other(tmp_path):
    """What ``deploy demo --secure`` prepares."""
    server = demo.prepare(tmp_path, rounds=1, port=8123)
    roster = demo._trust_each_other(tmp_path)

    config = load_federation(server / FEDERATION_FILE).config
    assert config.privacy.secure_sums
    assert config.algorithm.name == "pfedfda"
    for name in demo.SITES:
        options = load_site(tmp_path / name)
        assert options.privacy.roster == roster.pin == pinned_roster(tmp_path / name, options).pin
        assert options.privacy.require_secure_sums


def test_the_demonstration_says_who_keeps_the_own_model(tmp_path, capsys):
    (tmp_path / "clinic").mkdir()
    (tmp_path / "clinic" / SITE_FILE).touch()
    result = {
        "algorithm": "fedavg",
        "rounds": 1,
        "exchanges": 0,
        "sites": {},
        "uses": {"clinic": "fedavg", "registry": "random_forest"},
        "metrics": {},
        "same_as_simulation": True,
    }
    show_sites_demo(tmp_path, result)
    output = capsys.readouterr().err
    assert "registry keeps what it would use alone (random forest)" in output
