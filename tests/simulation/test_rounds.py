"""The round loop: who trains, what is kept, what is evaluated when."""

import weakref
from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch

from federations import SIZES, Planned, make_federation, module, perceptron
from fedtailor.algorithms.fed3r import Fed3R
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedavg_ft import FedAvgFT
from fedtailor.algorithms.fedbn import FedBN
from fedtailor.algorithms.feddyn import FedDyn
from fedtailor.algorithms.fedpac import FedPAC
from fedtailor.algorithms.fedproto import FedProto
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.algorithms.local import Local
from fedtailor.algorithms.scaffold import Scaffold
from fedtailor.core import tree
from fedtailor.core.adaptation import FineTuned
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.core.message import Field
from fedtailor.core.rng import new_key
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.core.task import Task, Training
from fedtailor.models import build_model
from fedtailor.simulation import clients
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.report import NOBODY, Evaluation
from fedtailor.simulation.rounds import simulate
from fedtailor.testing.runs import TracingEngine, assert_same_bits, assert_same_runs, run

pytestmark = pytest.mark.usefixtures("float64")

TRAINING = Training(lr=0.1, epochs=1, batch_size=5)
ABLE = [client for client, size in enumerate(SIZES) if size]


@pytest.fixture
def federation(float64):
    return make_federation(perceptron())


def points(report):
    return [(e.point, e.group) for e in report.evaluations]


def test_what_is_evaluated_when(federation):
    schedule = Schedule(rounds=5, evaluate_every=2, personalized_every=3)
    reports = list(simulate(FedAvg(training=TRAINING), federation, Reference(), schedule, seed=1))
    both = [("local", "known"), ("global", "known"), ("global", "new")]
    last = [("personalized", "known"), ("personalized", "new")]
    assert [points(report) for report in reports] == [[], both, last, both, both + last]
    assert [report.round for report in reports] == [1, 2, 3, 4, 5]
    assert [bool(report.personal) for report in reports] == [False] * 4 + [True]
    assert sorted(reports[-1].personal) == list(range(9))


def test_after_the_last_round_only(federation):
    schedule = Schedule(rounds=2, evaluate_every=0)
    reports = list(simulate(FedAvg(training=TRAINING), federation, Reference(), schedule, seed=1))
    assert points(reports[0]) == [] and len(points(reports[1])) == 5


@pytest.mark.parametrize("engine", [Reference(), Batched()])
def test_the_global_model_is_scored_once_on_the_complete_test_part(federation, engine, monkeypatch):
    monkeypatch.setattr(clients, "_COMPLETE_CHUNK", 7)
    complete = torch.cat([split.test for split in federation.splits])
    federation = replace(federation, complete=complete)
    schedule = Schedule(rounds=1, evaluate_every=1)
    (report,) = simulate(FedAvg(training=TRAINING), federation, engine, schedule, seed=1)
    found = {(e.point, e.test_set): e for e in report.evaluations if e.group == "known"}
    whole = found["global", "complete"]
    assert list(whole.scores) == [NOBODY]
    everybody = replace(federation, splits=[s._replace(test=complete) for s in federation.splits])
    (report,) = simulate(FedAvg(training=TRAINING), everybody, engine, schedule, seed=1)
    own = next(e for e in report.evaluations if (e.point, e.test_set) == ("global", "clients"))
    assert torch.equal(own.scores[3].class_correct, whole.scores[NOBODY].class_correct)
    assert torch.allclose(own.scores[3].loss_sum, whole.scores[NOBODY].loss_sum, rtol=1e-13)


def test_evaluations_say_what_they_are_of(federation):
    reports = run(FedRep(training=TRAINING), Reference(), federation, rounds=1).reports
    found = {(e.point, e.group): e for e in reports[0].evaluations}
    assert set(found) == {
        ("local", "known"),
        ("personalized", "known"),
        ("personalized", "new"),
    }  # no global model
    assert list(found["local", "known"].scores) == ABLE and list(
        found["personalized", "known"].scores
    ) == list(range(7))
    assert list(found["personalized", "new"].scores) == [7, 8]
    assert found["local", "known"].adaptation == "local training of the round"
    assert found["personalized", "known"].adaptation == "none"
    assert found["personalized", "new"].adaptation == "10 epochs of the head"
    for one in found.values():
        assert isinstance(one, Evaluation) and one.test_set == "clients"
    assert all(score.class_total.sum() == 5 for e in found.values() for score in e.scores.values())


