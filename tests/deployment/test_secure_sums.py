"""Sums under masks across sites have the bits of a simulation with secure sums, whoever is lost."""

import json
from contextlib import nullcontext
from itertools import product

import numpy as np
import pytest

from fedtailor.algorithms import ALGORITHMS
from fedtailor.core.atomic import write_json, write_whole
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.deployment import closed_sum, masked_sum
from fedtailor.deployment.conduct import read_offences
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import SiteFailure
from fedtailor.deployment.mask_kinds import KINDS
from fedtailor.experiment.reader import read_run
from fedtailor.privacy.masks.shares import SHARE_BYTES
from marks import quick, slow
from sites import (
    VALUES,
    FunctionTransport,
    Killed,
    Losing,
    World,
    assert_same_as_simulation,
    assert_same_run,
    divide_digits,
    write_arrays,
)

NAMES = ("clinic", "hospital", "office", "practice", "ward")
DATA = divide_digits(NAMES, rows=40)
SCHEDULE = {
    "federation": {"rounds": 3, "participation": 0.9, "full_last_round": False},
    "evaluation": {"every": 1, "personalized_every": 2},
    "data": {"val_fraction": 0.2},
    "privacy": {"secure_sums": True},
}
SHORT = {
    **SCHEDULE,
    "federation": {"rounds": 2},
    "deploy": {"deadline": 0.1, "grace": 0.02, "resend": 0.03},
}


def world_of(path, *, new=("hospital",), names=NAMES, schedule=SCHEDULE, **values):
    """Return a world of digits."""
    world = World(path, names=names, new=new, values={**VALUES, **schedule, **values}, secure=True)
    return world.write(lambda folder, name: write_arrays(folder, *DATA[name]))


def of_four(path, **values):
    """Return four sites, of which three must answer, in two rounds."""
    return world_of(path, new=(), names=NAMES[:4], schedule=SHORT, **values)


def kinds(messages):
    """Return how often there was a message of each kind."""
    names = [message.head["kind"] for _, message in messages]
    return {name: names.count(name) for name in sorted(set(names))}


def options_of(name):
    return {"name": name, "combine_heads": False} if name == "fedpac" else {"name": name}


@pytest.mark.parametrize("name", quick(sorted(ALGORITHMS), "scaffold"))
def test_every_method_has_the_bits_of_a_simulation_or_is_refused(tmp_path, name):
    world = world_of(tmp_path, algorithm=options_of(name))
    try:
        world.serve()
    except ConfigError as error:
        assert "shows the server what single clients send" in error.message
        return

    assert_same_run(world, world.simulate())
    for _, answer in world.transport.received:
        assert set(answer.blobs) <= {"out", "masked", "shares", "bundles"}
        assert b"upload" not in answer.blobs.get("out", b"")


@pytest.mark.slow
def test_a_round_costs_one_exchange_and_sixteen_rounds_one_more(tmp_path):
    world = of_four(tmp_path, federation={"rounds": 18}, evaluation={"every": 18})
    world.serve()
    counts = kinds(world.transport.sent)
    assert {kind: count for kind, count in counts.items() if kind in (*KINDS, "train")} == {
        "channel": 4,
        "keys": 2 * 4,
        "train": 18 * 4,
        "unmask": 20 * 4,
    }


def test_a_site_that_is_lost_in_a_round_is_not_in_its_sum(tmp_path):
    world = of_four(tmp_path)

    def lost(client, request):
        return (client, request.head["kind"], request.head.get("round")) == (2, "train", 2)

    world.serve(lambda sites: Losing([site.answer for site in sites], lost))
    assert kinds(world.transport.sent)["agree"] == 4
    run = assert_same_as_simulation(world)
    assert [event["kind"] for event in run.events if event.get("client") == 2] == ["absent"]


@pytest.mark.parametrize("kind", quick(["agree", "unmask", "keys"], "agree"))
def test_a_site_that_is_silent_in_another_exchange(tmp_path, kind):
    world = of_four(tmp_path)

    def lost(client, request):
        head = request.head
        is_lost = (client, head["kind"], head.get("round")) == (2, "train", 2)
        return (is_lost and kind != "keys") or (client == 1 and head["kind"] == kind)

    world.serve(lambda sites: Losing([site.answer for site in sites], lost))
    assert_same_as_simulation(world)


def killing(moment, *, before):
    """Return how to make a transport that ends the server at one of its exchanges."""

    def make(sites):
        class Killing(FunctionTransport):
            exchanges = 0

            def send(self, requests):
                self.exchanges += 1
                if before and self.exchanges == moment:
                    raise Killed
                super().send(requests)
                if not before and self.exchanges == moment:
                    raise Killed

        return Killing([site.answer for site in sites])

    return make


