"""Differential privacy of whole clients: one bounded contribution each, and noise on their sum.

For the cohort S of a round, drawn with rate q from N clients (McMahan et al., "Learning
differentially private recurrent language models", ICLR 2018, with one joint bound)::

    x_u = (change of every field / its scale), all fields in one vector
    x_u = x_u min(1, C / |x_u|)
    s   = sum of x_u over S + z C xi,   xi standard normal
    new value = what was sent + scale s / (q N)

Every client counts the same, whatever its number of examples: weights would raise the bound. The
divisor q N is public, and does not depend on who came. Where a method weighs by classes or by
confidences of the clients, which say what a mean is of, a weight w counts up to a public cap, and
is in the vector too::

    w_u       = min(w, cap) / cap
    x_u       = (w_u (change of the field) / scale, w_u), and other fields
    new value = what was sent + scale (noisy sum of w_u changes) / (noisy sum of w_u)

Rows stay as they were where the noisy sum of weights is below 1, or three deviations of its noise.
A covariance counts with its Frobenius norm; afterwards it is made positive definite, with
eigenvalues above the level of the noise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.devices import to_host
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import (
    Each,
    Field,
    Mean,
    Messages,
    Received,
    Reduced,
    Sum,
    Upload,
    spread,
)
from fedtailor.core.reduction import PartialSum
from fedtailor.core.upload_layout import shape_of_weight

_ROUNDING = 1e-6
"""By how much contributions are shortened further, for the rounding of messages."""
_LEAST_EIGENVALUE = 1e-3
"""Of a covariance, as a share of the mean one."""
_FEWEST_CLIENTS = 1.0
_SURE_DEVIATIONS = 3.0
"""A noisy sum of weights divides a sum if it is both more than that of so many clients of the full
weight, and more than so many deviations of its noise."""

Sent = Mapping[str, tree.Tree | None]
"""What the server had sent in every field; None where it sent no such field."""


def _weight_of(name: str) -> str:
    """Return the name of the weights of a field among contributions."""
    return f"{name} weight"


@dataclass(frozen=True)
class ClientMechanism:
    """Bounds the upload of a client, and adds noise to the sum."""

    messages: Messages
    clip: float
    """The bound of a contribution (C)."""
    noise: float
    """Standard deviation of the noise over the bound (z)."""
    expected: float
    """Clients of a round on average (q N)."""
    scales: Mapping[str, float]
    """By field: what its changes are divided by before they are bounded; 1 if it is missing."""
    weights: Mapping[str, float]
    """By field whose means have weights of the clients: the largest weight that counts."""

    @property
    def contributions(self) -> Messages:
        """The declaration of what clients contribute: sums of the fields, and of their weights."""
        fields = {}
        for name, field in self.messages.items():
            if field.reduction == "none":
                continue

            fields[name] = replace(field, reduction="sum", bound=self.clip, weight_axes=0)
            if field.has_own_weights:
                shape = shape_of_weight(field)
                fields[_weight_of(name)] = Field(
                    kind="statistics", shapes=shape, reduction="sum", down=False, bound=self.clip
                )
        return fields

    def bounded(self, upload: Upload, sent: Sent) -> dict[str, Sum]:
        """Return the contribution of a sound upload, in the form of an upload."""
        changes: dict[str, tree.Tree] = {}
        like: dict[str, tree.Tree] = {}
        for name, entry in upload.items():
            like[name] = entry.value
            changes[name] = self._change(name, entry, sent[name])
            if isinstance(entry, Mean) and self.messages[name].has_own_weights:
                weight = self._weight(name, entry)
                changes[name] = _times(weight, changes[name])
                changes[_weight_of(name)] = like[_weight_of(name)] = weight

        squares = [leaf.square().sum() for leaf in tree.leaves(changes)]
        norm = torch.stack(squares).sum().sqrt()
        factor = (self.clip * (1 - _ROUNDING) / norm.clamp(min=1e-30)).clamp(max=1.0)

        def shorten(change: Tensor, like: Tensor) -> Tensor:
            return (factor * change).to(like.dtype)

        return {name: Sum(tree.map(shorten, changes[name], like[name])) for name in changes}

    def _weight(self, name: str, entry: Mean) -> Tensor:
        """Return the weights of a client, float64, at most 1, in the shape of their sum."""
        share = entry.weight.double().clamp(max=self.weights[name]) / self.weights[name]
        shape = shape_of_weight(self.messages[name])
        if share.dim() > len(shape):
            raise ConfigError(
                f"the weight of '{name}' has {share.dim()} axes, and the method declares "
                f"weight_axes = {len(shape)}.",
                key="privacy.unit",
            )

        return share.reshape(share.shape + (1,) * (len(shape) - share.dim())).expand(shape)

    def _change(self, name: str, entry: Mean | Sum | Each, sent: tree.Tree | None) -> tree.Tree:
        """Return by how much a client wants to change a field, float64."""
        scale = self.scales.get(name, 1.0)
        if isinstance(entry, Mean) and sent is not None:
            return tree.map(
                lambda new, old: (new.double() - old.double()) / scale, entry.value, sent
            )

        change = tree.map(lambda leaf: leaf.double() / scale, entry.value)
        mask = entry.mask if isinstance(entry, Sum) else ()
        return _times(mask.double(), change) if isinstance(mask, Tensor) else change

    def release(self, totals: Mapping[str, PartialSum], sent: Sent, key: rng.Key) -> Received:
        """Return what the server receives: noisy sums, and means.

        Args:
            totals: the sums of contributions, float64.
            sent: what the server had sent.
            key: of the noise.
        """
        noisy = self.noisy(totals, key)
        received = {}
        for name in self.messages:
            if name in totals:
                weight = noisy.get(_weight_of(name), {}).get("")
                received[name] = self._reduced(name, totals[name], noisy[name], weight, sent[name])
        return received

    def noisy(self, totals: Mapping[str, PartialSum], key: rng.Key) -> dict[str, dict[str, Tensor]]:
        """Return the noisy sums by field and path, in the units of the bound.

        They are all that is released: what the server receives is computed from them.
        """
        deviation = self.noise * self.clip
        declared = self.contributions
        noisy: dict[str, dict[str, Tensor]] = {}
        for name, total in totals.items():
            noisy[name] = {}
            for path, leaf in total.leaves.items():
                drawn = _noise(declared[name], key.fold(f"{name}/{path}"), tuple(leaf.shape))
                noisy[name][path] = leaf + deviation * drawn
        return noisy

    def _reduced(
        self,
        name: str,
        total: PartialSum,
        noisy: Mapping[str, Tensor],
        weight: Tensor | None,
        sent: tree.Tree | None,
    ) -> Reduced:
        """Return a field as the server receives it.

        Args:
            name: of the field.
            total: its sum without noise, for its structure.
            noisy: its noisy sum, by path.
            weight: the noisy sum of the weights that clients gave it; None: they gave none.
            sent: what the server had sent.
        """
        field = self.messages[name]
        is_mean = field.reduction == "mean"
        divisor = torch.full((), self.expected if is_mean else 1.0, dtype=torch.float64)
        total_weight = torch.full((), self.expected, dtype=torch.float64)
        if weight is not None:
            least = max(_FEWEST_CLIENTS, _SURE_DEVIATIONS * self.noise * self.clip)
            # Nothing is divided by a weight that is mostly noise: the quotient is then 0.
            divisor = torch.where(weight > least, weight, math.inf)
            total_weight = torch.where(weight > least, self.weights[name] * weight, 0.0)

        old = {} if sent is None else tree.paths(sent)
        scale = self.scales.get(name, 1.0)
        entry_noise = scale * self.noise * self.clip / float(divisor.min())
        values = []
        for path, like in tree.paths(total.like).items():
            value = scale * noisy[path] / spread(divisor, noisy[path])
            if is_mean and path in old:
                value = value + old[path].double()
            values.append(_repaired(value, field, entry_noise).to(like.dtype))

        return Reduced(tree.rebuild(total.like, iter(values)), total_weight)


class ClientBounds(NamedTuple):
    """What bounds the uploads of one round."""

    mechanism: ClientMechanism
    sent: Sent

    def bounded(self, upload: Upload, client: int) -> Upload:
        """Return the contribution of a sound upload, whoever sent it."""
        return self.mechanism.bounded(upload, self.sent)


def digest_of(totals: Mapping[str, PartialSum]) -> str:
    """Return the digest of sums, in hexadecimal."""
    digest = hashlib.sha256()
    leaves = {name: partial.leaves for name, partial in totals.items()}
    on_host = to_host(leaves, "the digest of sums before noise")
    for name in sorted(on_host):
        for path, leaf in sorted(on_host[name].items()):
            digest.update(f"{name}/{path}".encode())
            digest.update(leaf.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _times(rows: Tensor, value: tree.Tree) -> tree.Tree:
    """Return a value whose rows are multiplied."""
    return tree.map(lambda leaf: spread(rows, leaf) * leaf, value)


def _noise(field: Field, key: rng.Key, shape: tuple[int, ...]) -> Tensor:
    """Return standard normal numbers, float64; for a covariance, symmetric ones.

    A covariance is released as its upper triangle, off-diagonal entries times the root of 2, so
    that the norm of what is released is that of Frobenius.
    """
    drawn = rng.normal(key, shape).double()
    if field.kind != "covariance":
        return drawn

    diagonal = torch.diag_embed(torch.diagonal(drawn, dim1=-2, dim2=-1))
    above = torch.triu(drawn, diagonal=1) / math.sqrt(2)
    return diagonal + above + above.mT


def _repaired(value: Tensor, field: Field, entry_noise: float) -> Tensor:
    """Return a noisy value as one that its field allows."""
    if field.kind == "covariance":
        return _positive_definite(value, entry_noise)
    if field.kind == "counts":
        value = value.round().clamp(min=0.0)
    return value.clamp(min=field.low, max=field.high)


def _positive_definite(matrices: Tensor, entry_noise: float) -> Tensor:
    """Return symmetric matrices with eigenvalues above the level of the noise.

    The largest eigenvalue of a symmetric matrix of noise is about twice the deviation of its
    entries, which is entry_noise / sqrt(2), times the root of its size.
    """
    values, vectors = torch.linalg.eigh((matrices + matrices.mT) / 2)
    size = matrices.shape[-1]
    mean = values.mean(-1, keepdim=True).clamp(min=0.0)
    floor = torch.clamp(_LEAST_EIGENVALUE * mean, min=2 * entry_noise * math.sqrt(size))
    floored = torch.maximum(values, floor.clamp(min=1e-12))
    repaired: Tensor = (vectors * floored.unsqueeze(-2)) @ vectors.mT
    return repaired
