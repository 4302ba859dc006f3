"""Verdicts for each site, on hand-made predictions."""

import json

import numpy as np
import pytest
from scipy.stats import binomtest

from fedtailor.core.errors import DataError
from fedtailor.experiment.predictions import (
    BASELINES_FILE,
    CHOICES_FILE,
    PREDICTIONS_FILE,
    ClientPredictions,
    write_predictions,
)
from fedtailor.experiment.site_rows import OwnModel, SeedPredictions, site_rows
from fedtailor.experiment.worth_it import judge, sentence


def predict(labels, wrong=()):
    """Return probabilities (n, 2) that are right, but for the examples at some places."""
    predicted = np.array(labels)
    predicted[list(wrong)] = 1 - predicted[list(wrong)]
    probabilities = np.full((len(labels), 2), 0.2, np.float32)
    probabilities[np.arange(len(labels)), predicted] = 0.8
    return probabilities


def client(labels, *, positions=None, groups=None, **models):
    """Return the predictions of models at a site, by the places of their errors."""
    labels = np.array(labels)
    return ClientPredictions(
        positions=np.arange(len(labels)) if positions is None else np.array(positions),
        labels=labels,
        probabilities={name: predict(labels, wrong) for name, wrong in models.items()},
        groups=None if groups is None else np.array(groups),
    )


def training(labels, personalized, own, *, seed=0, **options):
    """Return a training of one site, by the places of the errors of both models."""
    federated = client(labels, personalized=personalized, **options)
    options.pop("groups", None)
    return SeedPredictions(
        seed, {0: federated}, {0: OwnModel("forest", client(labels, x=own, **options))}
    )


LABELS = [0, 1] * 20


def test_one_seed_without_groups_is_decided_by_mcnemars_exact_test():
    (row,) = site_rows([training(LABELS, [0, 1], range(1, 12))], ["Oslo"])
    # Only the first example is wrong in the federated model alone, ten in the own one.
    assert row.p_value == pytest.approx(binomtest(1, 11).pvalue)
    assert (row.site, row.examples, row.groups, row.majority) == ("Oslo", 40, None, 0.5)
    assert row.difference.difference == pytest.approx(9 / 40)
    assert 0 < row.difference.low < 9 / 40 < row.difference.high
    assert row.verdict == "better" and row.own == {"forest": 1}
    assert row.scores["personalized"].accuracy == pytest.approx(0.95)
    assert row.scores["own"].balanced_accuracy == pytest.approx(29 / 40)

    (other,) = site_rows([training(LABELS, range(1, 12), [0, 1])])
    assert other.verdict == "worse" and other.site == "0"


def test_more_sites_make_a_difference_less_clear():
    clear = training(LABELS, [0], range(1, 10))
    assert site_rows([clear])[0].verdict == "better"

    # The same p-value four times: Holm takes the smallest one times four.
    many = SeedPredictions(
        0,
        dict.fromkeys(range(4), clear.federated[0]),
        dict.fromkeys(range(4), clear.own[0]),
    )
    rows = site_rows([many])
    assert {row.verdict for row in rows} == {"no clear difference"}
    assert rows[0].corrected_p_value == pytest.approx(4 * rows[0].p_value)


def test_the_measure_decides():
    # The own model never finds the rare class; the federated one does, with false alarms.
    labels = [1] * 10 + [0] * 90
    trained = training(labels, range(10, 40), range(10))
    verdicts = {
        measure: site_rows([trained], measure=measure)[0]
        for measure in ("accuracy", "balanced_accuracy", "auroc")
    }
    assert [row.verdict for row in verdicts.values()] == ["worse", "better", "better"]
    for measure, row in verdicts.items():
        own = getattr(row.scores["own"], measure)
        gap = getattr(row.scores["personalized"], measure) - own
        assert row.difference.difference == pytest.approx(gap)
        assert {measure, *row.other_differences} == set(verdicts)
        others = {name: other for name, other in verdicts.items() if name != measure}
        for name, other in others.items():
            assert other.other_differences[measure] == row.difference, name


