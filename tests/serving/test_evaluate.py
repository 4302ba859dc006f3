"""Models on new labelled examples: metrics, intervals, and the comparison with training."""

import json

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.cli.main import main
from fedtailor.core.errors import DataError
from fedtailor.core.metrics import per_client
from fedtailor.core.scores import score
from fedtailor.experiment.estimates import (
    difference_interval,
    mean_of_shares_interval,
    wilson_interval,
)
from fedtailor.serving.evaluate import _at_training, calibration_interval
from fedtailor.serving.inputs import Stored
from fedtailor.serving.site_data import load_site
from serving.small_runs import make_run, settings, write_hospital_tables, write_tables


@pytest.mark.parametrize("kind", ["pictures", "hospital_tables"])
def test_the_test_examples_of_a_run_have_the_scores_of_training(kind, shelf):
    run, examples = make_run("pfedfda", kind, shelf)
    record = run.model("Mayo").evaluate(*examples[2])
    for name, metric in record["metrics"].items():
        assert metric["value"] == pytest.approx(metric["at_training"], abs=1e-6), name
        low, high = metric["interval"].values()
        assert 0 <= low <= metric["value"] + 1e-12 and metric["value"] <= high
    assert set(record["comparison"]) == {"accuracy", "balanced_accuracy", "auroc"}
    for name, comparison in record["comparison"].items():
        assert comparison["difference"] == pytest.approx(0, abs=1e-6), name
        assert comparison["verdict"] == "no clear difference", name
        now = record["metrics"][name]["interval"]
        then = run.model("Mayo").card["intervals"][name]
        if kind == "pictures":
            assert then == pytest.approx(now, abs=1e-6), name
        else:  # rows of patients, who count once in a run, and here are not named
            assert then["high"] - then["low"] > now["high"] - now["low"], name
    assert record["examples_at_training"] == len(examples[2][1])


@pytest.mark.parametrize("numbers", ["quantile", "bins"])
def test_a_table_is_encoded_once_and_its_split_column_divides(numbers, tmp_path, capsys):
    write_tables(tmp_path / "data")
    for table in (tmp_path / "data").iterdir():
        header, *rows = table.read_text().splitlines()
        marks = ["train"] * 30 + ["test"] * 10
        marked = [f"{row},{mark}" for row, mark in zip(rows, marks, strict=True)]
        table.write_text("\n".join([f"{header},split", *marked]))

    data = {"path": str(tmp_path / "data"), "numbers": numbers}
    out = str(tmp_path / "run")
    fedtailor.run(settings("pfedfda", data, federation={"rounds": 3}), out=out)

    # The rows for testing alone.
    header, *rows = (tmp_path / "data" / "Oslo.csv").read_text().splitlines()
    later = tmp_path / "later.csv"
    later.write_text("\n".join([header, *rows[30:]]))
    assert main(["evaluate", out, "--client", "Oslo", str(later), "--json"]) == 0
    for name, metric in json.loads(capsys.readouterr().out)["metrics"].items():
        if name != "ece_calibrated":
            assert metric["value"] == pytest.approx(metric["at_training"], abs=1e-6), name

    # A new site trains with the rows that it marks so, and is scored on the others.
    run = fedtailor.load(out)
    made = run.onboard(tmp_path / "data" / "Oslo.csv", tmp_path / "made", name="Porto")
    client = made.clients[0]
    assert (client.num_train, client.num_test) == (30, 10)
    inputs = run.model("Oslo").inputs
    site = load_site(str(later), inputs, label_column="label", purpose="scores")
    model = made.model("Porto")
    by_path = model.predict_proba(later)
    np.testing.assert_array_equal(model.predict_proba(Stored(site.x)), by_path)


def test_the_score_of_a_model_takes_numbers_of_classes(shelf):
    run, examples = make_run("fedavg", "digits", shelf)
    x, y = examples[0]
    model = run.model(0)
    assert model.score(x, y.astype(int)) == model.score(x, y.astype(str)) > 0
    with pytest.raises(DataError, match="'11'"):
        model.score(x, y.astype(int) + 11)


