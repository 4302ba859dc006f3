"""Runs that protect examples in sums over features: bits, ledger, budget, repair, refusals."""

import dataclasses
import json
from itertools import product

import pytest
import torch

import fedtailor as ft
from contract.cases import build, small_federation
from fedtailor.algorithms import ALGORITHMS, load_algorithm
from fedtailor.algorithms.fedcgs import FedCGS
from fedtailor.algorithms.fedncm import FedNCM
from fedtailor.cli.main import main
from fedtailor.core import rng, tree
from fedtailor.core.algorithm import Download
from fedtailor.core.errors import ConfigError, RunError
from fedtailor.core.federation import Cohort
from fedtailor.core.schedule import Schedule
from fedtailor.experiment.algorithm_card import may_leave_out_rows
from fedtailor.experiment.assembly import assemble
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.class_statistics import SumsMechanism
from fedtailor.privacy.ledger import Ledger
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.engines.batched import Batched
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import check_run, simulate
from fedtailor.statistics import class_sums
from finished_runs import assert_same_reports
from marks import quick
from simulation.in_places import InPlaces

CLIP = 2.0
METHODS = [name for name in ALGORITHMS if load_algorithm(name)().feature_bound is not None]
ONCE = PrivacyOptions(unit="example", noise=0.5)
AT_SITES = PrivacyOptions(unit="example", noise=0.5, noise_from="sites")


def reports(method, privacy=ONCE, engine=None, ledger=None, seed=3):
    runs = simulate(
        method,
        small_federation("mlp"),
        engine or Reference(),
        Schedule(rounds=1, evaluate_every=1, personalized_every=1),
        seed=seed,
        privacy=privacy,
        ledger=ledger,
    )
    return list(runs)


def head_of(runs):
    return tree.paths(runs[-1].state.server.head)


def config_of(**sections):
    values = {
        "data": {"dataset": "digits", "clients": 4, "partition": "iid", "fraction": 0.3},
        "algorithm": {"name": "fedcgs", "head": "lda", "feature_clip": 8.0},
        "engine": {"name": "reference"},
        "evaluation": {"baselines": "none"},
        "privacy": {"unit": "example", "epsilon": 4.0},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return ft.make_config(values)


def test_methods_are_those_of_one_exchange():
    assert METHODS == ["fed3r", "fedcgs", "fedncm"]


@pytest.mark.parametrize(
    ("name", "privacy"),
    quick(list(product(METHODS, [ONCE, AT_SITES])), ("fed3r", ONCE), ("fedncm", AT_SITES)),
)
def test_a_seed_has_the_same_bits_anywhere(name, privacy):
    method = build(name, feature_clip=CLIP)
    expected = reports(method, privacy)
    for engine in (InPlaces(1), InPlaces(3)):
        assert_same_reports(reports(method, privacy, engine), expected)

    other = head_of(reports(method, privacy, seed=4))
    assert any(not torch.equal(other[path], leaf) for path, leaf in head_of(expected).items())


def test_stacked_clients_have_the_same_noise():
    method = build("fedncm", feature_clip=CLIP)
    for path, leaf in head_of(reports(method, engine=Batched(2))).items():
        torch.testing.assert_close(leaf, head_of(reports(method))[path])


@pytest.mark.parametrize("privacy", [ONCE, AT_SITES])
def test_secure_sums_have_the_same_noise(privacy):
    method = build("fedcgs", head="lda", feature_clip=CLIP)
    secure = PrivacyOptions(
        unit="example",
        noise=privacy.noise,
        noise_from=privacy.noise_from,
        secure_sums=True,
        smallest_sum=2,
    )
    plain = head_of(reports(method, privacy))
    for path, leaf in head_of(reports(method, secure)).items():
        torch.testing.assert_close(leaf, plain[path], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("means_only", [False, True])
@pytest.mark.parametrize("head", quick(["shared", "lda", "naive_bayes", "qda"], "lda", "qda"))
@pytest.mark.parametrize("noise", quick([1e-12, 0.1, 3.0, 100.0], 100.0))
def test_heads_are_finite_whatever_the_noise(head, noise, means_only):
    method = build("fedcgs", head=head, feature_clip=CLIP, means_only=means_only)
    privacy = PrivacyOptions(unit="example", noise=noise)
    for leaf in head_of(reports(method, privacy)).values():
        assert torch.isfinite(leaf).all()


def upload_of(method, federation, rows):
    """Return what client 0 uploads if it has these rows of all examples."""
    task = method.bind(federation.common_task)
    data = federation.data(0)
    data = data._replace(train=federation.examples(rows))
    server = method.init_server(task, rng.new_key(3))
    shared = method.broadcast(server, Cohort(torch.arange(3), 3, 1, 1))
    update = method.local_update(task, Download(shared), (), data, rng.new_key(3, round=1))
    return {name: entry.value.double() for name, entry in update.upload.items()}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedncm", {}),
        ("fed3r", {}),
        *(("fedcgs", {"head": head}) for head in ("lda", "naive_bayes", "qda")),
        ("fed3r", {"means_only": True}),
        ("fedcgs", {"head": "lda", "means_only": True}),
    ],
)
def test_one_example_moves_what_is_released_by_the_claimed_share_of_the_noise(name, options):
    federation = small_federation("mlp")
    method = build(name, feature_clip=0.01, **options)  # shorter than all features
    rows = torch.arange(len(federation.x))
    with_it = upload_of(method, federation, rows)
    mechanism = SumsMechanism(method.feature_bound, noise=2.0, most_examples=len(rows))
    deviations = mechanism.deviations(with_it)

    for row in (0, 7):
        without = upload_of(method, federation, rows[rows != row])
        distance = 0.0
        for field, value in with_it.items():
            change = (value - without[field]) / deviations[field]
            if field == "squares" and value.shape[-1] != with_it["sums"].shape[-1]:
                d = with_it["sums"].shape[-1]
                change = class_sums.unpack(change, d)  # entries off the diagonal count twice
            distance += float(change.square().sum())

        # The shift of a Gaussian mechanism, in deviations: epsilon follows from 1 / noise.
        assert 0.85 / 2.0 < distance**0.5 <= 1 / 2.0


