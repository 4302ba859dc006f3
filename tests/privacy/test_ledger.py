"""The ledger: every release once, whole lines only, and nothing used before it is written."""

import pytest

from fedtailor.core.errors import DataError, RunError
from fedtailor.privacy import ledger as module
from fedtailor.privacy.accountant import Release, epsilon_of
from fedtailor.privacy.ledger import Ledger, LedgerEntry


def entry(round, digest="", rate=1.0, cohort=(0, 1), noise=2.0):
    return LedgerEntry(round, 0, noise, rate, 1.0, cohort, digest or f"{round:064x}")


def test_releases_are_on_disk_and_read_again(tmp_path):
    path = tmp_path / "privacy.jsonl"
    ledger = Ledger(path)
    ledger.add(entry(1))
    ledger.add(entry(2))

    assert Ledger(path).entries == [entry(1), entry(2)]
    assert not Ledger(tmp_path / "other.jsonl").entries


def test_a_round_that_is_run_again_is_counted_once(tmp_path):
    path = tmp_path / "privacy.jsonl"
    Ledger(path).add(entry(1))
    again = Ledger(path)
    again.add(entry(1))
    again.add(entry(1, digest="f" * 64))  # another sum of the same round

    assert len(path.read_text().splitlines()) == 2
    assert again.spent(1e-5).epsilon == pytest.approx(epsilon_of(1e-5, [Release(2.0, 1.0, 2)]))


def test_an_equal_sum_of_another_round_has_another_noise_and_counts():
    ledger = Ledger()
    for number in (1, 2):
        ledger.add(entry(number, digest="f" * 64))
    ledger.add(entry(2, digest="f" * 64)._replace(attempt=1))

    assert ledger.spent(1e-5).epsilon == pytest.approx(epsilon_of(1e-5, [Release(2.0, 1.0, 3)]))


def test_a_round_that_is_run_again_has_told_what_it_told_then():
    ledger = Ledger()
    told = []
    for number in (1, 2, 3):
        told.append(ledger.spent(1e-5, entry(number)))
        ledger.add(entry(number))

    assert [ledger.spent(1e-5, entry(number)) for number in (1, 2, 3)] == told

    # Another sum of the second round comes on top of all that was released.
    other = ledger.spent(1e-5, entry(2, digest="f" * 64))
    assert other.epsilon == pytest.approx(epsilon_of(1e-5, [Release(2.0, 1.0, 4)]))


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_what_a_kill_left_of_a_line_is_cut_off(tmp_path, kept):
    path = tmp_path / "privacy.jsonl"
    Ledger(path).add(entry(1))
    whole = path.read_bytes()
    Ledger(path).add(entry(2))
    second = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + second[:kept])

    ledger = Ledger(path)
    ledger.add(entry(2))

    assert path.read_bytes() == whole + second
    assert Ledger(path).entries == [entry(1), entry(2)]


def test_a_line_that_is_none_is_named(tmp_path):
    path = tmp_path / "privacy.jsonl"
    path.write_text('{"round": 1}\n')
    with pytest.raises(DataError, match="line 1 is not a release of a noisy sum"):
        Ledger(path)


def test_a_release_that_cannot_be_written_is_not_counted(tmp_path, monkeypatch):
    def no_space(path, records):
        raise RunError("no space is left.")

    monkeypatch.setattr(module, "append_lines", no_space)
    ledger = Ledger(tmp_path / "privacy.jsonl")
    with pytest.raises(RunError, match="no space"):
        ledger.add(entry(1))
    assert not ledger.entries


def test_known_cohorts_count_the_rounds_of_the_busiest_client():
    ledger = Ledger()
    for number, cohort in enumerate([(0, 1), (0, 2), (0,)]):
        ledger.add(entry(number, rate=0.3, cohort=cohort))

    spent = ledger.spent(1e-5)
    assert spent.epsilon == pytest.approx(epsilon_of(1e-5, [Release(2.0, 0.3, 3)]))
    assert spent.epsilon_known_cohort == pytest.approx(epsilon_of(1e-5, [Release(2.0, 1.0, 3)]))
    assert spent.epsilon < spent.epsilon_known_cohort


def test_steps_are_added_up_by_run_or_over_all_runs():
    ledger = Ledger()
    ledger.add(entry(1)._replace(steps=3, run="first"), entry(2)._replace(steps=4, run="second"))
    new = entry(3)._replace(steps=5, run="second")
    assert ledger.steps() == {(2.0, 1.0): 7}
    assert ledger.steps(new, run="second") == {(2.0, 1.0): 9}
    assert ledger.steps(entry(1)._replace(steps=3, run="first"), run="first") == {(2.0, 1.0): 3}
