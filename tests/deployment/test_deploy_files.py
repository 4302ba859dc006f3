"""The files under deploy/: they can be parsed, and what they name exists. No container runtime is
needed."""

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"))
COMMANDS = {"server": ["serve"], "site": ["site", "start"]}


def instructions(path):
    """Return the instructions of a Dockerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]


def kind_of(path):
    return "server" if "server" in path.name else "site"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles_copy_what_exists_and_run_as_a_user(path):
    found = instructions(path)
    for name, words in found:
        if name == "COPY":
            *sources, _ = words.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []
    order = [name for name, _ in found]
    assert order.index("USER") < order.index("CMD")
    assert "HEALTHCHECK" in order
    assert ("EXPOSE" in order) == (kind_of(path) == "server")
    command = json.loads(dict(found)["CMD"])
    assert command == ["fedtailor", *COMMANDS[kind_of(path)], "/var/lib/fedtailor"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_health_checks_are_python(path):
    words = dict(instructions(path))["HEALTHCHECK"].split("CMD", 1)[1]
    program, option, code = json.loads(words)
    assert (program, option) == ("python", "-c")
    compile(code, str(path), "exec")


def test_compose_file():
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra 'flower'")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == {"server", "site"}
    assert services["server"]["ports"] == ["8000:8000"]
    assert "ports" not in services["site"]
    for service in services.values():
        assert service["init"] is True
        assert service["restart"] == "always"
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
        volumes = [volume.split(":")[0] for volume in service["volumes"]]
        assert [
            name for name in volumes if not name.startswith(".") and name not in compose["volumes"]
        ] == []


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_restart_and_have_no_privileges(path):
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text())
    service = unit["Service"]
    assert service["Restart"] == {"server": "on-failure", "site": "always"}[kind_of(path)]
    assert service["SuccessExitStatus"] == "6"
    assert service["User"] == "fedtailor"
    assert service["NoNewPrivileges"] == "yes"
    program, *words = service["ExecStart"].split()
    assert program.endswith("/bin/fedtailor")
    assert words == [*COMMANDS[kind_of(path)], "/var/lib/fedtailor"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_text(
        re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE)
    )
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert complaints == []


def test_the_lock_pins_the_torch_of_the_other_lock():
    torch = [re.findall(r"^torch==.*$", (ROOT / name).read_text(), re.MULTILINE) for name in LOCKS]
    assert torch[0] == torch[1] != []


LOCKS = ("requirements.lock", "requirements-flower.lock")