def test_clients_without_examples_are_named_once(federation):
    reports = list(
        simulate(FedAvg(training=TRAINING), federation, Reference(), Schedule(rounds=3), seed=1)
    )
    assert [len(report.events) for report in reports] == [1, 0, 0]
    assert reports[0].events[0]["client"] == 5 and reports[0].events[0]["kind"] == "skipped"
    assert all(report.cohort == ABLE for report in reports)


def test_only_the_cohort_trains(federation):
    plan = Planned(cohorts={1: [2, 4], 2: [3]})
    record = run(
        FedRep(training=TRAINING, head_epochs=2),
        Reference(),
        federation,
        rounds=3,
        participation=plan,
    )
    assert [report.cohort for report in record.reports] == [[2, 4], [3], ABLE]
    assert [sorted(report.metrics["steps"]) for report in record.reports] == [[2, 4], [3], ABLE]
    steps = {2: 3, 4: 9, 3: 6}  # two epochs of the head and one of the body
    assert [report.steps for report in record.reports[:2]] == [steps[2] + steps[4], steps[3]]
    assert record.reports[0].bytes_up * 3 == record.reports[2].bytes_up


@pytest.mark.parametrize(("algorithm", "usual"), [(Local, "all"), (FedRep, "cohort")])
def test_who_trains_is_up_to_the_algorithm_unless_the_protocol_says(federation, algorithm, usual):
    """Clients outside the cohort train too, and keep their state; only the cohort uploads."""
    plan = Planned(cohorts={1: [2, 4], 2: [3]})
    always, sometimes, auto = (
        run(algorithm(training=TRAINING), Reference(), federation, participation=plan, train=train)
        for train in ("all", "cohort", "auto")
    )
    assert_same_runs(auto, {"all": always, "cohort": sometimes}[usual])
    always, sometimes = always.reports, sometimes.reports
    assert [report.trained for report in always] == [ABLE, ABLE]
    assert [report.trained for report in sometimes] == [[2, 4], [3]]
    assert [sorted(report.metrics["steps"]) for report in always] == [ABLE, ABLE]
    assert [sorted(report.metrics["steps"]) for report in sometimes] == [[2, 4], [3]]
    assert [report.cohort for report in always] == [[2, 4], [3]]


@dataclass(frozen=True, kw_only=True)
class Everybody(FedAvg):
    """FedAvg whose clients all train in every round."""

    trains = "all"


def test_uploads_come_from_the_cohort_even_if_everybody_trains(federation):
    plan = Planned(cohorts={1: [2, 4]})
    all_train, cohort_trains = (
        run(cls(training=TRAINING), Reference(), federation, rounds=1, participation=plan)
        for cls in (Everybody, FedAvg)
    )
    one, two = all_train.reports[0], cohort_trains.reports[0]
    assert_same_bits(one.personal[0], two.personal[0])
    assert one.bytes_up == two.bytes_up and one.bytes_down == 3 * two.bytes_down
    assert one.steps > two.steps


def test_a_round_without_able_clients_changes_nothing(federation):
    plan = Planned(cohorts={2: [5]})
    record = run(
        FedAvg(training=TRAINING), Reference(), federation, participation=plan, evaluate_every=1
    )
    first, second = record.reports
    assert second.cohort == [] and second.steps == second.bytes_up == second.bytes_down == 0
    assert points(second)[0] == ("global", "known")
    scores = [
        next(e for e in report.evaluations if e.point == "global").scores.values()
        for report in (first, second)
    ]
    for one, two in zip(*scores, strict=True):
        figures = two._replace(pairs=one.pairs, pairs_won=one.pairs_won, histogram=one.histogram)
        assert_same_bits(one, figures)  # pairs are counted after the last round only


