"""Scores and other numbers of a client as one vector of whole numbers, and a sum of such vectors.

Under masks (:mod:`fedtailor.core.upload_vector`), a client adds its numbers to a vector of whole
numbers. :class:`Scores` are sums already. Of every figure, such as the accuracy, a client adds
three numbers: 1 (0 if it has none), the value, and its square. So the mean over clients and their
standard deviation are known, and no figure of a single client is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.metrics import CLASS_SHARES, CLIENT_METRICS, figures_by_class, per_client
from fedtailor.core.scores import (
    BINS,
    SCORE_BINS,
    FigureSum,
    NumberSum,
    ReportSums,
    Scores,
    ScoreSums,
    is_ranked,
    total,
)

_RING_BITS = 62
"""Bits of a sum without its sign, and one to spare."""
_LARGEST_LOSS = 1024.0
"""Mean loss of a client from which on all count the same."""
_LARGEST_NUMBER = 2.0**24
"""Of what a method reports; larger ones are left out."""
_LOSS = "loss"
_SCORED = "scored"


class _Part(NamedTuple):
    """Where some numbers are in the vector, and how they become whole numbers."""

    start: int
    shape: tuple[int, ...]
    most: float
    """Largest absolute value of one client."""
    bits: int
    """Fraction bits."""
    least: float
    """Smallest value of one client."""

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape)


class ReportVector:
    """How scores and numbers of a client become a vector."""

    def __init__(
        self,
        *,
        num_classes: int,
        test_sets: Sequence[str],
        numbers: Sequence[str],
        rank: bool,
        population: int,
        most_examples: int,
    ) -> None:
        """Lay out the vector.

        Args:
            num_classes: of the federation.
            test_sets: whose scores are in it.
            numbers: the names of the numbers that are in it.
            rank: whether the scores hold what AUROC needs.
            population: how many clients can be in a sum.
            most_examples: the most examples of a test set of one client.
        """
        self._test_sets = tuple(test_sets)
        self._numbers = tuple(numbers)
        self._num_classes = num_classes
        self._rank = rank
        self._population = population
        self._by_class = ("auroc", *CLASS_SHARES)
        self._parts: dict[tuple[str, str], _Part] = {}

        examples = float(most_examples)
        counts = {
            "class_total": (num_classes,),
            "confusion": (num_classes, num_classes),
            "bin_count": (BINS,),
            "bin_correct": (BINS,),
        }
        if rank:
            counts["histogram"] = (2, num_classes, SCORE_BINS)
        for test_set in self._test_sets:
            self._add(test_set, _SCORED, (), 1.0, is_whole=True)
            for name, shape in counts.items():
                self._add(test_set, name, shape, examples, is_whole=True)
            self._add(test_set, "bin_confidence", (BINS,), examples)
            self._add(test_set, "loss_sum", (), examples * _LARGEST_LOSS)

            for name in CLIENT_METRICS:
                self._add_figure(test_set, name, (), _largest(name))
            for name in self._by_class:
                self._add_figure(test_set, f"{name} by class", (num_classes,), 1.0)

        for name in self._numbers:
            self._add("", f"{name}: clients", (), 1.0, is_whole=True)
            self._add("", name, (), _LARGEST_NUMBER, least=-_LARGEST_NUMBER)

    def _add_figure(self, test_set: str, name: str, shape: tuple[int, ...], most: float) -> None:
        self._add(test_set, f"{name}: clients", shape, 1.0, is_whole=True)
        self._add(test_set, name, shape, most)
        self._add(test_set, f"{name}: squares", shape, most**2)

    def _add(
        self,
        test_set: str,
        name: str,
        shape: tuple[int, ...],
        most: float,
        *,
        is_whole: bool = False,
        least: float = 0.0,
    ) -> None:
        bits = 0 if is_whole else _RING_BITS - math.ceil(math.log2(self._population * most))
        self._parts[test_set, name] = _Part(self.entries, shape, most, bits, least)

    @property
    def entries(self) -> int:
        """Length of a vector."""
        return max((part.end for part in self._parts.values()), default=0)

    @property
    def digest(self) -> bytes:
        """SHA-256 of what is where, and how fine it is: vectors of one digest can be added."""
        lines = [[*key, *part] for key, part in self._parts.items()]
        return hashlib.sha256(b"report\0" + json.dumps(lines).encode()).digest()

    def encode(self, scores: Mapping[str, Scores], numbers: Mapping[str, Tensor]) -> Tensor:
        """Return what a client shares as a vector, (entries,), int64.

        Args:
            scores: by test set; what it does not share is 0 in the vector.
            numbers: by name.
        """
        vector = torch.zeros(self.entries, dtype=torch.int64)
        for test_set in self._test_sets:
            if test_set in scores:
                self._write(vector, test_set, self._values_of(scores[test_set]))

        self._write(vector, "", self._values_of_numbers(numbers))
        return vector

    def _write(self, vector: Tensor, test_set: str, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            part = self._parts[test_set, name]
            bounded = value.double().clamp(part.least, part.most)
            whole = (bounded * 2.0**part.bits).round().to(torch.int64)
            vector[part.start : part.end] = whole.reshape(-1)

    def _values_of(self, scores: Scores) -> dict[str, Tensor]:
        """Return the numbers of the scores of one client, by the names of the parts."""
        examples = float(scores.class_total.sum())
        values = {
            name: getattr(scores, name)
            for name in ("class_total", "confusion", "bin_count", "bin_correct", "bin_confidence")
        }
        values[_SCORED] = torch.ones(())
        values["loss_sum"] = scores.loss_sum.clamp(max=examples * _LARGEST_LOSS)
        if self._rank and is_ranked(scores):
            values["histogram"] = total([scores]).histogram

        figures = per_client(scores)
        for name in CLIENT_METRICS:
            values |= _three(name, [figures.get(name)], ())

        by_class = figures_by_class(scores)
        for name in self._by_class:
            column = [of_class[name] for of_class in by_class]
            values |= _three(f"{name} by class", column, (self._num_classes,))
        return values

    def _values_of_numbers(self, numbers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = {}
        for name in self._numbers:
            value = numbers.get(name)
            if value is not None and abs(float(value)) <= _LARGEST_NUMBER:
                values[name] = value
                values[f"{name}: clients"] = torch.ones(())
        return values

    def problem_with_sum(self, vector: Tensor, senders: int) -> str:
        """Return why a sum of vectors cannot be one of sound vectors; empty if it can be.

        Args:
            vector: the sum, (entries,), int64.
            senders: how many vectors are in it.
        """
        for (_, name), part in self._parts.items():
            numbers = self._read(vector, part)
            least = senders * part.least
            if numbers.numel() and not (
                least <= float(numbers.min()) <= float(numbers.max()) <= senders * part.most
            ):
                return f"the sum of '{name}' is beyond {senders} times the bound"

        for test_set in self._test_sets:
            counts = self._scores(vector, test_set)
            examples = counts.class_total.sum()
            has_predictions = bool((counts.confusion.sum(1) <= counts.class_total).all())
            if counts.bin_count.sum() != examples or not has_predictions:
                return "the sums of scores contradict each other"
        return ""

    def decode(self, vector: Tensor, clients: frozenset[int]) -> ReportSums:
        """Return what a sum of vectors says.

        Args:
            vector: the sum, (entries,), int64.
            clients: whose vectors are in it.
        """
        scores = {}
        for test_set in self._test_sets:
            scored = int(self._read(vector, self._parts[test_set, _SCORED]))
            if not scored:
                continue

            figures = {name: self._figure(vector, test_set, name) for name in CLIENT_METRICS}
            by_class = []
            for label in range(self._num_classes):
                of_class = {}
                for name in self._by_class:
                    of_class[name] = self._figure(vector, test_set, f"{name} by class", label)
                by_class.append(of_class)

            summed = self._scores(vector, test_set)
            scores[test_set] = ScoreSums(summed, figures, by_class, clients, scored)

        numbers = {}
        for name in self._numbers:
            count = self._read(vector, self._parts["", f"{name}: clients"])
            value = self._read(vector, self._parts["", name])
            numbers[name] = NumberSum(int(count), float(value))
        return ReportSums(clients, scores, numbers)

    def _scores(self, vector: Tensor, test_set: str) -> Scores:
        """Return the sum of scores, without pairs: over clients, histograms count them."""

        def read(name: str) -> Tensor:
            return self._read(vector, self._parts[test_set, name])

        confusion = read("confusion")
        nothing = torch.zeros(self._num_classes, dtype=torch.float64)
        histogram = torch.zeros(2, 0, dtype=torch.int64)
        if self._rank:
            histogram = read("histogram").to(torch.int64)
        return Scores(
            class_correct=confusion.diagonal().clone(),
            class_total=read("class_total"),
            loss_sum=read("loss_sum"),
            bin_count=read("bin_count"),
            bin_confidence=read("bin_confidence"),
            bin_correct=read("bin_correct"),
            confusion=confusion,
            pairs=nothing,
            pairs_won=nothing,
            histogram=histogram,
        )

    def _figure(self, vector: Tensor, test_set: str, name: str, label: int = 0) -> FigureSum:
        columns = []
        for column in (f"{name}: clients", name, f"{name}: squares"):
            numbers = self._read(vector, self._parts[test_set, column])
            columns.append(float(numbers.reshape(-1)[label]))
        count, value, squares = columns
        return FigureSum(int(count), value, squares)

    @staticmethod
    def _read(vector: Tensor, part: _Part) -> Tensor:
        numbers = vector[part.start : part.end].reshape(part.shape)
        return numbers.to(torch.float64) * 2.0**-part.bits


def _largest(name: str) -> float:
    """Return the largest value of a figure of a client that counts."""
    return _LARGEST_LOSS if name == _LOSS else 1.0


def _three(name: str, values: Sequence[float | None], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return whether there are values, the values, and their squares."""
    numbers = [value or 0.0 for value in values]
    column = torch.tensor(numbers, dtype=torch.float64).reshape(shape)
    column = column.clamp(max=_LARGEST_LOSS)
    count = torch.tensor([value is not None for value in values]).reshape(shape)
    return {f"{name}: clients": count, name: column, f"{name}: squares": column**2}
