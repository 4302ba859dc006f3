"""Methods that say that they bound examples do, and the others are refused."""

import dataclasses
from contextlib import closing

import pytest
import torch

from federations import make_federation, perceptron
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.fedrep import FedRep
from fedtailor.core import rng, tree
from fedtailor.core.algorithm import Download
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import Cohort, Split
from fedtailor.core.message import Mean, Sum
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import ExampleBound, Task, Training
from fedtailor.experiment.assembly import assemble
from fedtailor.experiment.config import make_config
from fedtailor.models import build_model
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.class_statistics import SHARES, SumsMechanism
from fedtailor.privacy.ledger import Ledger
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.processes import Processes
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.engines.workers import Workers
from fedtailor.simulation.noisy_steps import NoisySteps
from fedtailor.simulation.report import RoundReport
from fedtailor.simulation.rounds import check_run, simulate
from fedtailor.simulation.server import example_plan
from fedtailor.statistics import class_sums
from fedtailor.testing.runs import assert_same_bits
from fedtailor.training.private_steps import counting_steps
from finished_runs import assert_same_reports
from marks import quick
from simulation.in_places import InPlaces

BOUNDING = [name for name in ALGORITHMS if load_algorithm(name).bounds_examples]
GAUSSIAN = ["fedlda", "pfedfda"]
"""Methods that also send sums over features."""
CLIP = 0.1
RADIUS = 2.0
SITES = {"unit": "example", "noise": 0.5, "noise_from": "sites"}
AT_SITES = PrivacyOptions(**SITES)


def make(name, **options):
    """Return a method whose uploads noise can hide."""
    cls = load_algorithm(name)
    more = {"feature_clip": RADIUS} if name in GAUSSIAN else {}
    return cls.from_preset("private" if name in GAUSSIAN else "reference", **more, **options)


def bounded(task, clip, noise=0.0):
    """The task with a bound that any number of steps keeps to."""
    return task._replace(example_bound=ExampleBound(clip, noise, rate=1.0, steps=10**6))


def config_of(name, training, **sections):
    return make_config(
        {
            "algorithm": {"name": name},
            "training": training,
            "data": {"dataset": "digits", "clients": 3, "partition": "iid", "fraction": 0.1},
            "federation": {"rounds": 2},
            "engine": {"name": "reference"},
            **sections,
        }
    )


@pytest.fixture(scope="module")
def federation():
    prepared = assemble(config_of("fedavg", {}), 0)
    return prepared.federation


def with_other_examples(federation):
    """Replace the examples of client 0 by others, of other classes."""
    rows = federation.splits[0].train
    x = federation.x.clone()
    y = federation.y.clone()
    x[rows] = federation.x[rows].flip(0).flip(-1)
    y[rows] = (federation.y[rows] + 1) % 10
    return dataclasses.replace(federation, x=x, y=y)


def uploads(algorithm, federation, rounds=1, keep=None, prefer=None, clip=CLIP):
    """Return what client 0 uploads in some rounds under the first download, and that download.

    Args:
        keep: how many of its training examples the client has; None: all.
        prefer: a class to which the received model gives a high logit for all examples.
    """
    task = bounded(algorithm.bind(federation.common_task), clip)
    data = federation.data(0)
    if keep is not None:
        train = federation.examples(federation.splits[0].train[:keep])
        counts = torch.bincount(train.labels(), minlength=10).float()
        info = data.info._replace(num_train=torch.tensor(float(keep)), class_counts=counts)
        data = data._replace(train=train, info=info)

    server = algorithm.init_server(task, rng.new_key(0, purpose="init_server"))
    if prefer is not None and hasattr(server, "means"):
        server.means[prefer] *= 0.7  # the shorter a mean, the higher its logit here
    elif prefer is not None:
        bias = next(
            server.model[name] for name in task.names("head") if server.model[name].dim() == 1
        )
        bias[prefer] += 4.0

    shared = algorithm.broadcast(server, Cohort(torch.arange(3), 3, 1, 2))
    key = rng.new_key(0, purpose="init")
    state = algorithm.init_client(task, data.info, key)
    per_client = algorithm.init_per_client(task, data.info, key)
    fields = []
    for round in range(1, rounds + 1):
        key = rng.new_key(0, round=round, purpose="train")
        update = algorithm.local_update(task, Download(shared, per_client), state, data, key)
        state = update.state
        fields.append(update.upload)

    return fields, shared