@pytest.mark.parametrize(
    ("algorithm", "train", "rounds"),
    [
        (Local(training=TRAINING), "auto", 4),
        (Local(training=TRAINING), "cohort", 3),
        (FedProto(training=TRAINING), "auto", 3),
        (FedProto(training=TRAINING), "all", 4),
        (FedBN(training=TRAINING), "auto", 3),
    ],
)
def test_new_clients_train_as_many_rounds_as_others_did(float64, algorithm, train, rounds):
    """Others are those who can train; where all do in every round, one without a cohort counts
    too."""
    federation = make_federation(module() if isinstance(algorithm, FedBN) else perceptron())
    plan = Planned(cohorts={2: [5]})
    record = run(algorithm, Reference(), federation, rounds=4, participation=plan, train=train)
    assert (
        int(record.of("personalize")[4, 7][1]["steps"]) == rounds * 2
    )  # batches of 5 of 7 examples
    assert record.of("personalize")[4, 8][1]["steps"] == 0


def test_cohorts_that_algorithms_see(federation, monkeypatch):
    seen = []

    def watch(name, place):
        original = getattr(FedAvg, name)

        def wrapper(self, *arguments):
            seen.append((name, arguments[place]))
            return original(self, *arguments)

        monkeypatch.setattr(FedAvg, name, wrapper)

    watch("broadcast", 1)
    watch("aggregate", 2)
    plan = Planned(cohorts={1: [4, 2], 2: [5]})
    schedule = Schedule(rounds=2, participation=plan, evaluate_every=0)
    list(simulate(FedAvg(training=TRAINING), federation, Reference(), schedule, seed=1))
    found = [(name, cohort.ids.tolist(), cohort.round) for name, cohort in seen]
    assert [cohort.rounds_trained for _, cohort in seen] == [0.0, *[2 / 6] * 4]
    assert [cohort.new for _, cohort in seen] == [False] * 4 + [True]
    assert found[0][0] == "broadcast" and sorted(found[0][1]) == [2, 4]
    assert found[1:] == [
        ("aggregate", [2, 4], 1),  # in the order of ids
        ("broadcast", [], 2),
        ("broadcast", list(range(7)), 2),  # to be personalized
        ("broadcast", [7, 8], 2),
    ]
    assert all(cohort.population == 7 and cohort.rounds == 2 for _, cohort in seen)
    assert {cohort.ids.dtype for _, cohort in seen if len(cohort.ids)} == {torch.int64}


def test_a_client_does_not_depend_on_who_else_takes_part(federation):
    """Its batches and noise follow from seed, round and id."""
    alone, together = (
        run(
            FedRep(training=TRAINING),
            Reference(),
            federation,
            rounds=1,
            participation=Planned(cohorts={1: ids}),
        )
        for ids in ([4], [0, 2, 3, 4, 6])
    )
    assert_same_bits(alone.of("train")[1, 4], together.of("train")[1, 4])


def test_a_client_may_start_late(federation):
    """Its first state is the same whenever its first round is."""
    plan = Planned(cohorts={1: [2]})
    record = run(
        Local(training=TRAINING), Reference(), federation, participation=plan, train="cohort"
    )
    assert (1, 4) not in record.of("train")
    before = record.of("personalize")[1, 4][0]
    assert_same_bits(before, initial_model(federation))


def initial_model(federation, seed=3):
    return federation.common_task.model.init(new_key(seed).common("model"))


def test_states_advance_only_where_a_client_trained(federation):
    plan = Planned(cohorts={2: [2, 3]})
    record = run(FedRep(training=TRAINING), Reference(), federation, rounds=3, participation=plan)
    heads = {
        r: tree.select(record.of("personalize")[r, 4][0].model, lambda n: n.startswith("head"))
        for r in (1, 2, 3)
    }
    assert_same_bits(heads[1], heads[2])
    assert not torch.equal(heads[2]["head.weight"], heads[3]["head.weight"])


