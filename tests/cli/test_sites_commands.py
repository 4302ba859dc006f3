"""``fedtailor deploy``, ``site`` and ``serve``, as typed. Nothing here starts Flower."""

import json
import re
import shutil
import sys
import time

import pytest

from deployment.test_own_data import write_table
from fedtailor.cli.main import main
from fedtailor.core.process import this_process
from fedtailor.deployment.federation_folder import (
    FederationFolder,
    read_attendance,
    write_attendance,
)
from fedtailor.serving.run import load
from sites import NAMES, World, divide_digits, write_arrays

CONFIG = 3
DATA = 4
FAILED = 5


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a world in which two runs have finished."""
    parts = divide_digits()
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
def keys(tmp_path, monkeypatch):
    """Return a folder with a server, and the folder of a site, made by the commands."""
    pytest.importorskip("cryptography", reason="comes with the extra 'flower'")
    monkeypatch.chdir(tmp_path)
    write_arrays(tmp_path / "digits" / "clinic", *divide_digits()["clinic"])
    assert main(["deploy", "init", "server", "--host", "localhost", "--port", "8123"]) == 0
    assert (
        main(
            [
                "site",
                "init",
                "clinic",
                "--name",
                "clinic",
                "--data",
                "digits",
                "--server",
                "localhost:8123",
            ]
        )
        == 0
    )
    return tmp_path


def failed(command, code, capsys):
    """Run a command that must fail, and return its sentence; with --json, it fails in the same
    way."""
    assert main(command) == code, command
    output = capsys.readouterr()
    assert output.out == "" and "Traceback" not in output.err
    assert output.err.startswith("error: ") and len(output.err.splitlines()) == 1, output.err
    assert main([*command, "--json"]) == code
    assert (
        json.loads(capsys.readouterr().out)["error"]["message"]
        == output.err.removeprefix("error: ").strip()
    )
    return output.err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["deploy", "sites", "nowhere"], "'nowhere' holds no federation.toml"),
        (["deploy", "renew", "nowhere"], "'nowhere' holds no federation.toml"),
        (["deploy", "remove", "nowhere", "A"], "'nowhere' holds no federation.toml"),
        (["deploy", "add", "nowhere", "A", "key.pub"], "'nowhere' holds no federation.toml"),
        (["serve", "nowhere"], "'nowhere' holds no federation.toml"),
        (["site", "check", "nowhere"], "'nowhere' holds no site.toml"),
        (["site", "start", "nowhere"], "'nowhere' holds no site.toml"),
        (["site", "leaves", "nowhere"], "'nowhere' holds no site.toml"),
        (["site", "models", "nowhere"], "'nowhere' holds no site.toml"),
        (["site", "restore", "nowhere"], "'nowhere' holds no site.toml"),
        (
            ["site", "init", "sites/clinic", "--name", "a", "--data", "x"],
            "exists already, and is never overwritten: choose another folder",
        ),
        (
            ["deploy", "init", "server", "--host", "localhost"],
            "exists already, and is never overwritten: choose another folder",
        ),
        (
            ["deploy", "init", "new", "--host", "a", "--experiment", "none.toml"],
            "cannot read 'none.toml'",
        ),
        (["site", "init", "new", "--name", "Charité", "--data", "x"], "how about 'Charite'?"),
        (["site", "init", "new", "--name", "../a b", "--data", "x"], "how about 'a-b'?"),
        (["site", "init", "new", "--name", "", "--data", "x"], "name of a site"),
        (["site", "init", "new", "--name", "a", "--data", ""], "site.data must not be empty"),
        (
            ["site", "init", "new", "--name", "a", "--data", "x", "--server", "host"],
            "host:port, such as",
        ),
        (
            ["site", "init", "new", "--name", "a", "--data", "x", "--server", "host:70000"],
            "host:port, such as",
        ),
        (
            ["deploy", "remove", "server", "clinik"],
            "did you mean 'clinic'? Registered: clinic, hospital, practice",
        ),
        (["site", "start", "sites/clinic"], "does not say where the server is"),
    ],
)
def test_what_is_wrong_is_one_sentence(world, command, sentence, capsys):
    before = sorted(world.rglob("*"))
    found = failed(command, CONFIG, capsys)
    assert sentence in found
    assert sorted(world.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('shares = ["scores"]', "unknown option 'site.shares'; did you mean 'share'?"),
        ('share = ["score"]', "site.share"),
        ("share = 3", "site.share"),
        ("name = ", "site.toml"),
    ],
)
def test_mistakes_in_site_toml(world, line, sentence, capsys):
    (world / "sites" / "clinic" / "site.toml").write_text(
        f'name = "clinic"\ndata = "data"\n{line}\n'
    )
    assert sentence in failed(["site", "check", "sites/clinic"], CONFIG, capsys)


@pytest.mark.parametrize("key", ["name", "data"])
def test_what_site_toml_must_say(world, key, capsys):
    values = {"name": "clinic", "data": "data"}
    del values[key]
    text = "".join(f'{name} = "{value}"\n' for name, value in values.items())
    (world / "sites" / "clinic" / "site.toml").write_text(text)
    assert f"must say {key}" in failed(["site", "leaves", "sites/clinic"], CONFIG, capsys)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[deploy]\nquorom = 1.0", "did you mean 'quorum'?"),
        ("[deploy]\nquorum = 2.0", "deploy.quorum"),
        ("[data]\npartition = 'iid'", "data.partition has no place in federation.toml"),
        ("seeds = [0, 1]", "one seed"),
        ("[federation]\nclient_timeout = 5", "deploy.deadline"),
        ("[algorithm]\nname = 'pfedfdaa'", "pfedfda"),
        ("deploy = 3", "[deploy]"),
    ],
)
def test_mistakes_in_federation_toml(world, text, sentence, capsys):
    (world / "server" / "federation.toml").write_text(text + "\n")
    assert sentence in failed(["serve", "server"], CONFIG, capsys)


def test_without_a_site_that_trains_nothing_is_served(world, capsys):
    (world / "server" / "sites.json").unlink()
    assert "fedtailor deploy add" in failed(["serve", "server"], CONFIG, capsys)
    assert main(["deploy", "sites", "server"]) == 0
    assert "No site is registered yet" in capsys.readouterr().err


def test_a_finished_run_is_not_served_again(world, capsys):
    assert main(["serve", "server"]) == 0
    output = capsys.readouterr()
    assert "the last run has finished: 'server/runs/0002'" in output.err and "--new" in output.err
    assert all(name in output.out for name in NAMES)
    assert main(["serve", "server", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["sites"]) == set(NAMES)


def test_another_run_needs_the_end_of_the_last(world, capsys):
    (world / "server" / "runs" / "0002" / "result.json").unlink()
    assert "has not finished" in failed(["serve", "server", "--new"], CONFIG, capsys)


def test_leaves_prints_the_page(world, capsys):
    assert main(["site", "leaves", "sites/clinic"]) == 0
    text = capsys.readouterr().out
    assert "No example and no personal model" in text and "for 6 rounds of training" in text
    assert main(["site", "leaves", "sites/clinic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "text": text,
        "complete": True,
    }


def test_a_site_that_has_sent_nothing(world, capsys):
    (world / "sites" / "clinic" / "audit.jsonl").unlink()
    shutil.rmtree(world / "sites" / "clinic" / "models")
    (world / "sites" / "clinic" / "model").unlink()
    assert main(["site", "leaves", "sites/clinic"]) == 0
    assert "Nothing was sent yet" in capsys.readouterr().out
    assert main(["site", "models", "sites/clinic"]) == 0
    assert "There is no model yet" in capsys.readouterr().err
    assert "no version of the model before" in failed(
        ["site", "restore", "sites/clinic"], DATA, capsys
    )


def test_models_are_listed_and_restored(world, capsys):
    assert main(["site", "models", "sites/clinic"]) == 0
    output = capsys.readouterr()
    assert "fedtailor predict sites/clinic/model --client clinic" in output.err
    assert [line.split()[0] for line in output.out.splitlines() if "fedavg" in line] == ["1", "2"]

    def in_use():
        assert main(["site", "models", "sites/clinic", "--json"]) == 0
        versions = json.loads(capsys.readouterr().out)["versions"]
        return [each["version"] for each in versions if each["in_use"]]

    assert in_use() == [2]
    assert main(["site", "restore", "sites/clinic"]) == 0
    assert capsys.readouterr().err == "Version 1 is in use.\n"
    assert in_use() == [1]
    assert "no version of the model before" in failed(
        ["site", "restore", "sites/clinic"], DATA, capsys
    )
    wrong = failed(["site", "restore", "sites/clinic", "--version", "7"], DATA, capsys)
    assert "no version 7" in wrong and "1, 2" in wrong
    assert main(["site", "restore", "sites/clinic", "--version", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == 2
    assert in_use() == [2]
    assert main(["site", "restore", "sites/clinic", "--version", "x"]) == 2


def test_the_model_of_a_site_is_that_of_a_run(world):
    run = load("sites/clinic/model")
    assert run.clients.names == ["clinic"]
    assert run.model("clinic").predict(divide_digits()["clinic"][0][:3]).shape == (3,)


def test_check_says_what_is_missing(world, capsys):
    assert main(["site", "check", "sites/clinic", "--json"]) == FAILED
    found = json.loads(capsys.readouterr().out)
    checks = {each["what"]: each for each in found["checks"]}
    assert found["ok"] is False
    assert list(checks) == [
        "site.toml",
        "data",
        "key",
        "certificate",
        "server",
        "log",
        "Flower",
        "versions",
    ]
    assert {what for what, each in checks.items() if not each["ok"]} >= {
        "key",
        "certificate",
        "server",
    }
    assert checks["data"]["ok"] and checks["data"]["text"].startswith(
        f"{len(divide_digits()['clinic'][1])} examples: 0 "
    )
    assert "fedtailor site init" in checks["key"]["text"]
    assert "ca.crt' is missing" in checks["certificate"]["text"]
    assert 'server = "host:port"' in checks["server"]["text"]
    assert checks["log"]["text"] == "complete"
    assert main(["site", "check", "sites/clinic"]) == FAILED
    error = capsys.readouterr().err
    assert "PROBLEM  certificate" in error and "to put right: key, certificate, server" in error


def test_check_finds_a_changed_log(world, capsys):
    log = world / "sites" / "clinic" / "audit.jsonl"
    lines = log.read_text().splitlines()
    del lines[3]
    log.write_text("\n".join(lines) + "\n")
    assert main(["site", "check", "sites/clinic"]) == FAILED
    assert "PROBLEM  log: audit.jsonl was changed: line 4" in capsys.readouterr().err
    assert main(["site", "leaves", "sites/clinic", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["complete"] is False


def test_check_finds_data_that_cannot_be_used(world, capsys):
    shutil.copytree("all", "sites/clinic/all")
    place = world / "sites" / "clinic" / "site.toml"
    for data, sentence in (("all", "holds 3 sites"), ("nothing", "nothing")):
        place.write_text(f'name = "clinic"\ndata = "{data}"\n')
        assert main(["site", "check", "sites/clinic"]) == FAILED
        (line,) = [
            line
            for line in capsys.readouterr().err.splitlines()
            if line.startswith("PROBLEM  data")
        ]
        assert sentence in line


def test_check_of_a_table(world, capsys):
    write_table(world / "sites" / "clinic" / "patients", "clinic")
    (world / "sites" / "clinic" / "site.toml").write_text(
        'name = "clinic"\ndata = "patients.csv"\n'
    )
    main(["site", "check", "sites/clinic"])
    assert "ok       data: 40 examples: benign" in capsys.readouterr().err


def test_sites_are_connected_only_while_a_server_runs(world, capsys):
    seen = {
        "online": True,
        "heard": time.time() - 5,
        "waiting_since": None,
        "problem": "it <is> slow",
    }
    write_attendance(world / "server", {"clinic": seen})
    assert read_attendance(world / "server")["clinic"]["online"] is True
    assert main(["deploy", "sites", "server"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert re.search(r"trains +yes +[456] s ago +it <is> slow", rows["clinic"])
    assert re.search(r"trains +no +never", rows["hospital"])
    record = json.loads((world / "server" / "attendance.json").read_text())
    record["process"] = {**this_process(), "started": "long ago"}
    (world / "server" / "attendance.json").write_text(json.dumps(record))
    assert main(["deploy", "sites", "server", "--json"]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)["sites"]}
    assert listed["clinic"]["online"] is False and listed["clinic"]["heard"] == seen["heard"]
    assert set(listed) == set(NAMES)


@pytest.mark.parametrize(
    "command",
    [["deploy", "sites", "server"], ["site", "models", "sites/clinic"], ["serve", "server"]],
    ids=" ".join,
)
def test_tables_fit_the_width(world, command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    seen = {
        "online": True,
        "heard": time.time(),
        "waiting_since": None,
        "problem": "a long story " * 9,
    }
    write_attendance(world / "server", {"clinic": seen})
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "clinic" in out or "fedavg" in out
    assert max(map(len, out.splitlines())) <= 60


def test_a_stopped_server_says_how_to_go_on(world, capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.deployment.run_server.run_server", stopped)
    for options, again in (([], ""), (["--new"], " --new")):
        assert main(["serve", "server", *options]) == 6
        assert f"fedtailor serve server{again}\n" in capsys.readouterr().err
    (world / "server" / "runs" / "0002" / "result.json").unlink()
    assert main(["serve", "server", "--new"]) == 6
    assert capsys.readouterr().err.endswith("fedtailor serve server\n"), "the new run has begun"


def test_a_stopped_site_says_how_to_connect_again(world, capsys, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedtailor.deployment.run_site.run_site", stopped)
    assert main(["site", "start", "sites/clinic"]) == 6
    assert (
        capsys.readouterr().err == "stopped. To connect again: fedtailor site start sites/clinic\n"
    )


def test_sites_are_removed(world, capsys):
    assert main(["deploy", "remove", "server", "clinic"]) == 0
    assert capsys.readouterr().err == "clinic is no longer registered.\n"
    assert main(["deploy", "remove", "server", "hospital", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": "hospital"}
    assert [site.name for site in FederationFolder(world / "server").sites()] == ["practice"]


@pytest.mark.parametrize(
    "command",
    [
        ["deploy", "init", "new", "--host", "localhost"],
        ["deploy", "add", "server", "new", "key.pub"],
        ["deploy", "renew", "server"],
        ["site", "init", "new", "--name", "new", "--data", "x"],
        ["serve", "server", "--new"],
    ],
    ids=" ".join,
)
def test_without_cryptography_the_extra_is_named(world, command, capsys, monkeypatch):
    monkeypatch.setattr("fedtailor.deployment.keys._IS_INSTALLED", False)
    assert "pip install 'fedtailor[flower]'" in failed(command, FAILED, capsys)
    assert not (world / "new").exists()


@pytest.mark.parametrize(
    "command", [["deploy", "demo", "--out", "demo"], ["site", "start", "sites/clinic"]]
)
def test_without_flower_the_extra_is_named(world, command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(world / "bin" / "python"))
    clinic = world / "sites" / "clinic"
    (clinic / "site.toml").write_text('name = "clinic"\ndata = "data"\nserver = "localhost:1"\n')
    for name in ("ca.crt", "site.key"):
        (clinic / name).write_text("")
    assert "pip install 'fedtailor[flower]'" in failed(command, FAILED, capsys)
    assert not (world / "demo").exists()


def test_a_server_and_a_site_are_made_and_registered(keys, capsys):
    capsys.readouterr()
    assert main(["deploy", "init", "second", "--host", "fl.example.org"]) == 0
    error = capsys.readouterr().err
    assert (
        "fedtailor deploy add second NAME site.key.pub" in error and "second/keys/ca.crt" in error
    )
    assert (
        main(
            [
                "site",
                "init",
                "oslo",
                "--name",
                "Oslo",
                "--data",
                "digits",
                "--server",
                "fl.example.org:8000",
            ]
        )
        == 0
    )
    error = capsys.readouterr().err
    (fingerprint,) = re.findall(r"Its fingerprint: (\S+)", error)
    assert "HOST:PORT" not in error, "the address is known"
    assert str(keys / "digits") in (keys / "oslo" / "site.toml").read_text()
    assert main(["site", "init", "late", "--name", "late", "--data", "digits"]) == 0
    assert "HOST:PORT" in capsys.readouterr().err
    assert main(["deploy", "add", "server", "clinic", "oslo/site.key.pub"]) == 0
    assert f"clinic is registered with the key {fingerprint}." in capsys.readouterr().err
    assert main(["site", "init", "new", "--name", "new", "--data", "digits", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert main(["deploy", "add", "server", "new", made["key"], "--new", "--json"]) == 0
    registered = json.loads(capsys.readouterr().out)
    assert registered == {"site": "new", "new": True, "fingerprint": made["fingerprint"]}
    assert [(site.name, site.new) for site in FederationFolder(keys / "server").sites()] == [
        ("clinic", False),
        ("new", True),
    ]


def test_names_and_keys_are_registered_once(keys, capsys):
    assert main(["deploy", "add", "server", "clinic", "clinic/site.key.pub"]) == 0
    capsys.readouterr()
    add = ["deploy", "add", "server"]
    assert "'clinic' already" in failed([*add, "clinic", "clinic/site.key.pub"], CONFIG, capsys)
    assert "that of site 'clinic'" in failed([*add, "other", "clinic/site.key.pub"], CONFIG, capsys)
    assert "'clinic/site.key'" in failed([*add, "other", "clinic/site.key"], DATA, capsys)
    assert "is not the public key of a site" in failed(
        [*add, "other", "one line.txt"], DATA, capsys
    )
    assert "cannot read 'none.pub'" in failed([*add, "other", "none.pub"], FAILED, capsys)
    (keys / "other.pub").write_bytes((keys / "clinic" / "site.key.pub").read_bytes()[:60])
    assert "'other.pub' is damaged" in failed([*add, "other", "other.pub"], DATA, capsys)


@pytest.fixture(autouse=True)
def _a_line_of_text(tmp_path):
    (tmp_path / "one line.txt").write_text("no key\n")


def test_a_server_begins_with_an_experiment(keys, capsys):
    (keys / "own.toml").write_text(
        "[algorithm]\nname = 'ditto'\n[data]\ndataset = 'digits'\nclients = 3\nval_fraction = 0.2\n"
        "[engine]\nname = 'workers'\n"
    )
    assert (
        main(
            [
                "deploy",
                "init",
                "second",
                "--host",
                "fl.example.org",
                "--experiment",
                "own.toml",
                "--json",
            ]
        )
        == 0
    )
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made == {
        "folder": "second",
        "certificate": "second/keys/ca.crt",
        "server": "fl.example.org:8000",
    }
    text = (keys / "second" / "federation.toml").read_text()
    assert (
        "ditto" in text
        and "val_fraction" in text
        and "clients" not in text
        and "digits" not in text
    )
    (keys / "own.toml").write_text("[algorithm]\nname = 'dittoo'\n")
    command = ["deploy", "init", "third", "--host", "localhost", "--experiment", "own.toml"]
    assert "did you mean 'ditto'" in failed(command, CONFIG, capsys)
    assert "without a port" in failed(["deploy", "init", "third", "--host", "a:1"], CONFIG, capsys)
    assert not (keys / "third").exists()


def test_a_certificate_is_renewed(keys, capsys):
    capsys.readouterr()
    before = (keys / "server" / "keys" / "server.pem").read_bytes()
    authority = (keys / "server" / "keys" / "ca.crt").read_bytes()
    assert main(["deploy", "renew", "server"]) == 0
    assert "valid for 825 days" in capsys.readouterr().err
    assert (keys / "server" / "keys" / "server.pem").read_bytes() != before
    assert (keys / "server" / "keys" / "ca.crt").read_bytes() == authority
    assert main(["deploy", "renew", "server", "--json"]) == 0
    assert 824 < json.loads(capsys.readouterr().out)["days"] <= 825
    (keys / "server" / "keys" / "ca.key").unlink()
    assert "ca.key'" in failed(["deploy", "renew", "server"], FAILED, capsys)


def test_check_of_a_site_whose_server_is_away(keys, capsys):
    shutil.copy(keys / "server" / "keys" / "ca.crt", keys / "clinic")
    (keys / "clinic" / "site.key").chmod(0o644)
    capsys.readouterr()
    assert main(["site", "check", "clinic", "--json"]) == FAILED
    checks = {each["what"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["certificate"]["ok"] and checks["data"]["ok"] and checks["log"]["ok"]
    assert "others can read" in checks["key"]["text"]
    assert "does not answer" in checks["server"]["text"]
    (keys / "clinic" / "ca.crt").write_text("no certificate")
    assert main(["site", "check", "clinic"]) == FAILED
    error = capsys.readouterr().err
    assert (
        "PROBLEM  certificate: 'clinic/ca.crt' is not a certificate" in error
        and "Traceback" not in error
    )
