"""Adapt a client's Gaussian model to recent inputs, in closed form; the old model stays.

Without labels the class prior follows the class mix of the inputs. With labels the class prior and
the class means are blended with those of the labelled examples, by cross-validation on them. What
the data do not support is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedtailor.algorithms._gaussian_classifier import GaussianClassifier
from fedtailor.core.codec import encode
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.text import counted
from fedtailor.data.input_specification import write_input_specification
from fedtailor.data.split import bare_split
from fedtailor.experiment.config import to_toml
from fedtailor.experiment.folder import RunFolder
from fedtailor.experiment.provenance import describe
from fedtailor.experiment.reader import SITE_DATA, RunRecords, site_data_of
from fedtailor.serving.alarms import MOST_COMPARED, Alarms, check_inputs
from fedtailor.serving.encoded import with_encoder
from fedtailor.serving.inputs import Stored
from fedtailor.serving.load import load_method, load_personal, make_model
from fedtailor.serving.model import PersonalModel
from fedtailor.serving.own_model import own_model
from fedtailor.serving.signals import Signals, signals, write_held_out
from fedtailor.serving.site_data import SiteData, absolute, groups_of, load_labelled
from fedtailor.serving.sources import Sources
from fedtailor.serving.watch import Watched, observe
from fedtailor.statistics import gaussian

FEWEST_LABELS = 10
_FEWEST_GROUPS = 5
"""Such as patients, among labelled examples."""
_FOLDS = 5
_ENOUGH = 1.645
"""Standard errors that labels must gain: 5 % of changes that gain nothing do."""
_UNEXPLAINED = 0.1
"""Shift of ranks that a class mix may leave unexplained, without labels."""
_EXAMPLES_OF_MEAN = 2.0
"""Examples that an old class mean counts as, beside those with labels."""


class Blend(NamedTuple):
    """How much labelled examples count."""

    prior_examples: float
    """Examples that the old class prior counts as; infinite: it stays."""
    offset: float
    """Share of the mean gap of features from their class means that moves all means."""
    means: float
    """Share of the way from an old class mean to that of its labelled examples, for many."""


_GRID = [
    Blend(*values) for values in product((math.inf, 30.0, 3.0), (0.0, 0.5, 1.0), (0.0, 0.5, 1.0))
]


class AdaptedModel(NamedTuple):
    """A model after an adaptation."""

    personal: Any
    card: dict[str, Any]
    held_out: Signals
    """What the model says of the inputs that it was adapted to: what is usual from now on."""
    facts: dict[str, Any]
    """What was done, ready for JSON."""
    paths: tuple[str, ...]
    """Of the inputs."""
    notes: tuple[str, ...] = ()
    """Warnings on the inputs, in sentences."""


def adapt_client(
    records: RunRecords,
    client: str | int,
    paths: Sequence[str],
    *,
    labels: bool,
    label_column: str = "",
) -> AdaptedModel:
    """Adapt the model of a client; see :meth:`fedtailor.serving.run.Run.adapt`."""
    model = load_personal(records, client)
    _refuse_unsuitable(records, model)
    if labels:
        return _adapt_to_labels(records, model, paths, label_column)
    return _adapt_to_class_mix(records, model, paths)


def _refuse_unsuitable(records: RunRecords, model: PersonalModel) -> None:
    """Check that a model has Gaussians, and that their class prior decides.

    Raises:
        ConfigError: it has none, or it does not.
    """
    own = own_model(records, model.card, model.inputs)
    algorithm = model.module.algorithm
    problem = ""
    if own is not None:
        problem = f"it predicts with its own {own.card['algorithm']} instead"
    elif not isinstance(algorithm, GaussianClassifier):
        problem = f"the method is {model.card['algorithm']}"
    elif algorithm.prediction_prior == "uniform":
        problem = 'algorithm.prediction_prior = "uniform" asks for equally likely classes'
    elif model.operating_point:
        problem = "it predicts by a threshold for a sensitivity, whatever the class mix is"
    if problem:
        allowed = "pfedfda or fedlda"
        message = (
            f"the model of {model.client} cannot be adapted by Gaussians of classes: {problem}."
        )
        raise ConfigError(message, key="algorithm", allowed=allowed, got=problem)


def _adapt_to_class_mix(
    records: RunRecords, model: PersonalModel, paths: Sequence[str]
) -> AdaptedModel:
    """Return a model whose class prior has followed the class mix of inputs without labels.

    Raises:
        DataError: the classes come in the shares of before, or the inputs are of another kind.
    """
    watched = observe(records, model.client, paths)
    alarms = check_inputs(watched.held_out, watched.recent)

    _refuse_other_inputs(watched, alarms)
    if not alarms.class_mix.rings:
        message = "nothing says that the classes come in other shares than before (p = "
        message += f"{alarms.class_mix.p_value:.2f}), so the model stays as it is."
        raise DataError(message, key="inputs", allowed="another class mix", got="the usual one")

    # As if one more input of the usual mix had come: no class becomes impossible.
    count = len(watched.recent.surprise)
    mix = (count * alarms.recent_mix + alarms.held_out_mix) / (count + 1)

    # Logits are divided by the temperature, and probabilities must change by the ratio.
    ratio = (mix / alarms.held_out_mix) ** model.temperature
    tree = model.module.tree()
    prior = tree.prior.double() * ratio
    facts = {
        "to": "class mix",
        "inputs": count,
        "class_mix": _by_class(model, alarms.held_out_mix, mix),
    }
    sources = Sources(paths, watched.model.inputs)
    personal = model.module.algorithm.with_gaussians(tree, tree.means, prior / prior.sum())
    new = make_model(load_method(records), int(model.card["number"]), personal, model.card)
    usual = signals(with_encoder(new), (named.stored for named in sources.batches()))
    notes = list(sources.notes)
    if sources.unreadable:
        reason = sources.unreadable[0].reason
        notes.append(f"{counted(len(sources.unreadable), 'picture')} left out: {reason}")

    return AdaptedModel(personal, _card(model, facts), usual, facts, tuple(paths), tuple(notes))


def _refuse_other_inputs(watched: Watched, alarms: Alarms) -> None:
    """Check that another class mix explains what the model says of recent inputs.

    If inputs of a class look as before, then held-out examples, weighted by the new mix, are as
    strange as recent inputs, and the model doubts them as much.

    Raises:
        DataError: the recent inputs are clearly stranger, or doubted more.
    """
    held_out = watched.held_out.at_most(MOST_COMPARED)
    recent = watched.recent.at_most(MOST_COMPARED)
    weights = held_out.probabilities @ (alarms.recent_mix / alarms.held_out_mix)
    weights = weights / weights.sum()
    for what, before, now in (
        ("are stranger", held_out.strangeness, recent.strangeness),
        ("leave the model in more doubt", held_out.doubt, recent.doubt),
    ):
        shift = _weighted_shift(before, now, weights)
        if shift > _UNEXPLAINED:
            share = f"{50 * (1 + shift):.0f} % of pairs"
            message = f"recent inputs {what} than another class mix explains ({share}, not half of "
            message += "them): their classes cannot be counted without labels. Label some, and "
            message += "give these with --labels."
            raise DataError(message, key="inputs", allowed="usual inputs", got=shift)


def _weighted_shift(held_out: Tensor, recent: Tensor, weights: Tensor) -> float:
    """Return how far recent scores (m,) rank above held-out ones (n,), from -1 to 1.

    Args:
        held_out: scores.
        recent: scores.
        weights: of the held-out ones (n,), with sum 1.
    """
    above = (recent[:, None] > held_out).double() @ weights
    below = (recent[:, None] < held_out).double() @ weights
    return float((above - below).mean())


def _adapt_to_labels(
    records: RunRecords, model: PersonalModel, paths: Sequence[str], label_column: str
) -> AdaptedModel:
    """Return a model whose class prior and means were blended with those of labelled examples.

    Raises:
        DataError: the labels are too few, or gain nothing in a cross-validation.
    """
    options = load_method(records).config.data
    sites = load_labelled(paths, model.inputs, options, label_column=label_column)

    x = np.concatenate([site.x for site in sites])
    labels = torch.from_numpy(np.concatenate([site.y for site in sites]))
    if len(labels) < FEWEST_LABELS:
        message = f"an adaptation needs at least {FEWEST_LABELS} labels, got {len(labels)}."
        raise DataError(message, key="labels", allowed=f">= {FEWEST_LABELS}", got=len(labels))

    units = _units(sites)
    count = int(units.max()) + 1
    if count < _FEWEST_GROUPS:
        message = f"an adaptation needs labels of at least {_FEWEST_GROUPS} groups, got {count}."
        raise DataError(message, key="labels", allowed=f">= {_FEWEST_GROUPS}", got=count)

    # In standard deviations, so that every setting is as quick as the first.
    algorithm = model.module.algorithm
    tree = model.module.tree()
    z = torch.from_numpy(model.features(Stored(x))).double()
    whiten = gaussian.whitening(tree.covariance, algorithm.solver_shrinkage)
    task = _Task(
        z @ whiten,
        labels,
        tree.means.double() @ whiten,
        tree.prior.double(),
        _weight_of_likelihood(algorithm, tree),
        model.temperature,
        units,
    )
    before, after, more_right = task.judge_choice()
    gains = before - after
    error = _error_of_mean(gains.numpy(), units)
    losses = f"{float(before.mean()):.3f} before, {float(after.mean()):.3f} after"
    if not float(gains.mean()) > _ENOUGH * error or more_right < 0:
        message = f"{len(labels)} labels do not show that the model gets better with them (loss in "
        message += f"a cross-validation: {losses}), so it stays as it is."
        raise DataError(message, key="labels", allowed="a clear gain", got=losses)

    blend = task.choose(torch.arange(len(labels)))
    means, prior = blended(z, labels, tree.means.double(), task.prior, blend)
    facts = {
        "to": "labels",
        "inputs": len(labels),
        "loss": {"before": float(before.mean()), "after": float(after.mean())},
        "blend": blend._asdict(),
        "class_mix": _by_class(model, task.prior / task.prior.sum(), prior / prior.sum()),
    }
    personal = algorithm.with_gaussians(tree, means, prior)
    new = make_model(load_method(records), int(model.card["number"]), personal, model.card)
    # Cards travel with models, and warnings can name medians of the inputs.
    notes = tuple(note for site in sites for note in site.warnings)
    held_out = signals(new, [x])
    return AdaptedModel(personal, _card(model, facts), held_out, facts, tuple(paths), notes)


class _Task(NamedTuple):
    """Labelled examples, and the Gaussians of before, all in standard deviations."""

    z: Tensor
    labels: Tensor
    means: Tensor
    prior: Tensor
    weight: float
    """Of the log-likelihood beside the log-prior."""
    temperature: float
    units: np.ndarray
    """The group of every example; without groups, each is its own."""

    def logits(self, fit: Tensor, judge: Tensor, blend: Blend) -> Tensor:
        """Return the logits of some examples after a blend with others."""
        means, prior = blended(self.z[fit], self.labels[fit], self.means, self.prior, blend)
        # Of the squared distance to a mean, the part that differs between classes.
        scores = self.z[judge] @ means.mT - 0.5 * means.square().sum(1)
        return (prior.log() + self.weight * scores) / self.temperature

    def losses(self, fit: Tensor, judge: Tensor, blend: Blend) -> Tensor:
        """Return the losses on some examples after a blend with others."""
        logits = self.logits(fit, judge, blend)
        return cross_entropy(logits, self.labels[judge], reduction="none")

    def choose(self, rows: Tensor) -> Blend:
        """Return the setting of least loss in a cross-validation on some examples."""
        totals = []
        for blend in _GRID:
            parts = [self.losses(fit, judge, blend).sum() for fit, judge in self._folds(rows)]
            totals.append(float(torch.stack(parts).sum()))
        return _GRID[int(np.argmin(totals))]

    def judge_choice(self) -> tuple[Tensor, Tensor, int]:
        """Compare the old model with a choice that did not see the example, for all examples.

        Returns:
            The losses of both (n,), and how many more examples the choice has right.
        """
        logits: dict[str, list[Tensor]] = {"before": [], "after": []}
        rows = []
        for fit, judge in self._folds(torch.arange(len(self.labels))):
            logits["before"].append(self.logits(fit, judge, Blend(math.inf, 0.0, 0.0)))
            logits["after"].append(self.logits(fit, judge, self.choose(fit)))
            rows.append(judge)

        # Back in the order of the examples.
        order = torch.cat(rows).argsort()
        before = torch.cat(logits["before"])[order]
        after = torch.cat(logits["after"])[order]
        right = (after.argmax(1) == self.labels).sum() - (before.argmax(1) == self.labels).sum()
        losses = [cross_entropy(part, self.labels, reduction="none") for part in (before, after)]
        return losses[0], losses[1], int(right)

    def _folds(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the examples to fit and to judge by of every fold; the same ones every time.

        A group is in one fold.
        """
        groups, group_of = np.unique(self.units[rows.numpy()], return_inverse=True)
        order = np.random.default_rng(0).permutation(len(groups))
        fold_of_group = np.empty(len(groups), dtype=np.int64)
        fold_of_group[order] = np.arange(len(groups)) % _FOLDS

        fold = torch.from_numpy(fold_of_group[group_of])
        return [(rows[fold != number], rows[fold == number]) for number in range(_FOLDS)]


