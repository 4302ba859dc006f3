"""Alarms on inputs without labels: their false alarms against the stated rate, and their power."""

import shutil

import numpy as np
import pytest
import torch
from scipy.stats import binom

import fedtailor
from fedtailor.core.errors import DataError
from fedtailor.data.build import build
from fedtailor.serving.alarms import RATE, check_inputs, rank_shift, unusual_share
from fedtailor.serving.signals import (
    HELD_OUT_FILE,
    Signals,
    read_held_out,
    signals,
    write_held_out,
)
from fedtailor.serving.watch import advice
from fedtailor.simulation.calibration import threshold_rank
from marks import slow
from serving.small_runs import make_run, write_hospital_tables

ALARMS = ("unusual", "surprise", "doubt", "class_mix")
CENTERS = np.array([[0.0, 0.0], [2.5, 0.0], [0.0, 2.5]])
EQUAL = np.full(3, 1 / 3)


def draw(generator, count, mix=EQUAL, shift=0.0):
    """Return what Gaussians of three classes say of examples."""
    labels = generator.choice(3, size=count, p=mix)
    x = CENTERS[labels] + generator.normal(size=(count, 2)) + shift
    squares = torch.from_numpy(((x[:, None] - CENTERS) ** 2).sum(-1))
    probabilities = torch.softmax(-0.5 * squares, 1)
    return Signals(probabilities, squares.amin(1).sqrt(), -torch.logsumexp(-0.5 * squares, 1))


@pytest.mark.parametrize("draws", [80, slow(200)])
def test_false_alarms_come_at_the_stated_rate(draws):
    """Of ordinary inputs, p-values are uniform, or too large; 1 in 1,000 such tests fails."""
    generator = np.random.default_rng(0)
    p_values = {name: [] for name in ALARMS}
    for _ in range(draws):
        alarms = check_inputs(draw(generator, 30), draw(generator, 20))
        for name in ALARMS:
            alarm = getattr(alarms, name)
            assert alarm.rings == (abs(alarm.value) > alarm.threshold)
            p_values[name].append(alarm.p_value)

    for name, values in p_values.items():
        for level in (RATE, 0.05, 0.2):
            count = int((np.array(values) <= level).sum())
            assert count <= binom(draws, level).ppf(0.999), (name, level, count)
            if name != "unusual":  # a share takes few values
                assert count >= binom(draws, level).ppf(0.001), (name, level, count)


@pytest.mark.parametrize(("num_held_out", "num_recent"), [(20, 10), (20, 500), (100, 50)])
def test_the_share_of_unusual_inputs_rings_at_most_at_the_stated_rate(num_held_out, num_recent):
    draws = 20_000
    generator = torch.Generator().manual_seed(num_recent)
    scores = torch.rand(draws, num_held_out + num_recent, generator=generator, dtype=torch.float64)
    held_out = scores[:, :num_held_out]
    recent = scores[:, num_held_out:]
    usual = held_out.sort(1).values[:, threshold_rank(num_held_out) - 1]
    shares = (recent > usual[:, None]).double().mean(1)

    # The threshold depends on the numbers of inputs only; one step below it rings too often.
    alarm = unusual_share(held_out[0], recent[0])
    assert alarm.value == shares[0]
    count = int((shares > alarm.threshold).sum())
    assert count <= binom(draws, RATE).ppf(0.999)
    assert (shares >= alarm.threshold).sum() > binom(draws, RATE).ppf(0.001)
    assert alarm.p_value == pytest.approx(float((shares >= shares[0]).double().mean()), abs=0.02)


@pytest.mark.parametrize(
    ("change", "ringing"),
    [
        ({"mix": [0.9, 0.05, 0.05]}, {"class_mix"}),
        ({"shift": 3.0}, {"unusual", "surprise", "doubt", "class_mix"}),
    ],
)
def test_clear_changes_ring_the_alarms_that_they_should(change, ringing):
    generator = np.random.default_rng(1)
    counts = dict.fromkeys(ALARMS, 0)
    for _ in range(20):
        alarms = check_inputs(draw(generator, 60), draw(generator, 60, **change))
        for name in ALARMS:
            counts[name] += getattr(alarms, name).rings

    assert {name for name in ALARMS if counts[name] >= 19} == ringing, counts


def test_the_mix_of_recent_inputs_is_estimated():
    generator = np.random.default_rng(2)
    mix = np.array([0.7, 0.2, 0.1])
    alarms = check_inputs(draw(generator, 5_000), draw(generator, 5_000, mix))
    np.testing.assert_allclose(alarms.held_out_mix, EQUAL, atol=0.03)
    np.testing.assert_allclose(alarms.recent_mix, mix, atol=0.03)


def test_equal_scores_ring_no_alarm():
    ones = torch.ones(40, dtype=torch.float64)
    same = Signals(ones[:, None].expand(-1, 3) / 3, ones, ones)
    alarms = check_inputs(same, same)
    assert not any(getattr(alarms, name).rings for name in ALARMS)


def test_ranks_shift_to_either_side():
    generator = np.random.default_rng(3)
    held_out = torch.from_numpy(generator.normal(size=60))
    recent = torch.from_numpy(generator.normal(size=40))
    above = rank_shift(held_out, recent + 10)
    below = rank_shift(held_out, recent - 10)
    assert above.value == 1 and below.value == -1
    assert above.rings and below.rings
    assert not rank_shift(held_out, recent).rings


