"""The server of a run across sites: the round loop of a simulation, over sites that are elsewhere.

It writes the run folder that a simulation writes, except the models, which stay at the sites. A
checkpoint follows every round, so a server that was stopped or killed continues with the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import make_folder, unwritable, write_json, write_whole
from fedtailor.core.errors import (
    ConfigError,
    DataError,
    FedtailorError,
    RunError,
    describe_error,
)
from fedtailor.core.federation import Roster
from fedtailor.core.folders import this_process, whole_folder
from fedtailor.core.history import History
from fedtailor.core.reading import damaged, read_object
from fedtailor.core.reduction import REDUCTION_VERSION
from fedtailor.core.schedule import Schedule
from fedtailor.data.split import ClientRecord, bare_split
from fedtailor.deployment.agreement import (
    Agreement,
    SiteLeftError,
    agree,
    agree_to_continue,
    ask_to_join,
)
from fedtailor.deployment.conduct import Conduct, excluded_sites
from fedtailor.deployment.continuation import EarlierRun, first_state
from fedtailor.deployment.exchange import Attendance, Exchange, Seen, Transport, Waits
from fedtailor.deployment.federation_folder import (
    APP_FILE,
    RUNS,
    SERVING_FILE,
    FederationFolder,
    Registered,
    check_enough,
    read_attendance,
    write_attendance,
)
from fedtailor.deployment.membership import Membership, members_of
from fedtailor.deployment.options import (
    FEDERATION_FILE,
    PLAN_FILE,
    DeployOptions,
    FederationFile,
    load_federation,
)
from fedtailor.deployment.plan import DeploymentPlan, read_plan_of
from fedtailor.deployment.remote import RemoteClients
from fedtailor.deployment.roster import ROSTER_FILE, read_roster, roster_of, write_roster
from fedtailor.deployment.secure_sums import MASKS, SecureSums
from fedtailor.deployment.shared_verdicts import SHARE, ask_verdicts
from fedtailor.experiment.config import to_toml
from fedtailor.experiment.folder import RunFolder, exclusive
from fedtailor.experiment.provenance import describe
from fedtailor.experiment.reader import ACROSS_SITES, holds_run, read_provenance
from fedtailor.experiment.tracking import RunProgress
from fedtailor.experiment.what_leaves import to_markdown, what_leaves_run
from fedtailor.experiment.writer import RunPlan, RunWriter
from fedtailor.simulation.noise_elsewhere import NoiseElsewhere
from fedtailor.simulation.report import RunState
from fedtailor.simulation.rounds import federate
from fedtailor.simulation.server import rare_classes

_STORES = ("bases", "per_client", "best_bases", "best_per_client")
"""What the server keeps of each site from round to round."""
LEAVES_FILE = "what-leaves.md"
"""In the folder of a run across sites: what the sites have sent."""
_PAUSE = 1.0
"""Fewest seconds between two notes of who is there."""

MakeTransport = Callable[[Mapping[str, int]], Transport]
"""Makes the transport of a run from the numbers of the sites by name."""
Connect = Callable[[Sequence[str]], Exchange]
"""Gives the exchange with sites, whose names come in the order of their numbers."""


def serve_rounds(
    folder: Path, run: Path, make_transport: MakeTransport, *, start: Path | None = None
) -> dict[str, Any]:
    """Run or resume a run across sites, and return its result.

    Args:
        folder: of the server.
        run: the run folder, in which an earlier process may have begun.
        make_transport: is given the sites of the run.
        start: the folder of a run that has finished, which a new run continues; None: it does not.

    Raises:
        ConfigError: the configuration is wrong, or does not fit the data of the sites.
        DataError: the sites do not fit together, or a file is damaged.
        RunError: a site refuses, or the run cannot continue.
    """
    file = load_federation(folder / FEDERATION_FILE)
    text = (folder / FEDERATION_FILE).read_bytes()
    result = RunFolder(run).finished_result() if holds_run(run) else None
    if result is not None:
        return result

    connect = partial(_exchange, folder, file.deploy, make_transport)
    if not (run / PLAN_FILE).is_file():
        before = None if start is None else EarlierRun.read(start, file)
        _make_folder(run, _begin(folder, file, connect, before), text, before)

    return _serve(folder, run, connect)


def _begin(
    folder: Path, file: FederationFile, connect: Connect, before: EarlierRun | None
) -> Agreement:
    """Agree with the sites that are registered and not paused."""
    while True:
        # An excluded site could keep a run from beginning.
        away = _away(folder)
        registered = FederationFolder(folder).sites()
        sites = [site for site in registered if site.name not in away]

        check_enough(registered)
        _refuse_all_away(registered, away)
        if file.config.privacy.secure_sums:
            _refuse_missing(registered, away)

        exchange = connect([site.name for site in sites])
        with suppress(SiteLeftError):
            if before is not None:
                return agree_to_continue(exchange, file, sites, before.plan)
            return agree(exchange, file, sites)


def _away(folder: Path) -> dict[str, str]:
    """Return the registered sites that are not asked to begin, and how each comes back."""
    away = {}
    for name in excluded_sites(folder):
        away[name] = f"excluded ('fedtailor deploy allow {folder} {name}')"
    for site in FederationFolder(folder).sites():
        if site.paused:
            away[site.name] = f"paused ('fedtailor deploy resume {folder} {site.name}')"

    return away


def _refuse_all_away(sites: Sequence[Registered], away: Mapping[str, str]) -> None:
    """Check that a site that trains can be asked."""
    training = [site.name for site in sites if not site.new]
    if all(name in away for name in training):
        reasons = ", ".join(f"{name} is {away[name]}" for name in training)
        raise ConfigError(f"no site that trains takes part: {reasons}.", key="sites")


def _refuse_missing(sites: Sequence[Registered], away: Mapping[str, str]) -> None:
    """Check that all sites that are in secure sums take part: all others trust a list of them."""
    for site in sites:
        if site.name in away and not site.new:
            raise ConfigError(
                f"secure sums are over all sites that train, and '{site.name}' is "
                f"{away[site.name]}. Or remove it; then a new roster ('fedtailor deploy roster') "
                "must be trusted by all sites.",
                key="sites",
                got=site.name,
            )


def _exchange(
    folder: Path, deploy: DeployOptions, make_transport: MakeTransport, names: Sequence[str]
) -> Exchange:
    """Return the exchange with the sites of a run; the server's folder says who is there."""
    transport = make_transport({name: number for number, name in enumerate(names)})
    notes = _AttendanceNotes(folder, names, transport)
    away = partial(FederationFolder(folder).away, names)
    exchange = Exchange(transport, deploy, notify=notes.write, away=away)

    # What an earlier process has heard.
    attendance = read_attendance(folder)
    for number, name in enumerate(names):
        seen = attendance.get(name, {})
        exchange.attendance[number].heard = seen.get("heard")
        exchange.attendance[number].silent_since = seen.get("silent_since")

    return exchange


