"""Sites that come and go while a run is under way: the run has the bits of a simulation with the
same history."""

import contextlib
import json
import random
import shutil
from itertools import product

import pytest

from fedtailor import __version__
from fedtailor.core.errors import ConfigError
from fedtailor.deployment import membership
from fedtailor.deployment.federation_folder import FederationFolder, Registered
from fedtailor.deployment.membership import (
    joins_run,
    names_of,
    pause_site,
    read_history,
    register_site,
    remove_site,
    resume_site,
)
from fedtailor.deployment.server import serve_rounds
from fedtailor.deployment.site import DeployedSite
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.reader import read_run
from marks import quick, slow
from sites import (
    VALUES,
    FunctionTransport,
    Killed,
    World,
    assert_same_as_simulation,
    divide_digits,
    write_arrays,
    write_table,
)

NAMES = ("clinic", "hospital", "office", "practice")
LATE = ("annex", "zoo")
"""Sites that can join; by name, one of them comes before the others."""
DATA = divide_digits((*NAMES, *LATE), rows=20)
ROUNDS = 5
METHODS = ("scaffold", "fedrep", "pfedfda", "fedfomo", "local", "feddyn", "pfedhn")


def world_of(path, name, late=(), **federation):
    """Return a world of four sites, and of others that are not registered yet.

    A round would wait for a minute for a site that is silent.
    """
    values = {
        **VALUES,
        "algorithm": {"name": name},
        "deploy": {"deadline": 60.0, "resend": 60.0, "grace": 60.0},
        "federation": {"rounds": ROUNDS, **federation},
        "evaluation": {"every": 2, "personalized_every": 3},
    }
    world = World(path, names=(*NAMES, *late), values=values)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))
    for site in late:
        FederationFolder(path / "server").remove(site)
    return world


def do(folder, command, name):
    """Run a command of the server's operator."""
    folder = FederationFolder(folder)
    if command == "remove":
        remove_site(folder, name)
    elif command == "pause":
        pause_site(folder, name)
    elif command == "add":
        register_site(folder, Registered(name, f"ssh {name}", new=False))
    else:
        resume_site(folder, name)


class Operator:
    """Does something when the sites are asked to train, once for every step of the script."""

    def __init__(self, world, script=()):
        """Take the steps: (round, command, name, how).

        ``how`` is nothing, or ``silent``: the site does not answer in that round any more, or
        ``killed``: the server is killed in that round, after the command.
        """
        self.folder = world.path / "server"
        self.script = list(script)
        self.silent = set()
        self.sites = {name: DeployedSite(world.path / "sites" / name) for name in world.names}
        self.asked = {}
        """The rounds in which each site was asked to train."""

    def transport(self, numbers):
        """Return the transport to sites with numbers by name."""
        operator = self
        names = sorted(numbers, key=numbers.get)

        class Transport(FunctionTransport):
            def send(self, requests):
                head = next(iter(requests.values())).head
                kill = head.get("kind") == "train" and operator.work(head["round"])
                for client in requests if head.get("kind") == "train" else ():
                    operator.asked.setdefault(names[client], []).append(head["round"])

                silent = operator.silent
                super().send(
                    {client: r for client, r in requests.items() if names[client] not in silent}
                )
                if kill:
                    raise Killed

        return Transport([self.sites[name].answer for name in names])

    def serve(self):
        """Run until the end, or until the server is killed."""
        return serve_rounds(self.folder, self.folder / "runs" / "0001", self.transport)

    def work(self, round):
        """Do what is due in a round; return whether the server is killed then."""
        due = [step for step in self.script if step[0] == round]
        self.script = [step for step in self.script if step[0] != round]
        kill = False
        for _, command, name, how in due:
            try:
                do(self.folder, command, name)
            except ConfigError:
                continue  # a history that cannot be
            kill = kill or how == "killed"
            if how == "silent" and command != "resume":
                self.silent.add(name)

        self.silent -= {name for _, command, name, _ in due if command == "resume"}
        return kill


def serve(world, script):
    """Run to the end, and start the server again whenever it is killed."""
    operator = Operator(world, script)
    while True:
        try:
            operator.serve()
            return operator
        except Killed:
            continue


def random_script(seed):
    """Return some steps of a random history."""
    choice = random.Random(seed)
    script = []
    for round in range(1, ROUNDS + 1):
        for _ in range(choice.choice((0, 1, 1, 2))):
            command = choice.choice(("pause", "pause", "resume", "resume", "remove", "add"))
            how = choice.choice(("", "", "silent", "killed"))
            names = LATE if command == "add" else (*NAMES, *LATE)
            script.append((round, command, choice.choice(names), how))

    return script