def flat(value):
    leaves = [leaf.double().flatten() for leaf in tree.leaves(value)]
    return torch.cat(leaves) if leaves else torch.zeros(0)


@pytest.mark.parametrize("name", BOUNDING)
def test_with_a_bound_of_nearly_0_uploads_say_nothing_of_examples(name, federation):
    algorithm = make(name, training=Training(lr=0.1, epochs=1))
    first, _ = uploads(algorithm, federation, rounds=2, clip=1e-30)
    second, _ = uploads(algorithm, with_other_examples(federation), rounds=2, clip=1e-30)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for field in set(one) - set(SHARES):  # sums have noise of their own
            assert (flat(one[field].value) - flat(other[field].value)).abs().max() < 1e-20
            if isinstance(one[field], Mean):
                assert torch.equal(flat(one[field].weight), flat(other[field].weight))


def change_by_one_example(algorithm, federation, prefer=None):
    """Return how far one step of rate 1 moves a field more with an example than without, times n.

    The largest over fields.
    """
    num_train = len(federation.splits[0].train)
    changes = {}
    for keep in (num_train, num_train - 1):
        (upload,), shared = uploads(algorithm, federation, keep=keep, prefer=prefer)
        for field, entry in upload.items():
            if field in SHARES:
                continue

            start = getattr(shared, field, None)
            moved = flat(entry.value)
            if start is not None and flat(start).shape == moved.shape:
                moved = moved - flat(start)
            changes.setdefault(field, []).append(keep * moved)

    return max(float((one - other).norm()) for one, other in changes.values())


def one_step(name):
    training = Training(lr=1.0, steps=1, batch_size=0)
    # Only the steps of the body count in one upload; each of those of the head is a release too.
    options = {"head_epochs": 0} if "head_epochs" in load_algorithm(name).option_names() else {}
    return make(name, training=training, **options)


@pytest.mark.parametrize("name", BOUNDING)
def test_one_example_moves_an_upload_by_the_bound_at_most(name, federation):
    change = change_by_one_example(one_step(name), federation)
    assert 0.01 * CLIP < change <= CLIP * (1 + 1e-3)


def test_fedrod_would_not_bound_examples(federation):
    # The last example of client 0 becomes the only one of its class.
    rows = federation.splits[0].train
    label = federation.y[rows[-1]]
    others = rows[federation.y[rows] != label]
    first = Split(torch.cat([others, rows[-1:]]), *federation.splits[0][1:])
    splits = [first, *federation.splits[1:]]
    lone = dataclasses.replace(federation, splits=splits)

    # FedRoD's loss uses the numbers of examples by class: one changes the gradients of all.
    prefer = int(label)
    assert change_by_one_example(one_step("fedrod"), lone, prefer) > 5 * CLIP
    assert change_by_one_example(one_step("fedavg"), lone, prefer) <= CLIP * (1 + 1e-3)


def test_the_prior_of_a_client_would_not_bound_examples(federation):
    # As above: the classifier under which pFedFDA trains has the class frequencies.
    rows = federation.splits[0].train
    label = federation.y[rows[-1]]
    others = rows[federation.y[rows] != label]
    first = Split(torch.cat([others, rows[-1:]]), *federation.splits[0][1:])
    lone = dataclasses.replace(federation, splits=[first, *federation.splits[1:]])
    training = Training(lr=1.0, steps=1, batch_size=0)
    ours = make("pfedfda", training=training)
    prefer = int(label)
    assert change_by_one_example(ours, lone, prefer) <= CLIP * (1 + 1e-3)

    class WithPriors(type(ours)):
        def prior_of_training(self, prior):
            return prior

    theirs = WithPriors.from_preset("private", feature_clip=RADIUS, training=training)
    assert change_by_one_example(theirs, lone, prefer) > 2 * CLIP