class _AttendanceNotes:
    """Writes who is there into the folder of the server, now and then."""

    def __init__(self, folder: Path, names: Sequence[str], transport: Transport) -> None:
        self._folder = folder
        self._names = names
        self._transport = transport
        self._last = -_PAUSE

    def write(self, attendance: Attendance) -> None:
        # An exchange notifies several times a second, and a file would be written each time.
        now = time.monotonic()
        is_waiting = any(seen.waiting_since is not None for seen in attendance.values())
        if now - self._last < _PAUSE and is_waiting:
            return

        self._last = now
        online = self._transport.online()
        stopped = self._transport.stopped()
        sites = {}
        for number, name in enumerate(self._names):
            sites[name] = {
                "online": number in online,
                "stopped": number in stopped and number not in online,
                **asdict(attendance.get(number, Seen())),
            }

        write_attendance(self._folder, sites)


def _serve(folder: Path, path: Path, connect: Connect) -> dict[str, Any]:
    """Do the rounds that are left of a run, and return its result."""
    is_under_way = False
    result = None

    # A site that does not join is asked again after more and more rounds, which costs little.
    waits = Waits(first=1)
    while result is None:
        # Sites may have joined.
        agreement = read_agreement(path)
        run = _ServedRun(folder, path, agreement, connect, waits)
        with exclusive(path):
            _note_members(path, agreement)
            result = run.serve(under_way=is_under_way)
        is_under_way = True

    write_whole(path / LEAVES_FILE, to_markdown(what_leaves_run(path)))
    return result


