"""What holds for every partition, and what is special about each."""

import hashlib
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from fedtailor.core.errors import DataError
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions import PARTITIONS, dirichlet, parse_partition
from fedtailor.data.partitions.base import Partition, hand_out, positions_by_value
from fedtailor.data.partitions.classes import CyclicClasses, deal_cycle


def make_annotations(rows: int = 480, seed: int = 0, skew: float = 0.0) -> Annotations:
    """Return 4 labels of 3 subclasses in 2 domains; with ``skew``, later classes are rarer."""
    generator = np.random.default_rng(seed)
    weights = np.exp(-skew * np.arange(12) / 12)
    sizes = (rows * weights / weights.sum()).astype(int)
    subclasses = generator.permutation(np.repeat(np.arange(12), sizes))
    domains = generator.integers(0, 2, len(subclasses))
    return Annotations(subclasses // 3, subclasses, domains)


def divide(text: str, annotations: Annotations, clients: int, seed: int = 0) -> list[np.ndarray]:
    return parse_partition(text).divide(annotations, clients=clients, seed=seed)


def counts_of(labels: np.ndarray | None, parts: list[np.ndarray]) -> np.ndarray:
    """Return examples by client and label."""
    assert labels is not None
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


LEFT_OVER = ("cyclic_classes", "dirichlet_quota", "natural", "domain_labels")  # some examples
EXAMPLES = {
    "iid": 7,
    "dirichlet(alpha=0.5, min_size=5)": 8,
    "dirichlet(alpha=0.1, min_size=0)": 30,
    "dirichlet_quota(alpha=0.5)": 12,
    "dirichlet_quota(alpha=0.3, quota=20)": 10,
    "classes(k=2)": 9,
    "cyclic_classes(k=3)": 10,
    "label_slices": 12,
    "label_slices(k=1, shared_cuts=False)": 12,
    "subclass_slices": 12,
    "subclass_slices(homogeneous=True)": 5,
    "subclass_slices(equal=True)": 9,
    "natural": 2,
    "domains(per_domain=3, alpha=1, min_size=4)": 6,
    "domain_labels(k=2)": 8,
}
EMPTY_ALLOWED = {"dirichlet(alpha=0.1, min_size=0)"}


def test_every_partition_is_among_the_examples() -> None:
    assert {parse_partition(text).name for text in EXAMPLES} == set(PARTITIONS)


@pytest.mark.parametrize("text", EXAMPLES)
@settings(deadline=None, max_examples=4)
@given(st.integers(0, 2**40), st.sampled_from([0.0, 1.0]))
def test_parts_are_disjoint_and_reproducible(text: str, seed: int, skew: float) -> None:
    partition = parse_partition(text)
    annotations = make_annotations(skew=skew)
    before = [column.copy() for column in annotations if column is not None]
    parts = partition.divide(annotations, clients=EXAMPLES[text], seed=seed)
    assert len(parts) == EXAMPLES[text] and all(part.dtype == np.int64 for part in parts)

    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    assert used.min() >= 0 and used.max() < len(annotations.labels)
    if partition.name not in LEFT_OVER:
        assert len(used) == len(annotations.labels)
    if text not in EMPTY_ALLOWED:
        assert min(map(len, parts)) > 0

    again = partition.divide(annotations, clients=EXAMPLES[text], seed=seed)
    assert all(map(np.array_equal, parts, again))
    assert all(map(np.array_equal, before, annotations))
    if partition.name != "natural":
        other = partition.divide(annotations, clients=EXAMPLES[text], seed=seed + 1)
        assert not all(map(np.array_equal, map(np.sort, parts), map(np.sort, other)))


@pytest.mark.parametrize(
    ("text", "clients", "digest"),
    [
        ("iid", 30, "e8fd8ee9ab61b86d"),
        ("classes(k=3)", 30, "eb842e8f53bc9387"),
        ("classes(k=7)", 30, "20438efa0bb59354"),
        ("cyclic_classes(k=3)", 90, "746ebfebd7c9c624"),
        ("dirichlet(alpha=0.5, min_size=62.5)", 30, "697f722cff340e66"),
        ("dirichlet(alpha=0.1, min_size=0)", 30, "bf8d5afc2f03763a"),
        ("dirichlet_quota(alpha=0.1)", 30, "3c5f03f6a7428448"),
        ("natural", 5, "9f54b69359c2b447"),
        ("domains(per_domain=4, alpha=0.5)", 20, "5a41fe10bfa90f6f"),
        ("domain_labels(k=5)", 30, "5ea9756c9a0bdf51"),
        ("label_slices", 30, "f1f7419583732aea"),
        ("label_slices(k=2, shared_cuts=False)", 30, "02d62cefab2d1423"),
        ("subclass_slices", 30, "a125392325155bfe"),
        ("subclass_slices(shared_cuts=False)", 30, "21f9f5ce939bc4f1"),
        ("subclass_slices(homogeneous=True)", 30, "2bd4c019a7164edf"),
        ("subclass_slices(equal=True)", 30, "87cc3b1b4e4c8e6a"),
    ],
)
def test_partitions_stay_as_they_were(text: str, clients: int, digest: str) -> None:
    generator = np.random.default_rng(3)
    fine = generator.permutation(np.repeat(np.arange(100), 60))
    annotations = Annotations(fine // 10, fine, generator.integers(0, 5, 6000))
    parts = divide(text, annotations, clients, seed=42)
    content = b"|".join(part.astype("<i8").tobytes() for part in parts)
    assert hashlib.sha256(content).hexdigest()[:16] == digest


@pytest.mark.slow
def test_a_partition_of_ten_thousand_clients_hands_out_all() -> None:
    labels = np.arange(60_000) % 10
    for text in ("dirichlet(alpha=0.5, min_size=0)", "dirichlet_quota(alpha=0.5)", "label_slices"):
        parts = divide(text, Annotations(labels), 10_000)
        assert len(parts) == 10_000 and len(np.unique(np.concatenate(parts))) == 60_000


def test_only_partitions_by_domain_have_their_own_number_of_clients() -> None:
    numbers = {}
    for text in EXAMPLES:
        partition: Partition = parse_partition(text)
        numbers[partition.name] = partition.default_clients(make_annotations())
    assert {name: number for name, number in numbers.items() if number} == {
        "natural": 2,
        "domains": 6,
    }


def test_positions_are_grouped_and_handed_out_in_order() -> None:
    values, places = positions_by_value(np.array([5, 2, 5, 9, 2]))
    assert values.tolist() == [2, 5, 9]
    assert [group.tolist() for group in places] == [[1, 4], [0, 2], [3]]

    pools = [np.array([10, 11, 12]), np.array([20, 21])]
    parts = hand_out(pools, np.array([1, 0, 0, 1]), np.array([2, 0, 2, 0]), 3)
    assert [part.tolist() for part in parts] == [[10, 21], [], [20, 11]]


PLAIN = Annotations(np.repeat([0, 3], 10))
SIX_LABELS = Annotations(np.arange(36) % 6)
FINE = np.arange(50) % 5
UNEVEN = Annotations(FINE // 3, FINE)
SMALL = Annotations(np.array([0, 1, 2, 0, 0, 0, 0, 0]), None, np.array([0, 0, 0, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize(
    ("text", "annotations", "clients", "needed"),
    [
        ("iid", PLAIN, 21, "at most 20 clients"),
        ("dirichlet(alpha=1, min_size=10.5)", PLAIN, 2, "at least 10.5 examples"),
        ("dirichlet(alpha=0.5, min_size=4)", Annotations(np.arange(6000) % 10), 1000, "20 draws"),
        ("dirichlet_quota(alpha=0.5, quota=7)", PLAIN, 3, "7 x 3 = 21"),
        ("classes(k=3)", PLAIN, 2, "k <= 2"),
        ("classes(k=1)", PLAIN, 1, "k x clients >= 2"),
        ("classes(k=2)", PLAIN, 11, "at least 11 examples of class 0"),
        ("cyclic_classes", PLAIN, 4, "k <= 2"),
        ("cyclic_classes(k=1)", PLAIN, 1, "k + clients - 1 >= 2"),
        ("cyclic_classes(k=1)", PLAIN, 3, "allow 6 examples for every client, got 10, 10"),
        ("label_slices(k=4)", SIX_LABELS, 6, "a k that divides 6"),
        ("label_slices", SIX_LABELS, 7, "a number of clients that 2 divides"),
        ("label_slices", SIX_LABELS, 14, "at least 7 examples of class 0"),
        ("subclass_slices", SIX_LABELS, 6, "subclasses"),
        ("subclass_slices", UNEVEN, 6, "3 as in label 0, got 2 in label 1"),
        ("subclass_slices(homogeneous=True)", UNEVEN, 11, "at least 11 examples of subclass 0"),
        ("natural", PLAIN, 2, "domains"),
        ("natural", SMALL, 3, "at most 2 clients"),
        ("domains", PLAIN, 20, "domains"),
        ("domains", SMALL, 7, "4 x 2 = 8 clients"),
        ("domains(per_domain=4, min_size=0)", SMALL, 8, "at least 4 examples of domain 0"),
        ("domains(per_domain=2)", SMALL, 4, "at least 10 examples of domain 0"),
        ("domain_labels(k=2)", SMALL, 4, "at least 2 labels in every domain"),
        ("domain_labels(k=1)", SMALL, 8, "of class 1 in domain 0"),
    ],
)
def test_what_cannot_be_met_is_refused(
    text: str, annotations: Annotations, clients: int, needed: str
) -> None:
    with pytest.raises(DataError) as caught:
        divide(text, annotations, clients)
    assert caught.value.key == "data.partition"
    assert parse_partition(text).name in caught.value.message and needed in caught.value.message


def test_too_many_draws_end_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirichlet, "MAX_DRAWS", 3)
    with pytest.raises(DataError, match="3 draws"):  # every draw is NaN
        divide("dirichlet(alpha=1e-300, min_size=0)", PLAIN, 4)


# Dirichlet shares: the release of pFedFDA.


def released(
    labels: np.ndarray, clients: int, alpha: float, min_size: float, seed: int
) -> list[list[int]]:
    """Transcribe the procedure of pFedFDA's release with plain lists."""
    random = np.random.RandomState(seed)
    while True:
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in range(labels.max() + 1):
            order = np.flatnonzero(labels == label)
            random.shuffle(order)
            shares = random.dirichlet([alpha] * clients)
            for client, part in enumerate(parts):
                if len(part) >= len(labels) / clients:
                    shares[client] = 0.0
            ends = np.cumsum(shares / shares.sum()) * len(order)
            bounds = [0, *(int(end) for end in ends[:-1]), len(order)]
            for client, (start, end) in enumerate(pairwise(bounds)):
                parts[client] += order[start:end].tolist()
        if min(map(len, parts)) >= min_size:
            return parts


@pytest.mark.parametrize(("alpha", "min_size"), [(0.5, 8.5), (0.2, 4.0), (5.0, 0.0)])
def test_dirichlet_repeats_the_released_procedure(alpha: float, min_size: float) -> None:
    labels = np.random.default_rng(3).integers(0, 6, 400)
    text = f"dirichlet(alpha={alpha}, min_size={min_size})"
    parts = divide(text, Annotations(labels), 12, seed=42)
    assert [part.tolist() for part in parts] == released(labels, 12, alpha, min_size, 42)


# Quotas with classes from Dirichlet priors: FedLDA, FedCR.


def transcribed_quota(
    sizes: list[int], clients: int, quota: int, random: np.random.Generator
) -> np.ndarray:
    """Draw one example at a time, its class again while none of them is left."""
    priors = random.dirichlet([1.0] * len(sizes), size=clients)
    left = list(sizes)
    counts = np.zeros((clients, len(sizes)), int)
    while counts.sum() < clients * quota:
        client = random.integers(clients)
        if counts[client].sum() == quota:
            continue
        label = random.choice(len(sizes), p=priors[client])
        while not left[label]:
            label = random.choice(len(sizes), p=priors[client])
        left[label] -= 1
        counts[client, label] += 1
    return counts


def test_quotas_follow_the_law_of_the_transcribed_procedure() -> None:
    random = np.random.default_rng(5)
    sizes = [3, 5]
    labels = np.repeat([0, 1], sizes)
    plain = []
    ours = []
    for seed in range(200):
        plain.append(tuple(transcribed_quota(sizes, 2, 4, random)[0]))
        parts = divide("dirichlet_quota(alpha=1, quota=4)", Annotations(labels), 2, seed)
        ours.append(tuple(counts_of(labels, parts)[0]))

    outcomes = sorted({*plain, *ours})
    table = [[draws.count(outcome) for outcome in outcomes] for draws in (plain, ours)]
    assert len(outcomes) == 4 and chi2_contingency(table).pvalue > 0.01


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e300])
def test_extreme_concentrations_still_fill_quotas(alpha: float) -> None:
    labels = np.repeat([0, 1], [500, 100])
    counts = counts_of(labels, divide(f"dirichlet_quota(alpha={alpha})", Annotations(labels), 20))
    assert (counts.sum(axis=1) == 30).all() and counts.sum(axis=0).tolist() == [500, 100]


# Classes around a circle: FedCR.


def test_the_setting_of_fedcr_is_equal_in_size_and_class() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 560))
    parts = CyclicClasses(k=5).divide(Annotations(labels), clients=10, seed=0)
    for client, counts in enumerate(counts_of(labels, parts)):
        held = {(client + slot) % 10 for slot in range(5)}
        assert set(np.flatnonzero(counts).tolist()) == held and set(counts.tolist()) == {0, 112}


def transcribed_cycle(
    sizes: list[int], k: int, clients: int, quota: int, random: np.random.Generator
) -> np.ndarray:
    """Transcribe FedCR's procedure, looking over all clients for every example."""
    counts = np.zeros((clients, len(sizes)), int)
    left = np.array(sizes)
    classes = [[(client + slot) % len(sizes) for slot in range(k)] for client in range(clients)]
    while counts.sum() < quota * clients:
        totals = counts.sum(axis=1)
        client = random.choice(np.flatnonzero(totals == totals.min()))
        unused = [label for label in classes[client] if left[label]]
        if unused:
            label = min(unused, key=lambda label: counts[client, label])
            left[label] -= 1
        else:
            givers = [
                other
                for other in range(clients)
                if other != client and counts[other, classes[client]].any()
            ]
            other = random.choice(givers)
            label = random.choice([label for label in classes[client] if counts[other, label]])
            counts[other, label] -= 1
        counts[client, label] += 1
    return counts


def test_cycles_follow_the_law_of_the_transcribed_procedure() -> None:
    generator = np.random.default_rng(0)
    sizes, k, clients, quota, runs = [9, 6, 4, 5], 3, 8, 3, 300  # classes run out: exchanges
    columns = (np.arange(clients)[:, None] + np.arange(k)) % len(sizes)
    ours = np.zeros((runs, clients, len(sizes)))
    for run in range(runs):
        counts = deal_cycle(sizes, k, clients, quota, generator)
        assert counts is not None and (counts.sum(axis=1) == quota).all()
        np.put_along_axis(ours[run], columns, counts, axis=1)

    plain = np.array([transcribed_cycle(sizes, k, clients, quota, generator) for _ in range(runs)])
    for moment in (1, 2):
        difference = (ours**moment).mean(axis=0) - (plain**moment).mean(axis=0)
        error = np.sqrt(((ours**moment).var(axis=0) + (plain**moment).var(axis=0)) / runs)
        assert (np.abs(difference) <= 4 * error).all()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 5))
