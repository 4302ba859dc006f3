"""A server that was taken over asks what no honest one asks, to learn single examples of a site.

Each attack recovers examples of a site that answers any plan. Here, the site has the policy that it
has without a word in its ``site.toml``.
"""

import dataclasses
import itertools
import json
import time
import tomllib
import uuid
from collections import Counter

import numpy as np
import pytest
import tomli_w
import torch

from fedtailor import __version__
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.core import rng
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.data.columns import Column, Columns
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.options import DataOptions
from fedtailor.deployment.agreed_study import allow_study
from fedtailor.deployment.audit import page
from fedtailor.deployment.envelope import Envelope
from fedtailor.deployment.packing import pack_download
from fedtailor.deployment.plan import DeploymentPlan
from fedtailor.deployment.policy import SENT_AGAIN, SitePolicy, Tally
from fedtailor.deployment.site import DeployedSite
from fedtailor.deployment.site_memory import SiteMemory
from fedtailor.deployment.state import Version
from fedtailor.deployment.wire import Work, from_blob, to_blob
from fedtailor.experiment.assembly import make_algorithm
from fedtailor.experiment.config import make_config
from fedtailor.simulation.programs import TrainRequest
from fedtailor.training.batches import Amount, plan_batches
from sites import VALUES, World, assert_same_run, divide_digits, write_arrays

ROWS = 60
PICTURES, LABELS = divide_digits(("clinic",), rows=ROWS)["clinic"]
TRAINED = int(0.8 * len(PICTURES))
"""Of the pictures, by default."""
TRAINED_ROWS = int(0.8 * ROWS)
MODULES = {"fedtailor"}