@pytest.mark.parametrize("seed", quick(range(50), 0))
def test_random_histories_have_the_bits_of_a_simulation(tmp_path, seed):
    plan = (1.0, 0.6, "fixed(2)")[seed % 3]
    world = world_of(tmp_path, METHODS[seed % len(METHODS)], LATE, participation=plan)
    serve(world, random_script(seed))
    assert_same_as_simulation(world, check_states=True)


def test_a_paused_site_is_not_asked_and_keeps_its_state(tmp_path):
    world = world_of(tmp_path, "scaffold")
    operator = serve(world, [(1, "pause", "office", ""), (3, "resume", "office", "")])
    run = assert_same_as_simulation(world, check_states=True)
    assert read_history(run.path) == ("2 pause office", "4 resume office")

    assert operator.asked == {name: [1, 2, 3, 4, 5] for name in NAMES} | {"office": [1, 4, 5]}
    assert [(event["kind"], event["round"]) for event in run.events if "client" in event] == [
        ("paused", 2),
        ("resumed", 4),
    ]


@pytest.mark.parametrize("command", quick(["pause", "remove"], "remove"))
def test_nobody_waits_for_a_silent_site_that_is_paused_or_removed(tmp_path, command):
    world = world_of(tmp_path, "scaffold")
    serve(world, [(2, command, "office", "silent")])
    run = assert_same_as_simulation(world, check_states=True)
    absent = [event for event in run.events if event["kind"] == "absent"]
    assert [(event["round"], event["client"]) for event in absent] == [(2, 2), (2, 2)]
    assert "it was" in absent[0]["reason"]
    assert not (world.path / "sites" / "office" / "model").exists()


@pytest.mark.parametrize("step", quick(["write_split", "write_provenance"], "write_split"))
def test_a_server_that_is_killed_while_a_site_joins(tmp_path, monkeypatch, step):
    world = world_of(tmp_path, "scaffold", LATE)
    write = getattr(RunFolder, step)
    calls = []

    def killed_once(folder, value):
        calls.append(value)
        if len(calls) == 3:
            raise Killed
        write(folder, value)

    # Once for the folder, once for the first round.
    monkeypatch.setattr(RunFolder, step, killed_once)
    if step == "write_split":
        calls.append(None)
    serve(world, [(2, "add", "zoo", "")])
    assert len(calls) > 3
    run = assert_same_as_simulation(world, check_states=True)
    assert read_history(run.path) == ("3 join zoo",)
    assert run.client_names == [*NAMES, "zoo"]


@pytest.mark.parametrize("before", quick([True, False], True))
def test_a_server_that_is_killed_while_it_notes_a_change(tmp_path, monkeypatch, before):
    world = world_of(tmp_path, "scaffold")
    write = membership.write_json

    def killed_once(path, record, **form):
        monkeypatch.setattr(membership, "write_json", write)
        if not before:
            write(path, record, **form)
        raise Killed

    monkeypatch.setattr(membership, "write_json", killed_once)
    serve(world, [(2, "remove", "clinic", ""), (3, "pause", "office", "")])
    run = assert_same_as_simulation(world, check_states=True)
    assert read_history(run.path) == ("3 leave clinic", "4 pause office")


def test_changes_while_no_server_runs(tmp_path):
    world = world_of(tmp_path, "fedrep")
    operator = Operator(world, [(3, "pause", "office", "killed")])
    with pytest.raises(Killed):
        operator.serve()
    do(world.path / "server", "remove", "clinic")
    operator.serve()
    run = assert_same_as_simulation(world, check_states=True)
    assert read_history(run.path) == ("3 leave clinic", "3 pause office")


@pytest.mark.parametrize("name", quick(METHODS, "scaffold"))
def test_sites_that_join_take_part_from_the_next_round_on(tmp_path, name):
    world = world_of(tmp_path, name, LATE)
    operator = serve(
        world, [(2, "add", "zoo", ""), (2, "remove", "office", ""), (3, "add", "annex", "killed")]
    )
    run = assert_same_as_simulation(world, check_states=True)
    lines = ("3 leave office", "3 join zoo", "4 join annex")
    assert read_history(run.path) == lines
    assert set(operator.asked["zoo"]) == {3, 4, 5} and set(operator.asked["office"]) == {1, 2}

    # Whoever reads the run folder finds them with their names and examples.
    assert run.client_names == [*NAMES, "zoo", "annex"]
    assert run.result["sites"]["zoo"]["num_train"] > 0
    joined = [event for event in run.events if event["kind"] == "joined"]
    assert [(event["round"], event["client"]) for event in joined] == [(3, 4), (4, 5)]


