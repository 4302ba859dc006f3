"""The status of a running federation: what it says of sites, after kills, and what it never shows."""

import http.client
import json
import os
import re
import threading
import time

import pytest

from fedtailor.cli.show.status import StatusPage
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.deployment import server as server_module
from fedtailor.deployment import status as status_module
from fedtailor.deployment.conduct import write_offences
from fedtailor.deployment.federation_folder import FederationFolder, Registered
from fedtailor.deployment.status import PAGE_FILE, STATUS_FILE, StatusFiles, StatusReader
from fedtailor.deployment.status_metrics import to_metrics
from fedtailor.deployment.status_port import TOKEN_FILE, StatusPort
from fedtailor.deployment.supervise import LogFile
from fedtailor.experiment.reader import read_run
from marks import quick
from sites import NAMES, VALUES, FunctionTransport, Killed, World, divide_digits, write_arrays

DATA = divide_digits(rows=30)
DEADLINE = 0.4
SETTINGS = {
    **VALUES,
    "deploy": {"deadline": DEADLINE, "resend": 0.1, "grace": 0.1},
    "federation": {"rounds": 3},
    "evaluation": {"every": 1, "personalized_every": 1},
}
BAD = 1
"""The number of the site that is killed."""


class Watched(FunctionTransport):
    """A transport in which the status is looked at, as the process beside the round loop does."""

    def __init__(self, answers, look):
        super().__init__(answers)
        self.look = look

    def receive(self, seconds):
        """Look, and wait a little for what may still come."""
        self.look()
        if not self.arrived:
            time.sleep(0.01)
        return super().receive(seconds)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """Look as often as there is a call."""
    monkeypatch.setattr(status_module, "_SHORTEST", 0.0)
    monkeypatch.setattr(status_module, "_PAUSE", 0.0)
    monkeypatch.setattr(server_module, "_PAUSE", 0.0)


