"""Sums under masks are exact to the bit, whoever is silent and whoever is killed."""

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import DataError, RunError
from fedtailor.privacy.masks import journal as journal_module
from fedtailor.privacy.masks.keys import read_bundles, write_bundles
from fedtailor.privacy.masks.primitives import RefusedError
from fedtailor.privacy.masks.server import TooFewSharesError, unmask
from fedtailor.privacy.masks.session import read_cohort, write_cohort
from fedtailor.privacy.options import colluding_of, threshold_of
from marks import quick
from masked_world import World, add, request, sha256, vectors


def assert_exact(result):
    opened, expected = result
    assert (opened.total == expected).all()


def test_golden_vectors():
    world = World(4)
    cohort = world.cohort()
    asked = request()
    inputs = vectors(4)
    masked = world.mask(asked, cohort, inputs)
    opened, _ = world.play(inputs)

    assert world.context(asked, cohort).hex().startswith("4af68180378e2b27")
    assert [hex(number) for number in masked[0][:3].tolist()] == [
        "0x687ff053cdd060b6",
        "0x8fda0beb21433e5c",
        "0xda31d33c4cd4efa2",
    ]
    assert sha256(masked[0]).startswith("20b0664f5c87f9c8")
    assert sha256(opened.total).startswith("d77edc59d0f8ba30")


@pytest.mark.parametrize(
    ("sites", "colluding", "threshold"),
    [
        (3, 0, 2),
        (4, 1, 3),
        (5, 1, 4),
        (7, 2, 5),
        (10, 3, 7),
        (20, 6, 14),
        (50, 16, 34),
        (100, 33, 67),
    ],
)
def test_how_many_must_answer(sites, colluding, threshold):
    assert colluding_of(sites, "third") == colluding
    assert threshold_of(sites, colluding) == threshold
    assert 2 * threshold > sites + colluding
    assert colluding_of(sites, "none") == 0
    assert colluding_of(sites, 2) == 2


def subsets(numbers, most):
    return chain.from_iterable(combinations(numbers, count) for count in range(most + 1))


@pytest.mark.parametrize("count", quick([3, 4, 5], 3, 4))
def test_every_set_of_silent_sites(count):
    world = World(count)
    inputs = vectors(count)
    index = 0
    for lost in subsets(range(count), count - world.session.fewest):
        for silent in subsets(range(count), count - world.session.threshold):
            index += 1
            cohort = world.cohort(index=index)
            asked = request(round=index)
            result = world.play(
                inputs,
                asked=asked,
                cohort=cohort,
                lost=lost,
                silent_agree=silent,
                silent_open=silent[::-1],
            )
            assert_exact(result)

    with pytest.raises(RefusedError, match="a sum over"):
        too_many = range(count - world.session.fewest + 1)
        world.play(inputs, asked=request(999), cohort=world.cohort(index=999), lost=too_many)


@pytest.mark.parametrize("count", [3, 5, 7])
def test_too_few_answers_open_nothing(count):
    world = World(count)
    silent = range(count - world.session.threshold + 1)
    with pytest.raises(TooFewSharesError, match="stays closed"):
        world.play(vectors(count), silent_open=silent)


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_any_cohort_of_any_roster(data):
    count = data.draw(st.integers(6, 12), "sites")
    world = World(count, colluding=data.draw(st.sampled_from(["none", "third", 1])))
    fewest = world.session.fewest
    numbers = st.integers(0, count - 1)
    chosen = sorted(data.draw(st.sets(numbers, min_size=fewest), "cohort"))
    most = len(chosen) - fewest
    lost = data.draw(st.sets(st.sampled_from(chosen), max_size=most), "lost")
    spare = count - world.session.threshold
    silent = [data.draw(st.sets(numbers, max_size=spare), name) for name in ("agree", "open")]
    assert_exact(
        world.play(
            vectors(count),
            cohort=world.cohort(chosen),
            lost=lost,
            silent_agree=silent[0],
            silent_open=silent[1],
        )
    )