def test_a_site_with_a_table_joins_by_the_columns_that_were_agreed_on(tmp_path):
    values = {**VALUES, "federation": {"rounds": 3}, "model": {"name": "linear"}}
    world = World(tmp_path, names=(*NAMES, "annex"), values=values).write(write_table)
    FederationFolder(world.path / "server").remove("annex")
    serve(world, [(1, "add", "annex", "")])
    run = assert_same_as_simulation(world, check_states=True)
    assert read_history(run.path) == ("2 join annex",)


@pytest.mark.parametrize(
    ("values", "new"),
    [
        slow({}, ("office",)),
        ({"data": {"val_fraction": 0.2}, "evaluation": {"select": "best", "every": 1}}, ()),
    ],
)
def test_runs_that_take_in_nobody(tmp_path, values, new):
    evaluation = {"every": 1, "personalized_every": 1, **values.get("evaluation", {})}
    values = {**VALUES, **values, "evaluation": evaluation}
    world = World(tmp_path, names=NAMES, new=new, values=values)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))
    joins = []

    def act(round):
        if round == 1:
            do(operator.folder, "add", "zoo")
            joins.append(joins_run(FederationFolder(operator.folder), "zoo"))
        return False

    operator = Operator(world)
    operator.work = act
    operator.serve()
    assert joins == [False] and "zoo" not in operator.asked


def test_a_site_that_cannot_join_costs_the_others_nothing(tmp_path):
    world = world_of(tmp_path, "fedavg", LATE)
    data = world.path / "sites" / "zoo" / "data" / "zoo"
    shutil.rmtree(data)
    x, y = DATA["zoo"]
    write_arrays(data, x[:, :5], y)
    operator = serve(world, [(1, "add", "zoo", "")])
    run = assert_same_as_simulation(world)
    notes = [event for event in run.events if "does not join" in event.get("text", "")]
    assert [note["round"] for note in notes] == [2, 3, 5]
    assert "zoo" not in operator.asked and "(1, 5, 8)" in notes[0]["text"]


def test_a_site_without_scores_does_not_join_where_scores_decide(tmp_path):
    values = {
        **VALUES,
        "data": {"val_fraction": 0.2},
        "federation": {"rounds": 3},
        "evaluation": {"every": 1, "personalized_every": 1, "patience": 3},
    }
    world = World(tmp_path, names=(*NAMES, "zoo"), values=values)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))
    FederationFolder(tmp_path / "server").remove("zoo")
    options = tmp_path / "sites" / "zoo" / "site.toml"
    options.write_text("share = []\n" + options.read_text())

    operator = serve(world, [(1, "add", "zoo", "")])
    events = read_run(tmp_path / "server" / "runs" / "0001").events
    assert any("'zoo' does not share scores" in event.get("text", "") for event in events)
    assert "zoo" not in operator.asked


def test_a_site_can_be_added_beside_a_run_of_another_version(tmp_path):
    world = world_of(tmp_path, "fedavg", LATE)

    def kill(round):
        raise Killed

    operator = Operator(world)
    operator.work = kill
    with contextlib.suppress(Killed):
        operator.serve()

    plan = tmp_path / "server" / "runs" / "0001" / "plan.json"
    plan.write_text(plan.read_text().replace(__version__, "99.0"))
    do(operator.folder, "add", "zoo")
    assert not joins_run(FederationFolder(operator.folder), "zoo")


def test_the_name_of_a_site_that_left_is_not_given_again(tmp_path):
    world = world_of(tmp_path, "fedavg")
    folder = world.path / "server"
    refused = []

    def again(round):
        if round == 3:
            with pytest.raises(ConfigError, match="keeps its number") as caught:
                do(folder, "add", "office")
            refused.append(caught.value.message)
        return Operator.work(operator, round)

    operator = Operator(world, [(2, "remove", "office", "")])
    operator.work = again
    operator.serve()
    assert len(refused) == 1
    do(folder, "add", "office")
    assert names_of(folder / "runs" / "0001") == list(NAMES)


def test_a_site_that_is_paused_before_the_run_begins_is_not_waited_for(tmp_path):
    world = world_of(tmp_path, "fedavg")

    class Transport(FunctionTransport):
        def send(self, requests):
            # The last site never answers.
            super().send({client: r for client, r in requests.items() if client < 3})
            if not FederationFolder(world.path / "server").away(NAMES):
                do(world.path / "server", "pause", "practice")

    world.serve(lambda sites: Transport([site.answer for site in sites]))
    sites = json.loads((world.path / "server/runs/0001/provenance.json").read_text())["sites"]
    assert [site["name"] for site in sites] == ["clinic", "hospital", "office"]