@pytest.mark.parametrize(
    ("moment", "before"), quick(list(product(range(3, 10), [True, False])), (5, True), (6, False))
)
def test_a_server_that_is_killed_makes_the_same_sums(tmp_path, moment, before):
    world = of_four(tmp_path)
    with pytest.raises(Killed):
        world.serve(killing(moment, before=before))
    world.serve()
    assert_same_run(world, world.simulate())


def test_a_server_that_is_killed_after_a_loss_opens_the_same_sum(tmp_path):
    """The site that was lost comes back, and is still not in the sum that was closed."""
    world = of_four(tmp_path)

    def lost(client, request):
        if request.head["kind"] == "unmask":
            raise Killed
        return client == 2 and request.head["kind"] == "train"

    with pytest.raises(Killed):
        world.serve(lambda sites: Losing([site.answer for site in sites], lost))
    world.serve()
    run = assert_same_as_simulation(world)
    absent = [
        (event["round"], event["client"]) for event in run.events if event["kind"] == "absent"
    ]
    assert absent == [(1, 2)]


LAST_STEP = 6


@pytest.mark.parametrize("step", quick(range(LAST_STEP + 1), LAST_STEP))
def test_a_server_that_is_killed_opens_the_sum_without_a_site_that_is_gone(
    tmp_path, monkeypatch, step
):
    """One site sends no vector, and another one sends its own and is gone.

    The server ends after it has closed the sum (1), before and after it asks who is in it (2, 3),
    after it has noted the answers (4), before and after it asks for shares (5, 6), or never (0).
    """
    world = of_four(tmp_path)
    steps = 0

    def count(is_step):
        nonlocal steps
        steps += is_step
        if is_step and steps == step:
            raise Killed

    def write_closed(path, content):
        write_whole(path, content)
        count(path.name == "train-000001-00.closed")

    def write_masked(path, record):
        write_json(path, record)
        count(bool(record["agreed"]))

    class Going(Losing):
        def send(self, requests):
            is_step = {"agree", "unmask"} & {message.head["kind"] for message in requests.values()}
            count(bool(is_step))
            super().send(requests)
            count(bool(is_step))

    def lost(client, request):
        kind, round = request.head["kind"], request.head.get("round")
        if (kind, round) == ("train", 1):
            return client == 3
        return client == 2 and kind in ("agree", "unmask", "train", "personalize", "score")

    monkeypatch.setattr(closed_sum, "write_whole", write_closed)
    monkeypatch.setattr(masked_sum, "write_json", write_masked)
    with pytest.raises(Killed) if step else nullcontext():
        world.serve(lambda sites: Going([site.answer for site in sites], lost))

    if step:
        step = 0
        world.serve(
            lambda sites: Losing([site.answer for site in sites], lambda client, _: client == 2)
        )
    run = assert_same_as_simulation(world)
    absent = [
        (event["round"], event["client"], event["reason"])
        for event in run.events
        if event.get("stage") == "local_update"
    ]
    reason = "local_update: no answer in time"
    assert absent == [(1, 3, reason), (2, 2, reason)]
    folder = world.path / "server" / "runs" / "0001" / "masks"
    assert not list(folder.glob("train-000001-*.closed"))


def replaced(site, kind, change):
    """Return how a site answers whose answers to requests of a kind are changed."""

    def answer(request):
        reply = site.answer(request)
        if request.head["kind"] != kind:
            return reply
        return Envelope(dict(reply.head), change(dict(reply.blobs)))

    return answer


def with_one(world, client, kind, change):
    """Serve with a site that deviates."""

    def make(sites):
        answers = [site.answer for site in sites]
        answers[client] = replaced(sites[client], kind, change)
        return FunctionTransport(answers)

    world.serve(make)


@pytest.mark.parametrize(
    ("kind", "change", "is_absent"),
    [
        ("keys", lambda blobs: {"bundles": b"no keys"}, True),
        slow("train", lambda blobs: {**blobs, "masked": b"short"}, True),
        ("train", lambda blobs: {**blobs, "masked": blobs["masked"][:-4] + b"sign"}, True),
        ("unmask", lambda blobs: {"shares": bytes(4 * SHARE_BYTES)}, False),
        slow("unmask", lambda blobs: {"shares": b"\xff" * 4 * SHARE_BYTES}, False),
        slow("unmask", lambda blobs: {}, False),
    ],
)
def test_a_site_that_sends_something_wrong_spoils_nothing(tmp_path, kind, change, is_absent):
    world = of_four(tmp_path)
    with_one(world, 0, kind, change)
    run = assert_same_as_simulation(world)
    assert any(event["kind"] in ("absent", "failed") for event in run.events) == is_absent


