"""Canaries among examples, which an audit makes up and tries to find again in what a client sends.

In steps of training, each canary has a gradient in a random direction of its own, far beyond the
bound. It shares the draws of a real example of one client: it is in a step when that example is. Of
sums over features, each canary is an example of random numbers, far larger than any picture, of a
random class. A coin decides whether a canary takes part. What it adds goes through the bound of
the run, and is hidden by its noise.

The attacker sees every noisy sum of gradients and of features, and knows what all other examples
add to it, canaries too. With shares of noise, it sees sums over so few clients as a run may have,
and knows the noise of those that may give it away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import AnyAlgorithm, Download
from fedtailor.core.devices import to_host
from fedtailor.core.federation import ClientData, ClientInfo, ExampleSet
from fedtailor.core.message import Field
from fedtailor.core.task import Batch, Task
from fedtailor.privacy.added_noise import AddedNoise
from fedtailor.privacy.canaries import Canaries, Sightings, coins, refuse_more_canaries
from fedtailor.privacy.class_statistics import SumsMechanism, of_sums, of_triangle
from fedtailor.privacy.examples import ExamplePlan
from fedtailor.training.private_steps import PrivateSteps, steps_made_by

_LARGE = 1000.0
"""Deviation of the numbers of a canary among inputs: its features are beyond any bound."""


class _PhaseCanaries(NamedTuple):
    """What was seen in phases that train the same parameters."""

    canaries: Canaries
    added_noise: AddedNoise


class CanarySteps:
    """The canaries of one client in steps of training."""

    def __init__(
        self, plan: ExamplePlan, target: int, num_train: int, count: int, key: rng.Key
    ) -> None:
        """Watch the steps of a client.

        Args:
            plan: what hides examples of every client.
            target: the client with canaries.
            num_train: its training examples.
            count: how many canaries there are.
            key: of all that is random about canaries.
        """
        self.target = target
        self.deviation = plan.releases[target].noise * plan.privacy.clip
        """Of the noise that a run claims: on the sum of so many shares."""
        self._shares = plan.shares
        self._hosts = np.arange(count) % num_train
        """The row of the example that is drawn when a canary is."""
        self._key = key
        self._phases: dict[tuple[str, ...], _PhaseCanaries] = {}
        self._round = 0
        self._noises: dict[int, list[Tensor]] = {}
        """Of the clients of a round that have shares of the noise."""

    @property
    def has_shares(self) -> bool:
        """Whether the noise of several clients hides examples."""
        return self._shares > 1

    def sightings(self) -> Sightings:
        """Return what was seen of the canaries in all phases."""
        phases = list(self._phases.values())
        return Sightings(
            inside=phases[0].canaries.inside if phases else np.zeros(0, dtype=bool),
            signal=np.sum([phase.canaries.signal for phase in phases], axis=0),
            noise=np.sum([phase.canaries.noise for phase in phases], axis=0),
            added_noise=[phase.added_noise for phase in phases if phase.added_noise.rounds],
        )

    def of(self, steps: AuditedSteps) -> _PhaseCanaries:
        """Return what was seen in phases of this kind: their canaries have the same coins."""
        shapes = {path: tuple(leaf.shape) for path, leaf in steps.named(steps.buffers.params)}
        name = tuple(shapes)
        if name not in self._phases:
            fields = {"gradient": Field(kind="statistics", shapes=shapes)}
            count = len(self._hosts)
            canaries = Canaries(fields, count, num_train=1, rates=(), key=self._key)
            self._phases[name] = _PhaseCanaries(canaries, AddedNoise(fields))
        return self._phases[name]

    def present(self, rows: Tensor, inside: np.ndarray) -> list[int]:
        """Return which canaries are in a step with some examples."""
        present: list[int] = np.flatnonzero(inside & np.isin(self._hosts, rows.numpy())).tolist()
        return present

    def see_noise(self, steps: AuditedSteps, noise: Sequence[Tensor]) -> None:
        """Enter the noise of a client in a step.

        Shares are seen as the sum of the client and of the first others of its round.
        """
        client = int(steps.key.client)
        if int(steps.key.round) != self._round:
            self._round = int(steps.key.round)
            self._noises = {}

        others = len(self._noises) - (self.target in self._noises)
        if client != self.target and others >= self._shares - 1:
            return
        self._noises[client] = [leaf.double() for leaf in noise]
        if len(self._noises) < self._shares:
            return

        total = [torch.stack(leaves).sum(0) for leaves in zip(*self._noises.values(), strict=True)]
        leaves = {"gradient": dict(steps.named(total))}
        phase = self.of(steps)
        phase.canaries.see_noise(leaves)
        phase.added_noise.see(leaves, self.deviation)
        self._noises = {}


class AuditedSteps(PrivateSteps):
    """Steps to whose sums canaries add, and whose noise is watched."""

    def __init__(self, watch: CanarySteps, *phase: object) -> None:
        super().__init__(*phase)  # type: ignore[arg-type]  # as train_private gives them
        self.watch = watch

    def named(self, leaves: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """Return the leaves of a gradient with their names, on the host."""
        on_host = to_host(list(leaves), "gradients for an audit")
        names = tree.paths(tree.rebuild(self.phase.params, iter(on_host)))
        return list(names.items())

    def clipped_sum(
        self, batch: Batch | None, rows: Tensor, step: int
    ) -> tuple[list[Tensor], Tensor]:
        """Return the sum of bounded gradients, those of canaries too, and the mean loss."""
        totals, loss = super().clipped_sum(batch, rows, step)
        if int(self.key.client) != self.watch.target:
            return totals, loss

        canaries = self.watch.of(self).canaries
        present = self.watch.present(rows, canaries.inside)
        for start in range(0, len(present), self.chunk):
            asked = []
            for canary in present[start : start + self.chunk]:
                asked.append(list(canaries.asked(canary, self.clip)["gradient"].values()))

            gradients = []
            for leaves, total in zip(zip(*asked, strict=True), totals, strict=True):
                gradients.append(torch.stack(leaves).to(total))
            added = self.bounded(gradients)
            canaries.see_signal({"gradient": dict(self.named(added))})
            totals = [total + leaf for total, leaf in zip(totals, added, strict=True)]

        return totals, loss

    def with_noise(self, totals: list[Tensor], step: int) -> list[Tensor]:
        """Return the sums with noise, which the attacker sees."""
        noisy = super().with_noise(totals, step)
        client = int(self.key.client)
        if client == self.watch.target or self.watch.has_shares:
            noise = [new - old for new, old in zip(noisy, totals, strict=True)]
            self.watch.see_noise(self, noise)
        return noisy


def auditing_steps(watch: CanarySteps) -> AbstractContextManager[None]:
    """Watch the steps of clients in the block, in this thread."""
    return steps_made_by(partial(AuditedSteps, watch))


class CanarySums:
    """The canaries of one client in sums over features."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        task: Task,
        shared: tree.Tree,
        mechanism: SumsMechanism,
        count: int,
        key: rng.Key,
    ) -> None:
        """Find what canaries add to sums, by the code of the method.

        Args:
            algorithm: adds up features, and bounds them.
            task: of the federation.
            shared: what clients receive in the first round.
            mechanism: hides examples in the sums.
            count: how many canaries there are.
            key: of all that is random about canaries.
        """
        self._inside = coins(count, key)
        self._signal = np.zeros(count)
        self._noise = np.zeros(count)
        self._added_noise: list[AddedNoise] = []
        self._mechanism = mechanism

        task = algorithm.bind(task)
        inputs = _LARGE * rng.normal(key.fold("inputs"), (count, *task.input_shape))
        drawn = rng.words(rng.plain(key.fold("classes")), count) % task.num_classes
        labels = torch.from_numpy(drawn.astype(np.int64))
        rows = []
        for canary in range(count):
            data = _only(inputs, labels, canary, task.num_classes)
            upload = algorithm.local_update(task, Download(shared), (), data, key).upload
            rows.append(self._flat({name: upload[name].value for name in of_sums(upload)}))

        # Others would share the noise of a direction, and their scores would not be independent.
        refuse_more_canaries(count, len(rows[0]))

        # Each has the direction of its own among orthogonal ones that is nearest to what it adds.
        left, sizes, right = np.linalg.svd(np.stack(rows), full_matrices=False)
        self._directions = left @ right
        self._added = np.diag((left * sizes) @ left.T)

    def see(self, noise: Mapping[str, Tensor]) -> None:
        """Enter the noise of sums, by field."""
        units = self._in_deviations(noise)
        if not self._added_noise:
            shapes = {name: tuple(value.shape) for name, value in units.items()}
            self._added_noise = [AddedNoise({"sums": Field(kind="statistics", shapes=shapes)})]

        self._added_noise[0].see({"sums": units}, 1.0)
        self._signal += self._inside * self._added
        self._noise += self._directions @ self._flat(noise)

    def sightings(self) -> Sightings:
        """Return what was seen of the canaries."""
        return Sightings(self._inside, self._signal, self._noise, self._added_noise)

    def _flat(self, sums: Mapping[str, Tensor]) -> np.ndarray:
        """Return all numbers of sums, in units of the deviations of their noise."""
        values = [value.flatten() for value in self._in_deviations(sums).values()]
        numbers: np.ndarray = torch.cat(values).numpy()
        return numbers

    def _in_deviations(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return sums in units of the deviations of their noise, on the host."""
        on_host = to_host(dict(sums), "sums for an audit")
        d = on_host["sums"].shape[1]
        units = {}
        for name, deviation in self._mechanism.deviations(on_host).items():
            units[name] = on_host[name].double() / deviation
            if name == "squares" and units[name].shape[-1] != d:
                units[name] = units[name] / of_triangle(d, units[name].device)
        return units


@dataclass(frozen=True)
class AuditedSums(SumsMechanism):
    """Adds noise to sums over features, and shows that of one client, or of all in one."""

    watch: CanarySums = field(repr=False)
    client: int | None
    """Whose noise is seen; None: noise is added once."""

    def with_noise(
        self, sums: Mapping[str, Tensor], key: rng.Key, secret: bytes = b""
    ) -> dict[str, Tensor]:
        """Return sums with noise, which the attacker sees."""
        noisy = super().with_noise(sums, key, secret)
        if self.client is None or int(key.client) == self.client:
            self.watch.see({name: noisy[name] - sums[name].double() for name in sums})
        return noisy


def _only(inputs: Tensor, labels: Tensor, canary: int, num_classes: int) -> ClientData:
    """Return the data of a client that has one canary."""
    row = torch.tensor([canary])
    examples = ExampleSet(inputs, labels, row, torch.ones(1))
    none = ExampleSet(inputs, labels, row[:0], torch.ones(0))
    counts = torch.bincount(labels[row], minlength=num_classes).to(torch.get_default_dtype())
    return ClientData(examples, none, ClientInfo(torch.tensor(1.0), counts))