def test_seeds_count_as_one_test_of_every_example():
    # The same predictions three times say no more than once, in whatever order they are.
    backwards = np.arange(40)[::-1]
    once = site_rows([training(LABELS, [0, 1], range(1, 12))])[0]
    again = training(
        LABELS[::-1], 39 - np.array([0, 1]), 39 - np.arange(1, 12), seed=1, positions=backwards
    )
    three = [training(LABELS, [0, 1], range(1, 12)), again, again._replace(seed=2)]
    row = site_rows(three)[0]
    assert row.examples == 40 and row.own == {"forest": 3}
    assert row.p_value == pytest.approx(once.p_value)
    assert row.difference == pytest.approx(once.difference)
    assert row.scores == {model: pytest.approx(scores) for model, scores in once.scores.items()}


def test_seeds_with_other_test_examples_have_intervals_around_the_difference():
    # The own model always says 0, and the personalized one is right. Class 1 is tested unevenly.
    classes = [0] * 20 + [1] * 4
    for tested in (([20, 21, 22], [20, 21, 23]), ([20, 21, 22], [20, 21, 22])):
        trainings = []
        for seed, positives in enumerate(tested):
            positions = [*range(10 * seed, 10 * seed + 10), *positives]
            labels = [classes[position] for position in positions]
            trainings.append(training(labels, [], range(10, 13), seed=seed, positions=positions))

        for measure in ("accuracy", "balanced_accuracy"):
            difference = site_rows(trainings, measure=measure)[0].difference
            expected = 0.5 if measure == "balanced_accuracy" else 6 / 26
            assert difference.difference == pytest.approx(expected)
            assert -1 <= difference.low < expected < difference.high <= 1


def test_confident_models_keep_their_order():
    """Probabilities above 1 - 3e-8 are all 1 in 32 bits, and those of the other class are not."""
    odds = np.array([18.0, 19.0, 40.0, -3.0, 17.5])
    probabilities = np.stack([1 / (1 + np.exp(odds)), 1 / (1 + np.exp(-odds))], axis=1)
    trained = training([1, 1, 1, 0, 0], [], [])
    trained.federated[0].probabilities["personalized"][:] = probabilities.astype(np.float32)
    assert site_rows([trained])[0].scores["personalized"].auroc == 1.0

    trained.federated[0].probabilities["personalized"][3:] = np.nan
    assert site_rows([trained])[0].scores["personalized"].auroc == 0.0


def test_examples_of_a_patient_count_as_one():
    groups = np.repeat(np.arange(10), 4)
    labels = np.repeat([0, 1] * 5, 4)
    # Two patients with four rows each: eight examples, and nothing clear.
    row = site_rows([training(labels, [], range(8), groups=groups)])[0]
    assert row.groups == 10 and row.verdict == "no clear difference"
    assert row.p_value == pytest.approx(0.5)
    assert row.difference.low < 0

    assert site_rows([training(labels, [], range(8))])[0].verdict == "better"


def test_models_that_agree_and_sites_with_one_example():
    row = site_rows([training(LABELS, [3], [3])])[0]
    assert (row.p_value, row.difference.difference) == (1.0, 0.0)
    assert row.verdict == "no clear difference" and row.difference.low < 0 < row.difference.high

    row = site_rows([training([1], [], [0])])[0]
    assert row.difference == (1.0, -1.0, 1.0) and row.p_value == 1.0
    assert row.scores["own"].auroc is None and row.other_differences["auroc"] is None

    (row,) = site_rows([training([1], [], [0])], measure="auroc")
    assert row.difference is None and row.verdict == "no clear difference"


def test_predictions_that_are_no_numbers_are_wrong():
    broken = training(LABELS, [], [])
    broken.federated[0].probabilities["personalized"][:30] = np.nan
    row = site_rows([broken])[0]
    assert row.scores["personalized"].accuracy == 0.25 and row.verdict == "worse"


def write_folder(path, predictions, *, best=None, baselines=None, names=("Oslo", "Porto")):
    """Write what is read of the folder of a seed or of a fold."""
    path.mkdir(parents=True)
    write_predictions(path / PREDICTIONS_FILE, predictions)
    split = {"client_names": list(names), "split_sha256": path.name}
    (path / "split.json").write_text(json.dumps(split))
    if best is not None:
        sites = {str(number): {"best": name} for number, name in best.items()}
        (path / CHOICES_FILE).write_text(json.dumps({"sites": sites}))
        write_predictions(path / BASELINES_FILE, baselines)

    return path


