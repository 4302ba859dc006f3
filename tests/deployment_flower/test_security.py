"""What the server's open port lets through, and which apps a site runs."""

import io
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower': make test-sites")

import anyio
import httpx
from flwr.cli.build import build_fab_from_disk

from fedtailor.deployment.flower import gate, only_our_app
from fedtailor.deployment.flower.goodbyes import Goodbyes
from fedtailor.deployment.flower.processes import _APP, SiteProcesses
from fedtailor.deployment.keys import make_server_keys


@pytest.fixture
def answer(tmp_path):
    """Return a function that asks the gate, behind which nothing listens."""
    make_server_keys(tmp_path, [])
    keys = gate.Keys(tmp_path / "nodes.json")
    goodbyes = Goodbyes(tmp_path / "away")
    app = gate.Gate("127.0.0.1:9", tmp_path / "ca.crt", keys, goodbyes, gate.Room())

    def ask(path, method="POST"):
        async def once():
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app), base_url="https://gate"
            ) as client:
                request = client.build_request(method, "/", content=b"x")
                request.url = httpx.URL("https://gate").copy_with(raw_path=path.encode())
                return await client.send(request)

        return anyio.run(once).status_code

    return ask


@pytest.mark.parametrize("path", ["/v1/fleet/pull-messages", "/v1/fleet/register-node", "/health"])
def test_the_gate_passes_on_what_sites_need(answer, path):
    assert answer(path) == 503  # nothing listens behind it


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/openapi.json",
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/pull-task-input",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol%2fstart-run",
        "//v1/control/start-run",
        "/v1//control/start-run",
        "/V1/CONTROL/start-run",
        "/health/../v1/control/start-run",
        "/v1/fleet/pull-messages?x=/../../control/start-run",
        "/v1/fleet/pull-messages/../../control/start-run",
    ],
)
def test_the_gate_passes_on_nothing_else(answer, path):
    status = answer(path)
    assert status == 404 or (path.endswith("?x=/../../control/start-run") and status == 503)


def fab(**files):
    """Return an app as Flower packs it."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return raw.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_our_own_app_is_accepted_as_flower_packs_it(tmp_path):
    (tmp_path / "pyproject.toml").write_text(_APP)
    only_our_app.refuse_other_app(build_fab_from_disk(tmp_path))


OTHER = _APP.replace("fedtailor.deployment.flower.client_app:client_app", "evil:client_app")


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        fab(**{"pyproject.toml": OTHER}),
        fab(**{"pyproject.toml": _APP, "evil.py": "print()"}),
        fab(**{"pyproject.toml": _APP, "fedtailor__deployment__flower__client_app.py": "print()"}),
        fab(**{".info__CONTENT": ""}),
        fab(**{"pyproject.toml": "[tool]"}),
        fab(**{"pyproject.toml": "no toml ="}),
        fab(**{"pyproject.toml": _APP + "#" * 100_000}),
    ],
    ids=[
        "no archive",
        "other parts",
        "a file more",
        "our module again",
        "no file",
        "no parts",
        "no toml",
        "huge",
    ],
)
def test_other_apps_are_refused(content):
    with pytest.raises(PermissionError, match="the server has sent an app"):
        only_our_app.refuse_other_app(content)


def test_a_site_starts_no_other_program_of_flower(tmp_path):
    processes = SiteProcesses(tmp_path, "localhost", 1, Path("ca.crt"), Path("key"))
    programs = tmp_path / "flower" / "bin"
    assert processes._supervisor._environment["PATH"].startswith(f"{programs}:")
    assert "only_our_app" in (programs / "flwr-clientapp").read_text()
    for name in ("flwr-serverapp", "flwr-agentapp"):
        assert "exit 1" in (programs / name).read_text()
    processes.stop()