@pytest.mark.parametrize("name", METHODS)
def test_an_example_that_is_not_finite_has_no_part(name):
    federation = small_federation("mlp")
    method = build(name, feature_clip=0.01)
    with_it = dataclasses.replace(federation, x=federation.x.clone())
    with_it.x[0] = torch.inf
    rows = torch.arange(1, len(federation.x))
    expected = upload_of(method, federation, rows)
    for field, value in upload_of(method, with_it, torch.arange(len(federation.x))).items():
        if field != "counts":
            torch.testing.assert_close(value, expected[field])


def test_almost_no_noise_changes_almost_nothing():
    method = build("fed3r", feature_clip=CLIP)
    privacy = PrivacyOptions(unit="example", noise=1e-12)
    exact = head_of(reports(method, PrivacyOptions()))
    for path, leaf in head_of(reports(method, privacy)).items():
        torch.testing.assert_close(leaf, exact[path], rtol=1e-3, atol=1e-3)


def test_features_are_bounded_in_training_and_prediction():
    federation = small_federation("mlp")
    method = FedNCM(feature_clip=0.01)
    task = method.bind(federation.common_task)
    *_, report = reports(method, PrivacyOptions())
    model = method.global_model(task, report.state.server)
    z = method.features(task, model, federation.x[:20])
    assert float(z.norm(dim=1).max()) <= 0.01
    assert float(z.norm(dim=1).min()) > 0.0099


def test_an_upload_does_not_tell_which_classes_a_client_lacks():
    method = FedNCM(feature_clip=CLIP)
    federation = small_federation("mlp")
    sizes = {report.bytes_up for report in reports(method, PrivacyOptions())}
    classes = federation.common_task.num_classes
    d = federation.common_task.model.feature_dim
    senders = len(federation.roster.trainable_clients)
    assert sizes == {4 * senders * classes * (1 + d)}

    task = method.bind(federation.common_task)
    fields = method.messages(task).values()
    assert not any(may_leave_out_rows(method, field, task) for field in fields)
    free = FedNCM()
    assert any(may_leave_out_rows(free, field, task) for field in free.messages(task).values())


def test_the_ledger_has_the_release_and_the_record_its_epsilon():
    for privacy in (ONCE, AT_SITES):
        ledger = Ledger()
        (report,) = reports(FedNCM(feature_clip=CLIP), privacy, ledger=ledger)
        (entry,) = ledger.entries
        assert (entry.noise, entry.rate, entry.clip) == (0.5, 1.0, CLIP)
        assert report.privacy["epsilon"] == epsilon_of(1e-5, [Release(0.5, 1.0, 1)])
        assert report.privacy["noise_from"] == privacy.noise_from


def test_no_release_without_its_entry(monkeypatch):
    def fail(self, entry):
        raise RunError("no space left", key="out")

    monkeypatch.setattr(Ledger, "add", fail)
    for privacy in (ONCE, AT_SITES):
        with pytest.raises(RunError, match="no space left"):
            reports(FedNCM(feature_clip=CLIP), privacy)


def test_sums_of_secret_noises_tell_less_than_single_uploads():
    privacy = PrivacyOptions(
        unit="example", noise=0.5, noise_from="sites", secure_sums=True, smallest_sum=2
    )
    (report,) = reports(FedNCM(feature_clip=CLIP), privacy)
    m = len(report.trained)
    expected = epsilon_of(1e-5, [Release(0.5 * m**0.5, 1.0, 1)])
    assert report.privacy["epsilon_of_sums"] == pytest.approx(expected)


@pytest.mark.parametrize("privacy", [ONCE, AT_SITES])
def test_releases_of_two_methods_add_up(privacy):
    ledger = Ledger()
    reports(FedNCM(feature_clip=CLIP), privacy, ledger=ledger)
    (report,) = reports(FedCGS(feature_clip=CLIP), privacy, ledger=ledger)
    assert report.privacy["epsilon"] == epsilon_of(1e-5, [Release(0.5, 1.0, 2)])

    # The same release again tells nothing new.
    (report,) = reports(FedCGS(feature_clip=CLIP), privacy, ledger=ledger)
    assert report.privacy["epsilon"] == epsilon_of(1e-5, [Release(0.5, 1.0, 2)])


