"""What the operator of a server sees of a run, read from its growing files."""

import json

import pytest

from fedtailor.core.errors import RunError
from fedtailor.deployment import supervise_server as module
from fedtailor.deployment.federation_folder import FederationFolder
from fedtailor.deployment.membership import remove_site
from fedtailor.deployment.supervise_server import _ServerApp, _Watcher, supervise_server
from sites import World, divide_digits, write_arrays


class Seen:
    """Notes what is shown."""

    def __init__(self):
        """Begin."""
        self.sentences = []
        self.rounds = []

    def say(self, text):
        """Note a sentence."""
        self.sentences.append(text)

    def begin(self, title, rounds, done):
        """Note how many rounds are done."""
        self.done = done

    def round(self, record):
        """Note a round."""
        self.rounds.append(record["round"])

    def attendance(self, sites):
        """Note nothing."""


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run of two rounds across three sites."""
    parts = divide_digits(rows=20)
    world = World(tmp_path).write(lambda folder, name: write_arrays(folder, *parts[name]))
    world.serve()
    return tmp_path / "server" / "runs" / "0001"


def test_a_site_that_is_removed_while_the_server_starts_is_not_registered(tmp_path, monkeypatch):
    world = World(tmp_path).write(lambda folder, name: folder.mkdir(parents=True))
    folder = world.path / "server"

    class Registered(Exception):
        """The end of the test."""

    class Processes:
        def __init__(self, *arguments):
            """Let another command remove a site before the folder of Flower is there."""
            remove_site(FederationFolder(folder), world.order[0])

        def start(self):
            """Start nothing."""

        def stop(self):
            """Stop nothing."""

        def register(self, keys):
            """Note the names."""
            raise Registered(sorted(keys))

    monkeypatch.setattr(module, "ServerProcesses", Processes)
    monkeypatch.setattr(module, "days_left", lambda path: 100.0)
    with pytest.raises(Registered) as caught:
        supervise_server(folder, Seen(), draw_status=str)
    assert caught.value.args == (sorted(world.order[1:]),)


def test_what_flower_refuses_to_register_is_tried_again_after_a_pause(tmp_path, monkeypatch):
    world = World(tmp_path).write(lambda folder, name: folder.mkdir(parents=True))
    folder = world.path / "server"
    seen = Seen()
    answers = [RunError("Flower is busy."), dict.fromkeys(world.order, 100)]

    class Processes:
        def register(self, keys, forget):
            """Refuse once."""
            answer = answers.pop(0)
            if isinstance(answer, RunError):
                raise answer
            return answer

    app = _ServerApp(folder, folder / "runs" / "0001", Processes(), {}, None)
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    app.follow_register(seen)
    app.follow_register(seen)
    assert seen.sentences == [
        "the register has changed, and Flower is busy; the next try is in 60 s"
    ]

    now[0] += 61
    app.follow_register(seen)
    app.follow_register(seen)
    assert seen.sentences[1:] == [f"3 sites are registered: {', '.join(world.order)}"]
    nodes = json.loads((folder / "serving.json").read_text())["nodes"]
    assert nodes == dict.fromkeys(world.order, "100")


def append(path, text):
    """Append text to a file."""
    with path.open("a") as file:
        file.write(text)


def test_a_site_has_its_name_in_sentences(run):
    seen = Seen()
    watcher = _Watcher(run.parents[1], run, seen)
    watcher.show_news()
    event = {"kind": "absent", "round": 3, "client": 1, "reason": "late"}
    append(run / "events.jsonl", json.dumps(event) + "\n")
    watcher.show_news()
    assert seen.sentences == ["round 3, site hospital: absent, late"]


def test_files_are_read_on_and_every_round_is_shown_once(run):
    path = run / "rounds.jsonl"
    raw = path.read_bytes()
    seen = Seen()
    watcher = _Watcher(run.parents[1], run, seen)
    watcher.show_news()
    assert seen.done == 2

    # What was read is not read again.
    path.write_bytes(raw.replace(b"{", b"x"))
    append(path, '{"round": 3}\n{"round"')
    watcher.show_news()
    assert seen.rounds == [3]
    append(path, ": 4}\n")
    watcher.show_news()
    assert seen.rounds == [3, 4] and watcher.rounds == 4

    # A run that is resumed is cut, and does its last rounds again.
    path.write_bytes(raw)
    watcher.show_news()
    append(path, '{"round": 3}\n{"round": 4}\n{"round": 5}\n')
    watcher.show_news()
    assert seen.rounds == [3, 4, 5]