@pytest.mark.parametrize("liars", [(2,), (0, 3)])
def test_wrong_shares_are_found(liars):
    world = World(10)
    cohort = world.cohort()
    asked = request()
    inputs = vectors(10)
    masked = world.mask(asked, cohort, inputs)
    everybody = frozenset(masked)
    answers = world.open(asked, cohort, everybody)
    for liar in liars:
        answers[liar] = {number: bytes(33) for number in answers[liar]}

    opened = unmask(world.session, asked, cohort, everybody, add(masked.values()), answers)
    assert (opened.total == add(inputs)).all()
    assert opened.liars == set(liars)


def test_more_liars_than_can_be_found_open_nothing():
    world = World(10)
    cohort = world.cohort()
    masked = world.mask(request(), cohort, vectors(10))
    everybody = frozenset(masked)
    answers = world.open(request(), cohort, everybody)
    for liar in range(3):
        answers[liar] = {number: bytes(33) for number in answers[liar]}
    with pytest.raises(TooFewSharesError, match="do not fit"):
        unmask(world.session, request(), cohort, everybody, add(masked.values()), answers)


def test_a_broken_seal_is_made_up_for_by_others():
    world = World(5)
    cohort = world.cohort()
    masked = world.mask(request(), cohort, vectors(5))
    sealed = list(world.bundles[0, 0].sealed)
    sealed[3] = sealed[3][:-1] + bytes([sealed[3][-1] ^ 1])
    world.bundles[0, 0] = world.bundles[0, 0]._replace(sealed=tuple(sealed))
    everybody = frozenset(masked)
    answers = world.open(request(), cohort, everybody)

    assert answers[3][0] is None
    assert answers[3][1] is not None
    opened = unmask(world.session, request(), cohort, everybody, add(masked.values()), answers)
    assert (opened.total == add(vectors(5))).all()


def test_keys_and_cohorts_travel_as_bytes():
    world = World(4)
    cohort = world.cohort()
    assert read_cohort(write_cohort(cohort), world.session) == tuple(cohort)
    assert read_cohort(write_cohort(cohort[::-1]), world.session) == tuple(cohort)

    bundles = world.sites[2].bundles(range(3, 6))
    raw = write_bundles(bundles)
    assert read_bundles(raw, world.session, 2, range(3, 6)) == bundles
    for damaged, sentence in (
        (raw[:-1], "not those it signed"),
        (raw[:50], "cut off"),
        (raw + b"x", "more keys"),
        (raw[:60] + bytes([raw[60] ^ 1]) + raw[61:], "not signed"),
    ):
        with pytest.raises(RefusedError, match=sentence):
            read_bundles(damaged, world.session, 2, range(3, 6))
    with pytest.raises(RefusedError, match="other keys"):
        read_bundles(raw, world.session, 1, range(3, 6))
    with pytest.raises(RefusedError, match="other keys"):
        read_bundles(raw, world.session, 2, range(2, 5))


def test_a_repeated_request_gets_the_same_bits(tmp_path):
    world = World(4, folder=tmp_path)
    cohort = world.cohort()
    inputs = vectors(4)
    first = world.mask(request(), cohort, inputs)
    lines = (tmp_path / "0.jsonl").read_text()
    for number in range(4):
        world.restart(number)
    second = world.mask(request(), cohort, inputs)

    assert all((first[number] == second[number]).all() for number in range(4))
    assert (tmp_path / "0.jsonl").read_text() == lines


class Killed(BaseException):
    """A process that is gone."""


def kills(monkeypatch, moment):
    """Kill the process that writes the line of this number, before or after it is on disk."""
    append = journal_module.append_lines
    left = [moment]

    def append_or_die(path, records):
        left[0] -= 1
        if left[0] == -1:
            raise Killed(path)
        if left[0] == -2:
            left[0] = -3
            append(path, records)
            raise Killed(path)
        append(path, records)

    monkeypatch.setattr(journal_module, "append_lines", append_or_die)


