"""Sites in this process: their folders, a transport that is a function call, and the simulation of
the same."""

import json
import shutil
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import fedtailor
from fedtailor.core.atomic import to_json
from fedtailor.core.codec import encode
from fedtailor.core.errors import DataError
from fedtailor.deployment.continuation import first_state
from fedtailor.deployment.envelope import receive, send
from fedtailor.deployment.exchange import SiteFailure
from fedtailor.deployment.federation_folder import FederationFolder
from fedtailor.deployment.keys import make_node_key
from fedtailor.deployment.membership import names_of, read_history
from fedtailor.deployment.options import PLAN_FILE
from fedtailor.deployment.plan import read_plan
from fedtailor.deployment.roster import roster_of
from fedtailor.deployment.server import serve_rounds
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.state import SiteState, Version
from fedtailor.deployment.trust import pin_roster
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.experiment.reader import read_run
from fedtailor.simulation.checkpoint import Checkpoints, read_final_state, readable_modules
from fedtailor.simulation.clients import in_memory
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.store import Store
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.runs import assert_same_bits

NAMES = ("clinic", "hospital", "practice")
VALUES = {
    "algorithm": {"name": "fedavg"},
    "model": {"name": "mlp"},
    "training": {"epochs": 1, "batch_size": 16},
    "federation": {"rounds": 2},
    "evaluation": {"every": 2, "personalized_every": 0},
}

POLICY = {
    "split_seed": 42,
    "least_examples": 1,
    "whole_epochs": False,
    "counts": True,
    "single_fields": ["head", "statistics", "model", "weights", "change", "counts", "means"],
}
"""Of sites that are tested: divided as in a simulation, with few examples and all methods."""


class Killed(BaseException):
    """The process of a server or of a site was killed."""


class Wire:
    """A connection in memory."""

    def __init__(self, raw=b""):
        """Hold what the other side has sent."""
        self.raw = raw

    def sendall(self, raw):
        """Add bytes."""
        self.raw += raw

    def recv(self, size):
        """Return the next bytes."""
        start, self.raw = self.raw[:size], self.raw[size:]
        return start


def to_bytes(envelope):
    """Return a message as it travels."""
    wire = Wire()
    send(wire, envelope)
    return wire.raw


def from_bytes(raw):
    """Return the message of some bytes.

    Raises:
        DataError: they are not one message.
    """
    wire = Wire(raw)
    try:
        message = receive(wire)
    except ConnectionError as error:
        raise DataError(str(error)) from error
    if wire.raw:
        raise DataError("there is more")
    return message


class FunctionTransport:
    """A transport in this process; every message becomes bytes on its way."""

    def __init__(self, answers):
        """Take a function from request to answer by the number of the site."""
        self.answers = answers
        self.arrived = []
        self.sent = []
        self.received = []

    def send(self, requests):
        """Ask the sites at once."""
        for client, request in requests.items():
            raw = to_bytes(request)
            self.sent.append((client, from_bytes(raw)))
            answer = self.answers[client](from_bytes(raw))
            if answer is None:
                continue
            if not isinstance(answer, SiteFailure):
                answer = from_bytes(to_bytes(answer))
                self.received.append((client, answer))
            self.arrived.append((client, answer))

    def receive(self, seconds):
        """Return what has arrived, the last site first."""
        arrived = self.arrived[::-1]
        self.arrived = []
        return arrived

    def forget(self):
        """Drop what has arrived."""
        self.arrived = []

    def online(self):
        """Return all sites."""
        return set(range(len(self.answers)))

    def stopped(self):
        """Return none."""
        return {}


class Losing(FunctionTransport):
    """A transport that loses answers."""

    def __init__(self, answers, lost):
        super().__init__(answers)
        self.lost = lost

    def send(self, requests):
        kept = {
            client: request
            for client, request in requests.items()
            if not self.lost(client, request)
        }
        super().send(kept)