def test_per_client_values_stay_until_the_next_ones(federation):
    plan = Planned(cohorts={2: [2, 3]})
    record = run(FedPAC(training=TRAINING), Reference(), federation, rounds=3, participation=plan)
    models = {r: record.of("personalize")[r, 4][0].model for r in (1, 2, 3)}
    heads = {r: tree.select(model, lambda n: n.startswith("head")) for r, model in models.items()}
    assert_same_bits(heads[1], heads[2])
    assert not torch.equal(heads[2]["head.weight"], heads[3]["head.weight"])
    initial = initial_model(federation)
    untouched = record.of("personalize")[3, 5][
        0
    ].model  # has no examples, so no head was ever combined for it
    head = tree.select(untouched, lambda n: n.startswith("head"))
    assert_same_bits(head, federation.common_task.pick(initial, "head"))


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """Every client's value is 100 times the aggregations so far, plus its id."""

    def messages(self, task):
        own = Field(kind="statistics", shapes=(), reduction="none")
        return {**super().messages(task), "own": own}

    def init_federation(self, task, population, key):
        return Counted(task.initial(key), torch.zeros(population))

    def init_per_client(self, task, info, key):
        return torch.full((), -1.0)

    def per_client(self, server, cohort, key):
        return 100 * server.counts.max() + cohort.ids.to(server.counts.dtype)

    def aggregate(self, server, received, cohort):
        model = received["model"].value
        return Counted(model, server.counts + 1), ()

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        return update._replace(metrics={**update.metrics, "own": download.per_client})

    def personalize(self, task, download, state, data, key):
        return FineTuned(download.shared.model, download.per_client)


class Counted(NamedTuple):
    model: dict
    counts: torch.Tensor


def test_the_server_makes_values_for_clients_when_it_asks_them(federation):
    plan = Planned(cohorts={2: [2, 3]})
    record = run(Counting(training=TRAINING), Batched(4), federation, rounds=3, participation=plan)
    own = [report.metrics["own"] for report in record.reports]
    assert own[0] == {client: float(client) for client in ABLE}
    assert own[1] == {2: 102.0, 3: 103.0}
    assert own[2] == {client: 200.0 + client for client in ABLE}

    # New clients too, of whom the server state has no rows.
    found = {client: int(made.steps) for client, made in record.reports[-1].personal.items()}
    assert found == {client: 300 + client for client in range(9)}
    assert len(record.reports[-1].state.server.counts) == 7


def test_metrics_are_recorded_by_client(federation):
    report = run(FedAvg(training=TRAINING), Reference(), federation, rounds=1).reports[0]
    assert report.metrics["steps"] == {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0, 4: 3.0, 6: 5.0}
    assert report.steps == 13 and set(report.metrics["loss"]) == set(ABLE)
    assert set(report.seconds) == {"train", "aggregate", "evaluate"}


def test_steps_count_the_personalization_after_the_last_round(federation):
    """Five epochs of fine-tuning for every client that has examples, new ones too; earlier
    evaluations are free."""
    reports = run(FedAvgFT(training=TRAINING), Reference(), federation).reports
    assert [report.steps for report in reports] == [13, 13 + 5 * (13 + 2)]


def test_rounds_come_one_by_one(federation):
    recording = TracingEngine(Reference())
    rounds = simulate(FedAvg(training=TRAINING), federation, recording, Schedule(rounds=3), seed=1)
    assert recording.trace.outputs == []
    next(rounds)
    assert {round for round, _, _, _ in recording.trace.outputs} == {1}


def test_impossible_participation_is_refused_before_anything_runs(federation):
    recording = TracingEngine(Reference())
    schedule = Schedule(rounds=3, participation=Participation(plan="fixed", count=8))
    with pytest.raises(ConfigError, match=r"must be at most 7, .* got 8"):
        next(simulate(FedAvg(), federation, recording, schedule, seed=1))
    assert recording.trace.outputs == []


def test_new_clients_see_the_model_of_the_whole_federation(federation):
    """A new client receives what a known one does; without examples it keeps the common head."""
    record = run(FedRep(training=TRAINING), Batched(4), federation)
    known, new, empty = (record.reports[-1].personal[client].model for client in (4, 7, 8))
    task = federation.common_task
    assert_same_bits(task.pick(known, "body"), task.pick(new, "body"))
    assert_same_bits(task.pick(empty, "head"), task.pick(initial_model(federation), "head"))
    assert not torch.equal(new["head.weight"], empty["head.weight"])


