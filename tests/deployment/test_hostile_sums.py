"""Requests and answers about sums that were changed in any way, and files that were damaged: nothing
else leaves a site, no sum is wrong, and everybody says what is wrong in a sentence."""

import json
import os
import random
import re

import numpy as np
import pytest

from fedtailor.core.errors import ConfigError, DataError, FedtailorError
from fedtailor.deployment.conduct import excluded_sites, read_offences, write_offences
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.federation_folder import FederationFolder
from fedtailor.deployment.mask_kinds import KINDS
from fedtailor.deployment.mask_messages import NO_SHARE
from fedtailor.deployment.membership import pause_site, resume_site
from fedtailor.deployment.options import load_site
from fedtailor.deployment.plan import read_plan
from fedtailor.deployment.roster import read_roster
from fedtailor.deployment.secure_sums import SecureSums
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.site_masks import SiteMasks
from fedtailor.experiment.reader import read_run
from fedtailor.privacy.masks.keys import read_bundles, write_bundles
from fedtailor.privacy.masks.primitives import digest_of
from fedtailor.privacy.masks.session import (
    LONGEST_SIGNATURE,
    SumRequest,
    digest_of_download,
    write_cohort,
)
from fedtailor.privacy.masks.shares import SHARE_BYTES
from hostile import Tolerant
from sites import (
    VALUES,
    FunctionTransport,
    Killed,
    Losing,
    World,
    divide_digits,
    from_bytes,
    to_bytes,
    write_arrays,
)

NAMES = ("clinic", "hospital", "office", "practice")
DATA = divide_digits(NAMES, rows=20)
COUNT = 6000 if os.environ.get("FEDTAILOR_FULL") else 120
"""Changed messages in each direction."""


