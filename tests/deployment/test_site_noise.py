"""Noise at real sites: a secret, counted before it leaves, and never the same for two results."""

import errno
import json
import math
import shutil
from copy import copy
from dataclasses import replace

import pytest
import torch

from fedtailor.core import atomic
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.deployment import agreement
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.options import load_federation
from fedtailor.deployment.packing import pack_download, unpack_upload
from fedtailor.deployment.plan import read_plan
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.deployment.site_privacy import SitePrivacy, describe_told
from fedtailor.deployment.wire import from_blob, to_blob
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.what_leaves import what_leaves_run
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.ledger import LEDGER_FILE, read_entries
from fedtailor.simulation.checkpoint import read_final_state
from marks import slow
from sites import (
    VALUES,
    Killed,
    World,
    assert_same_as_simulation,
    divide_digits,
    write_arrays,
)

NAMES = ("clinic", "hospital", "office", "practice")
DATA = divide_digits(NAMES, rows=40)
ONE_STEP = {"steps": 1, "batch_size": 0, "lr": 0.5}
AT_SITES = {"unit": "example", "noise_from": "sites", "epsilon": 4.0}
IN_SUMS = {"unit": "example", "secure_sums": True, "epsilon": 4.0}
FEATURES = {"name": "fedncm", "feature_clip": 8.0}
MUCH_NOISE = {"unit": "example", "noise_from": "sites", "noise": 50.0, "clip": 0.2}
SECRET = "0123456789abcdef" * 4