class _ServedRun:
    """A run with the sites that it has, until others join."""

    def __init__(
        self,
        folder: Path,
        path: Path,
        agreement: Agreement,
        connect: Connect,
        waits: Waits,
    ) -> None:
        self.path = path
        self.agreement = agreement
        self.connect = connect
        self.waits = waits
        self.names = [member.name for member in agreement.members]
        self.exchange = connect(self.names)
        self.conduct = Conduct(folder, path.name, self.names)
        self.membership = Membership(FederationFolder(folder), path, self.names)
        self.roster = agreement.roster()
        self.privacy = agreement.plan.config.privacy
        self.sums: SecureSums | None = None
        if self.privacy.secure_sums:
            self._prepare_sums(folder)

    def _prepare_sums(self, folder: Path) -> None:
        plan = self.agreement.plan
        self.sums = _secure_sums(folder, self.path, self.agreement, self.exchange, self.conduct)

        # A sum is over so many sites that two of them do not work with the server.
        self.privacy = replace(self.privacy, smallest_sum=self.sums.session.fewest)
        if self.privacy.rare_classes == "drop" and _weighs_by_class(plan):
            holders = self.sums.count_classes(len(plan.inputs.class_names))
            self.roster = replace(self.roster, class_holders=holders)

    def serve(self, *, under_way: bool) -> dict[str, Any] | None:
        """Do the rounds that are left, and return the result; None: sites have come or gone.

        Then the run continues from its last checkpoint, as after a kill.

        Args:
            under_way: whether this process has done rounds of the run.
        """
        plan = self.agreement.plan
        run_plan = _run_plan(self.agreement, self.roster)
        with RunWriter(self.path, run_plan, RunProgress()) as writer:
            start = writer.restore(under_way=under_way)
            if writer.result is not None:
                return writer.conclude()

            # Sites may have gone or come back while no server was running.
            done = 0 if start.state is None else start.state.round
            self.membership.update(done + 1)
            schedule = replace(plan.config.schedule, history=self.membership.lines)

            # The round loop is that of a simulation; only its clients are elsewhere.
            reports = federate(
                plan.algorithm,
                self.roster,
                self._clients(schedule, writer),
                schedule,
                seed=plan.config.seeds[0],
                resume=start.state or self._first_state(schedule),
                events=start.events,
                privacy=self.privacy,
            )

            # A round is on disk before the sites are asked for the next one.
            for report in reports:
                writer.add_round(report)
                if not report.is_last and self._have_come_or_gone(report.round + 1, writer):
                    return None

            return writer.finish(report, shared_verdicts=self._verdicts(schedule, report.round))

    def _first_state(self, schedule: Schedule) -> RunState | None:
        """Return the state with which a run begins that continues another one, or None."""
        plan = self.agreement.plan
        if not plan.lineage:
            return None

        history = History(schedule.history, self.names, self.roster.num_new)
        return first_state(self.path, plan, history.population(1))

    def _have_come_or_gone(self, round: int, writer: RunWriter) -> bool:
        """Note who has come or gone before a round; return whether anybody has."""
        has_changed = self.membership.update(round)
        return self._has_joined(round, writer) or has_changed

    def _has_joined(self, round: int, writer: RunWriter) -> bool:
        """Let one site join that is registered and connected; return whether there is one."""
        if not self.agreement.plan.admits:
            return False

        for site in self.membership.candidates():
            if not self.waits.is_due(site.name, round):
                continue

            exchange = self.connect([*self.names, site.name])
            is_connected = len(self.names) in exchange.transport.online()
            if not is_connected:
                continue

            problem = "it does not answer"
            try:
                member = ask_to_join(exchange, self.agreement, site)
            except (DataError, RunError) as error:
                member = None
                problem = error.message

            if member is not None:
                self.membership.join(round, member)
                return True

            self.waits.postpone(site.name, round)
            writer.note(f"site '{site.name}' does not join: {problem}", round=round)

        return False

    def _clients(self, schedule: Schedule, writer: RunWriter) -> RemoteClients:
        sums = self.sums
        return RemoteClients(
            self.agreement,
            self.exchange,
            needed=schedule.fewest_members,
            storage=writer.storage,
            conduct=self.conduct,
            sums=sums,
            rare_classes=rare_classes(self.roster, self.privacy) if sums is not None else (),
            own_noise=_own_noise(self.agreement, sums),
        )

    def _verdicts(self, schedule: Schedule, round: int) -> dict[str, Any]:
        """Return the verdicts of the sites that share theirs and take part in the last round."""
        history = History(schedule.history, self.names, self.roster.num_new)
        sharing = []
        for number in history.members(round):
            if SHARE in self.agreement.members[number].share:
                sharing.append(number)

        return ask_verdicts(
            self.exchange, self.agreement.plan.run, self.names, sharing, schedule.verdict
        )