def make_world(path, *, new=(), policy=None, **values):
    """Return four sites, of which three must answer."""
    schedule = {
        "federation": {"rounds": 2},
        "privacy": {"secure_sums": True},
        "deploy": {"deadline": 0.1, "grace": 0.02, "resend": 0.03},
    }
    values = {**VALUES, **schedule, **values}
    world = World(path, names=NAMES, new=new, values=values, policy=policy or {}, secure=True)
    return world.write(lambda folder, name: write_arrays(folder, *DATA[name]))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a world whose run has requests of all kinds: a site loses what it is sent in a round."""

    def is_lost(client, request):
        return (client, request.head["kind"], request.head.get("round")) == (2, "train", 2)

    world = make_world(tmp_path_factory.mktemp("sums"), algorithm={"name": "fedproto"})
    world.serve(lambda sites: Losing([site.answer for site in sites], is_lost))
    assert {request.head["kind"] for _, request in world.transport.sent} >= {*KINDS, "train"}
    return world


STRANGE = [
    None,
    True,
    -1,
    0,
    1,
    3,
    64,
    2**31,
    2**70,
    1.5,
    "",
    "\x00",
    "0" * 63,
    "ab" * 32,
    "train",
    "classes",
    "unmask",
    [],
    [0, 0, 1, 2],
    [0, 1, 3, 10**6],
    [0, None, "1"],
    [[]],
    {},
    {"a": 1},
]


def changed(message, rng):
    """Return a message of which a part or two are something else."""
    head = dict(message.head)
    blobs = dict(message.blobs)
    for _ in range(rng.choice((1, 1, 2))):
        names = sorted(set(blobs) - {"plan"})
        if names and rng.random() < 0.5:
            name = rng.choice(names)
            blobs[name] = changed_bytes(blobs[name], rng)
        else:
            key = rng.choice(sorted({*head, "survivors", "of"} - {"kind"}))
            head[key] = rng.choice(STRANGE)
            if rng.random() < 0.2:
                del head[key]
    return from_bytes(to_bytes(Envelope(head, blobs)))


def changed_bytes(raw, rng):
    """Return bytes that were changed, cut, doubled or replaced."""
    place = rng.randrange(len(raw) + 1)
    size = rng.choice([1, 4, 32, 106, 210])
    start, end = raw[:place], raw[place + size :]
    return rng.choice(
        [
            b"",
            start,
            raw[place:],
            raw + raw,
            start + end,
            start + bytes(size) + end,
            start + rng.randbytes(size) + end,
            start + raw[place : place + size] * 2 + end,
            start + b"\xff\xff\xff\xff" + raw[place + 4 :],
        ]
    )


@pytest.fixture(scope="module")
def first_site(recorded):
    return recorded.open()[0]


@pytest.mark.parametrize("kind", [*KINDS, "train", "personalize"])
def test_no_changed_request_about_sums_harms_a_site(recorded, first_site, kind):
    rng = random.Random(kind)
    mine = [message for client, message in recorded.transport.sent if client == 0]
    told = [message for client, message in recorded.transport.received if client == 0]
    sent = [message for message in mine if message.head["kind"] == kind]
    for _ in range(COUNT // 6):
        answer = first_site.answer(changed(rng.choice(sent), rng))
        assert "failed" not in answer.head, answer.head
        json.dumps(answer.head, allow_nan=False)

        # Whatever was asked for, what leaves is what has left before, but for new signatures.
        if "masked" in answer.blobs:
            start = answer.blobs["masked"][:-LONGEST_SIGNATURE]
            assert any(message.blobs.get("masked", b"").startswith(start) for message in told)

        # A seal that was changed is not opened, and its share stays away.
        if "shares" in answer.blobs:
            before = [parts_of(one.blobs["shares"]) for one in told if "shares" in one.blobs]
            parts = parts_of(answer.blobs["shares"])
            assert any(leaves_nothing_new(parts, known) for known in before)


def parts_of(shares):
    """Return the share of every site of a sum."""
    return [shares[start : start + SHARE_BYTES] for start in range(0, len(shares), SHARE_BYTES)]


def leaves_nothing_new(parts, known):
    """Return whether every share is the one that was told before, or none."""
    pairs = zip(parts, known, strict=True)
    return all(part in (told, NO_SHARE) for part, told in pairs)


class Answering:
    """An exchange with the masks of sites in this process; the answers of one are changed."""

    def __init__(self, masks, change):
        """Take the masks by number."""
        self.masks = masks
        self.change = change

    def ask(self, requests, *, needed, accept, enough=None):
        """Return the answers that belong to requests."""
        answers = {}
        for number, request in requests.items():
            answer = answer_of(self.masks[number], request)
            if number == 0:
                answer = self.change(answer)
            if accept(number, answer):
                answers[number] = answer
        assert len(answers) >= min(needed, len(requests) - 1)
        return answers

    def away(self):
        """Return no site."""
        return {}


def answer_of(masks, request):
    """Return the answer of a site to a request about sums."""
    head = {**request.head}
    try:
        told, blobs, _ = masks.answer(request, np.ones(10, dtype=bool))
    except FedtailorError as error:
        return Envelope({**head, "refused": error.message}, {})
    return Envelope({**head, **told}, blobs)


class Sums:
    """The server and all sites of a run, without any training."""

    def __init__(self, world, path):
        """Use keys and roster of a world; the folder is of the server and of the sites."""
        run = world.path / "server" / "runs" / "0001"
        self.path = path
        self.sites = world.path / "sites"
        self.plan = read_plan((run / "plan.json").read_bytes())
        self.roster = read_roster(run / "masks" / "roster.json")
        self.masks = [self.site(number) for number in range(4)]
        self.exchange = Answering(self.masks, same)
        self.round = 0
        self.start()

    def start(self):
        """Start the server, perhaps again."""
        self.server = SecureSums(self.path, self.plan, self.roster, self.exchange, Tolerant())
        self.server.connect()

    def site(self, number):
        """Return a site, perhaps started again."""
        folder = self.sites / self.roster.sites[number].name
        states = self.states(number)
        states.mkdir(parents=True, exist_ok=True)
        return SiteMasks(folder, states, load_site(folder), self.plan, number)

    def states(self, number):
        """Return the folder of a site."""
        return self.path / f"states-{number}"

    def sum_of(self, vectors, change, again=False):
        """Return the sum of a round, and who is in it; ``change`` changes a vector in masks."""
        self.round += not again
        plan = bytes.fromhex(self.plan.digest)
        about = (digest_of("layout"), digest_of_download(b"model"))
        asked = SumRequest("train", self.round, 0, plan, *about)
        masked = self.server.draw(asked, range(4), len(vectors[0]))
        for number in sorted(masked.asked):
            raw = self.masks[number].mask(asked, masked.blobs, vectors[number])
            raw = change(raw) if number == 0 else raw
            if masked.is_closed:
                continue
            try:
                masked.add(number, raw)
            except DataError:
                assert number == 0
        return masked.open()


@pytest.fixture(scope="module")
def sums(recorded, tmp_path_factory):
    return Sums(recorded, tmp_path_factory.mktemp("server"))


@pytest.mark.parametrize("what", ["vector", "answer"])
def test_no_changed_answer_about_sums_makes_a_sum_wrong(sums, what):
    rng = random.Random(what)
    vectors = np.random.default_rng(0).integers(-1000, 1000, (4, 5))
    sums.exchange.change = (lambda answer: changed(answer, rng)) if what == "answer" else same
    change = (lambda raw: changed_bytes(raw, rng)) if what == "vector" else same
    absent = 0
    for _ in range(COUNT // 8):
        total, survivors = sums.sum_of(vectors, change)
        assert survivors >= {1, 2, 3}
        absent += 0 not in survivors

        # Nobody can check what a site masks and signs.
        if what == "answer" or 0 not in survivors:
            assert (total == vectors[sorted(survivors)].sum(axis=0)).all()

    assert absent or what == "answer"


def same(value):
    """Return what is not changed."""
    return value


VECTORS = np.arange(20).reshape(4, 5)


@pytest.fixture
def begun(recorded, tmp_path):
    """Return a server and sites that have made a sum."""
    sums = Sums(recorded, tmp_path)
    total, _ = sums.sum_of(VECTORS, same)
    assert (total == VECTORS.sum(axis=0)).all()
    return sums


def test_a_site_without_its_journal_does_not_use_its_keys_again(begun):
    (begun.states(0) / "masks.jsonl").unlink()
    begun.masks[0] = begun.site(0)
    with pytest.raises(DataError, match="do not have this site with its own keys"):
        begun.sum_of(VECTORS, same)
    channels = begun.server._channels
    with pytest.raises(DataError, match="other keys than when the run began"):
        begun.masks[0]._site.learn_channels(channels)


def test_a_site_without_its_secret_waits_for_the_next_run(begun):
    path = begun.states(0) / "masks.key"
    for content in (None, b"", b"short", bytes(32), bytes(33)):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(DataError, match=r"masks\.key.*next run"):
            begun.site(0)
        path.touch()


def test_a_request_after_a_restart_gets_the_same_vector(begun):
    """The signature is another one: signatures have random numbers."""
    vectors = []

    def keep(raw):
        vectors.append(raw[:40])
        return raw

    begun.sum_of(VECTORS, keep)
    begun.masks[:] = [begun.site(number) for number in range(4)]
    begun.start()
    total, _ = begun.sum_of(VECTORS, keep, again=True)
    assert vectors[0] == vectors[1]
    assert (total == VECTORS.sum(axis=0)).all()


DAMAGES = {
    "train-000001-00.json": b'{"index": 0}',
    "train-000001-00.closed": b"\x20\0\0\0",
    "channels.bin": b"\x20\0\0\0",
    "keys-0-0.bin": b"no keys",
    "holders": b'{"holders": [1, 2]}',
}


def test_a_damaged_file_of_the_server_is_named(begun):
    for name, damage in DAMAGES.items():
        path = begun.path / "masks" / name
        before = path.read_bytes() if path.exists() else None
        path.write_bytes(damage)
        with pytest.raises(DataError, match=name):
            begun.start()
            begun.server.count_classes(10)
            begun.sum_of(VECTORS, same, again=True)

        path.unlink()
        if before is not None:
            path.write_bytes(before)


def test_a_closed_sum_that_loses_a_site_is_opened_all_the_same(begun):
    def kill(answer):
        raise Killed

    begun.exchange.change = kill
    with pytest.raises(Killed):
        begun.sum_of(VECTORS, same)

    begun.exchange.change = lambda answer: Envelope({**answer.head, "failed": "it is gone"})
    begun.start()
    total, survivors = begun.sum_of(VECTORS, lambda raw: b"", again=True)
    assert (total == VECTORS.sum(axis=0)).all()
    assert survivors == {0, 1, 2, 3}


def test_a_key_that_was_copied_from_another_site_is_not_used(begun):
    """All sites would refuse a sum with it, and nobody would know why."""
    session = begun.server.session
    (theirs,) = begun.masks[1]._site.bundles([32])
    (mine,) = begun.masks[0]._site.bundles([32])
    copy = mine.member._replace(pair_key=theirs.member.pair_key)
    copy = copy._replace(signature=begun.masks[0]._keys.sign(copy.signed_digest(session)))
    begun.server._keep(1, range(32, 33), write_bundles([theirs]))
    with pytest.raises(DataError, match="site 0 has sent a key of another site"):
        begun.server._keep(0, range(32, 33), write_bundles([mine._replace(member=copy)]))


def test_a_new_site_and_sums(tmp_path):
    world = make_world(tmp_path, new=("office",))
    world.serve()
    number = world.order.index("office")
    site = world.open()[number]
    for kind in (*KINDS, "train"):
        (request, *_) = [
            message for _, message in world.transport.sent if message.head["kind"] == kind
        ] or [None]
        if request is not None:
            answer = site.answer(Envelope({**request.head, "client": number}, request.blobs))
            assert answer.head["refused"] == "a site that was added as new takes part in no sum."
            assert not answer.blobs


def test_an_excluded_site_that_is_in_the_roster_is_named(tmp_path):
    world = make_world(tmp_path)
    offence = {"run": "0000", "round": 1, "stage": "train", "reason": "strange"}
    write_offences(world.path / "server", {"practice": [offence] * 3})
    with pytest.raises(ConfigError, match=r"'practice' is excluded .'fedtailor deploy allow"):
        world.serve()
    assert not (world.path / "server" / "runs" / "0001").exists()


def test_a_run_does_not_begin_without_a_site_that_is_paused(tmp_path):
    world = make_world(tmp_path)
    folder = FederationFolder(world.path / "server")
    pause_site(folder, "practice")
    with pytest.raises(ConfigError, match=r"'practice' is paused .'fedtailor deploy resume"):
        world.serve()

    resume_site(folder, "practice")
    world.serve()


def test_a_site_that_shows_its_scores_later_is_no_liar(tmp_path):
    world = make_world(tmp_path)
    site = world.path / "sites" / "practice" / "site.toml"
    shown = site.read_text()
    hidden = shown.replace(', "single"]', "]")
    assert hidden != shown
    site.write_text(hidden)

    def make(sites):
        answers = [site.answer for site in sites]
        number = world.order.index("practice")
        practice = world.path / "sites" / "practice"

        def answer(request):
            # The operator edits the file, and starts the site again.
            if request.head.get("round") == 2 and site.read_text() == hidden:
                site.write_text(shown)
                answers[number] = DeployedSite(practice).answer
                return answers[number](request)
            return sites[number].answer(request)

        answers[number] = answer
        return FunctionTransport(answers)

    result = world.serve(make)
    assert site.read_text() == shown
    assert not excluded_sites(world.path / "server")
    assert not read_offences(world.path / "server")
    assert result["rounds"] == 2


@pytest.fixture(scope="module")
def with_scores(tmp_path_factory):
    """Return a world in which a site has few rows, all for testing, and one shares no scores."""
    world = make_world(
        tmp_path_factory.mktemp("scores"), data={"test_share": 0.9}, policy={"least_share": 0.0}
    )
    x, y = DATA["practice"]
    classes = np.array([str(label) for label in range(10)])
    own = world.path / "sites" / "practice" / "data" / "practice"
    np.savez(own / "train.npz", x=x[::4], y=y[::4], class_names=classes)
    site = world.path / "sites" / "office" / "site.toml"
    site.write_text(re.sub(r"(?m)^share = .*$", "share = []", site.read_text()))
    world.serve()
    return world


@pytest.mark.parametrize(("kind", "client"), [("train", 3), ("score", 2), ("personalize", 2)])
def test_a_site_with_nothing_to_add_is_in_no_sum(with_scores, tmp_path, kind, client):
    """A server could fill up a sum with sites whose vectors are zeros."""
    world = with_scores
    sent = {(client, message.head["kind"]): message for client, message in world.transport.sent}
    assert "cohort" in sent[0, kind].blobs
    assert "cohort" not in sent.get((client, kind), Envelope({})).blobs

    sites = world.open()
    session = Sums(world, tmp_path).server.session
    first = 16 * (1 + ["train", "score", "personalize"].index(kind))
    cohort = []
    for number, site in enumerate(sites):
        keys = sent[0, "keys"]
        asked = Envelope({**keys.head, "client": number, "first": first}, keys.blobs)
        raw = site.answer(asked).blobs["bundles"]
        cohort.append(read_bundles(raw, session, number, range(first, first + 16))[0].member)

    blobs = {**sent[0, kind].blobs, "cohort": write_cohort(cohort)}
    head = {**sent[0, kind].head, "client": client, "round": 3, "base": None, "best": None}
    answer = sites[client].answer(Envelope(head, blobs))
    assert answer.head["refused"] == "this site has nothing to add to this sum."
    assert not answer.blobs


def test_a_secret_order_of_batches_is_the_same_after_a_restart(tmp_path):
    world = make_world(tmp_path, policy={"split_seed": "secret"})

    class Killing(FunctionTransport):
        def send(self, requests):
            super().send(requests)
            if any(request.head["kind"] == "train" for request in requests.values()):
                raise Killed

    vectors = []
    with pytest.raises(Killed):
        world.serve(lambda sites: Killing([site.answer for site in sites]))
    vectors.append(first_vectors(world.transport))
    world.serve()
    vectors.append(first_vectors(world.transport))
    assert len(vectors[0]) == 4
    assert vectors[0] == vectors[1]
    assert not any(event for event in read_run(world.path / "server" / "runs" / "0001").events)


def first_vectors(transport):
    """Return the vectors of the first round under masks, without signatures."""
    return {
        client: message.blobs["masked"][: -LONGEST_SIGNATURE - 8][: 8 * 1000]
        for client, message in transport.received
        if (message.head["kind"], message.head.get("round")) == ("train", 1)
    }