def divide_digits(names=NAMES, rows=60):
    """Return images and labels of every site: digits, of other classes at every site."""
    digits = load_digits()
    order = np.argsort(digits.target % 4, kind="stable")
    parts = np.array_split(order[:: max(len(order) // (rows * len(names)), 1)], len(names))
    images = digits.images.astype(np.uint8) * 15
    return {
        name: (images[part], digits.target[part]) for name, part in zip(names, parts, strict=True)
    }


def write_arrays(folder, x, y):
    """Write the data of a site as arrays."""
    folder.mkdir(parents=True)
    names = np.array([str(label) for label in range(10)])
    np.savez(folder / "train.npz", x=x, y=y, class_names=names)


def write_pictures(folder, name, *, divided=()):
    """Write gray pictures by class; one site lacks a class, and those in ``divided`` have a test
    part."""
    generator = np.random.default_rng(sum(map(ord, name)))
    classes = ("healthy", "sick") if name == "clinic" else ("healthy", "other", "sick")
    parts = ("train", "test") if name in divided else ("",)
    for part in parts:
        for label, size in zip(classes, (21, 17, 23), strict=False):
            place = folder / part / label
            place.mkdir(parents=True)
            for number in range(size):
                pixels = generator.integers(0, 256, (12, 12), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def write_table(folder, name, *, rows=40, patients=False):
    """Write a table with numbers, text, empty cells, patients, and a column that is empty at one
    site."""
    generator = np.random.default_rng(sum(map(ord, name)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    lines = ["age,sex,dose,note,diagnosis" + ",patient" * patients]
    for row in range(rows):
        age = "" if row % 7 == 3 else f"{generator.normal(60, 12):.1f}"
        sex = (
            ""
            if row % 11 == 5
            else generator.choice(["f", "m"] if name == "clinic" else ["d", "f", "m"])
        )
        dose = f"{generator.normal(0, 1):.3f}"
        note = "" if name == "office" else f"{generator.normal(5, 1):.2f}"
        diagnosis = generator.choice(["benign", "malignant"])
        patient = f",{name}-{row // 3}" * patients
        lines.append(f"{age},{sex},{dose},{note},{diagnosis}{patient}")
    folder.with_suffix(".csv").write_text("\n".join(lines) + "\n")


@dataclass
class World:
    """A server, its sites, and the folder in which the data of all sites lie together."""

    path: object
    names: tuple = NAMES
    new: tuple = ()
    values: dict = field(default_factory=lambda: VALUES)
    site: dict = field(default_factory=dict)
    policy: dict = field(default_factory=dict)
    secure: bool = False
    """Whether the sites have keys, trust the roster of them all, and show their own scores."""

    def write(self, write_data):
        """Write all folders; ``write_data(folder, name)`` writes the data of one site."""
        for name in self.names:
            write_data(self.path / "all" / name, name)
            own = self.path / "sites" / name
            write_data(own / "data" / name, name)
            share = {"share": ["scores", "metrics", "single"]} if self.secure else {}
            options = {"name": name, "data": "data", **share, **self.site}
            lines = [f"{key} = {json.dumps(value)}" for key, value in options.items()]
            policy = {**POLICY, **self.policy}
            settings = ", ".join(f"{key} = {json.dumps(value)}" for key, value in policy.items())
            lines.append(f"policy = {{{settings}}}")
            (own / "site.toml").write_text("\n".join(lines) + "\n")
        server = self.path / "server"
        server.mkdir()
        (server / "federation.toml").write_text(_toml(self.values))
        sites = [
            {"name": name, "key": f"key of {name}", "new": name in self.new} for name in self.names
        ]
        if self.secure:
            for site in sites:
                site["key"] = make_node_key(self.path / "sites" / site["name"] / "site.key").text
        (server / "sites.json").write_text(to_json({"sites": sites}))
        if self.secure:
            self.trust()
        return self

    def trust(self):
        """Have all sites pin the roster of the server."""
        roster = roster_of(FederationFolder(self.path / "server"))
        for site in roster.sites:
            pin_roster(self.path / "sites" / site.name, roster)

    @property
    def order(self):
        """The names in the order of their numbers."""
        return sorted(self.names, key=lambda name: (name in self.new, name))

    def open(self):
        """Return the sites by number."""
        return [DeployedSite(self.path / "sites" / name) for name in self.order]

    def serve(self, make=None, run="0001"):
        """Run or resume; ``make(sites)`` makes the transport. Returns the result."""
        self.transport = (make or self.transport_of)(self.open())
        return serve_rounds(
            self.path / "server",
            self.path / "server" / "runs" / run,
            lambda numbers: self.transport,
        )

    @staticmethod
    def transport_of(sites):
        """Return the plain transport."""
        return FunctionTransport([site.answer for site in sites])

    def simulate(self, out="simulation", **changes):
        """Run the simulation with the data of all sites, and return its folder."""
        data = {"path": str(self.path / "all"), **self.values.get("data", {})}
        if self.new:
            data["new_clients"] = sorted(self.new)
        evaluation = {"baselines": "none", **self.values.get("evaluation", {})}
        values = {
            **{key: value for key, value in self.values.items() if key != "deploy"},
            "data": data,
            "evaluation": evaluation,
            **changes,
        }
        folder = self.path / out
        fedtailor.run(
            fedtailor.make_config({**values, "engine": {"name": "reference"}}), out=folder
        )
        return folder


def assert_same_run(world, simulated, run="0001"):
    """Assert that the server and the sites hold what a simulation has written."""
    served = read_run(world.path / "server" / "runs" / run)
    simulation = read_run(simulated)
    for name in ("metrics", "new_clients", "sites", "bytes", "steps"):
        assert served.result.get(name) == simulation.result.get(name), name
    assert [without_seconds(line) for line in served.rounds] == [
        without_seconds(line) for line in simulation.rounds
    ]
    assert served.clients == simulation.clients
    states = [
        read_final_state(run.path / "checkpoints", modules={"fedtailor"})
        for run in (served, simulation)
    ]
    assert_same_bits(states[0].server, states[1].server)
    assert states[0].client_rounds == states[1].client_rounds
    for name in world.order:
        file = f"models/{name}.safetensors"
        assert (world.path / "sites" / name / "model" / file).read_bytes() == (
            simulated / file
        ).read_bytes(), name


def assert_same_states(world, run, states):
    """Assert that the state from which the server would have a site continue is the one that the
    site has in a simulation."""
    plan = read_plan((run / PLAN_FILE).read_bytes())
    modules = readable_modules(plan.algorithm)
    names = ("bases", "per_client", "best_bases", "best_per_client")
    stores = {name: Store(run / "checkpoints", name, modules=modules) for name in names}
    Checkpoints(run / "checkpoints", stores, modules=modules).restore(lambda notes: "")

    assert set(stores["bases"]) == set(states)
    for client, state in states.items():
        name = names_of(run)[client]
        folder = world.path / "sites" / name / "states" / plan.run / f"{plan.digest}-{client}"
        version = Version(*stores["bases"][client].tolist())
        assert_same_bits(SiteState(folder, modules=modules).load(version), state)


ABSENCES = ("absent", "failed", "quarantine")
"""Kinds of events that say that a client's round is not used."""


def assert_same_as_simulation(world, run="0001", *, without=(), check_states=False):
    """Assert that server and sites hold what a simulation with the recorded absences and the
    recorded history computes; return the run."""
    folder = world.path / "server" / "runs" / run
    served = read_run(folder)
    states = {}
    names = names_of(folder)
    data = world.path / "all"
    if set(names) != set(world.names):
        # Of the sites that are not registered from the start, those that have joined.
        data = world.path / "of-run"
        shutil.rmtree(data, ignore_errors=True)
        for name in names:
            shutil.copytree(world.path / "all" / name, data / name)

    plan = read_plan((folder / PLAN_FILE).read_bytes())
    beginning = None
    if plan.lineage:
        beginning = first_state(folder, plan, plan.population)
    last = simulated(
        world,
        [as_absence(event) for event in served.events if event["kind"] in ABSENCES],
        resume=beginning,
        data_path=data,
        history=read_history(folder),
        storage=lambda name: states.setdefault(name, {}),
    )
    if check_states:
        assert_same_states(world, folder, states["states"])

    state = read_final_state(served.path / "checkpoints", modules={"fedtailor"})
    assert_same_bits(state.server, last.state.server)
    for client, name in enumerate(names):
        # A site that is away when the run ends makes no model.
        file = world.path / "sites" / name / "model" / "models" / f"{name}.safetensors"
        if run == "0001":
            assert file.exists() == (client in last.personal), name
        if client in last.personal and client not in without:
            raw = (
                world.path / "sites" / name / "model" / "models" / f"{name}.safetensors"
            ).read_bytes()
            assert raw == encode(last.personal[client]), name
    return served


def as_absence(event):
    """Return an event as one that a simulation repeats: the client's round is not used."""
    stage = event.get("stage", "local_update")
    return {**event, "kind": "absent", "stage": stage, "reason": f"{stage}: {event['reason']}"}


def simulated(world, events, *, resume=None, data_path=None, history=(), storage=in_memory):
    """Return the last report of a simulation in which the same clients gave no answer, or came and
    went."""
    values = {key: value for key, value in world.values.items() if key != "deploy"}
    data = {**values.get("data", {}), "path": str(data_path or world.path / "all")}
    federation = {**values.get("federation", {}), "history": list(history)}
    values = {**values, "data": data, "federation": federation}
    config = make_config({**values, "engine": {"name": "reference"}})
    parts = assemble(config, 0)
    schedule = parts.config.schedule
    reports = simulate(
        parts.algorithm,
        parts.federation,
        Reference(),
        schedule,
        seed=0,
        storage=storage,
        resume=resume,
        events=events,
        privacy=config.privacy,
    )
    return list(reports)[-1]


def without_seconds(line):
    """Return a round's record without what depends on the clock."""
    return {key: value for key, value in line.items() if key != "seconds"}


def _toml(values):
    import tomli_w

    return tomli_w.dumps(values)
