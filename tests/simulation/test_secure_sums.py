"""Simulations whose server gets sums in whole numbers: the accuracies of other runs, exact sums
wherever clients run, and refusals."""

from dataclasses import dataclass

import pytest
import torch

from contract.cases import ALGORITHMS, build, small_federation
from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core import tree
from fedtailor.core.errors import ConfigError
from fedtailor.core.schedule import Participation, Schedule
from fedtailor.privacy.options import PrivacyOptions
from fedtailor.simulation.engines.reference import Reference
from fedtailor.simulation.rounds import check_run, simulate
from fedtailor.simulation.server import rare_classes
from fedtailor.testing.case import TRAINING
from finished_runs import assert_same_reports
from marks import quick
from simulation.in_places import InPlaces

SECURE = PrivacyOptions(secure_sums=True, smallest_sum=2)
SHOWS_SINGLE_CLIENTS = {"fedpac", "fedfomo", "pfedhn", "fedcof"}
"""Methods whose server needs values of single clients."""
GRID = 1e-6
"""How far a sum on the grid may be from one of floats, relative to the largest number of its
tensor, after two rounds."""
FARTHER = {"scaffold": 1e-4, "pfedbayes": 1e-2, "mr_mtl": 1e-3}
"""Methods that divide small differences by small numbers, which enlarges those of rounding."""


def reports(algorithm, engine=None, privacy=SECURE, **options):
    schedule = Schedule(**{"rounds": 2, "evaluate_every": 1, "personalized_every": 1, **options})
    federation = small_federation("mlp")
    return list(
        simulate(algorithm, federation, engine or Reference(), schedule, seed=3, privacy=privacy)
    )


def sums_suffice(name):
    return name not in SHOWS_SINGLE_CLIENTS


@pytest.mark.parametrize(
    "name", quick(filter(sums_suffice, ALGORITHMS), "fedavg", "ifca", "pfedvem", "scaffold")
)
def test_every_method_keeps_its_models_and_scores(name):
    # Other rules than the arithmetic are tested below.
    keep = PrivacyOptions(secure_sums=True, smallest_sum=2, rare_classes="keep")
    plain = reports(build(name), privacy=PrivacyOptions())
    secure = reports(build(name), privacy=keep)

    for one, other in zip(plain, secure, strict=True):
        assert (one.cohort, one.events, one.trained) == (other.cohort, other.events, other.trained)
        for first, second in zip(one.evaluations, other.evaluations, strict=True):
            assert _correct(first) == _correct(second)

    expected = tree.paths(plain[-1].state.server)
    for path, tensor in tree.paths(secure[-1].state.server).items():
        largest = max(float(expected[path].abs().amax()), 1e-3) if tensor.numel() else 1.0
        tolerance = FARTHER.get(name, GRID) * largest
        torch.testing.assert_close(tensor, expected[path], rtol=0, atol=tolerance)


def _correct(evaluation):
    return {
        client: float(scores.class_correct.sum()) for client, scores in evaluation.scores.items()
    }


@pytest.mark.parametrize("name", quick(ALGORITHMS, "fedavg", "one_shot_fda"))
def test_places_have_the_bits_of_a_loop(name):
    if not sums_suffice(name):
        pytest.skip("its server needs values of single clients")

    expected = reports(build(name))
    for places in (1, 3):
        assert_same_reports(reports(build(name), InPlaces(places)), expected)


@pytest.mark.parametrize("name", sorted(SHOWS_SINGLE_CLIENTS))
def test_methods_that_need_single_values_are_refused(name):
    with pytest.raises(ConfigError, match="shows the server what single clients send"):
        reports(build(name))


def test_fedpac_with_heads_of_its_own_needs_sums_only():
    assert len(reports(build("fedpac", combine_heads=False))) == 2


@dataclass(frozen=True, kw_only=True)
class OneTooLarge(FedAvg):
    """FedAvg in which the client with so many examples sends numbers far beyond the bound."""

    examples: int = 0

    def local_update(self, task, download, state, data, key):
        update = super().local_update(task, download, state, data, key)
        factor = torch.where(data.info.num_train == self.examples, 1e6, 1.0)
        model = update.upload["model"]
        value = tree.map(lambda leaf: leaf * factor, model.value)
        return update._replace(upload={"model": model._replace(value=value)})


@pytest.mark.parametrize("engine", [Reference(), InPlaces(2)])
def test_a_value_beyond_the_bound_leaves_its_client_out(engine):
    sizes = small_federation("mlp").roster.num_train
    algorithm = OneTooLarge(training=TRAINING, examples=sizes[1])

    first = reports(algorithm, engine)[0]

    (event,) = (event for event in first.events if event["kind"] == "quarantine")
    assert (event["client"], event["field"]) == (1, "model")
    assert "beyond the bound 1,024 of secure sums" in event["reason"]
    assert 1 not in first.trained


def test_robust_rules_need_single_uploads():
    with pytest.raises(ConfigError, match=r"federation\.robust"):
        reports(build("fedavg"), robust="median")


def test_the_sum_of_too_few_is_refused_before_the_first_round():
    federation = small_federation("mlp")
    schedule = Schedule(participation=Participation(plan="fixed", count=2))

    with pytest.raises(ConfigError, match="needs 3 clients in a round, got 2"):
        check_run(build("fedavg"), federation.roster, schedule, PrivacyOptions(secure_sums=True))


def test_bytes_are_those_of_whole_numbers_of_all_rows():
    plain = reports(build("fedavg"), privacy=PrivacyOptions())
    secure = reports(build("fedavg"))
    ratio = secure[0].bytes_up / plain[0].bytes_up
    assert ratio == pytest.approx(2.0, rel=0.01)


def test_classes_of_one_client_are_rare():
    roster = small_federation("mlp").roster
    holders = roster.class_holders
    secure = PrivacyOptions(secure_sums=True, smallest_sum=max(holders))

    rare = [label for label, count in enumerate(holders) if count < max(holders)]

    assert rare, "the federation has no class that some clients lack"
    assert list(rare_classes(roster, secure)) == rare
    assert rare_classes(roster, PrivacyOptions(secure_sums=True, rare_classes="keep")) == ()