def test_the_own_model_is_the_chosen_baseline_or_local_or_the_majority(tmp_path):
    federated = {number: client(LABELS, personalized=[0]) for number in range(2)}
    baselines = {
        0: client(LABELS, forest=[1, 2], boosting=[0, 1, 2], pooled_boosting=[7]),
        1: client(LABELS, forest=[1, 2]),
    }
    folder = write_folder(
        tmp_path / "run", federated, best={0: "boosting", 1: None}, baselines=baselines
    )
    oslo, porto = judge({0: folder})["sites"]
    assert oslo["own"] == {"boosting": 1} and oslo["scores"]["own"]["accuracy"] == 0.925
    assert oslo["scores"]["pooled"]["accuracy"] == 0.975 and "pooled" not in porto["scores"]
    assert porto["own"] == {"majority": 1} and porto["scores"]["own"]["accuracy"] == 0.5
    assert porto["verdict"] == "better" and porto["scores"]["own"]["auroc"] == 0.5

    plain = write_folder(tmp_path / "plain", federated)
    local = write_folder(tmp_path / "local", federated)
    assert judge({0: plain})["sites"][0]["own"] == {"majority": 1}
    assert judge({0: plain}, local={0: local})["sites"][0]["own"] == {"local": 1}
    with_others = judge({0: plain}, others=[{0: folder}], local={0: local})
    assert with_others["sites"][0]["own"] == {"boosting": 1}

    # Of large pictures, nothing but the majority class can be trained.
    baselines = dict.fromkeys(range(2), client(LABELS, majority=[0]))
    best = dict.fromkeys(range(2), "majority")
    pictures = write_folder(tmp_path / "pictures", federated, best=best, baselines=baselines)
    assert judge({0: pictures}, local={0: local})["sites"][0]["own"] == {"local": 1}

    # Where a forest could be trained, the majority class was chosen.
    slow = {"best": "majority", "missing": {"forest": "it takes too long"}}
    sites = {"0": slow, "1": {"best": "majority", "missing": {}}}
    choices = {"names": ["majority", "forest"], "sites": sites}
    (pictures / CHOICES_FILE).write_text(json.dumps(choices))
    oslo, porto = judge({0: pictures}, local={0: local})["sites"]
    assert oslo["own"] == {"local": 1} and porto["own"] == {"majority": 1}


def test_folds_choose_anew_and_test_every_example_once(tmp_path):
    folder = write_folder(tmp_path / "run", {0: client(LABELS, personalized=[])})
    for number, name in ((1, "forest"), (2, "boosting")):
        places = range(20 * (number - 1), 20 * number)
        write_folder(
            folder / f"fold-{number}",
            {0: client(LABELS[:20], positions=places, personalized=[])},
            best={0: name},
            baselines={0: client(LABELS[:20], positions=places, **{name: [0, 1, 2, 3]})},
        )

    (row,) = judge({0: folder})["sites"]
    assert row["examples"] == 40 and row["own"] == {"forest": 1, "boosting": 1}
    assert row["p_value"] == pytest.approx(binomtest(0, 8).pvalue)


def test_what_cannot_be_judged(tmp_path):
    federated = {0: client(LABELS, personalized=[0])}
    folder = write_folder(tmp_path / "run", federated)
    (folder / PREDICTIONS_FILE).unlink()
    assert judge({0: folder}) is None, "an older run"

    # Clients without names are others in another split.
    names = {"names": (), "best": {0: "forest"}, "baselines": {0: client(LABELS, forest=[])}}
    first = write_folder(tmp_path / "first", federated, **names)
    second = write_folder(tmp_path / "second", federated, **names)
    assert judge({0: first}) is not None and judge({0: first, 1: second}) is None

    (first / CHOICES_FILE).write_text('{"sites": {"0": {"best": "tree"}}}')
    with pytest.raises(DataError, match=r"baselines\.json.*tree"):
        judge({0: first})


def test_the_sentence():
    verdicts = {"better": 3, "no clear difference": 1, "worse": 0}
    expected = "worth it for 3 of 4 sites, unclear for 1, worse for 0"
    assert sentence({"verdicts": verdicts}) == expected
    verdicts = {"better": 0, "no clear difference": 0, "worse": 1}
    assert sentence({"verdicts": verdicts}) == "worse than what the site would use alone"
