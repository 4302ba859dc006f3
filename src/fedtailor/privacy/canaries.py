"""Canaries: clients that an audit makes up, and tries to find again in noisy sums.

Each canary asks for a change in a random direction of its own, far beyond the bound, and says that
it has many examples. A coin decides whether it takes part. What it asks for goes through the bound,
the sum and the noise of a run, like the upload of any client.

The attacker sees every noisy sum, and knows all directions and what all other clients contribute
(their training follows from the models, which it sees too). The score of a canary is the inner
product of its direction with what is left of the sums. No two canaries change the same number, so
none disturbs the score of another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.devices import HOST, placed, to_host
from fedtailor.core.errors import ConfigError
from fedtailor.core.message import Mean, Messages, Received, Sum, Upload
from fedtailor.core.reduction import FieldSum, PartialSum
from fedtailor.core.upload_layout import layout_of
from fedtailor.privacy.added_noise import AddedNoise
from fedtailor.privacy.mechanism import ClientMechanism, Sent

_SIZE = 4.0
"""Norm of what a canary asks for, over the bound."""

Leaves = Mapping[str, Mapping[str, Tensor]]
"""Tensors by field and path."""


class Sightings(NamedTuple):
    """What an attacker has seen of the canaries of an audit."""

    inside: np.ndarray
    """Which canaries took part."""
    signal: np.ndarray
    """Of what they contributed: inner products with the directions, by canary."""
    noise: np.ndarray
    """Of the noise: the same."""
    added_noise: list[AddedNoise]
    """The noise itself; empty: nothing was seen."""


class Canaries:
    """The canaries of an audit, and what was seen of them so far."""

    def __init__(
        self,
        messages: Messages,
        count: int,
        *,
        num_train: float,
        rates: Sequence[float],
        key: rng.Key,
    ) -> None:
        """Draw directions, and who takes part.

        Args:
            messages: the declaration of the method.
            count: how many canaries there are.
            num_train: how many examples each of them claims to have.
            rates: by round, with which probability a client takes part.
            key: of all that is random about canaries.

        Raises:
            ConfigError: a client sends fewer numbers than there are canaries.
        """
        self.num_train = num_train
        self.rates = rates
        self.inside = coins(count, key)
        """Which canaries take part."""
        self.signal = np.zeros(count)
        """Of what canaries contributed: inner products with the directions, by canary."""
        self.noise = np.zeros(count)
        """Of the noise: the same."""

        self._fields = {
            name: field for name, field in messages.items() if field.reduction != "none"
        }
        self._owners = _dealt(self._fields, count, key.fold("owners"))
        numbers = _drawn(self._fields, key.fold("directions"))
        squares = np.bincount(self._owners, weights=numbers**2, minlength=count)
        self._directions = numbers / np.sqrt(squares)[self._owners]

    @property
    def scores(self) -> np.ndarray:
        """How much every canary looks as if it took part."""
        return self.signal + self.noise

    def present(self, key: rng.Key) -> np.ndarray:
        """Return which canaries contribute to the sum of a round, which the key names."""
        count = len(self.inside)
        draws = rng.to_unit(rng.words(rng.plain(key.fold("canaries")), count))
        present: np.ndarray = self.inside & (draws < self.rates[int(key.round) - 1])
        return present

    def upload(
        self, canary: int, totals: Mapping[str, PartialSum], sent: Sent, mechanism: ClientMechanism
    ) -> Upload:
        """Return what a canary asks for, in the form of an upload."""
        leaves = self.asked(canary, mechanism.clip)
        upload: dict[str, Mean | Sum] = {}
        for name, field in self._fields.items():
            scale = mechanism.scales.get(name, 1.0)
            is_mean = field.reduction == "mean"
            old = tree.paths(sent[name]) if is_mean and sent[name] is not None else {}
            values = []
            for path, like in tree.paths(totals[name].like).items():
                value = scale * leaves[name][path].to(like.device)
                if path in old:
                    value = value + old[path].double()
                values.append(value.to(like.dtype))

            value = tree.rebuild(totals[name].like, iter(values))
            weight = 1.0 if field.weight == "equal" else self.num_train
            upload[name] = Mean(value, torch.tensor(weight)) if is_mean else Sum(value)

        return upload

    def asked(self, canary: int, clip: float) -> dict[str, dict[str, Tensor]]:
        """Return what a canary asks for, float64: a change far beyond the bound."""
        change = np.where(self._owners == canary, self._directions, 0.0)
        return self._leaves(_SIZE * clip * change)

    def see_signal(self, contributed: Leaves) -> None:
        """Enter what all canaries contributed to a sum."""
        self.signal += self._scores(contributed)

    def see_noise(self, noise: Leaves) -> None:
        """Enter the noise of a sum."""
        self.noise += self._scores(noise)

    def _scores(self, leaves: Leaves) -> np.ndarray:
        """Return the inner products of all directions with one vector."""
        host = to_host(
            {name: dict(leaves[name]) for name in self._fields}, "the scores of canaries"
        )
        vector = np.concatenate([leaf.double().flatten() for leaf in tree.leaves(host)])
        products = self._directions * vector
        scores: np.ndarray = np.bincount(self._owners, products, minlength=len(self.inside))
        return scores

    def _leaves(self, vector: np.ndarray) -> dict[str, dict[str, Tensor]]:
        """Return the parts of a vector by field and path."""
        leaves: dict[str, dict[str, Tensor]] = {}
        start = 0
        for name, field in self._fields.items():
            leaves[name] = {}
            for path, shape in field.leaf_shapes().items():
                end = start + math.prod(shape)
                leaves[name][path] = torch.from_numpy(vector[start:end]).reshape(shape)
                start = end
        return leaves


@dataclass(frozen=True)
class AuditedMechanism(ClientMechanism):
    """A mechanism to whose sums canaries contribute, and whose noise is watched."""

    canaries: Canaries
    added_noise: AddedNoise

    def sightings(self) -> Sightings:
        """Return what was seen of the canaries."""
        canaries = self.canaries
        return Sightings(canaries.inside, canaries.signal, canaries.noise, [self.added_noise])

    def release(self, totals: Mapping[str, PartialSum], sent: Sent, key: rng.Key) -> Received:
        """Return what the server receives of the sums, with those of canaries added."""
        present = np.flatnonzero(self.canaries.present(key)).tolist()
        sums = {name: FieldSum(present) for name in totals}
        for canary in present:
            upload = self.canaries.upload(canary, totals, sent, self)
            for name, entry in self.bounded(upload, sent).items():
                sums[name].add(canary, entry)

        if present:
            contributed = {name: total.total().leaves for name, total in sums.items()}
            self.canaries.see_signal(contributed)
            totals = {name: _added(total, contributed[name]) for name, total in totals.items()}
        return super().release(totals, sent, key)

    def noisy(self, totals: Mapping[str, PartialSum], key: rng.Key) -> dict[str, dict[str, Tensor]]:
        """Return the noisy sums, which the attacker sees."""
        noisy = super().noisy(totals, key)
        noise = {}
        for name, by_path in noisy.items():
            total = totals[name].leaves
            noise[name] = {path: leaf - total[path] for path, leaf in by_path.items()}
        self.canaries.see_noise(noise)
        self.added_noise.see(noise, self.noise * self.clip)
        return noisy


def coins(count: int, key: rng.Key) -> np.ndarray:
    """Return which canaries take part."""
    inside: np.ndarray = rng.to_unit(rng.words(rng.plain(key.fold("coins")), count)) < 0.5
    return inside


def _added(total: PartialSum, leaves: Mapping[str, Tensor]) -> PartialSum:
    added = {path: leaf.double() + leaves[path] for path, leaf in total.leaves.items()}
    return total._replace(leaves=added)


def refuse_more_canaries(count: int, num_scalars: int) -> None:
    """Check that every canary can have a direction of its own.

    Raises:
        ConfigError: there are more canaries than numbers that a client sends.
    """
    if count > num_scalars:
        raise ConfigError(
            f"--canaries must be at most {num_scalars}, the numbers that a client sends, got "
            f"{count}.",
            key="--canaries",
            got=count,
        )


def _dealt(fields: Messages, count: int, key: rng.Key) -> np.ndarray:
    """Return which canary changes a number of an upload: all change about as many.

    The lower half of a covariance follows the upper one.
    """
    num_scalars = sum(field.scalars() for field in fields.values())
    refuse_more_canaries(count, num_scalars)
    shuffled = np.argsort(rng.words(rng.plain(key), num_scalars), kind="stable")
    return _unpacked(fields, shuffled % count)


def _drawn(fields: Messages, key: rng.Key) -> np.ndarray:
    """Return a normal number for every number of an upload."""
    num_scalars = sum(field.scalars() for field in fields.values())
    return _unpacked(fields, rng.normal(key, (num_scalars,)).cpu().double().numpy())


def _unpacked(fields: Messages, packed: np.ndarray) -> np.ndarray:
    """Return the numbers of all fields in one vector, with both halves of covariances."""
    with placed(HOST):
        numbers = torch.from_numpy(packed)
        return np.concatenate(
            [part.read(numbers).flatten().numpy() for part in layout_of(fields).values]
        )