def test_a_model_that_has_become_worse_or_better_is_said_so(shelf):
    run, examples = make_run("fedavg", "digits", shelf)
    model = run.model(0)
    x = np.concatenate([x for x, _ in examples])
    right = model.predict(x)
    wrong = (right.astype(int) + 1) % 10
    assert model.evaluate(x, wrong)["comparison"]["accuracy"]["verdict"] == "lower"
    assert model.evaluate(x, wrong)["comparison"]["balanced_accuracy"]["verdict"] == "lower"
    assert model.evaluate(x, right)["comparison"]["accuracy"]["verdict"] == "higher"


def test_copies_of_examples_make_no_interval_narrower(shelf):
    run, examples = make_run("fedavg", "digits", shelf)
    x, y = examples[0]
    once = run.model(0).evaluate(x, y, groups=np.arange(len(y)))
    again = run.model(0).evaluate(
        np.repeat(x, 5, axis=0), np.repeat(y, 5), groups=np.repeat(np.arange(len(y)), 5)
    )
    assert again["groups"] == len(y) and again["examples"] == 5 * len(y)
    for name in ("accuracy", "balanced_accuracy", "auroc", "ece"):
        widths = [record["metrics"][name]["interval"] for record in (once, again)]
        assert widths[1]["low"] == pytest.approx(widths[0]["low"], abs=1e-6), name


def test_labels_that_do_not_fit_are_refused(shelf):
    run, examples = make_run("fedavg", "pictures", shelf)
    x, y = examples[0]
    with pytest.raises(DataError, match=r"'brigth'.*bright"):
        run.model(0).evaluate(x, ["brigth"] * len(x))
    with pytest.raises(DataError, match="label"):
        run.model(0).evaluate(x, y[:-1])
    with pytest.raises(DataError, match="label"):
        run.model(0).evaluate(x[:0], y[:0])


def test_one_class_alone_has_no_area(shelf):
    run, examples = make_run("fedavg", "pictures", shelf)
    x, y = examples[0]
    record = run.model(0).evaluate(x[y == "dark"], y[y == "dark"])
    assert record["metrics"]["auroc"]["value"] is None
    assert set(record["missing"]) == {
        "auroc",
        "specificity of 'dark'",
        "sensitivity of 'bright'",
        "comparison",
    }
    assert not record["comparison"], "the accuracy of one class is no accuracy of all"
    assert record["by_class"]["0"]["sensitivity"] is None


def coverage(draw, true, times=400):
    generator = np.random.default_rng(0)
    intervals = [draw(generator) for _ in range(times)]
    return sum(one["low"] - 1e-12 <= true <= one["high"] for one in intervals) / times


@pytest.mark.parametrize(("true", "others"), [(0.9, 0.9), (0.9, 0.6), (1.0, 0.3)])
def test_intervals_of_differences_and_means_cover(true, others):
    def difference(generator):
        one = generator.binomial(60, true) / 60
        other = generator.binomial(25, others) / 25
        intervals = (wilson_interval(one, 60), wilson_interval(other, 25))
        return difference_interval(one, intervals[0], other, intervals[1])

    def balanced(generator):
        shares = generator.binomial(60, true) / 60, generator.binomial(25, others) / 25
        return mean_of_shares_interval(shares, (60, 25))

    assert coverage(difference, true - others) >= 0.925
    assert coverage(balanced, (true + others) / 2) >= 0.925