def test_a_division_is_found_whenever_there_is_one(sizes: list[int], k: int, clients: int) -> None:
    assume(k <= len(sizes) <= k + clients - 1 and sum(sizes) >= clients)
    quota = sum(sizes) // clients
    reach = [{(client + slot) % len(sizes) for slot in range(k)} for client in range(clients)]
    groups = [group for size in range(1, clients + 1) for group in combinations(reach, size)]
    possible = all(  # Hall
        quota * len(group) <= sum(sizes[label] for label in set().union(*group)) for group in groups
    )
    counts = deal_cycle(sizes, k, clients, quota, np.random.default_rng(0))
    assert (counts is not None) == possible
    if counts is not None:
        owners, slots = np.indices(counts.shape)
        labels = ((owners + slots) % len(sizes)).ravel()
        used = np.bincount(labels, counts.ravel(), minlength=len(sizes))
        assert (counts.sum(axis=1) == quota).all() and (used <= sizes).all()


# Labels and subclasses in slices: pFedVEM.


def transcribed_slices(labels: np.ndarray, clients: int, k: int, seed: int) -> list[list[int]]:
    """Transcribe pFedVEM's released label skew with plain lists, from the same random numbers."""
    random = np.random.default_rng([seed])
    num_labels = int(labels.max()) + 1
    size = int((labels == 0).sum())
    group = num_labels // k
    orders = random.permuted(np.tile(np.arange(num_labels), (clients // group, 1)), axis=1)
    hands = [order[i * k : (i + 1) * k] for order in orders.tolist() for i in range(group)]
    points = sorted((random.choice(size - 1, clients // group - 1, replace=False) + 1).tolist())
    blocks = {}
    for label in range(num_labels):
        order = random.permutation(np.flatnonzero(labels == label)).tolist()
        blocks[label] = [order[start:end] for start, end in pairwise([0, *points, size])]
    parts: list[list[int]] = []
    for hand in hands:
        taken = {label: blocks[label].pop() for label in hand}
        parts.append([row for label in sorted(hand) for row in taken[label]])
    return parts


@pytest.mark.parametrize(("k", "clients"), [(5, 12), (1, 20), (10, 3)])
def test_label_slices_are_those_of_the_transcribed_procedure(k: int, clients: int) -> None:
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 40))
    parts = divide(f"label_slices(k={k})", Annotations(labels), clients, seed=7)
    assert [part.tolist() for part in parts] == transcribed_slices(labels, clients, k, 7)


def test_larger_classes_are_cut_in_proportion() -> None:
    labels = np.repeat(np.arange(4), [30, 30, 60, 90])
    counts = counts_of(labels, divide("label_slices(k=2)", Annotations(labels), 60))
    assert ((counts > 0).sum(axis=0) == 30).all()  # the smallest: one example for each holder
    assert [set(column[column > 0]) for column in counts.T] == [{1}, {1}, {2}, {3}]


def test_every_client_has_one_subclass_of_each_label() -> None:
    fine = np.random.default_rng(0).permutation(np.repeat(np.arange(30), 40))
    annotations = Annotations(fine % 6, fine)
    parts = divide("subclass_slices", annotations, 20)
    counts = counts_of(fine, parts)
    assert ((counts > 0).sum(axis=0) == 4).all() and (counts.sum(axis=0) == 40).all()
    assert (counts_of(annotations.labels, parts) > 0).all()
    assert ((counts > 0).sum(axis=1) == 6).all()
    assert ((counts > 0).reshape(-1, 5, 30).sum(axis=1) == 1).all()  # groups share all of them

    for text, expected in (("homogeneous", 40), ("equal", 10)):
        counts = counts_of(fine, divide(f"subclass_slices({text}=True)", annotations, 20))
        assert (counts.sum(axis=0) == 40).all()
        assert text == "homogeneous" or set(counts[counts > 0].tolist()) == {expected}


# Domains.


def test_domains_are_divided_among_their_own_clients() -> None:
    domains = np.random.default_rng(0).permutation(np.repeat([0, 2, 7], [900, 300, 600]))
    labels = np.random.default_rng(1).integers(0, 10, len(domains))
    annotations = Annotations(labels, None, domains)

    parts = divide("natural", annotations, 3)
    assert [set(domains[part]) for part in parts] == [{0}, {2}, {7}]
    assert [len(part) for part in divide("natural", annotations, 2)] == [900, 300]

    parts = divide("domains", annotations, 12, seed=42)
    assert [set(domains[part]) for part in parts] == [{0}] * 4 + [{2}] * 4 + [{7}] * 4
    first = np.flatnonzero(domains == 0)  # is divided as a data set of its own
    alone = divide("dirichlet(alpha=0.5)", Annotations(labels[first]), 4, seed=42)
    assert all(np.array_equal(first[one], other) for one, other in zip(alone, parts, strict=False))


def test_a_client_has_one_domain_and_k_labels() -> None:
    generator = np.random.default_rng(1)
    domains = generator.integers(0, 3, 3000)
    labels = generator.integers(0, 10, 3000)
    parts = divide("domain_labels(k=5)", Annotations(labels, None, domains), 30)
    assert all(len(set(domains[part])) == 1 and len(set(labels[part])) == 5 for part in parts)

    # all examples of a label go to those who drew it
    cells = domains * 10 + labels
    used = np.concatenate(parts)
    assert len(used) == np.isin(cells, cells[used]).sum()