def blended(
    z: Tensor, labels: Tensor, means: Tensor, prior: Tensor, blend: Blend
) -> tuple[Tensor, Tensor]:
    """Return class means and class prior, blended with those of labelled features.

    Args:
        z: features (n, d).
        labels: (n,).
        means: of before (classes, d).
        prior: of before (classes,).
        blend: how much the features count.
    """
    counts = torch.bincount(labels, minlength=len(prior)).double()
    new_prior = prior
    if math.isfinite(blend.prior_examples):
        total = counts.sum() + blend.prior_examples
        new_prior = (counts + blend.prior_examples * prior) / total

    # All classes move together, and then each to its own examples.
    moved = means + blend.offset * (z - means[labels]).mean(0)
    sums = torch.zeros_like(means).index_add_(0, labels, z - moved[labels])
    share = blend.means / (counts + _EXAMPLES_OF_MEAN)
    return moved + share[:, None] * sums, new_prior


def _units(sites: Sequence[SiteData]) -> np.ndarray:
    """Return the number of the group of every labelled example (n,), from 0."""
    groups = groups_of(sites)
    if groups is None:
        return np.arange(sum(len(site.y) for site in sites))

    numbers: np.ndarray = np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def _error_of_mean(gains: np.ndarray, units: np.ndarray) -> float:
    """Return the standard error of a mean over examples (n,), of which groups are drawn."""
    sums = np.bincount(units, weights=gains - gains.mean())
    variance = (sums**2).sum() * len(sums) / (len(sums) - 1)
    return math.sqrt(variance) / len(gains)