def test_no_new_clients(federation):
    known_only = replace(federation, num_new=0)
    assert known_only.roster.population == 9
    report = run(FedAvg(training=TRAINING), Reference(), known_only, rounds=1).reports[0]
    assert ("personalized", "new") not in points(report)


def test_a_run_in_which_nobody_ever_delivers_is_an_error(float64):
    federation = make_federation(perceptron())
    diverges = FedAvg(training=Training(lr=1e300, epochs=2))
    with pytest.raises(
        RunError, match=r"round 1: none of \d+ clients did usable work; client \d+: field 'model'"
    ):
        list(simulate(diverges, federation, Reference(), Schedule(rounds=3), seed=0))


def test_validation_examples_are_scored_on_their_own(float64):
    federation = make_federation(perceptron())
    splits = [
        split._replace(
            train=split.train[: len(split.train) // 2 + 1],
            val=split.train[len(split.train) // 2 + 1 :],
        )
        for split in federation.splits
    ]
    schedule = Schedule(rounds=1)
    runs = [
        list(simulate(FedAvg(), one, Reference(), schedule, seed=0))[-1].evaluations
        for one in (federation, replace(federation, splits=splits))
    ]
    points = [[(one.point, one.test_set) for one in evaluations] for evaluations in runs]
    assert ("personalized", "validation") not in points[0] and (
        "personalized",
        "validation",
    ) in points[1]
    validation = next(one for one in runs[1] if one.test_set == "validation")
    counts = [float(scores.class_total.sum()) for scores in validation.scores.values()]
    assert counts == [len(splits[client].val) for client in validation.scores]


@pytest.mark.parametrize("algorithm", [Scaffold, FedDyn])
def test_who_must_upload_does_not_train_outside_the_cohort(federation, algorithm):
    """Their clients' states are parts of a mean at the server."""
    schedule = Schedule(rounds=1, train="all")
    with pytest.raises(
        ConfigError, match=r"federation\.train must be 'cohort' or 'auto' for \w+, got 'all'"
    ) as caught:
        list(simulate(algorithm(training=TRAINING), federation, Reference(), schedule, seed=1))
    assert caught.value.key == "federation.train"


def test_groups_of_clients_change_nothing(federation, monkeypatch):
    algorithm = FedPAC(training=TRAINING)
    whole = run(algorithm, Reference(), federation)
    monkeypatch.setattr(clients, "_LARGEST_GROUP", 2)
    assert_same_runs(whole, run(algorithm, Reference(), federation))


def test_groups_are_smaller_where_models_or_messages_are_large(federation):
    def group_size(algorithm, federation, engine):
        return clients.LocalClients(algorithm, federation, engine, seed=0)._group_size()

    workers = Workers(2)
    assert group_size(FedAvg(), federation, workers) == 512
    large = replace(
        federation, common_task=Task(build_model("resnet18_gn", (3, 32, 32), 10), 10, (3, 32, 32))
    )
    assert group_size(FedAvg(), large, workers) == 32
    assert group_size(FedAvg(), large, Reference()) == 1

    # a small model, whose method sends the products of 1,280 features
    linear = Task(build_model("linear", (1280,), 10), 10, (1280,))
    wide = replace(federation, common_task=linear)
    assert group_size(FedAvg(), wide, workers) == 512
    assert group_size(Fed3R(), wide, workers) < 100
    assert group_size(Fed3R(), wide, Reference()) == 2


def test_nothing_of_a_client_outlives_its_upload(federation, monkeypatch):
    """A small tensor that stayed would keep the memory of a large one from being used again."""
    monkeypatch.setattr(clients, "_LARGEST_GROUP", 1)
    metrics = []
    most_alive = 0

    class Watching(Reference):
        def map(self, program, common, jobs):
            nonlocal most_alive
            most_alive = max(most_alive, sum(metric() is not None for metric in metrics))
            outputs = super().map(program, common, jobs)
            if program.keywords["request"].name == "train":
                metrics.extend(weakref.ref(output.metrics["steps"]) for output in outputs)
            return outputs

    running = simulate(Fed3R(), federation, Watching(), Schedule(rounds=1), seed=0)
    next(running)
    assert len(metrics) > 2
    assert most_alive <= 1
