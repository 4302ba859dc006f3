"""Sites and servers that are killed, silent, late or hostile: the run ends as a simulation with the
same absences."""

import time

import pytest
import torch

from fedtailor.core.codec import decode, encode
from fedtailor.core.errors import ConfigError
from fedtailor.deployment.conduct import allow
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.exchange import SiteFailure
from fedtailor.deployment.federation_folder import FederationFolder
from fedtailor.deployment.membership import pause_site
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.state import SiteState
from fedtailor.experiment.reader import read_run
from fedtailor.experiment.what_leaves import what_leaves_run
from marks import quick
from sites import (
    ABSENCES,
    VALUES,
    FunctionTransport,
    Killed,
    World,
    assert_same_as_simulation,
    divide_digits,
    write_arrays,
)

DATA = divide_digits(rows=30)
METHODS = ["scaffold", "pfedfda", "fedpac"]
PATIENCE = {"deadline": 0.3, "resend": 0.05, "grace": 0.1}
BAD = 1
"""The number of the site that misbehaves."""


class Patient(FunctionTransport):
    """A transport that takes its time where nothing arrives."""

    def receive(self, seconds):
        """Wait a little for what may still come."""
        if not self.arrived:
            time.sleep(0.01)
        return super().receive(seconds)


def without_models_of(number):
    """Return what makes a transport in which a site is away when personal models are made."""

    def make(sites):
        answers = [site.answer for site in sites]
        last = answers[number]

        def answer(request):
            return None if request.head.get("kind") == "personalize" else last(request)

        answers[number] = answer
        return Patient(answers)

    return make


def world_of(path, name, **values):
    """Return a world of three sites."""
    settings = {
        **VALUES,
        "algorithm": {"name": name},
        "deploy": PATIENCE,
        "federation": {"rounds": 4},
        **values,
    }
    return World(path, values=settings).write(
        lambda folder, site: write_arrays(folder, *DATA[site])
    )


@pytest.mark.parametrize("moment", quick(range(10), 7))
def test_a_server_that_is_killed_goes_on_with_the_same_bits(tmp_path, moment):
    world = world_of(tmp_path, ["scaffold", "fedpac"][moment % 2])

    class Killing(Patient):
        def receive(self, seconds):
            if len(self.sent) > 2 * moment:
                raise Killed
            return super().receive(seconds)

    with pytest.raises(Killed):
        world.serve(lambda sites: Killing([site.answer for site in sites]))
    world.serve()
    run = assert_same_as_simulation(world)
    assert not [event for event in run.events if event["kind"] in ABSENCES]
    assert [line["round"] for line in run.rounds] == [1, 2, 3, 4]


@pytest.mark.parametrize("moment", quick(range(10), 3))
@pytest.mark.parametrize("after", quick([False, True], True))
def test_a_site_that_is_killed_answers_again_with_the_same_bits(tmp_path, moment, after):
    world = world_of(
        tmp_path, "scaffold" if after else "fedrep", deploy={**PATIENCE, "deadline": 30.0}
    )

    def killed_once(site, folder):
        state = {"site": site, "count": 0}

        def answer(request):
            state["count"] += 1
            if state["count"] != moment // 2 + 3:
                return state["site"].answer(request)
            if after:
                state["site"].answer(request)
            state["site"] = DeployedSite(folder)  # the process that was started again
            return None

        return answer

    def make(sites):
        answers = [site.answer for site in sites]
        answers[moment % 3] = killed_once(sites[moment % 3], sites[moment % 3].folder)
        return Patient(answers)

    world.serve(make)
    run = assert_same_as_simulation(world)
    assert not [event for event in run.events if event["kind"] in ABSENCES]


@pytest.mark.parametrize("name", quick(METHODS, "scaffold"))
def test_a_silent_site_is_absent_and_goes_on_from_its_last_state(tmp_path, name):
    world = world_of(tmp_path, name)

    def silent_in_rounds(site, rounds):
        def answer(request):
            is_silent = request.head.get("kind") == "train" and request.head["round"] in rounds
            return None if is_silent else site.answer(request)

        return answer

    def make(sites):
        answers = [site.answer for site in sites]
        answers[BAD] = silent_in_rounds(sites[BAD], {2, 3})
        return Patient(answers)

    world.serve(make)
    run = assert_same_as_simulation(world)
    assert [
        (event["round"], event["client"]) for event in run.events if event["kind"] == "absent"
    ] == [(2, 1), (3, 1)]


def changed(change):
    """Return a change of what an answer holds: ``change(out)`` gets the tree."""

    def apply(answer):
        out = decode(answer.blobs["out"], modules={"fedtailor"})
        return Envelope(answer.head, {"out": encode(change(out))})

    return apply


