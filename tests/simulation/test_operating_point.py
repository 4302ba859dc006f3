"""The threshold for a sensitivity: by its guarantee, and from a run to a prediction."""

import json

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.cli.main import main
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.schedule import Schedule
from fedtailor.simulation.operating_point import choose_threshold, classify, count_right


def logits_of(scores):
    return torch.stack([torch.zeros(len(scores)), torch.as_tensor(scores)], 1).double()


@pytest.mark.parametrize(("sensitivity", "count"), [(0.8, 12), (0.9, 30), (0.95, 19)])
def test_new_positives_are_found_as_often_as_wanted(sensitivity, count):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        scores = rng.normal(size=count + 40)
        labels = torch.cat([torch.ones(count), torch.zeros(20)])
        validation = logits_of(np.concatenate([scores[:count], rng.normal(size=20) - 1]))
        point = choose_threshold(validation, labels, sensitivity, 1.0)
        counts = count_right(logits_of(scores[count:]), torch.ones(40), point.log_odds)
        found.append(counts["found"] / counts["positives"])

    # At least as often, and by the definition of the quantile at most 1 / (n + 1) more often.
    noise = 4 * np.std(found) / np.sqrt(len(found))
    assert sensitivity - noise <= np.mean(found) <= sensitivity + 1 / (count + 1) + noise


def test_a_threshold_of_too_few_positives_is_not_chosen():
    for sensitivity, needed in ((0.5, 10), (0.9, 10), (0.95, 19), (0.99, 99)):
        enough = choose_threshold(logits_of(np.arange(needed)), torch.ones(needed), sensitivity, 1)
        assert enough.log_odds is not None and not enough.problem
        fewer = needed - 1
        none = choose_threshold(logits_of(np.arange(fewer)), torch.ones(fewer), sensitivity, 1)
        assert none.log_odds is None and str(needed) in none.problem and none.positives == fewer

    not_numbers = choose_threshold(logits_of(np.full(20, np.nan)), torch.ones(20), 0.9, 1.0)
    assert not_numbers.log_odds is None
    assert not_numbers.problem.endswith("examples log-odds that are not finite")
    assert classify(logits_of([-1.0, 1.0]), None).tolist() == [0, 1]


def test_either_class_can_be_the_positive_one():
    scores = torch.randn(40, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(40) % 2).float()
    last = choose_threshold(logits_of(scores), labels, 0.8, 2.0)
    first = choose_threshold(logits_of(scores).flip(1), 1 - labels, 0.8, 2.0, positive=0)
    assert first == last._replace(positive=0)
    one = classify(logits_of(scores), last.log_odds)
    other = classify(logits_of(scores).flip(1), first.log_odds, positive=0)
    assert other.tolist() == (1 - one).tolist()
    counts = count_right(logits_of(scores), labels, last.log_odds)
    flipped = logits_of(scores).flip(1)
    assert count_right(flipped, 1 - labels, first.log_odds, positive=0) == counts


def test_the_positive_class_has_a_name_of_the_data():
    schedule = Schedule(positive="disease")
    assert schedule.positive_of(["disease", "healthy"]) == 0
    assert Schedule().positive_of(["disease", "healthy"]) == 1
    with pytest.raises(ConfigError, match="unknown class 'disease'; did you mean 'diseased'"):
        schedule.check_validation(True, ["diseased", "healthy"])
    with pytest.raises(ConfigError, match="two classes, and these have 3"):
        schedule.check_validation(True, ["disease", "healthy", "unclear"])


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """Return the folder of a run at two sites; one has few positive examples."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for site, positives in (("large", 60), ("small", 12)):
        y = (np.arange(160) >= positives).astype(int)
        x = rng.normal(size=(160, 3)) + (1 - y[:, None])
        (tmp_path / "own" / site).mkdir(parents=True)
        np.savez(tmp_path / "own" / site / "train.npz", x=x, y=y, class_names=["sick", "well"])
    config = {
        "data": {"path": "own", "val_fraction": 0.25},
        "algorithm": {"name": "fedavg_ft"},
        "federation": {"rounds": 3},
        "evaluation": {"sensitivity": 0.9, "positive": "sick", "baselines": "none"},
    }
    fedtailor.run(fedtailor.make_config(config), out="one")
    return tmp_path / "one"


def test_from_a_run_to_predictions(run_folder, capsys):
    run = fedtailor.load(run_folder)
    model = run.model("large")
    point = model.operating_point
    assert run.result["operating_points"]["large"] == dict(point)
    assert point["positives"] >= 10 and point["problem"] == ""

    # The same classes from the counts of the test examples, in Python, and by the command.
    x = np.load("own/large/train.npz")["x"]
    margin = model.logits(x) @ [1.0, -1.0]
    expected = np.where(margin >= point["log_odds"], "sick", "well")
    assert (model.predict(x) == expected).all()
    assert (expected != np.where(margin >= 0, "sick", "well")).any()
    probability = model.predict_proba(x)[:, 0]
    clear = abs(probability - point["probability"]) > 1e-9
    assert ((probability >= point["probability"]) == (expected == "sick"))[clear].all()

    test = json.loads((run_folder / "split.json").read_text())["clients"][0]["test"]
    counts = point["test"]
    assert counts["positives"] + counts["negatives"] == len(test)
    assert main(["predict", "one", "--client", "large", "own/large/train.npz", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["class"] for row in record["predictions"]] == expected.tolist()

    # An evaluation counts by the threshold too, and so does its comparison with training.
    y = np.load("own/large/train.npz")["y"]
    truth = np.array(["sick", "well"])[y]
    test_rows = json.loads((run_folder / "split.json").read_text())["clients"][0]["test"]
    evaluation = model.evaluate(x[test_rows], truth[test_rows])
    accuracy = evaluation["metrics"]["accuracy"]
    assert (
        accuracy["value"] == accuracy["at_training"] == model.score(x[test_rows], truth[test_rows])
    )
    assert accuracy["value"] != run.result["sites"]["large"]["accuracy"]
    assert evaluation["by_class"]["0"]["sensitivity"] == counts["found"] / counts["positives"]
    assert evaluation["comparison"]["accuracy"]["difference"] == 0

    # Few positive examples: the most probable class, and the reason.
    few = run.model("small")
    assert few.operating_point["log_odds"] is None
    small = np.load("own/small/train.npz")["x"]
    margin = few.logits(small) @ [1.0, -1.0]
    assert (few.predict(small) == np.where(margin > 0, "sick", "well")).all()
    assert main(["predict", "one", "--client", "small", "own/small/train.npz"]) == 0
    assert few.operating_point["problem"] in capsys.readouterr().err


def test_a_damaged_operating_point_is_refused(run_folder):
    path = run_folder / "models" / "large.json"
    card = json.loads(path.read_text())
    card["calibration"]["operating_point"]["log_odds"] = "high"
    path.write_text(json.dumps(card))
    with pytest.raises(DataError, match="calibration"):
        fedtailor.load(run_folder).model("large")


def test_it_needs_two_classes_and_validation_examples(tmp_path, run_folder):
    for data in ({"clients": 3, "val_fraction": 0.2}, {"path": "own"}):
        config = fedtailor.make_config({"data": data, "evaluation": {"sensitivity": 0.9}})
        with pytest.raises(ConfigError, match="sensitivity"):
            fedtailor.run(config, out=tmp_path / "refused")