def _note_members(path: Path, agreement: Agreement) -> None:
    """Note who has joined where the sites of a run are read: in its provenance and its split."""
    provenance = read_provenance(path)
    if len(provenance["sites"]) < len(agreement.members):
        sites = [member._asdict() for member in agreement.members]
        folder = RunFolder(path)
        folder.write_split(_split(agreement))
        folder.write_provenance({**provenance, "sites": sites, "notes": agreement.notes()})


def _own_noise(agreement: Agreement, sums: SecureSums | None) -> NoiseElsewhere | None:
    """Return what is known of the noise of the sites; None: there is none."""
    plan = agreement.plan
    if plan.config.privacy.unit == "none":
        return None

    training = {
        number: member
        for number, member in enumerate(agreement.members)
        if member.num_train and not plan.is_new(number)
    }
    num_train = None
    if all(member.counts_known for member in training.values()):
        num_train = {number: member.num_train for number, member in training.items()}

    return NoiseElsewhere(
        plan.config.privacy,
        plan.config.schedule,
        plan.algorithm,
        num_train,
        fewest=0 if sums is None else sums.session.fewest,
        colluding=0 if sums is None else sums.session.colluding,
    )


def _weighs_by_class(plan: DeploymentPlan) -> bool:
    """Return whether a mean counts some classes of a site and not others."""
    messages = plan.algorithm.messages(plan.algorithm.bind(plan.task(0)))
    return any(
        field.reduction == "mean" and field.weight == "class_counts" for field in messages.values()
    )


def _secure_sums(
    folder: Path, path: Path, agreement: Agreement, exchange: Exchange, conduct: Conduct
) -> SecureSums:
    """Return what makes the sums of a run under masks.

    Raises:
        ConfigError: other sites train than those of the roster.
    """
    # The roster of a run that has begun stays the same, whoever is registered now.
    roster_path = path / MASKS / ROSTER_FILE
    if not roster_path.is_file():
        make_folder(roster_path.parent, mode=0o700)
        write_roster(roster_path, roster_of(FederationFolder(folder)), replace=False)

    roster = read_roster(roster_path)
    plan = agreement.plan
    training = {member.name for member in agreement.members[: plan.population]}
    others = sorted(training.symmetric_difference(site.name for site in roster.sites))
    if others:
        raise ConfigError(
            f"the roster and this run do not have the same sites ('{others[0]}' is in one of them "
            "only): sites were added or removed while the run began. A new roster ('fedtailor "
            "deploy roster') must be trusted by all sites, and a new run begin: move "
            f"'{path}' away.",
            key="sites",
            got=others[0],
        )

    sums = SecureSums(path, plan, roster, exchange, conduct)
    sums.connect()
    return sums


def _run_plan(agreement: Agreement, roster: Roster) -> RunPlan:
    """Return what the writer of a run must know of it."""
    plan = agreement.plan
    name = plan.config.algorithm.name
    sites = len(agreement.members)
    facts = {
        "algorithm": name,
        "dataset": plan.inputs.dataset,
        "clients": sites,
        "seeds": list(plan.config.seeds),
        **_origin(agreement),
    }

    return RunPlan(
        title=f"{name}, {sites} sites",
        algorithm=plan.algorithm,
        roster=roster,
        schedule=plan.config.schedule,
        inputs=plan.inputs,
        split=lambda: _split(agreement),
        provenance=_provenance(agreement),
        facts=facts,
        notes=agreement.notes(),
        checkpoint_every=1,
        lasting=_STORES,
    )