@pytest.mark.parametrize("name", GAUSSIAN)
def test_one_example_moves_sums_by_the_claimed_share_of_the_noise(name, federation):
    """With the same body: what steps tell is counted apart. All features reach the bound."""
    training = Training(lr=1e-30, steps=1, batch_size=0)
    cls = load_algorithm(name)
    algorithm = cls.from_preset("private", feature_clip=1e-3, training=training)
    num_train = len(federation.splits[0].train)
    (with_it,), _ = uploads(algorithm, federation)
    (without,), _ = uploads(algorithm, federation, keep=num_train - 1)

    mechanism = SumsMechanism(algorithm.feature_bound, noise=2.0, most_examples=num_train)
    names = [name for name in with_it if name in SHARES]
    assert sorted(names) == ["counts", "squares", "sums"]
    distance = 0.0
    for field, deviation in mechanism.deviations(names).items():
        values = [one[field].value.double() for one in (with_it, without)]
        change = (values[0] - values[1]) / deviation
        if field == "squares":
            change = class_sums.unpack(change, federation.common_task.model.feature_dim)
        distance += float(change.square().sum())
    assert 0.9 / 2.0 < distance**0.5 <= 1 / 2.0


@pytest.mark.parametrize("name", GAUSSIAN)
def test_steps_and_sums_are_counted_together(name):
    training = {"epochs": 1, "batch_size": 10}
    config = config_of(
        name,
        training,
        algorithm={"name": name, "preset": "private", "feature_clip": RADIUS},
        privacy={"unit": "example", "epsilon": 4.0, "noise_from": "sites"},
    )
    ledger = Ledger()
    reports = run(Reference(), config, ledger)
    told = reports[-1].privacy
    assert told["bounds"] == "gradients and features"
    assert 3.99 < told["epsilon"] <= 4.0

    # Two rounds: steps with a rate, and one release of all examples.
    roster = assemble(config, 0).federation.roster
    client = max(roster.trainable_clients, key=lambda one: told["by_client"][str(one)])
    own = [entry for entry in ledger.entries if client in entry.cohort]
    assert [(entry.round, entry.rate < 1, entry.clip) for entry in own] == [
        (1, True, 1.0),
        (1, False, RADIUS),
        (2, True, 1.0),
        (2, False, RADIUS),
    ]
    releases = [Release(entry.noise, entry.rate, entry.steps) for entry in own]
    assert epsilon_of(1e-5, releases) == pytest.approx(told["by_client"][str(client)], rel=1e-3)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_sums_have_the_noise_that_is_claimed(name):
    """A client's noise follows from its own; those of all clients add up on the server."""
    algorithm = {"name": name, "preset": "private", "feature_clip": RADIUS}
    privacy = {**SITES, "noise": 3.0}
    config = config_of(name, {"epochs": 1}, algorithm=algorithm, privacy=privacy)
    prepared = assemble(config, 0)
    roster = prepared.federation.roster
    plan = example_plan(prepared.algorithm, roster, config.schedule, config.privacy)
    steps = NoisySteps(plan, prepared.algorithm, roster.num_train, None)

    report = RoundReport(1, [], None)
    d = prepared.federation.common_task.model.feature_dim
    nothing = {
        "body": Mean(torch.zeros(3), torch.tensor(1.0)),
        "counts": Sum(torch.zeros(10)),
        "sums": Sum(torch.zeros(10, d)),
        "squares": Sum(torch.zeros(d * (d + 1) // 2)),
    }
    noisy = [steps.bounds(report, seed=0).bounded(nothing, client) for client in (0, 1)]
    expected = SumsMechanism(RADIUS, 3.0, roster.num_train[0]).deviations(SHARES)["sums"]
    for upload in noisy:
        assert torch.equal(upload["body"].value, torch.zeros(3))
        assert float(upload["sums"].value.std()) == pytest.approx(expected, rel=0.15)
    assert not torch.equal(noisy[0]["sums"].value, noisy[1]["sums"].value)

    report.attempt = 1  # another body, so other noise
    again = steps.bounds(report, seed=0).bounded(nothing, 0)
    assert not torch.equal(again["sums"].value, noisy[0]["sums"].value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedlda", {}, r"algorithm\.statistics must be 'pooled'"),
        ("pfedfda", {}, r"algorithm\.statistics must be 'pooled'"),
        ("pfedfda", {"preset": "private"}, r"algorithm\.feature_clip must be above 0"),
        ("fedlda", {"statistics": "pooled"}, r"algorithm\.penalty must be 0"),
        (
            "pfedfda",
            {"preset": "private", "temperature": "cross_validated"},
            r"algorithm\.temperature must be a number",
        ),
    ],
)
def test_gaussians_that_noise_cannot_hide_are_refused(name, options, message):
    algorithm = {"name": name, **options}
    with pytest.raises(ConfigError, match=message):
        assemble(config_of(name, {}, algorithm=algorithm, privacy=SITES), 0)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_shares_of_noise_do_not_hide_sums_over_features(name):
    """A body with a share of the noise moves the features of all examples."""
    algorithm = {"name": name, "preset": "private", "feature_clip": RADIUS}
    privacy = {**SHARES_OF_NOISE["privacy"], "noise": 2.0, "colluding": "none"}
    config = config_of(
        name,
        ONE_STEP,
        algorithm=algorithm,
        federation={"rounds": 1, "min_clients": 3},
        privacy=privacy,
    )
    with pytest.raises(ConfigError, match="sums over features of a body"):
        run(Reference(), config)


@pytest.mark.parametrize("name", BOUNDING)
def test_methods_take_the_steps_that_they_promise(name, federation):
    algorithm = make(name, training=Training(lr=0.1, epochs=2, batch_size=8))
    with counting_steps() as taken:
        uploads(algorithm, federation)
    assert sum(taken) == algorithm.bounded_steps(len(federation.splits[0].train))


def test_a_method_that_takes_more_steps_is_not_used():
    class Hasty(FedAvg):
        bounds_examples = True

        def local_update(self, task, download, state, data, key):
            super().local_update(task, download, state, data, key.fold("before"))
            return super().local_update(task, download, state, data, key)

    prepared = assemble(config_of("fedavg", {}), 0)
    reports = simulate(
        Hasty(), prepared.federation, Reference(), Schedule(rounds=1), seed=0, privacy=AT_SITES
    )
    with pytest.raises(Exception, match="bounded_steps promises"):
        list(reports)


def test_a_derived_class_must_say_it_again(federation):
    class Derived(FedAvg):
        def local_update(self, task, download, state, data, key):
            return super().local_update(task, download, state, data, key)

    class Tuned(FedAvg):
        rounds_of_rest = 3

    schedule = config_of("fedavg", {}).schedule
    with pytest.raises(ConfigError, match="Derived"):
        check_run(Derived(), federation.roster, schedule, AT_SITES)
    check_run(Tuned(), federation.roster, schedule, AT_SITES)


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"class_weights": "balanced"}},
        {"training": {"drop_last": True}},
        {"training": {"clip_norm": 1.0}},
        {"engine": {"name": "batched"}},
        {"privacy": {"clip": 1.0, "scales": {"model": 2.0}}},
        {"federation": {"robust": "median"}},
    ],
)
def test_what_would_break_the_bound_is_refused_in_a_sentence(sections):
    training = sections.pop("training", {})
    privacy = {**SITES, **sections.pop("privacy", {})}
    with pytest.raises(ConfigError, match="'example'"):
        assemble(config_of("fedavg", training, privacy=privacy, **sections), 0)


