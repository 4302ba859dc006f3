"""Adaptation in closed form: what it gains, where it is refused, and what stays as it was."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import fedtailor
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.data.build import build
from fedtailor.experiment.reader import site_data_of
from fedtailor.serving import adapt
from fedtailor.serving.adapt import Blend, _error_of_mean, _Task, blended
from marks import quick
from serving.small_runs import make_run, settings, write_hospital_tables, write_pictures
from sites import write_arrays


def write_digits(folder):
    """Write digits as the data of three sites, where 255 is white."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for number, rows in enumerate(np.array_split(order, 3)):
        images = digits.images[rows].astype(np.uint8) * 15
        write_arrays(folder / str(number), images, digits.target[rows])


@pytest.fixture(scope="module", params=quick(["pfedfda", "fedlda"], "pfedfda"))
def trained(request, tmp_path_factory):
    """Return a run of three rounds, and pools of examples of each class that nobody trained on."""
    folder = tmp_path_factory.mktemp("runs")
    sections = {"training": {"epochs": 3, "lr": 0.05}, "federation": {"rounds": 3}}
    write_digits(folder / "digits")
    data = {"path": str(folder / "digits"), "val_fraction": 0.2}
    config = settings(request.param, data, **sections)
    fedtailor.run(config, out=folder / "run")
    divided = build(config.data, run_seed=0)
    rows = np.concatenate([np.concatenate(positions[1:]) for positions in divided.positions[1:]])
    return fedtailor.load(folder / "run"), divided.dataset.x[rows], divided.dataset.y[rows]


def inputs_of(trained, mix):
    """Return two disjoint sets of inputs whose classes come in a mix, with their labels."""
    _, x, y = trained
    generator = np.random.default_rng(0)
    parts = []
    for label, share in enumerate(mix):
        rows = generator.permutation(np.flatnonzero(y == label))
        parts.append(rows[: int(share * len(rows))])

    chosen = generator.permutation(np.concatenate(parts))
    half = len(chosen) // 2
    return (x[chosen[:half]], y[chosen[:half]]), (x[chosen[half:]], y[chosen[half:]])


def arrays(folder, x, y=None):
    """Write inputs, with labels if there are any; return their paths."""
    if y is None:
        np.savez(folder / "recent.npz", x=x)
        return [str(folder / "recent.npz")]

    write_arrays(folder / "labelled", x, y)
    return [str(folder / "labelled")]