def survive(world, number, call):
    """Return what a site answers, started again as often as it is killed."""
    while True:
        try:
            return call(world.sites[number])
        except Killed:
            world.restart(number)


@pytest.mark.parametrize("moment", range(20))
def test_a_site_killed_at_any_line_of_its_journal(tmp_path, monkeypatch, moment):
    world = World(5, folder=tmp_path)
    cohort = world.cohort()
    inputs = vectors(5)
    kills(monkeypatch, moment)
    asked = request()
    masked = {
        number: survive(world, number, lambda site, n=number: site.mask(asked, cohort, inputs[n]))
        for number in range(4)
    }
    survivors = frozenset(masked)
    agreed = {
        number: survive(world, number, lambda site: site.agree(asked, cohort, survivors))
        for number in range(5)
    }
    confirmed = {
        number: survive(world, number, lambda site: site.confirm(asked, cohort))
        for number in survivors
    }
    answers = {
        number: survive(
            world,
            number,
            lambda site, n=number: site.open(
                asked, cohort, survivors, world.sealed_for(n, cohort), confirmed, agreed
            ),
        )
        for number in range(5)
    }
    opened = unmask(world.session, asked, cohort, survivors, add(masked.values()), answers)
    assert (opened.total == add(inputs[:4])).all()


def test_a_journal_that_cannot_be_written_gives_nothing_away(tmp_path, monkeypatch):
    world = World(4, folder=tmp_path)
    cohort = world.cohort()
    world.mask(request(), cohort, vectors(4))

    def no_space(path, records):
        raise RunError(f"cannot write '{path}': No space left on device.", path=path)

    monkeypatch.setattr(journal_module, "append_lines", no_space)
    with pytest.raises(RunError, match="No space"):
        world.mask(request(2), world.cohort(index=2), vectors(4))
    with pytest.raises(RunError, match="No space"):
        world.open(request(), cohort, set(range(4)))


@pytest.mark.parametrize("line", ['{"step": "mask"}', '{"step": "dance"}', "[]", "no json"])
def test_a_damaged_journal_is_named(tmp_path, line):
    path = tmp_path / "0.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=r"0\.jsonl"):
        journal_module.Journal(path)


@pytest.mark.parametrize("seed", quick(range(50), 0, 1, 2))
def test_a_random_history_of_losses_and_restarts(tmp_path, seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 9))
    world = World(count, folder=tmp_path)
    session = world.session
    opened_rounds = 0
    for round in range(1, 7):
        inputs = vectors(count, seed=100 * seed + round)
        for attempt in range(3):
            index = 3 * round + attempt
            size = int(rng.integers(session.fewest, count + 1))
            chosen = sorted(rng.choice(count, size, replace=False).tolist())
            cohort = world.cohort(chosen, index)
            asked = request(round, attempt)
            lost = {number for number in chosen if rng.random() < 0.15}
            masked = world.mask(asked, cohort, inputs, lost)
            for number in range(count):
                if rng.random() < 0.3:
                    world.restart(number)
            survivors = frozenset(masked)
            if len(survivors) < session.fewest:
                continue

            agreed = {}
            if len(survivors) < len(cohort):
                agreed = world.agree(asked, cohort, survivors)
            spare = count - session.threshold
            silent = set(rng.choice(count, int(rng.integers(0, spare + 1)), replace=False).tolist())
            answers = world.open(asked, cohort, survivors, agreed, silent)
            if rng.random() < 0.3:
                for number in range(count):
                    world.restart(number)
                answers = world.open(asked, cohort, survivors, agreed, silent)
            opened = unmask(session, asked, cohort, survivors, add(masked.values()), answers)
            assert (opened.total == add(inputs[number] for number in survivors)).all()
            opened_rounds += 1
            break

    assert opened_rounds