SHARES_OF_NOISE = {"privacy": {**SITES, "noise_from": "server", "secure_sums": True}}
ONE_STEP = {"steps": 1, "batch_size": 0}


@pytest.mark.parametrize(
    ("name", "training", "privacy", "message"),
    [
        ("fedavg", ONE_STEP, {"secure_sums": False}, "the sum over clients one noise"),
        ("fedavg", {}, {}, "the sum over clients one noise"),
        ("fedavg", {"steps": 1}, {}, "the sum over clients one noise"),
        ("fedavg", {**ONE_STEP, "optimizer": "adam"}, {}, r"training\.optimizer = 'sgd'"),
        ("fedavg", {**ONE_STEP, "clip_norm": 1.0}, {}, r"training\.clip_norm must be 0"),
        ("scaffold", ONE_STEP, {}, "'sites' for Scaffold"),  # equal weights
        # The earlier model has the noise of one client, and steers the next step.
        ("moon", ONE_STEP, {}, "'sites' for Moon"),
        ("fedper", ONE_STEP, {}, "'sites' for FedPer"),  # so has the personal head
        ("fedavg", ONE_STEP, {"colluding": 2}, "needs 4 clients in a round, of which 2 may give"),
    ],
)
def test_noise_that_would_not_add_up_is_refused(name, training, privacy, message, federation):
    algorithm = load_algorithm(name)(training=Training(**training))
    options = PrivacyOptions(**{**SHARES_OF_NOISE["privacy"], **privacy})
    with pytest.raises(ConfigError, match=message):
        simulate(algorithm, federation, Reference(), Schedule(rounds=1), seed=0, privacy=options)