def _origin(agreement: Agreement) -> dict[str, Any]:
    """Return what both the result and the provenance say of where a run was computed."""
    return {"plan_sha256": agreement.plan.digest, "engine": ACROSS_SITES, "device": "cpu"}


def _provenance(agreement: Agreement) -> dict[str, Any]:
    """Return where the result comes from; :func:`read_agreement` reads the sites in it."""
    return {
        **describe(),
        **_origin(agreement),
        "lineage": list(agreement.plan.lineage),
        "reduction": REDUCTION_VERSION,
        "sites": [member._asdict() for member in agreement.members],
        "notes": agreement.notes(),
    }


def _split(agreement: Agreement) -> dict[str, Any]:
    """Return the record of the split; the examples of a site are counted, training ones first."""
    clients = []
    for member in agreement.members:
        # Numbers stand for the examples, which only the site knows.
        first_val = member.num_train
        first_test = first_val + member.num_val
        record = ClientRecord(
            train=list(range(first_val)),
            val=list(range(first_val, first_test)),
            test=list(range(first_test, first_test + member.num_test)),
        )
        clients.append(record)

    plan = agreement.plan
    names = [member.name for member in agreement.members]
    return bare_split(plan.inputs.dataset, names, clients, new_clients=plan.new_sites)


def _make_folder(run: Path, agreement: Agreement, text: bytes, before: EarlierRun | None) -> None:
    """Make the run folder, whole or not at all.

    Raises:
        RunError: a file cannot be written.
    """
    config = to_toml(agreement.plan.config)
    try:
        with whole_folder(run) as unfinished:
            RunFolder.create(unfinished, config=config, provenance=_provenance(agreement))
            if before is not None:
                before.copy_state(unfinished)

            write_whole(unfinished / FEDERATION_FILE, text)
            write_whole(unfinished / PLAN_FILE, agreement.plan.raw)
    except OSError as reason:
        raise unwritable(run, reason) from reason


def read_agreement(run: Path) -> Agreement:
    """Read what the server and the sites of a run have agreed on.

    Raises:
        ConfigError: the configuration cannot be used here.
        DataError: a file is damaged, or another version of fedtailor has begun the run.
    """
    plan = read_plan_of(run / PLAN_FILE)
    members = members_of(run)
    if len(members) < plan.sites:
        raise damaged(run, f"it names {len(members)} sites, and the plan is for {plan.sites}")
    return Agreement(plan, members)


def serve_app(
    folder: Path, make_transport: Callable[[Callable[[], Mapping[int, int]]], Transport]
) -> None:
    """Run the round loop as ``serving.json`` asks for, and write how it ended.

    Args:
        folder: of the server.
        make_transport: is given a function that reads the node of every site by its number.
    """
    serving = read_object(folder / SERVING_FILE, within=folder)
    submission = serving["submission"]

    def note(outcome: Mapping[str, Any]) -> None:
        record = {"submission": submission, "process": this_process(), **outcome}
        write_json(folder / APP_FILE, record)

    def connect(numbers: Mapping[str, int]) -> Transport:
        return make_transport(partial(_read_nodes, folder, numbers))

    # If it ends without an outcome, this process counts as killed, and is started again.
    note({})
    try:
        start = Path(serving["start"]) if serving["start"] else None
        run = folder / RUNS / str(serving["run"])
        note({"result": serve_rounds(folder, run, connect, start=start)})
    except FedtailorError as error:
        note({"error": error.as_record()})
    except Exception as error:
        note({"error": {"kind": "run", "message": f"unexpected {describe_error(error)}"}})
        raise


def _read_nodes(folder: Path, numbers: Mapping[str, int]) -> dict[int, int]:
    """Return the nodes that sites have at the moment, by number."""
    nodes = read_object(folder / SERVING_FILE, within=folder)["nodes"]
    return {number: int(nodes[name]) for name, number in numbers.items() if name in nodes}