def test_a_budget_that_is_used_up_ends_the_run():
    ledger = Ledger()
    privacy = PrivacyOptions(unit="example", epsilon=2.0)
    reports(FedNCM(feature_clip=CLIP), privacy, ledger=ledger)
    with pytest.raises(RunError, match=r"privacy\.epsilon = 2 is used up after 0 of 1 rounds"):
        reports(FedCGS(feature_clip=CLIP), privacy, ledger=ledger)


def test_a_run_says_what_it_claims(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    options = ["--set", "algorithm.feature_clip=8", "--set", "privacy.unit=example"]
    options += ["--set", "privacy.epsilon=4", "--set", "privacy.noise_from=sites"]
    sizes = ["-d", "digits", "--clients", "4", "--partition", "iid"]
    assert main(["run", "-a", "fedncm", *sizes, *options, "--out", "one"]) == 0

    said = " ".join(capsys.readouterr().err.split())
    assert (
        "epsilon 4.00 (delta 1e-05) per example, for whoever sees uploads or the global model"
        in said
    )
    record = json.loads((tmp_path / "one" / "result.json").read_text())["privacy"]
    assert 3.99 < record["epsilon"] <= 4.0
    assert len((tmp_path / "one" / "privacy.jsonl").read_text().splitlines()) == 1


def test_a_plan_counts_one_release(capsys):
    options = ["--set", "privacy.unit=example", "--set", "algorithm.feature_clip=1"]
    options += ["--set", "algorithm.name=fedncm", "--set", "privacy.epsilon=4"]
    assert main(["privacy", "plan", *options, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["rounds"] == 1
    noise = record["plans"][0]["noise"]
    assert epsilon_of(1e-5, [Release(noise, 1.0, 1)]) == pytest.approx(4.0, rel=1e-3)


def test_what_noise_would_hide_is_not_sent(tmp_path):
    sizes = []
    for epsilon in (0.05, 400.0):
        section = {"epsilon": epsilon, "noise_from": "sites"}
        prepared = assemble(config_of(privacy=section), 0)
        is_hidden = epsilon < 1.0
        assert prepared.config.algorithm.options["means_only"] == is_hidden
        assert any("means_only" in note for note in prepared.notes) == is_hidden

        folder = tmp_path / f"{epsilon}"
        result = ft.run(config_of(privacy=section), out=folder)
        sizes.append(result["bytes"]["up"])
        assert result["privacy"]["epsilon"] <= epsilon

    # Counts, sums and upper triangles of 64 features, of four clients.
    assert sizes == [16 * 10 * 65, 16 * (10 * 65 + 64 * 65 // 2)]


def test_the_budget_goes_to_what_is_sent():
    noises = {}
    for means_only in (False, True):
        method = build("fedcgs", head="lda", feature_clip=CLIP, means_only=means_only)
        fields = method.messages(method.bind(small_federation("mlp").common_task))
        sums = [name for name, field in fields.items() if field.reduction == "sum"]
        noises[means_only] = SumsMechanism(CLIP, 1.0, 100).deviations(sums)["sums"]
    assert noises[False] / noises[True] == pytest.approx((1.45 / 1.09) ** 0.5, rel=1e-3)


def test_means_only_needs_a_bound():
    for name in ("fedcgs", "fed3r"):
        with pytest.raises(ConfigError, match=r"means_only needs algorithm\.feature_clip above 0"):
            build(name, means_only=True)


BOUNDING = [name for name in ALGORITHMS if load_algorithm(name).bounds_examples]


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {*METHODS, *BOUNDING}))
def test_other_methods_are_refused(name):
    with pytest.raises(ConfigError, match=r"privacy\.unit = 'example' cannot promise anything"):
        check_run(build(name), small_federation("mlp").roster, Schedule(rounds=1), AT_SITES)


def test_a_derived_class_must_say_it_again():
    class Derived(FedNCM):
        def local_update(self, task, download, state, data, key):
            return super().local_update(task, download, state, data, key)

    with pytest.raises(ConfigError, match="cannot promise anything for Derived"):
        reports(Derived(feature_clip=CLIP))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"algorithm": {"feature_clip": 0.0}}, r"algorithm\.feature_clip must be above 0"),
        ({"privacy": {"epsilon": 0.0}}, r"privacy\.epsilon must be above 0"),
        ({"privacy": {"clip": 2.5}}, r"privacy\.clip must be left out"),
        ({"privacy": {"unit": "client", "noise_from": "sites"}}, r"privacy\.noise_from"),
        ({"federation": {"robust": "median"}}, r"federation\.robust"),
        ({"data": {"normalize": "training"}}, r"data\.normalize must be 'dataset' or 'l2'"),
    ],
)
def test_what_would_be_a_lie_is_refused(section, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        ft.run(config_of(**section), out=tmp_path / "run")