def test_models_with_running_means_are_refused(federation):
    task = Task(build_model("wideresnet16", (3, 32, 32), 10, {"norm": "batch"}), 10, (3, 32, 32))
    roster = dataclasses.replace(federation.roster, common_task=task)
    with pytest.raises(ConfigError, match="running mean"):
        check_run(FedAvg(), roster, config_of("fedavg", {}).schedule, AT_SITES)


def run(engine, config, ledger=None):
    prepared = assemble(config, 0)
    reports = simulate(
        prepared.algorithm,
        prepared.federation,
        engine,
        prepared.config.schedule,
        seed=0,
        privacy=prepared.config.privacy,
        ledger=ledger,
    )
    return list(reports)


@pytest.mark.parametrize("kind", quick([Workers, Processes], Workers))
def test_engines_that_run_clients_one_by_one_agree(kind):
    config = config_of("fedrep", {"epochs": 1}, privacy=SITES)
    reports = run(Reference(), config)
    with closing(kind(2)) as engine:
        for one, other in zip(reports, run(engine, config), strict=True):
            assert_same_bits(one.state.server, other.state.server)


def test_an_engine_that_stacks_clients_is_refused():
    config = config_of("fedrep", {"epochs": 1}, privacy=SITES)
    with pytest.raises(Exception, match="batched"):
        run(Batched(), config)


def test_what_stays_at_the_client_has_no_noise():
    # Ditto's personal phase.
    prepared = assemble(config_of("ditto", {"epochs": 1}), 0)
    method = prepared.algorithm
    federation = prepared.federation
    seen = []
    for noise in (0.0, 2.0):
        task = bounded(method.bind(federation.common_task), 1.0, noise)
        shared = method.init_server(task, rng.new_key(0, purpose="init_server"))
        state = method.init_client(task, federation.info(0), rng.new_key(0, purpose="init"))
        key = rng.new_key(0, round=1, purpose="train")
        seen.append(method.local_update(task, Download(shared), state, federation.data(0), key))

    assert_same_bits(seen[0].state, seen[1].state)
    assert not torch.equal(flat(seen[0].upload["model"].value), flat(seen[1].upload["model"].value))


