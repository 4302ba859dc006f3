"""What a leaderboard says of records: figures, verdicts on pairs, ranks, and what is missing."""

import numpy as np
import pytest

from fedtailor.algorithms import ALGORITHMS
from fedtailor.experiment.leaderboard import REPETITIONS, VERSION, Cell
from fedtailor.report.charts import picture
from fedtailor.report.leaderboard import (
    BASELINES,
    figure_of,
    missing_cells,
    page_of,
    rank_methods,
    standing_of,
    standings,
    write_page,
)


def record(federation, method, repetition, accuracies, **changes):
    """Return a record of a cell with the accuracies of its clients."""
    cell = Cell(federation, method, repetition)
    return {
        "version": VERSION,
        "name": cell.name,
        "protocol": cell.digest if ":" not in method else "",
        "federation": federation,
        "method": method,
        "repetition": repetition,
        "chosen": {"training.lr": 0.1},
        "rounds": 20,
        "evaluation": "global" if method == "fedavg" else "personalized",
        "uses_validation": method == "knn_per",
        "accuracies": list(accuracies),
        "baselines": {},
        "bytes": {"up": 0 if method == "local" else 4_000_000, "down": 2_000_000},
        "seconds": 2.0 + repetition,
        "trial_seconds": 36.0,
        **changes,
    }


def board(*records):
    return {one["name"]: one for one in records}


def clients(center, seed=0, count=20):
    """Return accuracies around a center: the same deviations for every center."""
    return np.round(center + 0.01 * np.random.default_rng(seed).normal(size=count), 6)


@pytest.fixture
def two_federations():
    records = []
    centers = {"local": 0.7, "fedavg": 0.6, "ditto": 0.8, "knn_per": 0.801}
    for federation in ("digits", "table"):
        for number in range(REPETITIONS):
            for place, (method, center) in enumerate(centers.items()):
                noise = clients(0, 10 * number + (place if method == "knn_per" else 0))
                changes = {}
                if method == "local":
                    own = (noise + 0.75).tolist()
                    changes = {"baselines": {"own": own, "pooled": own}}
                row = record(federation, method, number, (noise + center).tolist(), **changes)
                records.append(row)

    return board(*records)


def test_figures_are_means_over_repetitions():
    records = board(
        record("digits", "local", 0, [0.5, 0.7]),
        record("digits", "ditto", 0, [0.4, 0.9]),
        record("digits", "ditto", 1, [0.6, None]),
    )
    ditto, local = standings(records, "digits")
    assert (ditto.name, ditto.repetitions, local.repetitions) == ("ditto", 2, 1)
    assert ditto.accuracy.mean == pytest.approx((0.65 + 0.6) / 2)
    assert ditto.accuracy.by_seed == {0: 0.65, 1: 0.6}
    # The other repetition has no model of training alone.
    assert ditto.harmed == 0.5 and local.harmed is None
    assert ditto.megabytes == pytest.approx(3.0) and ditto.seconds == 2.5
    assert ditto.worst_tenth == pytest.approx(0.5)


def test_pairs_are_told_apart_if_two_repetitions_agree(two_federations):
    by_name = {row.name: row for row in standings(two_federations, "digits")}
    ditto = by_name["ditto"]
    assert set(ditto.better_than) == {"local", "fedavg", *BASELINES.values()}
    assert ditto.unclear == ("knn_per",) and ditto.worse_than == ()
    assert set(by_name["fedavg"].worse_than) == set(by_name) - {"fedavg"}
    assert ditto.harmed == 0 and by_name["fedavg"].below_own == 1
    # The baselines are equal at every client.
    assert BASELINES["pooled"] in by_name[BASELINES["own"]].unclear


def test_one_repetition_or_two_that_disagree_tell_nothing_apart():
    for others in ([], [("local", 0.6, "ditto", 0.8)]):
        records = [
            record("digits", "local", 0, clients(0.8)),
            record("digits", "ditto", 0, clients(0.6)),
        ]
        for first, low, second, high in others:
            records.append(record("digits", first, 1, clients(low)))
            records.append(record("digits", second, 1, clients(high)))
        assert all(len(row.unclear) == 1 for row in standings(board(*records), "digits"))


def test_four_clients_are_never_told_apart():
    records = []
    for number in range(REPETITIONS):
        records.append(record("hospitals", "local", number, [0.1, 0.1, 0.1, 0.1]))
        records.append(record("hospitals", "ditto", number, [0.9, 0.8, 0.7, 0.6]))
    assert all(len(row.unclear) == 1 for row in standings(board(*records), "hospitals"))


def test_ranks_are_of_methods_with_all_repetitions_everywhere(two_federations):
    extra = record("digits", "apfl", 0, clients(0.99))
    ranks = rank_methods(two_federations | board(extra))
    assert ranks.federations == ("digits", "table")
    assert set(ranks.mean_rank) == {"local", "fedavg", "ditto", "knn_per"}
    assert ranks.mean_rank["fedavg"] == 4 and ranks.mean_rank["local"] == 3
    # 2.569 sqrt(4 5 / (6 2)), by the table of Demšar 2006
    assert ranks.critical_difference == pytest.approx(3.317, abs=0.002)

    one = {name: row for name, row in two_federations.items() if name.startswith("digits")}
    assert rank_methods(one).critical_difference is None
    assert rank_methods({}).mean_rank == {}


def test_cells_of_another_protocol_are_missing(two_federations):
    total = len(ALGORITHMS) * REPETITIONS
    missing = missing_cells(two_federations)
    assert missing["digits"] == total - 12 and missing["scarce"] == total

    two_federations["digits/ditto/0"]["protocol"] = "another"
    assert missing_cells(two_federations)["digits"] == total - 11


def test_the_page_says_what_is_there_and_who_is_told_apart(two_federations, tmp_path):
    total = len(ALGORITHMS) * REPETITIONS
    page = page_of(two_federations, "board.png")
    assert f"digits 12 of {total}" in page and f"scarce 0 of {total}" in page
    assert "![" in page and "](board.png)" in page
    assert "Training alone has " in page and "2 methods are told apart as better, 1 as" in page
    assert "| knn_per (v) | 3 |" in page and "critical difference is 3.3" in page
    assert all(len(line) < 1000 for line in page.splitlines())

    path = write_page(two_federations, tmp_path / "board.md")
    assert path.read_text() == page
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")
    assert "no ranks yet" in page_of(board(record("digits", "apfl", 0, clients(0.5))), "a.png")
    assert "0 are there" in page_of({}, "a.png")


def test_names_at_the_front_are_those_that_none_beats_at_less_cost(two_federations):
    svg = picture(figure_of(two_federations), "svg").decode()
    assert "knn_per" in svg and "Mean rank" in svg


def test_an_own_method_stands_among_the_others(two_federations):
    own = [record("table", "my:Own", number, clients(0.72, 10 * number)) for number in range(3)]
    ((federation, table, sentence),) = standing_of(two_federations | board(*own), "my:Own")
    assert federation == "table" and len(table.rows) == 7
    assert sentence == (
        "table: place 3 of 5 with 71.8 %, told apart as better than 2 rows and as worse than 4."
    )