def with_upload(change):
    """Return a change of the first tensor of an upload."""

    def apply(out):
        field = next(iter(out["upload"]["values"]))
        leaves = dict(out["upload"]["values"][field])
        path = next(iter(leaves))
        leaves[path] = change(leaves[path])
        values = {**out["upload"]["values"], field: leaves}
        return {**out, "upload": {**out["upload"], "values": values}}

    return changed(apply)


def poked(value):
    """Return a change that puts a number into a tensor."""

    def change(leaf):
        leaf = leaf.clone()
        leaf.flatten()[0] = value
        return leaf

    return with_upload(change)


LIES = {
    "a million correct": changed(
        lambda out: {
            **out,
            "scores": out["scores"]._replace(class_correct=out["scores"].class_correct + 1e9),
        }
    ),
    "negative steps": changed(
        lambda out: {**out, "metrics": {**out["metrics"], "steps": torch.tensor(-5)}}
    ),
    "a name of a metric that rewrites the screen": changed(
        lambda out: {**out, "metrics": {"\x1b[2J": torch.tensor(1.0)}}
    ),
}
"""Answers to a request to train that no honest site gives, where scores are asked for."""

BAD_ANSWERS = {
    **LIES,
    "nan": poked(torch.nan),
    "infinite": poked(torch.inf),
    "huge": poked(1e35),
    "another shape": with_upload(lambda leaf: leaf.new_zeros(3, 3, 3)),
    "another type": with_upload(lambda leaf: leaf.to(torch.float16)),
    "whole numbers": with_upload(lambda leaf: leaf.long()),
    "one number": with_upload(lambda leaf: leaf.flatten()[0].clone()),
    "no field": changed(lambda out: {**out, "upload": {**out["upload"], "values": {}}}),
    "no upload": changed(lambda out: {**out, "upload": ()}),
    "other keys": changed(lambda out: {"upload": out["upload"]}),
    "no tree": lambda answer: Envelope(answer.head, {"out": b"garbage" * 100}),
    "cut": lambda answer: Envelope(answer.head, {"out": answer.blobs["out"][:-7]}),
    "empty": lambda answer: Envelope(answer.head, {}),
    "a metric that is not finite": changed(
        lambda out: {**out, "metrics": {"loss": torch.tensor(torch.nan)}}
    ),
    "metrics of another form": changed(lambda out: {**out, "metrics": {"loss": torch.zeros(4)}}),
    "thousands of metrics": changed(
        lambda out: {**out, "metrics": {str(number): torch.zeros(()) for number in range(5000)}}
    ),
    "scores of another form": changed(lambda out: {**out, "scores": (torch.zeros(2),)}),
    "says that it failed": lambda answer: Envelope({**answer.head, "failed": "\x1b[2Jno"}, {}),
    "refuses": lambda answer: Envelope({**answer.head, "refused": ["not", "text"]}, {}),
    "a problem of another form": lambda answer: Envelope({**answer.head, "problem": 7}, {}),
    "another round": lambda answer: Envelope(
        {**answer.head, "round": answer.head["round"] + 1}, answer.blobs
    ),
    "another site": lambda answer: Envelope({**answer.head, "client": 0}, answer.blobs),
    "another run": lambda answer: Envelope({**answer.head, "run": "x"}, answer.blobs),
    "lost on the way": lambda answer: SiteFailure("failed", "a damaged reply"),
}


@pytest.mark.parametrize(
    "kind",
    quick(BAD_ANSWERS, "nan", "cut", "another round", "a million correct"),
)
@pytest.mark.parametrize("name", quick(METHODS, "fedpac"))
def test_a_bad_answer_changes_nothing_for_the_other_sites(tmp_path, name, kind):
    world = world_of(
        tmp_path,
        name,
        federation={"rounds": 2},
        evaluation={"every": 1, "personalized_every": 0},
        deploy={**PATIENCE, "deadline": 0.1},
    )

    def bad(site):
        def answer(request):
            given = site.answer(request)
            if request.head.get("kind") != "train":
                return given
            return BAD_ANSWERS[kind](given)

        return answer

    def make(sites):
        answers = [site.answer for site in sites]
        answers[BAD] = bad(sites[BAD])
        return Patient(answers)

    world.serve(make)
    run = assert_same_as_simulation(world)
    assert {event["client"] for event in run.events if event["kind"] in ABSENCES} == {BAD}
    assert len([event for event in run.events if event["kind"] in ABSENCES]) == 2
    assert all("\x1b" not in event.get("reason", "") for event in run.events)