def test_noise_at_every_client_reaches_the_global_model():
    norms = []
    for noise in (1e-9, 1e4):
        config = config_of("fedavg", {"epochs": 1}, privacy={**SITES, "noise": noise})
        norms.append(float(flat(run(Reference(), config)[-1].state.server.model).norm()))
    assert norms[1] > 3 * norms[0]


def test_shares_of_noise_make_one_on_the_sum():
    models = []
    rounds = {"rounds": 1, "min_clients": 3}
    for noise in (1e-9, 50.0):
        privacy = {**SHARES_OF_NOISE["privacy"], "noise": noise, "colluding": "none", "clip": 0.5}
        config = config_of("fedavg", {**ONE_STEP, "lr": 1.0}, federation=rounds, privacy=privacy)
        (report,) = run(Reference(), config)
        models.append(flat(report.state.server.model))

    # Each client moves by its noisy sum over its own examples, and counts by their number.
    prepared = assemble(config, 0)
    moved = (models[1] - models[0]) * sum(prepared.federation.roster.num_train)
    assert float(moved.std()) == pytest.approx(50.0 * 0.5, rel=0.03)
    assert len(moved) > 5000


def test_a_sum_of_fewer_clients_than_shares_need_is_not_used():
    privacy = {**SHARES_OF_NOISE["privacy"], "colluding": "none"}
    config = config_of("fedavg", ONE_STEP, privacy=privacy)
    prepared = assemble(config, 0)
    absent = [{"kind": "absent", "round": 1, "client": 0, "stage": "local_update", "reason": "x"}]
    reports = simulate(
        prepared.algorithm,
        prepared.federation,
        Reference(),
        prepared.config.schedule,
        seed=0,
        privacy=prepared.config.privacy,
        events=absent,
    )
    first = next(iter(reports))
    assert first.attempt == 1 and len(first.trained) == 3


def to_nan(value):
    """Return a tree of numbers that are not finite."""
    return tree.map(lambda leaf: leaf * torch.nan, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unlucky(FedRep):
    """In the first round, something that client 1 gives is not finite."""

    bounds_examples = True
    spoiled: str = ""

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        if (int(key.client), int(key.round)) != (1, 1):
            return update
        if self.spoiled == "loss":
            return update._replace(
                metrics={**update.metrics, "loss": to_nan(update.metrics["loss"])}
            )
        if self.spoiled == "state":
            return update._replace(state=to_nan(update.state))

        upload = {}
        for name, entry in update.upload.items():
            upload[name] = entry._replace(value=to_nan(entry.value))
        return update._replace(upload=upload)


@pytest.mark.parametrize("spoiled", ["loss", "state", "upload"])
def test_the_place_of_the_sum_does_not_decide_what_is_sent(spoiled):
    federation = make_federation(perceptron(), sizes=(12, 14, 15, 16), new_sizes=())
    training = Training(lr=0.1, epochs=1, batch_size=5)
    algorithm = Unlucky(training=training, head_epochs=1, spoiled=spoiled)
    schedule = Schedule(rounds=2, evaluate_every=1, personalized_every=1)

    expected = list(
        simulate(algorithm, federation, Reference(), schedule, seed=0, privacy=AT_SITES)
    )
    for places in (1, 3):
        engine = InPlaces(places)
        found = list(simulate(algorithm, federation, engine, schedule, seed=0, privacy=AT_SITES))
        assert_same_reports(found, expected)

    # An upload that cannot be used is left out; what stays with the client is not.
    trained = [0, 2, 3] if spoiled == "upload" else [0, 1, 2, 3]
    assert expected[0].trained == trained
    assert set(expected[-1].personal) == {0, 1, 2, 3}