@pytest.mark.parametrize("shift", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
def test_intervals_of_the_calibration_error_cover(shift):
    def interval(generator):
        confidence = generator.uniform(0.5, 1, 100)
        right = generator.random(100) < confidence - shift
        logits = torch.from_numpy(np.stack([np.log(1 - confidence), np.log(confidence)], 1))
        labels = torch.from_numpy(right.astype(np.int64))
        return calibration_interval(score(logits, labels, torch.ones(100), 2), logits, labels)

    assert coverage(interval, shift, times=200) >= 0.925


def test_the_calibration_error_is_inside_its_interval():
    logits = torch.tensor([[0.0, 3.0]] * 30, dtype=torch.float64)
    labels = torch.tensor([1] * 10 + [0] * 20)
    scores = score(logits, labels, torch.ones(30), 2)
    bounds = calibration_interval(scores, logits, labels)
    assert 0.3 < bounds["low"] < per_client(scores)["ece"] < bounds["high"] < 0.9


def test_the_interval_at_training_counts_a_patient_once():
    """By the threshold of an operating point, as without one."""
    counts = {"found": 90, "positives": 100, "rejected": 80, "negatives": 100}
    at_training = _at_training({"independence": 0.1}, {"test": counts})
    assert at_training.values == {"accuracy": 0.85, "balanced_accuracy": pytest.approx(0.85)}
    assert at_training.intervals == {
        "accuracy": wilson_interval(0.85, 20),
        "balanced_accuracy": mean_of_shares_interval([0.9, 0.8], [10, 10]),
    }


def test_a_column_of_categories_may_be_empty_in_later_data(shelf, tmp_path, capsys):
    run, _ = make_run("pfedfda", "hospital_tables", shelf)
    write_hospital_tables(tmp_path / "data", sites=("Mayo",))
    table = tmp_path / "data" / "Mayo.csv"
    table.write_text(table.read_text().replace("female", "").replace("male", ""))
    words = ["evaluate", str(run.path), "--client", "Mayo", str(table), "--json"]
    assert main(words) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert "left out" not in notes

    model = run.model("Mayo")
    site = load_site(str(table), model.inputs, label_column="diagnosis", purpose="scores")
    names = model.inputs.columns.feature_names
    assert (site.x[:, names.index("sex=missing")] == 1).all()
    assert (site.x[:, names.index("sex=male")] == 0).all()


def test_files_with_and_without_groups_are_evaluated_together(shelf, tmp_path, capsys):
    run, _ = make_run("pfedfda", "tables", shelf)
    x = np.random.default_rng(0).normal(20, 3, (30, 3))
    y = np.arange(30) % 2
    names = np.array(["ill", "well"])
    for name, more in (("one", {"groups": np.arange(30) // 2}), ("two", {})):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "train.npz", x=x, y=y, class_names=names, **more)

    paths = [str(tmp_path / name) for name in ("one", "two")]
    assert main(["evaluate", str(run.path), "--client", "Mayo", *paths, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == 15 + 30


def test_columns_have_their_names_or_are_cells(tmp_path):
    """As in predictions: a table for a model of arrays is refused, and arrays are encoded."""
    write_tables(tmp_path / "tables")
    data = {"path": str(tmp_path / "tables"), "numbers": "quantile"}
    fedtailor.run(settings("fedavg", data), out=tmp_path / "of-tables")
    model = fedtailor.load(tmp_path / "of-tables").model("Oslo")

    x = np.random.default_rng(0).normal(30, 5, (20, 3)).astype(np.float32)
    y = np.arange(20) % 2
    for site in ("one", "two"):
        (tmp_path / "arrays" / site).mkdir(parents=True)
        place = tmp_path / "arrays" / site / "train.npz"
        np.savez(place, x=x, y=y, class_names=np.array(["ill", "well"]))

    site = load_site(str(tmp_path / "arrays" / "one"), model.inputs, purpose="scores")
    assert np.array_equal(model.predict_proba(Stored(site.x)), model.predict_proba(x))

    data = {"path": str(tmp_path / "arrays")}
    fedtailor.run(settings("fedavg", data), out=tmp_path / "of-arrays")
    inputs = fedtailor.load(tmp_path / "of-arrays").model("one").inputs
    with pytest.raises(DataError, match="is a table; the model takes arrays"):
        load_site(str(tmp_path / "tables" / "Oslo.csv"), inputs, purpose="scores")