def _weight_of_likelihood(algorithm: Any, tree: Any) -> float:
    """Return how much the likelihood counts in predictions, beside the class prior."""
    chosen = tree.temperature
    return float(chosen if isinstance(chosen, Tensor) else algorithm.temperature)


def _by_class(model: PersonalModel, before: Tensor, now: Tensor) -> dict[str, dict[str, float]]:
    shares = zip(model.classes_, before.tolist(), now.tolist(), strict=True)
    return {str(name): {"before": old, "now": new} for name, old, new in shares}


def _card(model: PersonalModel, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the card of an adapted model: the scores of before are not its own."""
    card = {name: value for name, value in model.card.items() if name not in ("file", "sha256")}
    history = [*card.get("adapted", []), dict(facts)]
    origin = {"adapted": history, "adapted_from": model.card["sha256"]}
    return {**card, "scores": {}, "intervals": {}, **origin}


def write_adapted(out: Path, records: RunRecords, adapted: AdaptedModel) -> None:
    """Write an adapted model as the folder of a run with one client.

    Args:
        out: the folder, which must not exist.
        records: of the run of the model before.
        adapted: the model.

    Raises:
        RunError: a file cannot be written.
    """
    method = load_method(records)
    name = str(adapted.card["client"])

    # The examples are those of before.
    old = records.split
    number = int(adapted.card["number"]) if len(old["clients"]) > 1 else 0
    clients = [old["clients"][number]]
    new_clients = int(adapted.card["new"])
    split = bare_split(old["dataset"], [name], clients, new_clients=new_clients)
    source = {"run": records.path.name, "model_sha256": adapted.card["adapted_from"]}
    site_data = [*site_data_of(records), *map(absolute, adapted.paths)]
    origin = {**describe(), "adapted": source, SITE_DATA: site_data}
    result = {
        "algorithm": method.config.algorithm.name,
        "site": name,
        "round": adapted.card.get("round"),
        "adapted": adapted.facts,
        "notes": list(adapted.notes),
    }
    with RunFolder.create(out, config=to_toml(method.config), provenance=origin) as folder:
        folder.write_split(split)
        write_input_specification(out, method.inputs)
        write_held_out(out, adapted.held_out)
        folder.write_models([(name, encode(adapted.personal), adapted.card)])
        folder.finish(result)