@pytest.fixture
def world(tmp_path):
    """Return a world of three sites."""
    made = World(tmp_path, values=SETTINGS)
    return made.write(lambda folder, name: write_arrays(folder, *DATA[name]))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Return a world whose run has finished."""
    made = World(tmp_path_factory.mktemp("served"), values=SETTINGS)
    made.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    made.serve()
    return made


def files_of(world, draw=None, say=print):
    server = world.path / "server"
    return StatusFiles(
        server, server / "runs" / "0001", draw or (lambda status: status["run"]), say
    )


def written(world):
    return json.loads((world.path / "server" / STATUS_FILE).read_text())


def state_of(status, name):
    (site,) = [site for site in status["sites"] if site["name"] == name]
    return site["state"]


def test_a_site_that_is_killed_is_shown_silent_within_two_deadlines(world):
    name = world.order[BAD]
    times = {}

    def die_in_round_3(site):
        def answer(request):
            if request.head.get("round", 0) >= 3:
                times.setdefault("killed", time.monotonic())
                return None
            return site.answer(request)

        return answer

    def look():
        files.update()
        if state_of(written(world), name) == "silent":
            times.setdefault("shown", time.monotonic())

    def make(sites):
        answers = [site.answer for site in sites]
        answers[BAD] = die_in_round_3(sites[BAD])
        return Watched(answers, look)

    with files_of(world) as files:
        assert written(world)["state"] == "starting"
        assert {site["state"] for site in written(world)["sites"]} == {"not connected"}
        world.serve(make)
        look()

    assert times["shown"] - times["killed"] < 2 * DEADLINE
    status = written(world)
    assert status["state"] == "finished" and (status["round"], status["rounds"]) == (3, 3)
    assert [site["state"] for site in status["sites"]] == ["connected", "silent", "connected"]
    assert status["sites"][BAD]["since"] < status["sites"][0]["heard"]
    assert re.search(rf'<th scope="row">{name}<td>silent', StatusPage()(status))


def test_a_site_that_a_round_waits_for_beyond_the_deadline_is_silent(world):
    files = files_of(world)
    seen = []

    def look():
        files.update()
        status = written(world)
        if status["round"] >= 1:
            seen.append(state_of(status, world.order[0]))
        if len(seen) and seen[-1] == "silent":
            raise Killed

    def away_from_round_2(site):
        def answer(request):
            return None if request.head.get("round", 0) >= 2 else site.answer(request)

        return answer

    def make(sites):
        return Watched([away_from_round_2(site) for site in sites], look)

    # Nobody answers, so the round cannot end.
    with pytest.raises(Killed), files:
        world.serve(make)
    assert seen[-1] == "silent" and "working" in seen
    assert written(world)["state"] == "stopped"


def test_a_server_that_was_killed_continues_the_status(world):
    def kill_in_round_3():
        files.update()
        if written(world)["round"] == 2:
            raise Killed

    # Nothing is written on a kill, so the block of the files does not end.
    files = files_of(world)
    files.__enter__()
    with pytest.raises(Killed):
        world.serve(lambda sites: Watched([site.answer for site in sites], kill_in_round_3))

    before = written(world)
    assert before["state"] == "running" and before["round"] == 2
    # One round is left, and it may take less than it takes to look.
    assert before["seconds_left"] >= 0
    # A round that takes longer than the latest ones is not said to end at once.
    run = world.path / "server" / "runs" / "0001"
    os.utime(run / "rounds.jsonl", (0, 0))
    reader = StatusReader(world.path / "server", run)
    reader._seconds = {1: 8.0, 2: 12.0}
    assert reader._seconds_left(rounds=3, done=2, now=time.time()) == 1.0

    # A new process knows no more than the files.
    with files_of(world) as files:
        status = written(world)
        for key in ("round", "rounds", "curves", "site_curves", "bytes", "algorithm"):
            assert status[key] == before[key], key
        assert [site["heard"] for site in status["sites"]] == [
            site["heard"] for site in before["sites"]
        ]
        world.serve(lambda sites: Watched([site.answer for site in sites], files.update))

    status = written(world)
    run = read_run(world.path / "server" / "runs" / "0001")
    assert status["state"] == "finished"
    assert [number for number, _ in status["curves"]["personalized"]] == [1, 2, 3]
    assert status["bytes"]["up"] == sum(line["bytes"]["up"] for line in run.rounds)
    of_sites = {site["name"]: site["accuracy"] for site in status["sites"]}
    assert of_sites == {name: site["accuracy"] for name, site in run.result["sites"].items()}


def test_a_run_that_is_cut_is_read_from_its_start(served):
    server = served.path / "server"
    run = server / "runs" / "0001"
    reader = StatusReader(server, run)
    assert reader.read()["round"] == 3
    raw = (run / "rounds.jsonl").read_bytes()
    (run / "rounds.jsonl").write_bytes(b"".join(raw.splitlines(keepends=True)[:2]))
    status = reader.read()
    assert status["round"] == 2
    assert [number for number, _ in status["curves"]["personalized"]] == [1, 2]
    (run / "rounds.jsonl").write_bytes(raw)
    assert reader.read()["round"] == 3


SECURE = {**SETTINGS, "federation": {"rounds": 2}, "privacy": {"secure_sums": True}}


@pytest.mark.parametrize("showing", quick([2, 3], 2))
def test_with_secure_sums_no_single_score_is_shown_unless_all_sites_show_theirs(tmp_path, showing):
    values = {**SECURE, "deploy": {"deadline": 30.0}}
    world = World(tmp_path, values=values, secure=True)
    world.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    for name in world.order[showing:]:
        path = tmp_path / "sites" / name / "site.toml"
        path.write_text(path.read_text().replace(', "single"', ""))

    world.serve()
    status = StatusReader(tmp_path / "server", tmp_path / "server" / "runs" / "0001").read()
    accuracies = [site["accuracy"] for site in status["sites"]]
    assert status["secure_sums"] and status["curves"]["personalized"]
    page = StatusPage()(status)
    if showing == 3:
        assert None not in accuracies and len(status["site_curves"]) == 3
    else:
        assert accuracies == [None] * 3 and status["site_curves"] == {}
        assert "if it shares its scores" not in page
        assert "site_accuracy" not in to_metrics(status)


def test_a_site_that_shares_no_scores_has_none(tmp_path):
    world = World(tmp_path, values=SETTINGS)
    world.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    path = tmp_path / "sites" / "hospital" / "site.toml"
    path.write_text('share = ["metrics"]\n' + path.read_text())
    world.serve()
    status = StatusReader(tmp_path / "server", tmp_path / "server" / "runs" / "0001").read()
    accuracies = {site["name"]: site["accuracy"] for site in status["sites"]}
    assert accuracies.pop("hospital") is None and None not in accuracies.values()
    assert set(status["site_curves"]) == {"clinic", "practice"}


def test_an_excluded_site_says_why(served):
    server = served.path / "server"
    offence = {"run": "0001", "round": 1, "stage": "train", "reason": "<b>NaN</b>"}
    write_offences(server, {"clinic": [{**offence, "round": number} for number in range(3)]})
    try:
        status = StatusReader(server, server / "runs" / "0001").read()
    finally:
        (server / "excluded.json").unlink()
    assert state_of(status, "clinic") == "excluded"
    page = StatusPage()(status)
    assert "deploy allow FOLDER clinic" in page and "<b>" not in page


def test_sites_that_come_and_go_are_shown_as_such(served):
    server = served.path / "server"
    before = (server / "sites.json").read_text()
    folder = FederationFolder(server)
    try:
        folder.pause("clinic", paused=True)
        folder.remove("hospital")
        folder.register(Registered("ward", "ssh ward", new=False))
        status = StatusReader(server, server / "runs" / "0001").read()
    finally:
        (server / "sites.json").write_text(before)
    states = {site["name"]: site["state"] for site in status["sites"]}
    assert (states["clinic"], states["hospital"], states["ward"]) == (
        "paused",
        "removed",
        "joining",
    )
    assert "<td>joining" in StatusPage()({**status, "state": "running"})


def test_messages_are_the_latest_of_the_log_and_hostile_ones_are_text(served):
    server = served.path / "server"
    log = LogFile(server / "logs" / "serve.log")
    for number in range(500):
        log.write(f"sentence {number}")
    log.write("<script>alert(1)</script> & more")
    status = StatusReader(server, server / "runs" / "0001").read()
    assert len(status["messages"]) == 20
    assert status["messages"][-2]["text"] == "sentence 499"
    assert "<script>alert" not in StatusPage()(status)


def test_a_page_loads_nothing_and_itself_again_only_while_it_can_change(served):
    server = served.path / "server"
    status = StatusReader(server, server / "runs" / "0001").read()
    page = StatusPage()({**status, "state": "running"})
    assert 'data-refresh="5"' in page and "data-latest" in page
    assert "data-refresh" in StatusPage()({**status, "state": "stopped"})
    assert "data-refresh" not in StatusPage()({**status, "state": "finished"})

    # Pictures, one script, and no address but the name of the form of pictures.
    assert page.count("<script>") == 1 and page.count("<svg") == 2
    assert set(re.findall(r"https?://[^\s\"'<]*", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "default-src 'none'" in page and '<html lang="en">' in page
    assert len(page) < 150_000


def test_what_goes_wrong_is_said_once_and_ends_nothing(served):
    said = []

    def draw(status):
        raise ValueError("no ink")

    with files_of(served, draw, said.append) as files:
        files.update()
        files.update()
    (sentence,) = said
    assert "no ink" in sentence


def test_nothing_is_written_while_nothing_changes(served, monkeypatch):
    monkeypatch.undo()
    pages = []

    def draw(status):
        pages.append(status)
        return ""

    with files_of(served, draw) as files:
        for _ in range(1000):
            files.update()
        assert len(pages) == 1

    # The end is written in any case.
    assert len(pages) == 2


@pytest.fixture
def port(served):
    """Return the port of a finished run, and its token."""
    with files_of(served):
        pass
    with StatusPort(served.path / "server", 0) as opened:
        yield opened


def ask(port, path="/", *, token=None, host=None, method="GET"):
    number = int(port.address.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", number, timeout=10)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if host is not None:
        headers["Host"] = host
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def test_the_port_shows_page_status_and_metrics_to_who_has_the_token(served, port):
    server = served.path / "server"
    for token, query in ((port.token, ""), (None, f"?token={port.token}")):
        answer, body = ask(port, f"/{query}", token=token)
        assert answer.status == 200 and body == (server / PAGE_FILE).read_text()
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
    _, body = ask(port, "/status.json", token=port.token)
    assert json.loads(body) == written(served)
    answer, body = ask(port, "/metrics", token=port.token)
    assert "fedtailor_rounds_done 3.0" in body
    assert ask(port, "/", token=port.token, method="HEAD")[1] == ""


@pytest.mark.parametrize("token", [None, "", "x", "ü"])
def test_without_the_token_there_is_one_sentence(port, token):
    for path in ("/", "/status.json", "/metrics", "/other", "/?token=", "/?token=%FF"):
        answer, body = ask(port, path, token=token)
        assert answer.status == 403 and "token" in body and len(body.splitlines()) == 1


@pytest.mark.parametrize("host", ["example.org", "example.org:80", "localhost.example.org", ""])
def test_a_name_that_is_not_this_machine_is_refused(port, host):
    answer, body = ask(port, token=port.token, host=host)
    assert answer.status == 403 and "127.0.0.1" in body and len(body.splitlines()) == 1


def test_the_port_is_read_only_and_holds_nothing_else(served, port):
    before = sorted((served.path / "server").rglob("*"))
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        answer, body = ask(port, "/", token=port.token, method=method)
        assert answer.status == 501 and len(body.splitlines()) == 1
    for path in ("/sites.json", "/../sites.json", "/keys/ca.key", "/http://["):
        answer, body = ask(port, path, token=port.token)
        assert answer.status == 404 and "/status.json" in body
    assert sorted((served.path / "server").rglob("*")) == before


def test_many_readers_do_not_stop_the_port(port):
    number = int(port.address.rstrip("/").rpartition(":")[2])
    idle = [http.client.HTTPConnection("127.0.0.1", number, timeout=10) for _ in range(40)]
    for connection in idle:
        connection.connect()
    for connection in idle:
        connection.close()

    codes = []
    readers = [
        threading.Thread(target=lambda: codes.append(ask(port, token=port.token)[0].status))
        for _ in range(8)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert codes == [200] * 8


def test_the_token_stays_and_others_may_not_read_it(served, port):
    path = served.path / "server" / TOKEN_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    with StatusPort(path.parent, 0) as again:
        assert again.token == port.token and not again.is_new

    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        StatusPort(path.parent, 0)
    path.chmod(0o600)
    path.write_text("")
    with pytest.raises(ConfigError, match="holds no token"):
        StatusPort(path.parent, 0)
    path.unlink()


def test_a_port_that_is_taken_is_one_sentence(served, port):
    number = int(port.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(RunError, match=r"cannot listen on 127\.0\.0\.1"):
        StatusPort(served.path / "server", number)


SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>[a-z]+="([^"\\\n]|\\.)*"(,[a-z]+="([^"\\\n]|\\.)*")*)\})? '
    r"(?P<value>-?[0-9.e+-]+)"
)


def parse_metrics(text):
    """Return the samples of a text of Prometheus; every line must have its form."""
    samples = {}
    kinds = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds and kind in ("gauge", "counter")
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found and found["name"] in kinds, line
            assert (found["name"], found["labels"]) not in samples
            samples[found["name"], found["labels"]] = float(found["value"])
    assert text.endswith("\n")
    assert all(name.endswith("_total") for name, kind in kinds.items() if kind == "counter")
    return samples


def test_metrics_have_the_form_of_prometheus(served):
    server = served.path / "server"
    status = StatusReader(server, server / "runs" / "0001").read()
    samples = parse_metrics(to_metrics(status))
    assert samples["fedtailor_rounds", None] == 3
    assert samples["fedtailor_message_bytes_total", 'way="up"'] == status["bytes"]["up"]
    for site in status["sites"]:
        assert samples["fedtailor_site_accuracy", f'site="{site["name"]}"'] == site["accuracy"]
    assert samples["fedtailor_sites", 'state="connected"'] == len(NAMES)

    # Before the first round, and with a name that needs escapes.
    sites = [{**status["sites"][0], "name": 'a"b\\c\nd', "heard": None, "accuracy": None}]
    few = {**status, "curves": {}, "sites": sites, "seconds_left": None, "round_seconds": None}
    samples = parse_metrics(to_metrics(few))
    assert samples["fedtailor_site_connected", r'site="a\"b\\c\nd"'] == 1