def world_of(path, privacy=AT_SITES, *, most_epsilon=0.0, secret=SECRET, policy=None, **values):
    """Return a world of digits.

    Args:
        path: its folder.
        privacy: of federation.toml.
        most_epsilon: what the site clinic allows.
        secret: of the sites; empty: each draws its own.
        policy: of the sites, beside the usual one.
        values: other sections of federation.toml.
    """
    world = World(
        path,
        names=NAMES,
        values={**VALUES, "privacy": privacy, **values},
        secure=bool(privacy.get("secure_sums")),
        policy=policy or {},
    )
    world.write(lambda folder, name: write_arrays(folder, *DATA[name]))
    for name in NAMES * bool(secret):
        (path / "sites" / name / "answers.json").write_text(json.dumps({"secret": secret}))
    if most_epsilon:
        with (path / "sites" / "clinic" / "site.toml").open("a") as file:
            file.write(f"\n[privacy]\nmost_epsilon = {most_epsilon}\n")
    return world


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Return a world whose run is over."""
    world = world_of(tmp_path_factory.mktemp("once"))
    world.serve()
    return world


@pytest.fixture
def served(once, tmp_path):
    """Return a copy of it."""
    shutil.copytree(once.path, tmp_path, dirs_exist_ok=True, symlinks=True)
    world = copy(once)
    world.path = tmp_path
    return world


def site_of(world, name="clinic"):
    """Return a site as it is after a start."""
    return DeployedSite(world.path / "sites" / name)


def ledger_of(world, name="clinic"):
    return read_entries(world.path / "sites" / name / LEDGER_FILE)


def training(world, client=0):
    """Return the requests to train of a site, and its answers."""
    sent, received = (
        [
            message
            for number, message in messages
            if number == client and message.head["kind"] == "train"
        ]
        for messages in (world.transport.sent, world.transport.received)
    )
    return sent, received


def run_of(world, request, client=0):
    return site_of(world, world.order[client])._run_of(request, client)


def model_in(world, request):
    """Return the model of a request, as one vector."""
    return vector(run_of(world, request)._shared(request.blobs))


def upload_in(world, request, answer, client=0):
    """Return an upload by field, each as one vector."""
    run = run_of(world, request, client)
    out = from_blob(answer.blobs["out"], run.modules)
    upload = unpack_upload(out["upload"], run._messages)
    return {name: vector(entry.value) for name, entry in upload.items()}


def vector(value):
    """Return all numbers of a tree."""
    if isinstance(value, torch.Tensor):
        return value.flatten().double()
    children = value.values() if isinstance(value, dict) else value
    return torch.cat([vector(child) for child in children])


def other_model(request):
    """Return a request with a model of which one bit is another one."""
    raw = bytearray(request.blobs["shared"])
    raw[-1] ^= 1
    return Envelope(dict(request.head), {**request.blobs, "shared": bytes(raw)})


def with_plan(request, **privacy):
    """Return a request whose plan has other options of privacy."""
    config = read_plan(request.blobs["plan"]).config
    return with_config(request, privacy=replace(config.privacy, **privacy))


def with_config(request, **sections):
    """Return a request whose plan has another configuration."""
    plan = read_plan(request.blobs["plan"])
    raw = replace(plan, config=replace(plan.config, **sections)).raw
    return Envelope(dict(request.head), {**request.blobs, "plan": raw})


def refusal(answer):
    assert not answer.blobs
    return answer.head["refused"]


# The same numbers as a simulation, if the noise is no secret


@pytest.mark.parametrize(
    ("privacy", "values"),
    [
        (AT_SITES, {}),
        slow(AT_SITES, {"algorithm": {"name": "scaffold"}}),
        slow({**AT_SITES, "secure_sums": True}, {}),
        slow(AT_SITES, {"algorithm": FEATURES}),
        ({**AT_SITES, "secure_sums": True}, {"algorithm": FEATURES}),
        (IN_SUMS, {"training": ONE_STEP}),
        slow(
            AT_SITES, {"algorithm": {"name": "pfedfda", "preset": "private", "feature_clip": 8.0}}
        ),
    ],
    ids=["steps", "scaffold", "secure steps", "sums", "secure sums", "shares", "pfedfda"],
)
def test_with_noise_of_the_seed_sites_have_the_bits_of_a_simulation(
    tmp_path, monkeypatch, privacy, values
):
    monkeypatch.setattr(SiteMemory, "noise_secret", lambda self, release: b"")
    world = world_of(tmp_path, privacy, **values)
    world.serve()
    assert_same_as_simulation(world)


def test_noise_is_a_secret_of_the_site(tmp_path):
    """The server knows all but the secret, and computes other noise."""
    world = world_of(tmp_path, MUCH_NOISE, secret="", training=ONE_STEP)
    world.serve()
    (request, *_), (answer, *_) = training(world)
    upload = upload_in(world, request, answer)["model"]

    folder = world.path / "sites" / "clinic"
    memory = json.loads((folder / "answers.json").read_text())
    assert len(memory["secret"]) == 64
    (folder / "answers.json").write_text(json.dumps({**memory, "secret": SECRET}))
    guessed = upload_in(world, request, site_of(world).answer(request))["model"]
    model = model_in(world, request)
    assert abs(correlation(upload - model, guessed - model)) < 0.1


def correlation(one, other):
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1])


# How much noise there is


def test_every_site_adds_all_noise_to_its_steps(tmp_path):
    world = world_of(tmp_path, MUCH_NOISE, training=ONE_STEP, federation={"rounds": 1})
    world.serve()
    (request,), (answer,) = training(world)
    change = upload_in(world, request, answer)["model"] - model_in(world, request)
    size = len(run_of(world, request).prepared.positions.train)
    assert float(change.std()) == pytest.approx(0.5 * 50.0 * 0.2 / size, rel=0.05)


def test_the_sum_of_steps_has_shares_of_one_noise(tmp_path):
    privacy = {"unit": "example", "secure_sums": True, "noise": 200.0, "clip": 0.2}
    world = world_of(tmp_path, privacy, training=ONE_STEP, federation={"rounds": 1})
    world.serve()
    (request,), _ = training(world)
    size = sum(
        len(run_of(world, training(world, client)[0][0], client).prepared.positions.train)
        for client in range(4)
    )
    path = world.path / "server" / "runs" / "0001" / "checkpoints"
    change = vector(read_final_state(path, modules={"fedtailor"}).server) - model_in(world, request)

    # A sum is over three sites at least, of which one may give its noise away: two keep theirs.
    expected = 0.5 * 200.0 * 0.2 * math.sqrt(4 / 2) / size
    assert float(change.std()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("secure", "shares"), [(False, 1), (True, 2)])
def test_sums_over_features_have_their_noise(tmp_path, secure, shares):
    privacy = {"unit": "example", "noise": 30.0, "secure_sums": secure, "most_examples": 1000}
    privacy["noise_from"] = "server" if secure else "sites"
    world = world_of(tmp_path, privacy, algorithm=FEATURES)
    world.serve()
    (request,), _ = training(world)
    run = run_of(world, request)
    upload = exact_upload(run)
    noisy = run.releases.hidden(7, upload)
    noise = vector(noisy["sums"].value) - vector(upload["sums"].value)

    # Shares of what an example adds: 0.3 to counts and 1 to sums.
    expected = 30.0 * math.hypot(0.3, 1.0) * 8.0 / math.sqrt(shares)
    assert len(noise) == 1000, "whose deviation has a standard error of 2 %"
    assert float(noise.std()) == pytest.approx(expected, rel=0.15)


def exact_upload(run):
    """Return zeros in the form of an upload of sums over features."""
    from fedtailor.core.message import Sum

    return {
        name: Sum(torch.zeros(field.shapes))
        for name, field in run._messages.items()
        if field.reduction != "none"
    }


# The same request, the same bytes; another one, other noise


@pytest.mark.parametrize("algorithm", [{"name": "fedavg"}, FEATURES], ids=["steps", "sums"])
def test_a_site_that_was_started_again_sends_the_same_bytes_and_counts_once(tmp_path, algorithm):
    world = world_of(tmp_path, secret="", algorithm=algorithm)
    world.serve()
    requests, answers = training(world)
    entries = ledger_of(world)
    assert [entry.round for entry in entries] == [entry.head["round"] for entry in requests]

    for request, answer in zip(requests, answers, strict=True):
        again = site_of(world).answer(request)
        assert again.blobs == answer.blobs
    assert ledger_of(world) == entries


def test_another_attempt_sends_the_same_upload_and_counts_once(served):
    (request, *_), (answer, *_) = training(served)
    entries = ledger_of(served)
    head = {**request.head, "request": {**request.head["request"], "attempt": 1}}
    again = site_of(served).answer(Envelope(head, request.blobs))
    assert again.blobs == answer.blobs
    assert ledger_of(served) == entries


def test_another_request_has_other_noise_and_counts_again(tmp_path):
    """A server asks twice, to subtract what it gets: the noise must not go away."""
    world = world_of(tmp_path, MUCH_NOISE, training=ONE_STEP)
    world.serve()
    requests, answers = training(world)
    request = requests[1]
    others = [
        other_model(request),
        Envelope({**request.head, "round": 3}, request.blobs),
        with_plan(request, clip=0.2000001),
        with_config(request, seeds=(1,)),
    ]
    for other in others[2:]:
        other.head["base"] = None  # the states of another plan are its own

    one = upload_in(world, request, answers[1])["model"] - model_in(world, request)
    for number, other in enumerate(others):
        answer = site_of(world).answer(other)
        two = upload_in(world, other, answer)["model"] - model_in(world, request)
        assert abs(correlation(one, two)) < 0.1
        assert len(ledger_of(world)) == 3 + number


def test_another_state_has_other_noise_and_counts_again(tmp_path):
    world = world_of(tmp_path, MUCH_NOISE, training=ONE_STEP, algorithm={"name": "scaffold"})
    world.serve()
    requests, answers = training(world)
    request = requests[1]
    other = Envelope({**request.head, "base": None}, request.blobs)
    answer = site_of(world).answer(other)

    one = upload_in(world, request, answers[1])["delta"]
    two = upload_in(world, other, answer)["delta"]
    assert abs(correlation(one, two)) < 0.1
    assert len(ledger_of(world)) == 3


def test_other_examples_have_other_noise_even_if_the_run_is_forgotten(tmp_path):
    world = world_of(tmp_path, MUCH_NOISE, training=ONE_STEP, policy={"purposes": 2})
    world.serve()
    (request, *_), (answer, *_) = training(world)

    # A row is corrected, and newer runs have replaced what the site keeps of this one.
    x, y = DATA["clinic"]
    corrected = x.copy()
    corrected[0] = x[0][::-1]
    site = world.path / "sites" / "clinic"
    shutil.rmtree(site / "data")
    write_arrays(site / "data", corrected, y)
    shutil.rmtree(site / "states")
    again = site_of(world).answer(request)

    one = upload_in(world, request, answer)["model"] - model_in(world, request)
    two = upload_in(world, request, again)["model"] - model_in(world, request)
    assert abs(correlation(one, two)) < 0.1
    assert len(ledger_of(world)) == 3


def crafted(world, request, field, **leaves):
    """Return a request of the first round whose model is 0 but for some parameters."""
    run = run_of(world, request)
    shared = run._shared(request.blobs)
    model = {
        name: torch.full_like(leaf, leaves.get(name.replace(".", "_"), 0.0))
        for name, leaf in getattr(shared, field).items()
    }
    blob = to_blob(pack_download(shared._replace(**{field: model}), run._messages), run.modules)
    return Envelope({**request.head, "base": None}, {**request.blobs, "shared": blob})


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_a_loss_that_is_not_finite_does_not_decide_what_is_sent(tmp_path, name):
    """Losses and states that stay at the site have no noise: a yes or no would tell of examples."""
    world = world_of(tmp_path, MUCH_NOISE, training=ONE_STEP, algorithm={"name": name})
    world.serve()
    (request, *_), _ = training(world)
    for bias in (1e20, -1e20):  # all examples overflow, or none
        asked = crafted(world, request, "model", hidden_bias=bias, head_weight=1e20)
        answer = site_of(world).answer(asked)
        assert "out" in answer.blobs and "problem" not in answer.head


def test_a_feature_that_is_not_finite_has_no_part_in_sums(tmp_path):
    method = {"name": "pfedfda", "preset": "private", "feature_clip": 8.0}
    world = world_of(tmp_path, MUCH_NOISE, algorithm=method)
    world.serve()
    (request, *_), _ = training(world)
    asked = crafted(world, request, "body", hidden_weight=3e38, hidden_bias=3e38)
    answer = site_of(world).answer(asked)
    for value in upload_in(world, asked, answer).values():
        assert torch.isfinite(value).all()


def test_scores_of_a_personal_model_tell_nothing_to_the_ledger(tmp_path):
    world = world_of(tmp_path, evaluation={"every": 1, "personalized_every": 1})
    world.serve()
    assert [entry.round for entry in ledger_of(world)] == [1, 2]


# Budgets


def test_a_server_that_asks_more_often_than_planned_is_refused(served):
    requests, _ = training(served)
    assert told_in(served) <= 4.0
    assert refusal(site_of(served).answer(other_model(requests[0]))) == (
        "privacy.epsilon = 4 is used up at this site, which takes no further part in this run."
    )
    assert len(ledger_of(served)) == 2

    # What was told before can be told again.
    assert site_of(served).answer(requests[0]).blobs


def told_in(world, delta=1e-5):
    releases = [
        Release(entry.noise, entry.rate, entry.steps) for entry in ledger_of(world, "clinic")
    ]
    return epsilon_of(delta, releases)


def test_the_limit_of_a_site_holds_over_all_runs(tmp_path):
    world = world_of(tmp_path, federation={"rounds": 4}, most_epsilon=5.0)
    world.serve()
    assert [entry.round for entry in ledger_of(world)] == [1, 2, 3, 4]

    # Another run begins with another seed, and the same examples.
    world.values = {**world.values, "seed": 1}
    (world.path / "server" / "federation.toml").write_text(_toml(world.values))
    world.serve(run="0002")
    told = ledger_of(world)
    assert 5 <= len(told) < 8
    assert told_in(world) <= 5.0
    assert len(ledger_of(world, "office")) == 8

    run = read_run(world.path / "server" / "runs" / "0002")
    reasons = {event["reason"] for event in run.events if event.get("client") == 0}
    (reason,) = {reason.partition("the site says: ")[2] for reason in reasons}
    assert reason == (
        "this site has reached its own limit of epsilon 5 for all runs (privacy.most_epsilon in "
        "site.toml), and takes no further part."
    )
    sentences = describe_told(world.path / "sites" / "clinic", SitePrivacy(most_epsilon=5.0))
    assert len(sentences) == 3
    assert sentences[-1].startswith("All runs with noise together: epsilon 4.")
    assert sentences[-1].endswith("(delta 1e-05) per example, of 5 at most.")


def _toml(values):
    import tomli_w

    return tomli_w.dumps(values)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"epsilon": 0.0, "noise": 1e-6}, "the plan has privacy.epsilon = 0; site.toml allows"),
        ({"epsilon": 100.0}, "the plan has privacy.epsilon = 100; site.toml allows"),
        ({"delta": 0.5}, "the plan has privacy.delta = 0.5; site.toml allows a delta of 1e-05"),
        ({"unit": "none", "noise_from": "server"}, "the plan has no differential privacy"),
    ],
)
def test_a_plan_that_asks_for_less_noise_than_the_site_wants_is_refused(served, changes, problem):
    with (served.path / "sites" / "clinic" / "site.toml").open("a") as file:
        file.write("\n[privacy]\nmost_epsilon = 8.0\n")
    (request, *_), _ = training(served)
    answer = site_of(served).answer(with_plan(request, **changes))
    assert problem in refusal(answer)


# What cannot be hidden is refused, whatever the server says


@pytest.mark.parametrize(
    ("privacy", "problem"),
    [
        ({"unit": "client", "epsilon": 4.0}, "privacy.unit must be 'none' or 'example' at real"),
        (
            {"unit": "example", "epsilon": 4.0},
            "privacy.noise_from must be 'sites' at real sites without privacy.secure_sums",
        ),
    ],
)
def test_a_server_says_at_once_what_sites_cannot_hide(tmp_path, privacy, problem):
    path = tmp_path / "federation.toml"
    path.write_text(_toml({**VALUES, "privacy": privacy}))
    with pytest.raises(ConfigError, match=problem):
        load_federation(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"unit": "client", "noise_from": "server"}, "privacy.unit must be 'none' or 'example'"),
        ({"noise_from": "server"}, "privacy.noise_from must be 'sites' at real sites without"),
    ],
)
def test_a_site_refuses_a_plan_that_hides_nothing(served, changes, problem):
    (request, *_), _ = training(served)
    assert problem in refusal(site_of(served).answer(with_plan(request, **changes)))


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"algorithm": {"name": "fedrod"}}, "cannot promise anything for FedRoD"),
        ({"data": {"normalize": "training"}}, "data.normalize must be 'dataset' or 'l2'"),
        ({"training": {"epochs": 1, "batch_size": 16, "class_weights": "balanced"}}, "class_weig"),
    ],
)
def test_what_noise_cannot_hide_is_refused_by_sites(tmp_path, monkeypatch, values, problem):
    """Whatever the server says: this one does not look at it."""
    monkeypatch.setattr(agreement, "refuse_private_normalization", lambda *args, **named: None)
    world = world_of(tmp_path, **values)
    with pytest.raises(RunError, match=f"refuses: .*{problem}"):
        world.serve()


def test_means_of_training_examples_are_refused_before_sites_say_them(tmp_path):
    world = world_of(tmp_path, data={"normalize": "training"})
    with pytest.raises(ConfigError, match=r"data\.normalize must be 'dataset'"):
        world.serve()
    assert {message.head["kind"] for _, message in world.transport.sent} == {"describe"}


def test_steps_that_have_no_common_noise_are_refused_by_the_site(tmp_path):
    world = world_of(tmp_path, IN_SUMS, training=ONE_STEP)
    world.serve()
    (request, *_), _ = training(world)
    steps = replace(read_plan(request.blobs["plan"]).config.training, steps=2)
    answer = site_of(world).answer(with_config(request, training=steps))
    assert "privacy.noise_from must be 'sites' unless" in refusal(answer)


def test_shares_follow_from_the_sums_that_masks_let_pass(tmp_path):
    """A plan that speaks of larger sums, of more sites that keep their noise, changes nothing."""
    privacy = {"unit": "example", "secure_sums": True, "noise": 20.0}
    world = world_of(tmp_path, privacy, training=ONE_STEP)
    world.serve()
    (request, *_), _ = training(world)
    noise = run_of(world, request).releases.in_training(1).bound(0).noise
    larger = with_plan(request, smallest_sum=50)
    assert run_of(world, larger).releases.in_training(1).bound(0).noise == noise
    fewer = with_plan(request, colluding=1)
    assert run_of(world, fewer).releases.in_training(1).bound(0).noise == noise


def test_a_new_site_that_is_asked_to_train_hides_its_examples_too(tmp_path):
    world = world_of(tmp_path)
    world.new = ("practice",)
    sites = json.loads((world.path / "server" / "sites.json").read_text())
    for site in sites["sites"]:
        site["new"] = site["name"] == "practice"
    (world.path / "server" / "sites.json").write_text(json.dumps(sites))
    world.serve()
    (request, *_), _ = training(world)
    site = site_of(world, "practice")
    answer = site.answer(Envelope({**request.head, "client": 3}, request.blobs))
    assert answer.blobs
    assert len(ledger_of(world, "practice")) == 1


# No release without its entry


def kill_at(patch, moment):
    """End the process before (even moments) or after one of the steps that write to disk."""
    steps = []

    def dying(step):
        def call(*arguments):
            steps.append(step)
            is_last = len(steps) == moment // 2 + 1
            if is_last and moment % 2 == 0:
                raise Killed
            result = step(*arguments)
            if is_last:
                raise Killed
            return result

        return call

    patch.setattr(atomic, "_write_all", dying(atomic._write_all))
    patch.setattr(atomic.os, "fsync", dying(atomic.os.fsync))
    patch.setattr(atomic.os, "replace", dying(atomic.os.replace))


def test_a_site_that_is_killed_at_any_write_tells_the_same_and_counts_it_once(served, monkeypatch):
    (request, *_), (answer, *_) = training(served)
    path = served.path / "sites" / "clinic" / LEDGER_FILE
    moment = 0
    while True:
        path.unlink()
        site = site_of(served)
        with monkeypatch.context() as patch:
            kill_at(patch, moment)
            try:
                site.answer(request)
                break
            except Killed:
                moment += 1

        assert site_of(served).answer(request).blobs == answer.blobs
        assert [entry.round for entry in ledger_of(served)] == [1]
    assert moment > 20


def test_a_line_that_was_never_whole_is_written_again(served):
    (request, *_), (answer, *_) = training(served)
    path = served.path / "sites" / "clinic" / LEDGER_FILE
    first = path.read_text().splitlines(keepends=True)[0]
    path.write_text(first[:50])
    assert describe_told(path.parent, SitePrivacy()) == []
    assert site_of(served).answer(request).blobs == answer.blobs
    assert path.read_text() == first


def test_without_room_for_the_entry_nothing_leaves(served, monkeypatch):
    (request, *_), _ = training(served)
    folder = served.path / "sites" / "clinic"
    whole = (folder / LEDGER_FILE).read_bytes()
    site = site_of(served)
    head = {**request.head, "round": 2, "base": None}
    write = atomic._write_all

    def full(file, data):
        if file.name.endswith(LEDGER_FILE):
            write(file, data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, data)

    (folder / LEDGER_FILE).write_bytes(whole.splitlines(keepends=True)[0])
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "_write_all", full)
        answer = site.answer(Envelope(head, request.blobs))
    assert (
        refusal(answer)
        == "cannot write 'the site's folder/privacy.jsonl': No space left on device."
    )
    assert len(ledger_of(served)) == 1

    # With room, it is entered, and answered.
    assert site.answer(Envelope(head, request.blobs)).blobs
    assert [entry.round for entry in ledger_of(served)] == [1, 2]


def test_a_ledger_that_was_changed_stops_the_site(served):
    (request, *_), _ = training(served)
    path = served.path / "sites" / "clinic" / LEDGER_FILE
    path.write_text('{"round": 1}\n' + path.read_text())
    assert "line 1 is not a release" in refusal(site_of(served).answer(request))


# What is said of it


def test_server_card_and_page_say_what_was_told(tmp_path, capsys):
    world = world_of(tmp_path)
    result = world.serve()
    record = result["privacy"]
    assert (record["unit"], record["epsilon"], record["delta"]) == ("example", 4.0, 1e-5)
    assert record["claim"].startswith(
        "epsilon 4.00 (delta 1e-05) per example, for whoever sees uploads or the global models; "
        "not covered: scores, "
    )
    assert "seed" not in record["claim"]
    assert what_leaves_run(world.path / "server" / "runs" / "0001")["claims"] == [record["claim"]]

    clinic = world.path / "sites" / "clinic"
    card = json.loads((clinic / "model" / "models" / "clinic.json").read_text())
    assert card["privacy"]["epsilon"] == pytest.approx(4.0, rel=1e-3)
    assert card["privacy"]["epsilon"] <= 4.0
    assert card["privacy"]["claim"].split(",")[1:] == record["claim"].split(",")[1:]

    from fedtailor.cli.main import main

    assert main(["site", "leaves", str(clinic)]) == 0
    text = capsys.readouterr().out
    assert "2 rounds, epsilon 4.00 (delta 1e-05) per example." in text
    assert "* All runs with noise together: epsilon 4.00 (delta 1e-05) per example." in text

    assert main(["site", "status", str(clinic), "--out", str(tmp_path / "page.html")]) == 0
    total = "All runs with noise together: epsilon 4.00 (delta 1e-05) per example."
    assert f"What noise has let pass: {total}" in " ".join(capsys.readouterr().err.split())
    assert total in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("privacy", [AT_SITES, slow({**AT_SITES, "secure_sums": True})])
def test_training_metrics_have_no_noise_and_stay(tmp_path, privacy):
    world = world_of(tmp_path, privacy)
    world.serve()
    run = read_run(world.path / "server" / "runs" / "0001")
    assert not any("loss" in line["training_metrics"] for line in run.rounds)


@pytest.mark.parametrize(
    ("privacy", "values", "epsilon"),
    [
        ({"noise": 20.0, "noise_from": "sites"}, {"training": ONE_STEP}, True),
        slow({"noise": 20.0, "noise_from": "sites"}, {}, True),
        ({"noise": 20.0, "noise_from": "sites", "secure_sums": True}, {}, None),
        slow({"noise": 20.0, "secure_sums": True}, {"training": ONE_STEP}, True),
        slow({"noise": 20.0, "secure_sums": True}, {"algorithm": FEATURES}, True),
    ],
)
def test_the_server_knows_a_bound_as_far_as_it_can(tmp_path, privacy, values, epsilon):
    """With secure sums it does not know numbers of examples, on which steps with batches depend."""
    world = world_of(tmp_path, {"unit": "example", **privacy}, **values)
    if privacy.get("secure_sums"):
        for name in NAMES:
            path = world.path / "sites" / name / "site.toml"
            path.write_text(path.read_text().replace(', "single"', ""))
    record = world.serve()["privacy"]
    if epsilon is None:
        assert record["epsilon"] is None
        assert record["claim"].startswith("epsilon without a bound")
    else:
        assert record["epsilon"] == pytest.approx(max_told(world))


def max_told(world):
    return max(
        epsilon_of(1e-5, [Release(e.noise, e.rate, e.steps) for e in ledger_of(world, name)])
        for name in NAMES
    )
