"""One-shot FDA: personal Gaussian classifiers on frozen features, in two exchanges.

Ours. It keeps of pFedFDA (McLaughlin and Su 2024, NeurIPS) what one exchange can give, and adds a
temperature and an offset. The features z of class c are Gaussian with mean mu_c and the covariance
Sigma of all classes, both of the pool of all clients (as FedCGS). At client k they are moved by an
offset o_k that all classes share, and classes are as frequent as pi_k says:

    logits_c(z) = t log N(z; mu_c + o_k, Sigma) + log pi_kc.

* pi_k = (n_k + kappa pi) / (n_k + kappa): its class counts n_kc, and kappa (``prior_examples``)
  more examples of the pooled frequencies pi.
* t (``temperature``): features are many and not Gaussian, so the likelihood is far too sure and
  would drown the prior.
* o_k = w_k d_k: d_k is the mean of z - mu_y over its n_k examples, and w_k = n_k r / (n_k r + 1) by
  empirical Bayes, where r is the variance of offsets between clients over the variance within,
  averaged over features (one-way analysis of variance).
* Sigma is shrunk towards its mean variance (``shrinkage``).
* With ``blend``, the means mu_c + o_k are blended with the client's own class means, by a share as
  in pFedFDA, where 0 is one of the choices.

First exchange: every client divides its examples into two random halves, and sends the sums over
each, which also say how much offsets scatter. Second exchange: the server returns the Gaussians of
each half. With these, and its own prior and offset, a client scores its other half for every
setting of a grid, and sends the losses. The server adds them up, and takes the setting of least
loss for the Gaussians of all examples. No client chooses alone, and test data choose nothing.

Messages: up, first, ``counts`` (2, C), ``sums`` (2, C, d), ``squares`` (2, d (d + 1) / 2) of both
halves and ``sites`` (sums of squares and products over clients); up, second, ``losses`` (a number
by setting); down ``folds``, the Gaussians of both halves, and ``model``, those of all examples.

Deviations: it is defined here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor import toolkit as ft
from fedtailor.algorithms._closed_form import FrozenBody, Linear, Personal, log_known
from fedtailor.algorithms._feature_sums import as_messages
from fedtailor.toolkit import class_sums, tree

_SMALLEST_VARIANCE = 1e-9
"""As a share of the mean variance: a feature with less is constant except for rounding."""


class Grid(NamedTuple):
    """Values of every setting among which held-out losses choose."""

    shrinkage: tuple[float | Literal["oas"], ...]
    offset: tuple[float, ...]
    blend: tuple[float, ...]
    temperature: tuple[float, ...]
    prior_examples: tuple[float, ...]


_GRID = Grid(
    shrinkage=(0.02, 0.05, 0.1, 0.2, 0.4, 0.7),
    offset=(0.0, 1.0),
    blend=(0.0, 0.1, 0.25, 0.5),
    temperature=(0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0),
    prior_examples=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0),
)


class Sites(NamedTuple):
    """Sums over clients, by half, of what their offsets follow from.

    A client has n examples, n_c of class c, whose features sum up to s.
    """

    squares: Tensor  # (2, d), s^2 / n
    products: Tensor  # (2, classes, d), n_c s / n
    classes: Tensor  # (2, classes, classes), n_b n_c / n
    sizes: Tensor  # (2, 2), 1 and n^2


class Gaussians(NamedTuple):
    """Gaussians of classes, as linear heads for every shrinkage, with what offsets need."""

    weight: Tensor  # (..., shrinkages, classes, d)
    bias: Tensor  # (..., shrinkages, classes), -inf for classes without examples
    means: Tensor  # (..., classes, d)
    counts: Tensor  # (..., classes)
    ratio: Tensor  # (...), variance of offsets between clients over that within
    basis: Tensor  # (..., d, d), eigenvectors of the covariance; (..., d, 0) without ``blend``
    inverse: Tensor  # (..., shrinkages, d or 0), inverse eigenvalues of the shrunk covariance

    def of_shrinkage(self, index: int) -> Gaussians:
        """Return those of one set of examples, for one shrinkage."""
        return self._replace(
            weight=self.weight[index], bias=self.bias[index], inverse=self.inverse[index]
        )


class Model(NamedTuple):
    """The Gaussians of all examples with the chosen setting."""

    gaussians: Gaussians  # of one shrinkage
    blend: Tensor
    temperature: Tensor
    prior_examples: Tensor


class ServerState(NamedTuple):
    """The body that all start with, the Gaussians of the halves and of all, and the model."""

    body: ft.Params
    gaussians: Gaussians  # of the halves and of all examples, (3, ...)
    model: Model


class ForSums(NamedTuple):
    """What clients receive before the first exchange, where they send sums, and use nothing."""

    folds: Gaussians  # of the halves, (2, ...)
    model: Model


class ForLosses(ForSums):
    """What clients receive afterwards, where they send losses, and for their models."""


@dataclass(frozen=True, kw_only=True)
class OneShotFDA(FrozenBody[ServerState]):
    """Pooled Gaussians with each client's own prior and offset, and one temperature."""

    exchanges: ClassVar[int] = 2
    primary_evaluation: ClassVar[Literal["global", "local", "personalized"]] = "personalized"

    temperature: Literal["cross_validated"] | ft.PositiveFloat = "cross_validated"
    """How much the likelihood counts beside the prior (t)."""
    prior_examples: Literal["cross_validated"] | ft.PositiveFloat = "cross_validated"
    """Examples of the pooled class frequencies that are added to a client's own (kappa)."""
    shrinkage: Literal["cross_validated", "oas"] | ft.Share = "cross_validated"
    """Share of the mean variance in the covariance; ``oas`` finds it from the covariance and the
    number of examples (Chen et al. 2010)."""
    offset: Literal["cross_validated"] | ft.NonNegativeFloat = "cross_validated"
    """Factor of the variance of offsets that empirical Bayes finds; 0: no offsets."""
    blend: bool = False
    """Whether losses choose a share of the client's own class means too. Clients then receive the
    covariances."""

    @property
    def adaptation(self) -> list[ft.Adaptation]:
        """Count the classes, and take the mean gap of features from their class means."""
        return [ft.WithoutTraining("class frequencies and an offset of the features")]

    @property
    def grid(self) -> Grid:
        """The values of every setting among which losses choose; one where an option gives it."""
        grid = _GRID if self.blend else _GRID._replace(blend=(0.0,))
        for name in ("shrinkage", "offset", "temperature", "prior_examples"):
            option = getattr(self, name)
            if option != "cross_validated":
                grid = grid._replace(**{name: (option,)})

        return grid

    def messages(self, task: ft.Task) -> ft.Messages:
        """Declare the sums of both halves, the losses, and what the server returns."""
        nothing = self._gaussians_of_nothing(task)
        sent_down = {
            "folds": _part(nothing, slice(0, 2)),
            "model": self._model(nothing, self._middle),
        }
        up = {**_no_sums(task), "losses": torch.zeros(self._table_shape)}
        messages = {
            name: ft.Field(
                kind="counts" if name == "counts" else "statistics",
                shapes=_shapes(value),
                reduction="sum",
                down=False,
                bound=2.0**28,
            )
            for name, value in up.items()
        }
        for name, value in sent_down.items():
            messages[name] = ft.Field(kind="statistics", shapes=_shapes(value), reduction="none")
        return messages

    def init_server(self, task: ft.Task, key: ft.Key) -> ServerState:
        """Start with the common body, and Gaussians that know nothing."""
        gaussians = self._gaussians_of_nothing(task)
        model = self._model(gaussians, self._middle)
        return ServerState(task.initial(key, *ft.BODY), gaussians, model)

    def broadcast(self, server: ServerState, cohort: ft.Cohort) -> ForSums:
        """Send what the server has; the type says what clients send in return."""
        download = ForSums if cohort.round == 1 else ForLosses
        return download(_part(server.gaussians, slice(0, 2)), server.model)

    def local_update(
        self,
        task: ft.Task,
        download: ft.Download[ForSums],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> ft.ClientUpdate:
        """Add up both halves of the examples, or score each with the Gaussians of the other."""
        features = self.frozen_features(task, data.train, key)
        halves = _halves(features, key)
        if isinstance(download.shared, ForLosses):
            # the sums are at the server already: no number of them is sent
            nothing = torch.zeros(())
            upload = {name: ft.Sum(value, nothing) for name, value in _no_sums(task).items()}
            upload["losses"] = ft.Sum(as_messages(self._losses(halves, download.shared.folds)))
        else:
            sums = _sums(halves, task.num_classes)
            upload = {name: ft.Sum(value) for name, value in sums.items()}
            # no loss is known yet: no number of the table is sent
            upload["losses"] = ft.Sum(torch.zeros(self._table_shape), torch.zeros(()))
        return ft.ClientUpdate((), upload, metrics={"steps": torch.zeros(())})

    def aggregate(
        self, server: ServerState, received: ft.Received, cohort: ft.Cohort
    ) -> tuple[ServerState, tuple[()]]:
        """Make the Gaussians of all clients, or take the setting of least loss."""
        if cohort.round == 1:
            gaussians = as_messages(self._gaussians(received))
            return ServerState(server.body, gaussians, self._model(gaussians, self._middle)), ()

        losses = received["losses"].value
        best = torch.where(torch.isfinite(losses), losses, torch.inf).argmin()
        setting = [int(index) for index in torch.unravel_index(best, losses.shape)]
        return server._replace(model=self._model(server.gaussians, setting)), ()

    def global_model(  # type: ignore[override]
        self, task: ft.Task, server: ServerState
    ) -> Personal:
        """Return the model with the pooled class frequencies, and without an offset."""
        pooled = server.model.gaussians
        empty = torch.zeros_like(pooled.means, dtype=torch.float64)
        nobody = class_sums.ClassSums(empty[:, 0], empty, empty[:0, 0])
        return Personal(server.body, _head(server.model, nobody))

    def personalize(  # type: ignore[override]
        self,
        task: ft.Task,
        download: ft.Download[ForSums],
        state: tuple[()],
        data: ft.ClientData,
        key: ft.Key,
    ) -> Personal:
        """Combine the Gaussians with the client's own prior and offset."""
        features = self.frozen_features(task, data.train, key)
        own = class_sums.add_up(features, task.num_classes, "none")
        return Personal(task.initial(key, *ft.BODY), _head(download.shared.model, own))

    def diagnostics(self, task: ft.Task, personal: Personal) -> dict[str, Tensor]:
        """Record the largest weight of the head."""
        return {"max_head_weight": personal.head.weight.abs().max()}

    @property
    def _table_shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.grid))

    @property
    def _middle(self) -> list[int]:
        """Return the setting in the middle of the grid, before any losses are known."""
        return [len(values) // 2 for values in self.grid]

    def _gaussians_of_nothing(self, task: ft.Task) -> Gaussians:
        classes = task.num_classes
        d = task.model.feature_dim
        shrinkages = len(self.grid.shrinkage)
        directions = d if self.blend else 0
        return Gaussians(
            weight=torch.zeros(3, shrinkages, classes, d),
            bias=torch.zeros(3, shrinkages, classes),
            means=torch.zeros(3, classes, d),
            counts=torch.zeros(3, classes),
            ratio=torch.zeros(3),
            basis=torch.zeros(3, d, directions),
            inverse=torch.zeros(3, shrinkages, directions),
        )

    def _model(self, gaussians: Gaussians, setting: Sequence[int]) -> Model:
        """Return the Gaussians of all examples with a setting: a position in every grid."""
        shrinkage, offset, blend, temperature, prior_examples = setting
        everybody = _part(gaussians, 2).of_shrinkage(shrinkage)
        return Model(
            everybody._replace(ratio=self.grid.offset[offset] * everybody.ratio),
            torch.tensor(self.grid.blend[blend]),
            torch.tensor(self.grid.temperature[temperature]),
            torch.tensor(self.grid.prior_examples[prior_examples]),
        )

    def _gaussians(self, received: ft.Received) -> Gaussians:
        """Return the Gaussians of both halves and of all examples, in float64."""
        by_half = [received[name].value.double() for name in ("counts", "sums", "squares")]
        sites = tree.map(torch.Tensor.double, received["sites"].value)
        parts = [class_sums.ClassSums(*(sums[half] for sums in by_half)) for half in (0, 1)]
        parts.append(class_sums.ClassSums(*(sums.sum(0) for sums in by_half)))
        covariances = [part.within_covariance() for part in parts]

        # the variance of offsets does not depend on how many examples a client has
        ratios = [_ratio(parts[half], covariances[half], _part(sites, half)) for half in (0, 1)]
        ratios.append((ratios[0] + ratios[1]) / 2)
        gaussians: Gaussians = tree.stack(list(map(self._of_sums, parts, covariances, ratios)))
        return gaussians

    def _of_sums(self, sums: class_sums.ClassSums, covariance: Tensor, ratio: Tensor) -> Gaussians:
        """Return the Gaussians of one set of sums, for every shrinkage."""
        means = sums.means()
        total = sums.counts.sum()

        # about the common mean, numbers are smaller; the logits change by what classes share
        center = sums.sums.sum(0) / total.clamp_min(1.0)
        centered = torch.where(sums.counts[:, None] > 0, means - center, 0.0)
        weights = []
        for shrinkage in self.grid.shrinkage:
            matrix = class_sums.shrunk(covariance, total, shrinkage)
            weights.append(torch.linalg.solve(matrix, centered.mT).mT)

        weight = torch.stack(weights)
        bias = -0.5 * (weight * centered).sum(-1) - weight @ center + log_known(sums.counts)

        # for a blend, which needs the inverse; shrinking changes the eigenvalues only
        basis = means.new_zeros(means.shape[1], 0)
        inverse = means.new_zeros(len(weights), 0)
        if self.blend:
            eigenvalues, basis = torch.linalg.eigh(covariance)
            diagonal = torch.diag(eigenvalues)
            shrunk = [class_sums.shrunk(diagonal, total, share) for share in self.grid.shrinkage]
            inverse = torch.stack([1.0 / matrix.diagonal() for matrix in shrunk])

        return Gaussians(weight, bias, means, sums.counts, ratio, basis, inverse)

    def _losses(self, halves: Sequence[ft.ExampleSet], folds: Gaussians) -> Tensor:
        """Return the losses on both halves, each by the Gaussians of the other, by setting."""
        first = self._losses_on(halves[1], halves[0], _part(folds, 0))
        return first + self._losses_on(halves[0], halves[1], _part(folds, 1))

    def _losses_on(
        self, held_out: ft.ExampleSet, own: ft.ExampleSet, gaussians: Gaussians
    ) -> Tensor:
        """Return the losses on held-out examples, with prior and offset of the client's own half.

        Examples of classes that the Gaussians do not know are left out.
        """
        sums = class_sums.add_up(own, len(gaussians.counts), "none")
        log_priors = torch.stack(
            [_log_prior(sums.counts, gaussians.counts, k) for k in self.grid.prior_examples]
        )
        counts = (held_out.weight > 0) & (gaussians.counts[held_out.y] > 0)
        label = held_out.y[:, None]
        of_label = log_priors.mT[held_out.y]  # (n, prior examples)

        losses = []
        for scores in self._scores_of(held_out.x.double(), sums, gaussians):
            for temperature in self.grid.temperature:
                # log of the sum over classes of exp(score) times prior, for all priors at once
                scaled = temperature * scores
                largest = scaled.amax(1, keepdim=True)
                total = largest + ((scaled - largest).exp() @ log_priors.exp().mT).log()
                loss = total - scaled.gather(1, label) - of_label
                losses.append(torch.where(counts[:, None], loss, 0.0).sum(0))
        return torch.stack(losses).reshape(self._table_shape)

    def _scores_of(
        self, z: Tensor, own: class_sums.ClassSums, gaussians: Gaussians
    ) -> Iterator[Tensor]:
        """Yield the log-likelihoods (n, classes) of features for every shrinkage, offset, blend."""
        offsets = [
            _moves(gaussians._replace(ratio=factor * gaussians.ratio), own)
            for factor in self.grid.offset
        ]
        turned = z @ gaussians.basis.double()
        for shrinkage, moves in product(range(len(self.grid.shrinkage)), offsets):
            of_one = gaussians.of_shrinkage(shrinkage)
            straight = _shifted(of_one, moves).logits(z)
            for blend in self.grid.blend:
                added = _added(of_one, moves, blend)
                yield straight + added.logits(turned)


def _halves(features: ft.ExampleSet, key: ft.Key) -> tuple[ft.ExampleSet, ft.ExampleSet]:
    """Divide examples at random into two halves, the same in every round."""
    first = features.keep(features.size() // 2, key.common("halves"))
    return first, features._replace(weight=features.weight - first.weight)


def _sums(halves: Sequence[ft.ExampleSet], num_classes: int) -> dict[str, tree.Tree]:
    """Return the sums over both halves of a client's examples, rounded once."""
    dtype = torch.get_default_dtype()
    sums = [class_sums.add_up(half, num_classes, "pooled", dtype) for half in halves]
    both = class_sums.ClassSums(*map(torch.stack, zip(*sums, strict=True)))

    counts = both.counts
    size = counts.sum(1)  # (2,)
    total = both.sums.sum(1)  # (2, d)
    share = counts / size.clamp_min(1.0)[:, None]
    sites = Sites(
        squares=total**2 / size.clamp_min(1.0)[:, None],
        products=share[:, :, None] * total[:, None],
        classes=share[:, :, None] * counts[:, None],
        sizes=torch.stack([(size > 0).double(), size**2], dim=1),
    )
    rounded: dict[str, tree.Tree] = as_messages({**both._asdict(), "sites": sites})
    return rounded


def _no_sums(task: ft.Task) -> dict[str, tree.Tree]:
    """Return the sums over no examples."""
    no_features = torch.zeros(0, task.model.feature_dim)
    no_labels = torch.zeros(0, dtype=torch.int64)
    nobody = ft.ExampleSet(no_features, no_labels, no_labels, torch.zeros(0))
    return _sums([nobody, nobody], task.num_classes)


def _ratio(sums: class_sums.ClassSums, covariance: Tensor, sites: Sites) -> Tensor:
    """Return the variance of offsets between clients over that within, averaged over features.

    By the analysis of variance of a random effect in groups of different sizes (Searle, Casella
    and McCulloch 1992, "Variance components", section 3.6); 0 where it would be negative.
    """
    # sum over clients of n d^2, where d is the mean gap from the class means
    means = sums.means()
    explained = (means * (sites.classes @ means)).sum(0)
    scatter = sites.squares - 2.0 * (sites.products * means).sum(0) + explained

    total = sums.counts.sum().clamp_min(1.0)
    num_sites, squared_sizes = sites.sizes
    freedom = (num_sites - 1.0).clamp_min(1.0)
    typical_size = ((total - squared_sizes / total) / freedom).clamp_min(1.0)

    within = covariance.diagonal()
    between = (scatter / freedom - within) / typical_size
    varies = within > _SMALLEST_VARIANCE * within.mean()
    ratio = torch.where(varies, between / torch.where(varies, within, 1.0), 0.0)
    mean = ratio.sum() / varies.sum().clamp_min(1)
    return torch.where(num_sites > 1, mean.clamp_min(0.0), 0.0)


def _log_prior(counts: Tensor, pooled: Tensor, prior_examples: Tensor | float) -> Tensor:
    """Return the logarithms of a client's class prior, with examples of the pooled frequencies."""
    total = pooled.double().sum()
    frequencies = pooled.double() / total.clamp_min(1.0)
    frequencies = torch.where(total > 0, frequencies, 1.0 / len(pooled))
    return ((counts + prior_examples * frequencies) / (counts.sum() + prior_examples)).log()


def _offset(own: class_sums.ClassSums, gaussians: Gaussians) -> Tensor:
    """Return the offset of a client (d,); the fewer examples it has, the nearer to 0."""
    counts = torch.where(gaussians.counts > 0, own.counts, 0.0)
    gaps = own.sums - counts[:, None] * gaussians.means
    gap = torch.where(counts[:, None] > 0, gaps, 0.0).sum(0)

    size = counts.sum()
    certainty = size * gaussians.ratio
    return certainty / (certainty + 1.0) * gap / size.clamp_min(1.0)


class Moves(NamedTuple):
    """Where a client's own examples move the means."""

    offset: Tensor  # (d,)
    means: Tensor  # (classes, d or 0), with the offset, in the basis of the covariance
    gaps: Tensor  # (classes, d or 0), from these to the client's own means


def _moves(gaussians: Gaussians, own: class_sums.ClassSums) -> Moves:
    """Return the offset of a client, and the gaps that a blend takes a share of."""
    offset = _offset(own, gaussians)
    means = gaussians.means.double() + offset
    is_own = (own.counts > 0) & (gaussians.counts > 0)
    gaps = torch.where(is_own[:, None], own.means() - means, 0.0)
    basis = gaussians.basis.double()
    return Moves(offset, means @ basis, gaps @ basis)


def _shifted(gaussians: Gaussians, moves: Moves) -> Linear:
    """Return the log-likelihoods of Gaussians of one shrinkage, with a client's offset."""
    weight = gaussians.weight.double()
    return Linear(weight, gaussians.bias.double() - weight @ moves.offset)


def _added(gaussians: Gaussians, moves: Moves, blend: Tensor | float) -> Linear:
    """Return what a blend adds to the log-likelihoods, in the basis of the covariance.

    log N(z; m_c + g_c, Sigma) - log N(z; m_c, Sigma) = g_c^T Sigma^-1 (z - m_c - g_c / 2)
    """
    gaps = blend * moves.gaps
    weight = gaps * gaussians.inverse.double()
    return Linear(weight, -(weight * (moves.means + 0.5 * gaps)).sum(1))


def _moved(gaussians: Gaussians, own: class_sums.ClassSums, blend: Tensor | float) -> Linear:
    """Return the log-likelihoods of Gaussians of one shrinkage whose means a client has moved."""
    moves = _moves(gaussians, own)
    shifted = _shifted(gaussians, moves)
    added = _added(gaussians, moves, blend)
    weight = shifted.weight + added.weight @ gaussians.basis.double().mT
    return Linear(weight, shifted.bias + added.bias)


def _head(model: Model, own: class_sums.ClassSums) -> Linear:
    """Return the linear head of a model with a client's offset, class means and prior."""
    likelihood = _moved(model.gaussians, own, model.blend)
    prior = _log_prior(own.counts, model.gaussians.counts, model.prior_examples)
    weight = model.temperature * likelihood.weight
    head: Linear = as_messages(Linear(weight, model.temperature * likelihood.bias + prior))
    return head


def _part(value: Any, index: int | slice) -> Any:
    """Return a part of every leaf along its first axis."""
    return tree.map(lambda leaf: leaf[index], value)


def _shapes(value: tree.Tree) -> Any:
    """Return the shape of every leaf."""
    return tree.map(lambda leaf: tuple(leaf.shape), value)