def files_of(path):
    return {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def loss(model, x, y):
    return float(-np.log(model.predict_proba(x)[np.arange(len(y)), y]).mean())


def accuracy(model, x, y):
    return float((model.predict_proba(x).argmax(1) == y).mean())


FEW_CLASSES = [1, 1, 1] + [0.05] * 7


def test_the_class_prior_follows_inputs_without_labels(trained, tmp_path):
    run, *_ = trained
    (x, _), (later, labels) = inputs_of(trained, FEW_CLASSES)
    before = files_of(run.path)
    adapted = run.adapt("0", arrays(tmp_path, x), tmp_path / "new")
    old, new = run.model("0"), adapted.model("0")

    # The probabilities change by the ratio of the class mixes, and by nothing else.
    shares = adapted.result["adapted"]["class_mix"]
    ratio = np.array([share["now"] / share["before"] for share in shares.values()])
    expected = old.predict_proba(later) * ratio
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(new.predict_proba(later), expected, atol=2e-5)

    assert loss(new, later, labels) < loss(old, later, labels)
    assert accuracy(new, later, labels) >= accuracy(old, later, labels)
    np.testing.assert_array_equal(new.ood_score(later), old.ood_score(later))
    np.testing.assert_array_equal(new.features(later), old.features(later))

    # The run has its old bits, and the scores of the old model are not those of the new one.
    assert files_of(run.path) == before
    assert new.card["scores"] == {} and new.card["adapted"] == [adapted.result["adapted"]]

    # From now on, such inputs are usual, and those of before are not.
    assert not adapted.watch("0", [str(tmp_path / "recent.npz")])["alarm"]
    np.savez(tmp_path / "usual.npz", x=trained[1])
    assert adapted.watch("0", [str(tmp_path / "usual.npz")])["alarms"]["class_mix"]["rings"]


def test_without_a_reason_the_class_prior_stays(trained, tmp_path):
    run, x, _ = trained
    paths = arrays(tmp_path, x[::2])
    for inputs, what in [(x[::2], "nothing says"), (255 - x, "are stranger")]:
        np.savez(paths[0], x=inputs)
        with pytest.raises(DataError, match=what):
            run.adapt("0", paths, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_more_doubt_than_another_class_mix_explains_is_refused(trained, tmp_path, monkeypatch):
    """Inputs that are as strange as before, while the model is hardly sure of any."""
    observe = adapt.observe

    def observe_vaguely(*arguments):
        watched = observe(*arguments)
        vague = 0.5 * watched.recent.probabilities + 0.05
        return watched._replace(recent=watched.recent._replace(probabilities=vague))

    run, x, _ = trained
    monkeypatch.setattr(adapt, "observe", observe_vaguely)
    with pytest.raises(DataError, match="in more doubt than another class mix explains"):
        run.adapt("0", arrays(tmp_path, x[::2]), tmp_path / "new")


def test_labels_move_the_class_means(trained, tmp_path):
    run, x, y = trained
    generator = np.random.default_rng(0)
    moved = np.roll(x, 1, axis=2)
    rows = generator.permutation(len(x))
    fit = rows[:60]
    judge = rows[60:]
    adapted = run.adapt("0", arrays(tmp_path, moved[fit], y[fit]), tmp_path / "new", labels=True)
    (made_from,) = site_data_of(adapted.records)
    assert Path(made_from).is_absolute() and made_from.startswith(str(tmp_path))

    old, new = run.model("0"), adapted.model("0")
    facts = adapted.result["adapted"]
    assert facts["loss"]["after"] < facts["loss"]["before"] and facts["blend"]["offset"] > 0
    assert loss(new, moved[judge], y[judge]) < loss(old, moved[judge], y[judge])
    assert accuracy(new, moved[judge], y[judge]) > accuracy(old, moved[judge], y[judge]) + 0.05


def test_labels_that_gain_nothing_are_refused(trained, tmp_path):
    run, x, y = trained
    paths = arrays(tmp_path, x[:40], y[:40])
    with pytest.raises(DataError, match="do not show that the model gets better"):
        run.adapt("0", paths, tmp_path / "new", labels=True)


def test_rows_of_a_patient_are_in_one_fold():
    units = np.repeat(np.arange(7), 4)
    means = torch.zeros(2, 1)
    task = _Task(means, torch.zeros(28), means, torch.ones(2), 1.0, 1.0, units)
    for fit, judge in task._folds(torch.arange(28)):
        assert not set(units[fit]) & set(units[judge])
        assert len(fit) + len(judge) == 28

    # Four rows of each patient that gain the same say no more than one of them.
    gains = np.random.default_rng(0).normal(size=7)
    alone = _error_of_mean(gains, np.arange(7))
    assert alone == pytest.approx(gains.std(ddof=1) / np.sqrt(7))
    assert _error_of_mean(np.repeat(gains, 4), units) == pytest.approx(alone)


def test_labels_of_few_patients_are_refused(shelf, tmp_path):
    run, _ = make_run("pfedfda", "hospital_tables", shelf)
    write_hospital_tables(tmp_path / "data", sites=("Mayo",), rows=12)
    table = tmp_path / "data" / "Mayo.csv"
    lines = table.read_text().splitlines()
    rows = [f"P{row // 4}{line[line.index(',') :]}" for row, line in enumerate(lines[1:])]
    table.write_text("\n".join([lines[0], *rows]))
    with pytest.raises(DataError, match="of at least 5 groups, got 3"):
        run.adapt("Mayo", [str(table)], tmp_path / "new", labels=True)


def test_what_was_left_out_of_an_adaptation_is_told(shelf, tmp_path, monkeypatch):
    run, _ = make_run("pfedfda", "pictures", shelf)
    write_pictures(tmp_path / "recent", sites=("Mayo",), each=30)
    pictures = sorted((tmp_path / "recent" / "Mayo" / "bright").iterdir())
    pictures[0].write_bytes(b"no picture")
    alarms = adapt.check_inputs

    def ring(*args):
        found = alarms(*args)
        return found._replace(class_mix=found.class_mix._replace(p_value=0.0))

    monkeypatch.setattr("fedtailor.serving.alarms.FEWEST_HELD_OUT", 5)
    monkeypatch.setattr(adapt, "check_inputs", ring)
    monkeypatch.setattr(adapt, "_refuse_other_inputs", lambda *_: None)
    adapted = run.adapt("Mayo", list(map(str, pictures)), tmp_path / "new")
    (note,) = adapted.result["notes"]
    assert note.startswith("1 picture left out: ")


def test_mistakes_are_one_sentence(trained, tmp_path):
    run, x, y = trained
    for number, (inputs, labels, what) in enumerate(
        [
            (x[:9], y[:9], "at least 10 labels, got 9"),
            (x[:20, :5], y[:20], "shape"),
            (x[:5], None, "at least 10 recent inputs, got 5"),
            (x[:20, :5], None, "8 x 8"),
        ]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(DataError, match=what):
            run.adapt("0", arrays(place, inputs, labels), place / "new", labels=labels is not None)

    place = tmp_path / "names"
    place.mkdir()
    (path,) = arrays(place, x[:20], y[:20])
    names = np.array([f"digit {number}" for number in range(10)])
    np.savez(Path(path) / "train.npz", x=x[:20], y=y[:20], class_names=names)
    with pytest.raises(DataError, match="does not know"):
        run.adapt("0", [path], place / "new", labels=True)
    with pytest.raises(ConfigError, match="exists"):
        run.adapt("0", [path], place, labels=True)


def test_other_methods_are_refused(shelf, tmp_path):
    run, examples = make_run("fedavg", "digits", shelf)
    with pytest.raises(ConfigError, match="the method is fedavg"):
        run.adapt("0", arrays(tmp_path, examples[0][0]), tmp_path / "new")


def test_blended_means_and_prior():
    generator = np.random.default_rng(0)
    z = torch.from_numpy(generator.normal(size=(6, 2)))
    labels = torch.tensor([0, 0, 0, 0, 2, 2])
    means = torch.from_numpy(generator.normal(size=(3, 2)))
    prior = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    same_means, same_prior = blended(z, labels, means, prior, Blend(math.inf, 0.0, 0.0))
    assert torch.equal(same_means, means) and torch.equal(same_prior, prior)

    new_means, new_prior = blended(z, labels, means, prior, Blend(3.0, 0.5, 1.0))
    np.testing.assert_allclose(new_prior, (np.array([4, 0, 2]) + 3 * prior.numpy()) / 9)
    moved = means + 0.5 * (z - means[labels]).mean(0)
    expected = moved.clone()
    expected[0] += 4 / 6 * (z[:4].mean(0) - moved[0])
    expected[2] += 2 / 4 * (z[4:].mean(0) - moved[2])
    torch.testing.assert_close(new_means, expected)
