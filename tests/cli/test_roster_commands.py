"""``fedtailor deploy roster`` and ``site trust``, as typed."""

import io
import json
import re
import subprocess
import sys

import pytest

from fedtailor.cli.main import main

USAGE = 2
CONFIG = 3
DATA = 4
FAILED = 5


class Terminal(io.StringIO):
    """A person who types."""

    def isatty(self):
        """Say that somebody is there."""
        return True


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    """Return a folder with a server and three registered sites, and work in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    run("deploy init server --host localhost")
    for name in ("berlin", "oslo", "porto"):
        add(name)
    capsys.readouterr()
    return tmp_path


def run(command, code=0):
    words = command if isinstance(command, list) else command.split()
    assert main(words) == code, command


def add(name, role=""):
    run(f"site init {name} --name {name} --data data")
    run(f"deploy add server {name} {name}/site.key.pub {role}")


def json_of(command, capsys):
    run(f"{command} --json")
    return json.loads(capsys.readouterr().out)


def test_all_sites_trust_what_the_server_wrote(world, capsys):
    add("aarhus", "--new")
    capsys.readouterr()
    run("deploy roster server --out roster.json")
    output = capsys.readouterr()
    line = re.fullmatch(r"3 sites\. Fingerprint: ((?:[0-9A-F]{4} ?){16})\n", output.out)
    assert line and "by telephone" in output.err

    fingerprint = line[1]
    record = json_of("deploy roster server", capsys)
    assert record["sites"] == ["berlin", "oslo", "porto"]
    assert record["fingerprint"] == "sha256:" + fingerprint.lower().replace(" ", "")
    assert (record["threshold"], record["smallest_sum"], record["colluding"]) == (2, 3, 0)

    run(["site", "trust", "berlin", "roster.json", "--fingerprint", fingerprint])
    out = capsys.readouterr().out
    assert out.startswith(f"berlin (this site), oslo, porto. Fingerprint: {fingerprint}\n")
    assert "Sums over at least 3 sites; 2 of 3 sites must answer; none may work with" in out
    assert json_of("site trust oslo roster.json --yes", capsys)["fingerprint"]
    for name in ("berlin", "oslo"):
        copy = (world / name / "roster.json").read_text()
        assert copy == (world / "roster.json").read_text()
        assert record["fingerprint"] in (world / name / "site.toml").read_text()


def test_a_person_is_asked(world, capsys, monkeypatch):
    run("deploy roster server")
    before = (world / "berlin" / "site.toml").read_text()
    for answer in ("n\n", "\n", "", "yesterday\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        run("site trust berlin roster.json", FAILED)
        output = capsys.readouterr()
        assert "Trust them? [y/N]" in output.err and "Nothing was changed." in output.err
    assert (world / "berlin" / "site.toml").read_text() == before
    assert not (world / "berlin" / "roster.json").exists()

    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    run("site trust berlin roster.json")
    assert (world / "berlin" / "roster.json").exists()
    assert "and refuses plans without secure sums." in capsys.readouterr().out


def test_what_is_wrong_changes_nothing(world, capsys, monkeypatch):
    def failed(words, code, problem):
        before = {path: path.read_bytes() for path in world.rglob("*") if path.is_file()}
        run(words, code)
        (line,) = [text for text in capsys.readouterr().err.splitlines() if "error: " in text]
        assert problem in line
        assert before == {path: path.read_bytes() for path in world.rglob("*") if path.is_file()}

    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    failed("site trust berlin roster.json --yes", DATA, "cannot read 'roster.json'")
    run("deploy roster server")
    capsys.readouterr()

    trust = "site trust berlin roster.json"
    failed(trust, USAGE, "nobody can be asked here")
    failed(f"{trust} --fingerprint 4F2A", USAGE, "all 64 hex digits")
    failed(f"{trust} --fingerprint {'0' * 64}", DATA, "nothing was changed")
    failed("site trust server roster.json --yes", CONFIG, "site.toml")
    failed("site trust berlin server/sites.json --yes", DATA, "is damaged")
    failed("deploy roster server --out server/federation.toml --replace", DATA, "not a roster")
    failed("deploy roster berlin", CONFIG, "federation.toml")

    run(f"{trust} --yes")
    add("riga")
    capsys.readouterr()
    failed("deploy roster server", CONFIG, "--replace overwrites it")
    run("deploy roster server --replace")
    capsys.readouterr()
    failed(f"{trust} --yes", CONFIG, "this site trusts the roster")
    run(f"{trust} --yes --replace")

    run("deploy remove server riga")
    run("deploy remove server porto")
    capsys.readouterr()
    failed("deploy roster server --replace", CONFIG, "over 3 sites at least")


def test_the_commands_do_not_import_torch(world):
    code = (
        "import sys; from fedtailor.cli.main import main; "
        "main('deploy roster server'.split()); "
        "main('site trust berlin roster.json --yes'.split()); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=world
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert (world / "berlin" / "roster.json").exists()