class Server:
    """A hostile server of one site, in a folder of a site with default options."""

    def __init__(self, folder, kind="table", **policy):
        """Write the site's data and options."""
        self.kind = kind
        self.questions = 0
        self.refusals = []
        if kind == "table":
            generator = np.random.default_rng(3)
            self.rows = generator.normal([60, 130, 5], [12, 20, 2], (ROWS, 3)).astype(np.float32)
            lines = [f"{a},{b},{c},{'xy'[i % 2]}" for i, (a, b, c) in enumerate(self.rows)]
            folder.joinpath("data.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
        else:
            write_arrays(folder / "data.csv" / "clinic", PICTURES, LABELS)
            self.rows = PICTURES.reshape(len(PICTURES), -1) / np.float32(255)
        options = {"name": "clinic", "data": "data.csv", "policy": policy}
        (folder / "site.toml").write_text(tomli_w.dumps(options))
        self.site = DeployedSite(folder)

    def inputs(self):
        """Return how examples become inputs: as they are."""
        is_table = self.kind == "table"
        names = "xy" if is_table else map(str, range(10))
        columns = Columns(tuple(Column(name, "number") for name in "abc")) if is_table else None
        return InputSpecification(
            kind="table" if is_table else "images",
            shape=(3,) if is_table else (1, 8, 8),
            stored="float32" if is_table else "uint8",
            white=1.0 if is_table else 255.0,
            mean=np.zeros(1),
            std=np.ones(1),
            num_classes=2 if is_table else 10,
            class_names=tuple(names),
            columns=columns,
        )

    def plan(self, sites=1, **values):
        """Return a plan with the given sections."""
        sections = {
            "algorithm": {"name": "fedavg"},
            "model": {"name": "mlp"},
            "engine": {"name": "reference"},
            **values,
        }
        data = {"path": "each-site", **sections.get("data", {})}
        config = make_config({**sections, "data": data})
        return DeploymentPlan(config, self.inputs(), sites, 0, uuid.uuid4().hex)

    def ask(self, head, blobs):
        """Return the answer to a question; None if the site refuses."""
        self.questions += 1
        answer = self.site.answer(Envelope(json.loads(json.dumps(head)), blobs))
        reason = answer.head.get("refused", answer.head.get("failed"))
        if reason is None:
            return answer
        self.refusals.append(reason)
        return None

    def sums(self, plan, client=0):
        """Return number and sum of the training rows."""
        head = {"kind": "begin", "client": client, "moments": True}
        answer = self.ask(head, {"plan": plan.raw})
        if answer is None:
            return None
        moments = answer.head["moments"]
        return moments["count"], moments["count"] * np.array(moments["mean"])

    def step(self, plan, round=1, client=0, base=None):
        """Return the difference that a round makes in what the site sends of its model."""
        algorithm = make_algorithm(plan.config)
        task = algorithm.bind(plan.task(client))
        state = algorithm.init_server(task, rng.new_key(7, purpose="init"))
        blob = to_blob(pack_download(state, algorithm.messages(task)), MODULES)
        work = Work(TrainRequest(), plan.run, round, client, base, None)
        answer = self.ask(work.to_head(), {"plan": plan.raw, "shared": blob})
        if answer is None:
            return None
        (values,) = from_blob(answer.blobs["out"], MODULES)["upload"]["values"].values()
        return {name: (state[0][name] - values[name]).double() for name in values}

    def count(self, candidates, tolerance=1e-3):
        """Return how many rows of the site are among what was recovered."""
        found = 0
        scale = np.abs(self.rows).max(axis=0).clip(0.1)
        for row in self.rows:
            errors = [np.abs((row - other) / scale).max() for other in candidates]
            found += bool(errors) and min(errors) < tolerance
        return found


def example_of(step):
    """Return the example whose gradient a step has: weights and biases of a layer have one ratio.

    A gradient of the first layer is the outer product of the example and the gradient of the biases
    (Phong et al. 2018, "Privacy-preserving deep learning via additively homomorphic encryption").
    """
    biases = step["hidden.bias"]
    unit = int(biases.abs().argmax())
    return (step["hidden.weight"][unit] / biases[unit]).numpy()


ONE_STEP = {"batch_size": 0, "epochs": 1, "lr": 1.0}
"""Training of a round in one step: the update is the gradient."""


def other_splits(server):
    """Ask for sums of rows under many splits; two that differ by one row tell this row."""
    for seed in itertools.count():
        before = None
        for size in range(ROWS, 9, -1):
            data = {"test_share": 1 - size / ROWS, "seed": seed}
            now = server.sums(server.plan(data=data))
            if before and now and before[0] == now[0] + 1:
                yield before[1] - now[1]
            before = now
            yield None


def rounds_of_one(server):
    """Have the site train on one example, another one for every seed."""
    training = {**ONE_STEP, "batch_size": 1}
    for seed in itertools.count():
        step = server.step(server.plan(data={"train_size": 1, "seed": seed}, training=training))
        yield example_of(step) if step else None


def single_steps(server):
    """Have the site train for one step on a batch of one, another example in every round."""
    plan = server.plan(training={**ONE_STEP, "batch_size": 1, "steps": 1})
    for round in itertools.count(1):
        step = server.step(plan, round)
        yield example_of(step) if step else None


def all_but_one(server, plans):
    """Subtract rounds without one example from a round with all: what is left is that example.

    ``plans`` yields a plan, a round and a number of the site, in which a batch leaves one out.
    """
    whole = server.step(server.plan(training=ONE_STEP))
    yield None
    for plan, round, client in plans:
        part = server.step(plan, round, client)
        if whole and part:
            one = {name: TRAINED * whole[name] - (TRAINED - 1) * part[name] for name in whole}
            yield example_of(one)
        else:
            yield None


def other_rounds(server):
    """Leave out another example in every round."""
    training = {**ONE_STEP, "batch_size": TRAINED - 1, "drop_last": True}
    plan = server.plan(training=training)
    return all_but_one(server, ((plan, round, 0) for round in itertools.count(1)))


def other_sites(server):
    """Ask the same site as if it were another one: its number decides which example is left out."""
    training = {**ONE_STEP, "batch_size": TRAINED - 1, "drop_last": True}
    plan = server.plan(sites=2000, training=training)
    return all_but_one(server, ((plan, 1, client) for client in range(2000)))


def other_trials(server):
    """Vary what a sweep varies: here, the share of examples for validation."""
    before = None
    for seed in itertools.count():
        for left_out in range(TRAINED - 10):
            data = {"val_fraction": (left_out + 0.5) / TRAINED, "seed": seed}
            now = server.step(server.plan(training=ONE_STEP, data=data))
            size = TRAINED - left_out
            if before and now:
                yield example_of({k: (size + 1) * before[k] - size * now[k] for k in now})
            before = now if left_out < TRAINED - 11 else None
            yield None


SMALL_STEPS = {"epochs": 1, "lr": 0.01}
"""Training in steps so small that their gradients nearly add up."""


def last_batches_of_one(server):
    """Have every epoch end with a batch of one example, and subtract the gradient of all."""
    whole = server.step(server.plan(training=ONE_STEP))
    plan = server.plan(training={**SMALL_STEPS, "batch_size": TRAINED - 1})
    others = TRAINED / (TRAINED - 1)
    for round in itertools.count(1):
        step = server.step(plan, round)
        if whole and step:
            rate = SMALL_STEPS["lr"]
            yield example_of({name: step[name] / rate - others * whole[name] for name in whole})
        else:
            yield None


ATTACKS = {
    "last batches of one": (last_batches_of_one, "pictures"),
    "other splits": (other_splits, "table"),
    "rounds of one": (rounds_of_one, "pictures"),
    "single steps": (single_steps, "pictures"),
    "other rounds": (other_rounds, "pictures"),
    "other sites": (other_sites, "pictures"),
    "other trials": (other_trials, "pictures"),
}


def recovered_by(attack, folder, questions, **policy):
    """Return how many examples a server recovers with so many questions, and the server."""
    run, kind = ATTACKS[attack]
    server = Server(folder, kind, **policy)
    candidates = []
    for candidate in run(server):
        if candidate is not None:
            candidates.append(candidate)
        if server.questions >= questions:
            break

    return server.count(candidates), server


@pytest.mark.parametrize("questions", [12, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_no_example_is_recovered(tmp_path, attack, questions):
    recovered, server = recovered_by(attack, tmp_path, questions)
    print(f"{attack}: {recovered} of {len(server.rows)} after {server.questions} questions")
    assert recovered == 0
    assert server.refusals


@pytest.mark.parametrize(
    "attack", ["last batches of one", "single steps", "other rounds", "other sites"]
)
def test_the_attacks_recover_examples_of_a_site_that_allows_them(tmp_path, attack):
    """Else the test above could not fail."""
    allowed = {"whole_epochs": False, "least_examples": 1, "batch_size": [1, 100]}
    recovered, server = recovered_by(attack, tmp_path, 12, **allowed)
    assert recovered > 0 and not server.refusals


@pytest.mark.parametrize("attack", ["other splits", "rounds of one", "other trials"])
def test_other_divisions_recover_examples_of_a_site_that_forgets_them(
    tmp_path, attack, monkeypatch
):
    """Else the first test could not fail: a site remembers how its examples were divided."""
    monkeypatch.setattr(SiteMemory, "keep_division", lambda *_: None)
    monkeypatch.setattr(
        SiteMemory, "answer_once", lambda self, kind, question, compute, **_: compute()
    )
    allowed = {"least_examples": 1, "least_share": 0, "batch_size": [1, 100], "plans_a_day": 12}
    recovered, server = recovered_by(attack, tmp_path, 12, **allowed)
    assert recovered > 0 and not server.refusals


def share_of_examples(training, round):
    """Return how much each example counts in a round, if its order follows from number 0."""
    key = rng.plain(rng.new_key(0, round=round, purpose="train").fold("order"))
    share = torch.zeros(TRAINED)
    for batch in plan_batches(torch.ones(TRAINED), key, training, Amount(1, 0, 1)).batches:
        share[batch] = 1 / len(batch)
    return share


@pytest.mark.parametrize("questions", [2 * TRAINED, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("split_seed", "recovered"), [("secret", 0), (0, TRAINED)])
def test_examples_follow_from_many_rounds_if_the_order_of_batches_is_known(
    tmp_path, questions, split_seed, recovered
):
    """An example of the smaller batch counts more: rounds are equations for single gradients."""
    server = Server(tmp_path, "pictures", split_seed=split_seed)
    plan = server.plan(training={**SMALL_STEPS, "batch_size": TRAINED - 10})
    rounds = range(1, questions + 1)
    steps = [server.step(plan, round) for round in rounds]
    shares = torch.stack([share_of_examples(plan.algorithm.training, round) for round in rounds])

    gradients = {}
    for name in steps[0]:
        sums = torch.stack([step[name] / SMALL_STEPS["lr"] for step in steps])
        solution = torch.linalg.lstsq(shares.double(), sums.flatten(1)).solution
        gradients[name] = solution.view(-1, *sums.shape[1:])

    candidates = []
    for row in range(TRAINED):
        one = {name: gradient[row] for name, gradient in gradients.items()}
        candidates.append(example_of(one))
    assert server.count(candidates, tolerance=0.01) == recovered


def test_the_order_is_a_secret_that_lasts_as_long_as_a_run(tmp_path):
    server = Server(tmp_path, "pictures")
    plan = server.plan(training=SMALL_STEPS)
    first = server.step(plan)
    server.site = DeployedSite(tmp_path)
    again = server.step(plan)
    other = server.step(server.plan(training=SMALL_STEPS))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize(("policy", "recovered"), [({}, 0), ({"whole_epochs": False}, 1)])
def test_other_weights_of_classes_do_not_tell_the_only_example_of_a_class(
    tmp_path, policy, recovered
):
    server = Server(tmp_path, split_seed=1, **policy)
    rare = 10
    lines = [
        ",".join([*map(str, row), "xy"[place == rare]]) for place, row in enumerate(server.rows)
    ]
    tmp_path.joinpath("data.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")
    server.rows = server.rows[rare : rare + 1]

    plain = server.step(server.plan(training=ONE_STEP))
    assert rare in server.site._run.prepared.positions.train
    weighted = server.step(server.plan(training={**ONE_STEP, "class_weights": "balanced"}))
    if weighted is None:
        assert recovered == 0
        return

    # Both updates are sums of the gradients of the two classes.
    weight = TRAINED_ROWS / 2
    others = weight / (TRAINED_ROWS - 1)
    one = {name: weighted[name] - others * plain[name] for name in plain}
    assert server.count([example_of(one)]) == recovered


def test_a_plan_does_not_find_what_another_one_has_left(tmp_path):
    """Another plan of the same name might send what a method keeps to itself."""
    server = Server(tmp_path, "pictures")
    plan = server.plan(sites=2, algorithm={"name": "fedper"})
    other = dataclasses.replace(plan, config=server.plan(algorithm={"name": "fedrep"}).config)
    assert server.step(plan)
    left = Version(1, 0)
    assert server.step(plan, 2, base=left) and not server.refusals
    assert server.step(other, 2, base=left) is None
    assert server.step(plan, 2, client=1, base=left) is None
    assert len(server.refusals) == 2
    assert server.step(plan, 2, base=left)


def test_means_are_said_only_where_the_plan_uses_them(tmp_path):
    """Neither noise nor masks hide them, and they come with the number of examples."""
    server = Server(tmp_path, "pictures")
    private = {"unit": "example", "noise_from": "sites", "epsilon": 4.0}
    for values in ({}, {"privacy": private}):
        assert server.sums(server.plan(**values)) is None
        assert "which its plan does not use" in server.refusals[-1]


def test_a_refusal_is_one_line_that_the_server_can_read(tmp_path):
    server = Server(tmp_path, "pictures")
    allowed = [f"package.module:Name{number:030d}" for number in range(80)]
    options = tomllib.loads((tmp_path / "site.toml").read_text())
    (tmp_path / "site.toml").write_text(tomli_w.dumps({**options, "algorithms": allowed}))
    server.site = DeployedSite(tmp_path)
    assert server.ask({"kind": "begin", "client": 0}, {"plan": server.plan().raw}) is None
    assert 100 < len(server.refusals[-1]) <= 500


def test_knots_of_a_plan_count_cells_by_consent(tmp_path):
    """The mean of a feature between two knots is the share of cells beyond them."""
    knots = tuple(float(number) for number in range(20, 100))

    def told(server):
        columns = (Column("a", "number", knots=knots), *server.inputs().columns.columns[1:])
        inputs = dataclasses.replace(
            server.inputs(), shape=(len(knots) + 1,), columns=Columns(columns)
        )
        return server.sums(dataclasses.replace(server.plan(), inputs=inputs))

    server = Server(tmp_path)
    assert told(server) is None
    assert "no counts of values in intervals" in server.refusals[0]

    count, sums = told(Server(tmp_path, counts=True))
    assert count == TRAINED_ROWS
    values = [value for value in server.rows[:, 0] if knots[0] < value < knots[-1]]
    assert 0 < sums[0] <= count and (np.diff(sums[: len(knots) - 1]) <= 0).all()
    assert len(values) > TRAINED_ROWS


def cells(server, size):
    """Return how often each value of the first column is told, of a split with ``size`` rows."""
    data = {"path": "each-site", "numbers": "bins", "test_share": 1 - size / ROWS}
    intervals = [0]
    for exchange, width in enumerate((4096, 1024, 1024)):
        head = {"kind": "quantiles", "data": data, "seed": 0, "exchange": exchange}
        answer = server.ask({**head, "columns": {"a": intervals}}, {})
        if answer is None:
            return Counter()

        # The parts with cells become the intervals of the next question.
        record = answer.head["counts"]["a"]
        intervals = [intervals[part // width] * width + part % width for part in record["parts"]]
    return Counter(dict(zip(intervals, record["counts"], strict=True)))


def test_cells_are_counted_by_consent_and_of_one_split(tmp_path):
    refusing = Server(tmp_path)
    assert not cells(refusing, ROWS) and len(refusing.refusals) == 1

    # Two splits that differ by one row would tell its value.
    server = Server(tmp_path, counts=True)
    answers = [cells(server, size) for size in range(ROWS, ROWS - 4, -1)]
    told = [before - after for before, after in itertools.pairwise(answers) if before and after]
    assert answers[0].total() == ROWS
    assert sum(difference.total() == 1 for difference in told) == 0


def test_a_column_with_few_cells_is_answered_as_empty(tmp_path):
    """Also in means of features: a cell among medians would stand out."""
    server = Server(tmp_path)
    lines = [f"{'' if row % 8 else 1000 + row},{row},{'xy'[row % 2]}" for row in range(ROWS)]
    tmp_path.joinpath("data.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    data = {"path": "each-site"}
    answer = server.ask({"kind": "columns", "data": data, "seed": 0}, {})
    first, second = answer.head["columns"]["columns"]
    assert (first["name"], first["count"], first["median"]) == ("a", 0, 0.0)
    assert second["count"] > 10

    dataset, rows = server.site._training_examples(DataOptions(path="each-site"))
    assert np.isnan(dataset.x[rows, 0]).all() and not np.isnan(dataset.x[rows, 1]).any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"training": {"batch_size": 9}}, "training.batch_size from 10"),
        ({"training": {"epochs": 51}}, "training.epochs from 1 to 50"),
        ({"training": {"lr": 1e-9}}, "training.lr from 0.0001 to 1"),
        ({"training": {"batch_size": 40}}, "has a smaller one, so training.smallest_batch must"),
        ({"algorithm": {"name": "pfedme", "inner_lr": 9.0}}, "algorithm.inner_lr"),
        ({"algorithm": {"name": "pfedme", "solve_batches": 2000}}, "algorithm.solve_batches"),
        ({"algorithm": {"name": "fedala"}}, "whole epochs only: the plan has algorithm.sample_sh"),
        ({"algorithm": {"name": "fedpac"}}, "single values: none: this method sends 'head'"),
        (
            {"data": {"train_size": 10}},
            "training on 20% or more of all examples: this plan uses fewer",
        ),
        ({"data": {"test_share": 0.05}}, "10 or more test examples: this plan uses fewer"),
    ],
)
def test_a_plan_outside_of_the_policy_is_refused_in_one_sentence(tmp_path, values, message):
    server = Server(tmp_path, "pictures", least_share=0.2)
    assert server.sums(server.plan(**values)) is None
    (reason,) = server.refusals
    assert message in reason

    # The operator of the site reads the same, and of which plan.
    line = json.loads(tmp_path.joinpath("audit.jsonl").read_text().splitlines()[-1])
    assert line["refused"] == reason and len(line["plan"]) == 64


def test_numbers_of_methods_are_those_that_somebody_has_looked_at():
    """A new option that says how much a method trains, or on what, belongs in the policy."""
    harmless = (
        "alpha beta chains clip clusters components count decay dim difference downloads draws embedding "
        "exploration factor hidden layers mixing momentum neighbors offset penalty ridge samples "
        "scale shrinkage smoothing temperature weight"
    )
    words = set()
    for name in ALGORITHMS:
        for option in dataclasses.fields(load_algorithm(name)):
            if isinstance(option.default, int | float) and not isinstance(option.default, bool):
                words.add(option.name.rpartition("_")[2])

    assert words - {*harmless.split()} == {"lr", "epochs", "steps", "rounds", "batches", "share"}


def test_plans_are_counted_over_days_and_restarts(tmp_path):
    server = Server(tmp_path, plans_a_day=3, plans=2, rounds=1)
    plans = [server.plan() for _ in range(3)]
    assert server.sums(plans[0]) and server.sums(plans[1]) and server.sums(plans[0])
    server.site = DeployedSite(tmp_path)
    assert server.sums(plans[2]) is None and "2 plans in all" in server.refusals[-1]
    assert server.sums(plans[1])


def test_a_site_answers_as_often_as_its_policy_allows_and_no_more():
    tally = Tally()

    def answer(kind, plan, day):
        tally.count({"way": "sent", "kind": kind, "plan": plan, "time": f"{day}T12:00:00"})

    def refusal(kind, plan, **limits):
        try:
            tally.check(SitePolicy(**limits), kind, plan)
        except ConfigError as error:
            return error.message
        return ""

    today = time.strftime("%Y-%m-%d")
    days = {"first": "2026-01-01", "second": today, "third": today}
    for plan, day in days.items():
        assert not refusal("begin", plan, plans_a_day=2, plans=3)
        answer("begin", plan, day)
        assert not refusal("train", plan, rounds_a_day=2, rounds=3)
        answer("train", plan, day)

    assert "2 plans a day" in refusal("begin", "fourth", plans_a_day=2)
    assert "3 plans in all" in refusal("begin", "fourth", plans=3)
    assert not refusal("begin", "third", plans_a_day=2, plans=3)
    assert "2 answers of rounds a day" in refusal("train", "third", rounds_a_day=2)
    assert "3 answers of rounds in all" in refusal("train", "third", rounds=3)


def test_a_site_runs_one_agreed_study_and_no_other(tmp_path):
    training = {**VALUES["training"], "smallest_batch": 10}
    world = World(tmp_path, names=("clinic",), values={**VALUES, "training": training})
    world.write(lambda folder, name: write_arrays(folder, PICTURES, LABELS))
    site = tmp_path / "sites" / "clinic"
    (site / "site.toml").write_text('name = "clinic"\ndata = "data"\n[policy]\nsplit_seed = 42\n')
    federation = tmp_path / "server" / "federation.toml"
    allow_study(site, federation)
    world.serve()
    assert_same_run(world, world.simulate())

    federation.write_text(federation.read_text().replace("batch_size = 16", "batch_size = 17"))
    with pytest.raises(RunError, match=r"one study, with training.batch_size = 16: this plan has"):
        world.serve(run="0002")
    allow_study(site, tmp_path / "server" / "runs" / "0001" / "plan.json")


def test_a_study_is_allowed_beside_what_was_answered_before(tmp_path):
    federation = {"rounds": 1, "min_clients": 1}
    training = {**VALUES["training"], "smallest_batch": 10}
    values = {**VALUES, "training": training, "federation": federation}
    world = World(tmp_path, names=("clinic",), values=values)
    world.write(lambda folder, name: write_arrays(folder, PICTURES, LABELS))
    site = tmp_path / "sites" / "clinic"
    (site / "site.toml").write_text('name = "clinic"\ndata = "data"\n[policy]\nsplit_seed = 42\n')

    allowed = []
    for run in ("0001", "0002", "0003"):
        policy = allow_study(site, tmp_path / "server" / "federation.toml")
        allowed.append((policy.plans, policy.rounds))
        world.serve(run=run)

    assert allowed[0][0] < allowed[1][0] < allowed[2][0]
    assert allowed[0][1] < allowed[1][1] < allowed[2][1]


def test_an_answer_that_is_sent_again_is_counted_once():
    tally = Tally()
    line = {"way": "sent", "plan": "1", "kind": "train", "time": "2026-01-01", "sizes": {}}
    tally.count(line)
    tally.count({**line, "sizes": {SENT_AGAIN: 3}})
    assert tally.rounds == 1


@pytest.mark.parametrize("value", [[1], {"a": 1}, "score\n2026-10-12 09:00:00  model: 7 is in use"])
def test_a_refused_request_changes_neither_the_page_nor_the_lines_of_the_log(
    tmp_path, caplog, value
):
    server = Server(tmp_path)
    caplog.set_level("INFO")
    for head in ({"kind": "train", "round": value, "run": value}, {"kind": value}):
        server.ask(head, {})

    assert not any("\n" in record.getMessage() for record in caplog.records)
    text = page(tmp_path, "clinic", (), SitePolicy(), [])
    assert "for 0 rounds of training" in text


def test_names_of_files_stay_at_the_site(tmp_path):
    server = Server(tmp_path)
    table = tmp_path.joinpath("data.csv").read_bytes()
    (tmp_path / "data.csv").unlink()
    (tmp_path / "data.csv").mkdir()
    for person in ("Smith", "Miller"):
        (tmp_path / "data.csv" / f"{person}.csv").write_bytes(table)

    head = {"kind": "describe", "fedtailor": __version__, "data": {"path": "each-site"}}
    assert server.ask(head, {}) is None
    assert "cannot be read" in server.refusals[0] and "Smith" not in server.refusals[0]


def test_what_cannot_be_read_says_nothing_of_single_cells(tmp_path):
    server = Server(tmp_path)
    head = {"kind": "describe", "fedtailor": __version__}
    data = {"path": "each-site", "missing": "refuse"}
    for place, row in itertools.product(range(3), range(5)):
        values = {"abc"[place]: [float(server.rows[row, place])]}
        assert server.ask({**head, "data": {**data, "missing_values": values}}, {}) is None

    # An error would name the row: three of them give it.
    assert not any("row" in reason or "'a'" in reason for reason in server.refusals)
    assert sum("cannot be read" in reason for reason in server.refusals) == 3