def test_a_method_without_densities_has_no_alarm_on_surprise():
    generator = np.random.default_rng(0)
    nothing = torch.zeros(0, dtype=torch.float64)
    held_out = draw(generator, 60)._replace(surprise=nothing)
    recent = draw(generator, 60, shift=3.0)._replace(surprise=nothing)
    alarms = check_inputs(held_out, recent)
    assert alarms.surprise is None and alarms.doubt.rings


def test_too_few_inputs_are_refused():
    generator = np.random.default_rng(0)
    enough = draw(generator, 20)
    for held_out, recent, what in [
        (draw(generator, 19), enough, "20 held-out examples of the client, got 19"),
        (enough, draw(generator, 9), "10 recent inputs, got 9"),
    ]:
        with pytest.raises(DataError, match=what):
            check_inputs(held_out, recent)


def examples_of(run, client):
    """Return the training examples and labels of a client of a run."""
    divided = build(fedtailor.make_config(run.records.config).data, run_seed=0)
    rows = divided.positions[client].train
    return divided.dataset.x[rows], divided.dataset.y[rows], divided.positions[client]


@pytest.mark.parametrize("algorithm", ["pfedfda", "fedavg"])
def test_a_client_of_a_run_is_watched(algorithm, shelf, tmp_path):
    run, _ = make_run(algorithm, "digits", shelf)
    x, _, positions = examples_of(run, 0)
    np.savez(tmp_path / "recent.npz", x=x)
    record = run.watch("0", [str(tmp_path / "recent.npz")])
    assert record["held_out"] == len(positions.val) + len(positions.test)
    assert record["inputs"] == len(x) and record["rate"] == 0.01
    assert record["scores"] == ("method" if algorithm == "pfedfda" else "softmax")
    has_density = algorithm == "pfedfda"
    expected = [name for name in ALARMS if has_density or name != "surprise"]
    assert list(record["alarms"]) == expected
    assert sum(shares["recent"] for shares in record["class_mix"].values()) == pytest.approx(1)

    np.savez(tmp_path / "upside_down.npz", x=255 - x)
    changed = run.watch("0", [str(tmp_path / "upside_down.npz")])
    assert changed["alarm"] and changed == run.watch("0", [str(tmp_path / "upside_down.npz")])


def test_rows_of_a_table_are_watched_and_its_data_may_not_change(tmp_path):
    write_hospital_tables(tmp_path / "hospital_tables", rows=100)
    run, _ = make_run("fedper", "hospital_tables", tmp_path)
    table = tmp_path / "hospital_tables" / "Oslo.csv"
    record = run.watch("Oslo", [str(table)])
    assert record["inputs"] == 100 and set(record["class_mix"]) == {"ill", "well"}

    recent = tmp_path / "recent.csv"
    shutil.copy(table, recent)
    shutil.rmtree(tmp_path / "hospital_tables")
    with pytest.raises(DataError, match="There is no folder or file"):
        run.watch("Oslo", [str(recent)])

    write_hospital_tables(tmp_path / "hospital_tables", rows=98)
    with pytest.raises(DataError, match="have changed"):
        run.watch("Oslo", [str(recent)])


def test_an_onboarded_model_without_held_out_examples_is_not_watched(shelf, tmp_path):
    run, _ = make_run("fedper", "hospital_tables", shelf)
    table = shelf / "hospital_tables" / "Oslo.csv"
    onboarded = run.onboard(table, tmp_path / "porto", name="Porto", label_column="diagnosis")
    with pytest.raises(DataError, match="no held-out examples"):
        onboarded.watch("Porto", [str(table)])


def test_what_the_model_says_is_kept_and_damage_is_found(tmp_path):
    held_out = draw(np.random.default_rng(0), 30)
    write_held_out(tmp_path, held_out)
    for before, after in zip(held_out, read_held_out(tmp_path, 3), strict=True):
        assert torch.equal(before, after)

    with pytest.raises(DataError, match="shapes"):
        read_held_out(tmp_path, 4)
    write_held_out(tmp_path, held_out._replace(probabilities=held_out.probabilities + 1))
    with pytest.raises(DataError, match="between 0 and 1"):
        read_held_out(tmp_path, 3)
    (tmp_path / HELD_OUT_FILE).write_bytes(b"nothing")
    with pytest.raises(DataError, match=HELD_OUT_FILE):
        read_held_out(tmp_path, 3)


def test_scores_that_are_no_numbers_are_the_strangest(shelf, monkeypatch):
    run, examples = make_run("pfedfda", "digits", shelf)
    model = run.model("0")
    nan = torch.full((), torch.nan)
    monkeypatch.setattr(model.module, "ood_score", lambda x: nan.expand(len(x)))
    said = signals(model, [examples[0][0][:5]])
    assert said.strangeness.isinf().all() and said.surprise.isfinite().all()

    monkeypatch.setattr(model, "probabilities", lambda logits: nan.expand(len(logits), 10))
    with pytest.raises(DataError, match="no probabilities for 5 of 5"):
        signals(model, [examples[0][0][:5]])


@pytest.mark.parametrize(
    ("ringing", "expected"),
    [
        ({}, "No alarm"),
        ({"unusual": 0.4, "surprise": 0.5}, "the inputs have changed, and accuracy"),
        ({"surprise": 0.5, "class_mix": 0.2}, "the inputs are less likely than before"),
        ({"surprise": -0.5}, "the inputs are more likely than before"),
        ({"doubt": 0.5, "class_mix": 0.2}, "the model is in more doubt than before"),
        ({"class_mix": 0.2}, "other shares than before"),
    ],
)
def test_alarms_in_words(ringing, expected):
    rows = {name: {"value": ringing.get(name, 0.0), "rings": name in ringing} for name in ALARMS}
    assert expected in advice({"alarms": rows})
