"""What a server sees of one site cannot be told from random numbers."""

import numpy as np
import pytest
from scipy import stats

from fedtailor.privacy.masks.primitives import add_key_stream, derive, digest_of, pack
from fedtailor.privacy.masks.site import pair_stream_key
from masked_world import World, request, vectors

COUNT = 2000
"""Masked vectors of the tests."""
SMALLEST_P = 1e-6
"""Of 128 positions of bytes, none is so unlikely by chance."""


def p_value(rows):
    """Return how likely the bytes of random vectors (count, entries) are as uneven as these."""
    raw = np.ascontiguousarray(rows, "<u8").view(np.uint8).reshape(len(rows), -1)
    positions = raw.shape[1]
    smallest = min(
        stats.chisquare(np.bincount(raw[:, position] >> 3, minlength=32)).pvalue
        for position in range(positions)
    )
    return min(1.0, positions * smallest)


@pytest.fixture(scope="module")
def world():
    return World(3)


def masked(world, value, first):
    """Return many masked vectors of one value, each of another round."""
    asked = [request(round) for round in range(first, first + COUNT)]
    cohort = world.cohort()
    site = world.sites[1]

    # The checks of a request are tested elsewhere, and take most of the time.
    rows = []
    for one in asked:
        site._journal.vectors.clear()
        rows.append(site._masked(one, cohort, value))
    return np.array(rows)


def test_masked_vectors_of_two_values_look_alike(world):
    zeros = np.zeros(16, dtype="<u8")
    other = vectors(1, 16)[0]
    first = masked(world, zeros, 1)
    second = masked(world, other, 1 + COUNT)

    assert p_value(first) > SMALLEST_P
    assert p_value(second) > SMALLEST_P
    assert stats.ks_2samp(first.ravel(), second.ravel()).pvalue > SMALLEST_P
    assert len(np.unique(first)) == first.size


def test_the_test_sees_masks_of_32_bits(world):
    rng = np.random.default_rng(0)
    short = rng.integers(0, 2**32, (COUNT, 16), dtype=np.uint64)
    assert p_value(vectors(1, 16)[0] + short) < SMALLEST_P


def test_the_test_sees_a_mask_that_is_used_twice(world):
    values = [vectors(1, 16, seed)[0] for seed in range(COUNT)]
    others = [vectors(1, 16, seed + COUNT)[0] for seed in range(COUNT)]
    cohort = world.cohort()

    def differences(second_round):
        rows = []
        for round, (value, other) in enumerate(zip(values[:300], others), start=1):
            site = world.sites[1]
            site._journal.vectors.clear()
            first = site._masked(request(round), cohort, value)
            site._journal.vectors.clear()
            rows.append(first - site._masked(request(second_round(round)), cohort, other))
        return np.array(rows)

    assert p_value(differences(lambda round: round + COUNT)) > SMALLEST_P
    assert p_value(differences(lambda round: round)) < SMALLEST_P


def first_numbers(keys):
    """Return the first number of the stream of each key."""
    numbers = []
    for key in keys:
        vector = np.zeros(1, dtype="<u8")
        add_key_stream(vector, key, sign=1)
        numbers.append(int(vector[0]))
    return numbers


@pytest.mark.slow
def test_no_two_masks_are_the_same_as_they_are_with_seeds_of_32_bits():
    count = 2**18
    seeds = np.random.default_rng(0).integers(0, 2**32, count)
    folded = (digest_of("seed", pack(seed)) for seed in seeds.tolist())
    whole = (derive(bytes(32), b"run", "pair", number) for number in range(count))

    # Of so many, 8 pairs of 32-bit seeds are the same on average.
    assert len(set(first_numbers(folded))) < count
    assert len(set(first_numbers(whole))) == count


def test_what_everybody_but_one_knows_of_a_lost_site_is_still_random(world):
    """Its masks of pairs were opened; its own mask was not."""
    value = vectors(1, 16)[0]
    cohort = world.cohort()
    rows = masked(world, value, 1)
    secret = world.keys[1].pair_secret(0)
    for round, row in enumerate(rows, start=1):
        context = world.context(request(round), cohort)
        for member in (cohort[0], cohort[2]):
            key = pair_stream_key(secret, 1, member, context)
            add_key_stream(row, key, sign=-1 if member.number > 1 else 1)

    assert p_value(rows) > SMALLEST_P
    for round, row in enumerate(rows, start=1):
        own = derive(world.keys[1].own_secret(0), world.context(request(round), cohort), "self", 1)
        add_key_stream(row, own, sign=-1)
    assert (rows == value).all()


def test_a_server_without_one_of_the_shares_sees_random_numbers(world):
    """Of a survivor, everything but its own mask may be known: the sum of the others' values."""
    cohort = world.cohort()
    inputs = vectors(3, 16)
    sums = []
    for round in range(1, 301):
        parts = []
        for number in range(3):
            world.sites[number]._journal.vectors.clear()
            parts.append(world.sites[number]._masked(request(round), cohort, inputs[number]))
        sums.append(np.sum(parts, axis=0, dtype="<u8"))
    assert p_value(np.array(sums)) > SMALLEST_P