@pytest.mark.parametrize("kind", quick(["keys", "train", "unmask"], "train"))
def test_a_reply_that_is_no_message_is_noted(tmp_path, kind):
    world = of_four(tmp_path)

    def make(sites):
        answers = [site.answer for site in sites]
        plain = answers[0]

        def answer(request):
            if request.head["kind"] == kind:
                return SiteFailure("damaged", "the reply is damaged: it has no head")
            return plain(request)

        answers[0] = answer
        return FunctionTransport(answers)

    world.serve(make)
    assert_same_as_simulation(world)
    offences = read_offences(world.path / "server")
    assert list(offences) == [NAMES[0]]
    assert {offence["stage"] for offence in offences[NAMES[0]]} == {kind}
    assert "it has no head" in offences[NAMES[0]][0]["reason"]


def test_a_vector_of_noise_makes_a_sum_that_cannot_be_right(tmp_path):
    world = of_four(tmp_path)
    rng = np.random.default_rng(0)

    def change(blobs):
        # Such a site can still sign.
        size = len(blobs["masked"]) // 8 * 8 - 104
        return {**blobs, "masked": rng.bytes(size) + blobs["masked"][size:]}

    with pytest.raises(RunError, match="round 1"):
        with_one(world, 0, "train", change)
    path = world.path / "server" / "runs" / "0001" / "masks" / "train-000001-00.json"
    assert "the sum cannot be right" in json.loads(path.read_text())["void"]


def test_a_number_beyond_the_bound_stays_at_the_site(tmp_path):
    world = of_four(tmp_path, privacy={"secure_sums": True, "most_examples": 20})
    x, y = DATA["clinic"]
    few = {"clinic": slice(None), "hospital": slice(24), "office": slice(24), "practice": slice(24)}
    for name, part in few.items():
        for folder in (world.path / "all" / name, world.path / "sites" / name / "data" / name):
            x, y = DATA[name]
            names = np.array([str(label) for label in range(10)])
            np.savez(folder / "train.npz", x=x[part], y=y[part], class_names=names)

    world.serve()
    run = read_run(world.path / "server" / "runs" / "0001")
    reasons = {event["client"]: event["reason"] for event in run.events if "reason" in event}
    assert reasons == {0: "the site says that its work cannot be used (range)"}


def test_sites_of_another_roster_are_named(tmp_path):
    world = of_four(tmp_path)
    text = (world.path / "server" / "federation.toml").read_text()
    (world.path / "server" / "federation.toml").write_text(
        text.replace("secure_sums = true", "secure_sums = true\nsmallest_sum = 4")
    )
    with pytest.raises(
        RunError, match=r"this site trusts the roster [0-9A-F ]+\.\.\., and the server"
    ):
        world.serve()


def test_a_site_without_a_roster_refuses(tmp_path):
    world = of_four(tmp_path)
    path = world.path / "sites" / "office" / "site.toml"
    path.write_text(path.read_text().partition("[privacy]")[0])
    with pytest.raises(RunError, match="this site trusts no roster for secure sums"):
        world.serve()


def test_without_who_is_in_the_sum_a_site_sends_no_upload(tmp_path):
    """A server that leaves it out gets neither the upload nor masks."""
    world = of_four(tmp_path)

    class Curious(FunctionTransport):
        def send(self, requests):
            for client, request in requests.items():
                if request.head["kind"] == "train":
                    blobs = {name: blob for name, blob in request.blobs.items() if name != "cohort"}
                    answer = self.answers[client](Envelope(dict(request.head), blobs))
                    assert set(answer.blobs) == {"out"}
                    assert b"upload" not in answer.blobs["out"]
                    assert b"values" not in answer.blobs["out"]
                    raise Killed
            super().send(requests)

    with pytest.raises(Killed):
        world.serve(lambda sites: Curious([site.answer for site in sites]))


def test_masks_leave_their_secrets_at_the_site(tmp_path):
    world = of_four(tmp_path)
    world.serve()
    for name in world.order:
        (path,) = (world.path / "sites" / name / "states").glob("*/masks.key")
        secret = path.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
        for _, answer in world.transport.received:
            assert all(secret not in blob for blob in answer.blobs.values())
    names = {path.name for path in (world.path / "server").rglob("*")}
    assert not names & {"masks.key", "masks.jsonl"}