def test_a_site_that_lies_three_times_is_asked_no_more_until_it_is_allowed(tmp_path):
    world = world_of(tmp_path, "scaffold", federation={"rounds": 6}, evaluation={"every": 6})
    asked = []

    def lying(site):
        def answer(request):
            kind = request.head.get("kind")
            if kind != "train":
                return site.answer(request)

            asked.append(request.head["round"])
            if request.head["round"] == 5:
                return site.answer(request)
            return LIES["negative steps"](site.answer(request))

        return answer

    server = tmp_path / "server"

    def make(sites):
        answers = [site.answer for site in sites]
        answers[BAD] = lying(sites[BAD])
        plain = answers[0]

        def first(request):
            # The operator believes the site again while round 4 is done.
            if request.head.get("kind") == "train" and request.head["round"] == 4:
                assert allow(server, world.order[BAD]) == 3
            return plain(request)

        answers[0] = first
        return Patient(answers)

    world.serve(make)
    run = assert_same_as_simulation(world)
    events = [(event["round"], event["kind"]) for event in run.events if event["kind"] in ABSENCES]
    assert asked == [1, 2, 3, 5, 6]
    assert events == [(1, "failed"), (2, "failed"), (3, "failed"), (4, "absent"), (6, "failed")]
    assert all("deploy allow" in e["reason"] for e in run.events if e["kind"] == "absent")
    assert all(line["steps"] > 0 for line in run.rounds)


def test_a_site_whose_method_fails_is_left_out_and_its_log_says_why(tmp_path, caplog):
    world = world_of(tmp_path, "fedavg")

    def make(sites):
        broken = sites[BAD]
        plain = broken.answer

        def answer(request):
            reply = plain(request)
            if broken._run is not None:
                object.__setattr__(broken._run.plan.algorithm, "local_update", raising)
            return reply

        return Patient([answer if site is broken else site.answer for site in sites])

    def raising(*arguments):
        raise ValueError("patient 17 has no label")

    world.serve(make)
    run = assert_same_as_simulation(world)
    reasons = [event["reason"] for event in run.events if event["kind"] == "failed"]
    assert reasons
    assert all("ValueError" in reason and "patient" not in reason for reason in reasons)
    assert "patient 17" in caplog.text


def test_what_a_site_says_of_its_own_work_is_the_reason(tmp_path):
    """A site whose work is unusable sends no upload, and this is not what is wrong with it."""
    world = world_of(tmp_path, "fedavg", federation={"rounds": 2})

    def make(sites):
        broken = sites[BAD]
        plain = broken.answer

        def answer(request):
            reply = plain(request)
            if broken._run is not None:
                algorithm = broken._run.plan.algorithm
                object.__setattr__(algorithm, "local_update", without_a_number(algorithm))
            return reply

        return Patient([answer if site is broken else site.answer for site in sites])

    def without_a_number(algorithm):
        train = type(algorithm).local_update

        def local_update(*arguments):
            update = train(algorithm, *arguments)
            return update._replace(metrics={"loss": torch.tensor(torch.nan)})

        return local_update

    world.serve(make)
    run = assert_same_as_simulation(world)
    events = [event for event in run.events if event["kind"] == "quarantine"]
    assert {event["client"] for event in events} == {BAD}
    assert all("the site says that its work cannot be used" in e["reason"] for e in events)


def test_a_site_that_runs_out_of_memory_says_so_at_once(tmp_path, monkeypatch):
    world = world_of(tmp_path, "scaffold", deploy={**PATIENCE, "deadline": 60.0, "grace": 60.0})
    save = SiteState.save

    def failing(self, version, state):
        if world.order[BAD] in str(self.folder) and version.round == 2:
            raise MemoryError
        save(self, version, state)

    monkeypatch.setattr(SiteState, "save", failing)
    world.serve(lambda sites: Patient([site.answer for site in sites]))
    run = assert_same_as_simulation(world)
    events = [event for event in run.events if event["kind"] in ABSENCES]
    assert [(event["round"], event["client"]) for event in events] == [(2, BAD)]
    assert "MemoryError" in events[0]["reason"]
    assert all(line["seconds"]["train"] < 30 for line in run.rounds)


@pytest.mark.parametrize("new", [("practice",), ()])
def test_nobody_waits_beyond_the_deadline_for_the_models_of_a_site(tmp_path, new):
    training = len(DATA) - len(new)
    federation = {"rounds": 1, "min_clients": training}
    values = {**VALUES, "deploy": PATIENCE, "federation": federation}
    world = World(tmp_path, values=values, new=new)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))

    world.serve(without_models_of(2))
    run = read_run(tmp_path / "server" / "runs" / "0001")
    assert {event["client"] for event in run.events if event["kind"] == "absent"} == {2}


def test_what_has_left_counts_a_site_that_is_away_at_the_end(tmp_path):
    world = world_of(tmp_path, "fedavg")
    world.serve(without_models_of(BAD))
    sites = what_leaves_run(tmp_path / "server" / "runs" / "0001")["sites"]
    assert [site["rounds"] for site in sites] == [4, 4, 4]
    assert len({site["bytes"] for site in sites}) == 1


def test_a_server_of_which_all_sites_are_paused_says_how_they_come_back(tmp_path):
    world = world_of(tmp_path, "fedavg")
    for name in world.names:
        pause_site(FederationFolder(tmp_path / "server"), name)

    with pytest.raises(ConfigError, match=r"clinic is paused .'fedtailor deploy resume"):
        world.serve()