def test_too_few_sites_cannot_remain(tmp_path):
    world = world_of(tmp_path, "fedavg", min_clients=2)
    folder = world.path / "server"
    refused = []

    class Transport(FunctionTransport):
        def send(self, requests):
            head = next(iter(requests.values())).head
            if head.get("kind") == "train" and head["round"] == 1:
                do(folder, "pause", "clinic")
                do(folder, "remove", "hospital")
                for command in ("pause", "remove"):
                    with pytest.raises(ConfigError, match="its rounds need 2") as caught:
                        do(folder, command, "office")
                    refused.append(caught.value.message)
                do(folder, "remove", "clinic")
            super().send(requests)

    world.serve(lambda sites: Transport([site.answer for site in sites]))
    assert len(refused) == 2 and "without 'office', 1 sites" in refused[0]

    # Once the run has finished, nothing is needed any more.
    do(folder, "remove", "office")
    do(folder, "remove", "practice")
    assert FederationFolder(folder).sites() == []


class Moment(Operator):
    """Pauses or removes a silent site when a request of some kind is sent first in round 2."""

    def __init__(self, world, kind, command, *, kill):
        super().__init__(world)
        self.kind = kind
        self.command = command
        self.kill = kill

    def transport(self, numbers):
        """Return the transport to sites with numbers by name."""
        operator = self
        transport = super().transport(numbers)
        send = transport.send

        def send_or_act(requests):
            heads = [request.head for request in requests.values()]
            is_due = any(operator.kind == head.get("kind") for head in heads)
            is_due = is_due and any(head.get("round") == 2 for head in heads)
            if operator.command and is_due:
                operator.silent.add("office")
                do(operator.folder, operator.command, "office")
                operator.command = ""
                if operator.kill:
                    raise Killed
            send(requests)

        transport.send = send_or_act
        return transport


@pytest.mark.parametrize(
    ("kill", "command", "kind"),
    quick(
        list(product([False, True], ["pause", "remove"], ["train", "unmask"])),
        (True, "remove", "train"),
        (True, "pause", "unmask"),
    ),
)
def test_secure_sums_go_on_without_a_site_that_is_paused_or_removed(tmp_path, kind, command, kill):
    values = {
        **VALUES,
        "algorithm": {"name": "scaffold"},
        "deploy": {"deadline": 60.0, "resend": 60.0, "grace": 60.0},
        "federation": {"rounds": 4},
        "privacy": {"secure_sums": True},
    }
    world = World(tmp_path, names=NAMES, values=values, secure=True)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))
    operator = Moment(world, kind, command, kill=kill)
    with contextlib.suppress(Killed):
        operator.serve()
    operator.serve()
    run = assert_same_as_simulation(world, check_states=True)
    change = "pause" if command == "pause" else "leave"
    assert [line.split()[1:] for line in read_history(run.path)] == [[change, "office"]]


def test_secure_sums_refuse_other_sites_and_too_few(tmp_path):
    values = {**VALUES, "privacy": {"secure_sums": True}}
    world = World(tmp_path, names=NAMES, values=values, secure=True)
    world.write(lambda folder, site: write_arrays(folder, *DATA[site]))
    refused = []

    def act(round):
        if round == 1:
            do(operator.folder, "pause", "office")
            for command, name in (("add", "zoo"), ("pause", "clinic"), ("remove", "clinic")):
                with pytest.raises(ConfigError) as caught:
                    do(operator.folder, command, name)
                refused.append(caught.value.message)
        return False

    operator = Operator(world)
    operator.work = act
    operator.serve()
    assert "a roster that all of them trust" in refused[0]
    assert all("its rounds need 3" in message for message in refused[1:])


def test_wrong_names_and_states_are_one_sentence(tmp_path):
    world = world_of(tmp_path, "fedavg")
    folder = world.path / "server"
    do(folder, "pause", "office")
    for command, name, text in (
        ("pause", "office", "is paused already"),
        ("resume", "clinic", "is not paused"),
        ("pause", "ofice", "did you mean 'office'"),
        ("resume", "nobody", "unknown site 'nobody'"),
        ("remove", "nobody", "unknown site 'nobody'"),
    ):
        with pytest.raises(ConfigError, match=text):
            do(folder, command, name)
