"""What a leaderboard says of records: figures, verdicts on pairs, ranks, and what is missing."""

import re
import shlex

import numpy as np
import pytest

from fedtailor.algorithms import ALGORITHMS
from fedtailor.cli.options import read_assignments
from fedtailor.core.errors import ConfigError
from fedtailor.experiment import leaderboard
from fedtailor.experiment.leaderboard import REPETITIONS, VERSION, Cell
from fedtailor.report import leaderboard_page
from fedtailor.report.charts import picture
from fedtailor.report.leaderboard import (
    BASELINES,
    missing_cells,
    missing_hours,
    rank_methods,
    standings,
)
from fedtailor.report.leaderboard_page import figure_of, page_of, standing_of, write_page
from fedtailor.report.leaderboard_records import command_of, records_page_of


def record(federation, method, repetition, accuracies, **changes):
    """Return a record of a cell with the accuracies of its clients."""
    cell = Cell(federation, method, repetition)
    accuracies = list(accuracies)
    own = [None if value is None else 0.5 for value in accuracies]
    baselines = {"alone": own, "pooled": own, "alone_models": ["majority"] * len(own)}
    return {
        "version": VERSION,
        "name": cell.name,
        "protocol": cell.digest if ":" not in method else "",
        "federation": federation,
        "method": method,
        "repetition": repetition,
        "tried": {},
        "trials": [{"validation": 0.8125}, {"validation": None}],
        "chosen": {"training.lr": 0.1},
        "validation": 0.8125,
        "engine": "reference",
        "rounds": 20,
        "evaluation": "global" if method == "fedavg" else "personalized",
        "uses_validation": method == "knn_per",
        "accuracies": accuracies,
        "verdicts": [None if value is None else "no clear difference" for value in accuracies],
        "clients": [],
        "baselines": {**baselines, "pooled_model": "majority"},
        "bytes": {"up": 0 if method == "local" else 4_000_000, "down": 2_000_000},
        "trial_seconds": 40.0,
        "processor_seconds": 20.0,
        "machine": {"processor": "one", "torch_cpu_capability": "AVX2"},
        "commit": "0123456789",
        "split_sha256": "fedcba9876543210",
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
                row = record(federation, method, number, (noise + center).tolist())
                alone = (clients(0, 10 * number) + 0.75).tolist()
                row["baselines"] |= {"alone": alone, "pooled": alone}
                records.append(row)

    return board(*records)


def test_figures_are_means_over_repetitions():
    records = board(
        record("digits", "local", 0, [0.5, 0.7]),
        record("digits", "ditto", 0, [0.4, 0.9]),
        record("digits", "ditto", 1, [0.6, None], processor_seconds=30.0),
    )
    ditto, local, *others = standings(records, "digits")
    assert [row.name for row in others] == ["alone", "pooled"]
    assert (ditto.name, ditto.repetitions, local.repetitions) == ("ditto", 2, 1)
    assert ditto.accuracy.mean == pytest.approx((0.65 + 0.6) / 2)
    assert ditto.accuracy.by_seed == {0: 0.65, 1: 0.6}
    # The other repetition has no model of training alone.
    assert ditto.harmed == 0.5 and local.harmed is None
    assert ditto.megabytes == pytest.approx(3.0)
    # 20 and 30 of the processor, for two trials
    assert ditto.seconds == pytest.approx(12.5)
    assert ditto.worst_tenth == pytest.approx(0.5)


def test_methods_that_give_one_model_here_are_no_models_per_client():
    records = board(
        record("digits", "fedbn", 0, [0.5, 0.7]),
        record("digits", "fedsr", 0, [0.5, 0.7]),
        record("digits", "ditto", 0, [0.5, 0.7]),
    )
    kinds = {row.name: (row.kind, row.is_one_model) for row in standings(records, "digits")}
    assert kinds["fedbn"] == kinds["fedsr"] == ("one global model", True)
    assert kinds["ditto"] == ("a model per client", False)


def test_pairs_are_told_apart_over_the_clients_of_all_repetitions(two_federations):
    by_name = {row.name: row for row in standings(two_federations, "digits")}
    ditto = by_name["ditto"]
    assert set(ditto.better_than) == {"local", "fedavg", *BASELINES}
    assert ditto.unclear == ("knn_per",) and ditto.worse_than == ()
    assert set(by_name["fedavg"].worse_than) == set(by_name) - {"fedavg"}
    assert ditto.harmed == 0 and by_name["fedavg"].below_alone == 1
    # The baselines are equal at every client.
    assert by_name["alone"].unclear == ("pooled",)


def test_verdicts_are_counted_over_all_repetitions():
    first = record("digits", "ditto", 0, [0.5, 0.7, None])
    second = record("digits", "ditto", 1, [0.5, 0.7, 0.9])
    second["verdicts"] = ["worse", "better", "better"]
    rows = {row.name: row for row in standings(board(first, second), "digits")}
    counts = {"better": 2, "no clear difference": 2, "worse": 1}
    assert rows["ditto"].verdicts == counts and rows["alone"].verdicts == {}

    third = record("digits", "ditto", 2, [0.5, 0.7, 0.9], verdicts=[None] * 3)
    others = [
        record("digits", method, repetition, [0.1, 0.1, 0.1])
        for method in ("local", "fedavg")
        for repetition in range(3)
    ]
    page = page_of(board(first, second, third, *others), "a.png", "records.md")
    assert "| 2 / 2 / 1 |" in page
    assert "ditto is better for 2 clients of all repetitions, unclear for 2, worse for 1" in page


def test_records_name_harmed_clients_and_the_command_that_repeats_them():
    local = record("hospitals", "local", 0, [0.8, 0.8, 0.8, 0.8])
    ditto = record("hospitals", "ditto", 0, [0.9, 0.9, 0.7, 0.9], engine="workers")
    ditto["clients"] = local["clients"] = ["Cleveland", "Budapest", "Switzerland", "Long Beach"]
    ditto["verdicts"] = ["better", "no clear difference", "worse", "better"]
    page = records_page_of(board(local, ditto))
    assert "### hospitals ditto\n" in page and "### hospitals alone\n" in page
    assert "less accurate than local at 1: Switzerland" in page
    assert "worse at 1 (worse: 1: Switzerland)" in page and "less accurate than alone at no" in page
    assert "among 2, of which 1 failed" in page and "workers, one (AVX2), 10.0 core" in page
    where = "--only hospitals/ditto/0 --engine workers --records again.jsonl"
    assert command_of(ditto) in page
    assert command_of(ditto) == f"fedtailor leaderboard run ditto {where}"

    # With other values than those of the protocol.
    ditto["tried"] = {"algorithm.penalty": [5.0]}
    given = "--values 'algorithm.penalty=[5.0]'"
    assert command_of(ditto) == f"fedtailor leaderboard add ditto {given} {where}"


def test_a_record_of_an_installed_package_has_no_commit():
    page = records_page_of(board(record("digits", "local", 0, [0.5, 0.7], commit=None)))
    assert "commit -, protocol" in page

    changed = record("digits", "local", 0, [0.5, 0.7], commit="0123456789abcdef+changes")
    assert "commit 01234567 with changes, protocol" in records_page_of(board(changed))


def test_every_row_of_a_table_leads_to_its_records(two_federations):
    page = page_of(two_federations, "board.png", "records.md")
    addresses = set(re.findall(r"\]\(records\.md#([^)]+)\)", page))
    assert len(addresses) == 2 * 6
    headings = re.findall(r"^### (.+)$", records_page_of(two_federations), re.MULTILINE)
    assert {heading.replace(" ", "-") for heading in headings} == addresses


def test_the_command_of_an_own_method_names_what_was_tried(monkeypatch):
    monkeypatch.setattr(leaderboard, "source_digest", lambda *_, **__: "")
    own = record("digits", "mine:Mine", 0, [0.5])
    own["tried"] = {"algorithm.penalty": [0.1, 1.0]}
    assert "--values 'algorithm.penalty=[0.1, 1.0]' --only" in command_of(own)

    # The command reads back what it was given, whatever it was.
    own["tried"] = {"algorithm.blend": [True, False], "algorithm.head": ["it's", "lda"]}
    words = shlex.split(command_of(own))
    given = [words[place + 1] for place, word in enumerate(words) if word == "--values"]
    assert dict(read_assignments(given, "--values")) == own["tried"]
    own["tried"] = {"training.lr": [0.01, 0.03, 0.1, 0.3]}
    assert command_of(own).startswith("fedtailor leaderboard add mine:Mine --only digits/mine:Mine")


def test_one_repetition_or_two_that_disagree_tell_nothing_apart():
    for others in ([], [("local", 0.6, "ditto", 0.8)]):
        records = [
            record("digits", "local", 0, clients(0.8)),
            record("digits", "ditto", 0, clients(0.6)),
        ]
        for first, low, second, high in others:
            records.append(record("digits", first, 1, clients(low)))
            records.append(record("digits", second, 1, clients(high)))
        rows = {row.name: row for row in standings(board(*records), "digits")}
        assert "ditto" in rows["local"].unclear


def test_a_pair_that_turns_round_in_a_repetition_is_not_told_apart():
    records = []
    for number, gap in enumerate([0.1, 0.1, -0.001]):
        accuracies = clients(0.6, number)
        records.append(record("digits", "local", number, accuracies))
        records.append(record("digits", "ditto", number, accuracies + gap))
    by_name = {row.name: row for row in standings(board(*records), "digits")}
    assert "local" in by_name["ditto"].unclear
    records[-1]["accuracies"] = (accuracies + 0.001).tolist()
    by_name = {row.name: row for row in standings(board(*records), "digits")}
    assert "local" in by_name["ditto"].better_than


def test_clients_that_are_the_same_in_all_repetitions_count_once():
    """Three equal repetitions are no more than one: 20 clients, or 60 that are others."""
    gaps = np.array(11 * [0.02] + 9 * [-0.01])
    by_name = {}
    for federation in ("digits", "table"):
        records = []
        for number in range(REPETITIONS):
            records.append(record(federation, "local", number, clients(0.5)))
            records.append(record(federation, "ditto", number, clients(0.5) + gaps))
        rows = standings(board(*records), federation)
        by_name[federation] = {row.name: row for row in rows}
    assert "local" in by_name["digits"]["ditto"].better_than
    assert "local" in by_name["table"]["ditto"].unclear


def test_four_clients_are_never_told_apart():
    records = []
    for number in range(REPETITIONS):
        records.append(record("hospitals", "local", number, [0.1, 0.1, 0.1, 0.1]))
        records.append(record("hospitals", "ditto", number, [0.9, 0.8, 0.7, 0.6]))
    assert all(len(row.unclear) == 3 for row in standings(board(*records), "hospitals"))


def test_ranks_are_of_methods_with_all_repetitions_everywhere(two_federations):
    extra = record("digits", "apfl", 0, clients(0.99))
    ranks = rank_methods(two_federations | board(extra))
    assert ranks.federations == ("digits", "table")
    assert set(ranks.mean_rank) == {"local", "fedavg", "ditto", "knn_per"}
    assert ranks.mean_rank["fedavg"] == 4 and ranks.mean_rank["local"] == 3
    # 2.569 sqrt(4 5 / (6 2)), by the table of Demšar 2006
    assert ranks.critical_difference == pytest.approx(3.317, abs=0.002)

    few = board(*(record("scarce", "local", number, clients(0.5)) for number in range(3)))
    assert rank_methods(two_federations | few).federations == ("digits", "table")

    one = {name: row for name, row in two_federations.items() if name.startswith("digits")}
    assert rank_methods(one).critical_difference is None
    assert rank_methods({}).mean_rank == {}


def test_cells_of_another_protocol_are_missing(two_federations):
    total = len(ALGORITHMS) * REPETITIONS
    missing = missing_cells(two_federations)
    assert sum(missing["digits"].values()) == total - 12 and "ditto" not in missing["digits"]
    assert sum(missing["scarce"].values()) == total

    two_federations["digits/ditto/0"]["protocol"] = "another"
    assert missing_cells(two_federations)["digits"]["ditto"] == 1
    page = page_of(two_federations, "a.png", "records.md")
    assert "1 of the missing cells have a record of another protocol" in page


def test_a_complete_page_says_that_nothing_is_missing(two_federations, monkeypatch):
    monkeypatch.setattr(leaderboard_page, "missing_cells", lambda records: {"digits": {}})
    page = page_of(two_federations, "a.png", "records.md")
    assert "cells are measured**: [what they took](#what-is-missing)" in page
    assert "Nothing. All cells took" in page and "The missing ones" not in page


def test_missing_hours_follow_from_the_same_method_elsewhere(two_federations):
    for name, one in two_federations.items():
        one["processor_seconds"] = 60.0 if "ditto" in name else 20.0
    scarce = record("scarce", "fedavg", 0, clients(0.5), processor_seconds=100.0)
    others = len(ALGORITHMS) - 4
    hours = missing_hours(two_federations | board(scarce))
    assert set(hours) == {"digits", "table", "scarce"}
    # Ditto takes three times as long as FedAvg, the other three as long, and the rest the median.
    assert hours["digits"] == pytest.approx(3 * others * 20 / 3600)
    seconds = 2 * 100 + 3 * 300 + 3 * 2 * 100 + 3 * others * 100
    assert hours["scarce"] == pytest.approx(seconds / 3600)


def test_the_page_has_the_figures_and_what_is_missing(two_federations, tmp_path):
    total = len(ALGORITHMS) * REPETITIONS
    page = page_of(two_federations, "board.png", "records.md")
    assert f"**digits**, 12 of {total} cells" in page and "](board.png)" in page
    assert "| [knn_per (v)](records.md#digits-knn_per) | [80.1 ± 0.1](" in page

    path = write_page(two_federations, tmp_path / "board.md")
    written = path.read_text()
    assert written.startswith(page.replace("records.md", "board-records.md").split("## What is")[0])
    assert "docs/reference/leaderboard.md" in written
    assert (tmp_path / "board-records.md").read_text() == records_page_of(two_federations)
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="a file of Markdown"):
        write_page(two_federations, tmp_path / "board.PNG")
    one = board(record("digits", "apfl", 0, clients(0.5)))
    assert "no ranks yet" in page_of(one, "a.png", "records.md")
    assert "**0 of " in page_of({}, "a.png", "records.md")


def test_a_federation_in_short_counts_what_is_told_apart(two_federations):
    page = page_of(two_federations, "board.png", "records.md")
    assert (
        "* **digits**: knn_per has the highest mean, 80.1 %; 1 of the other 3 cannot be told apart "
        "from it. Training alone has 69.8 %; methods told apart as better: 2, as worse: 1."
    ) in page

    without = {name: row for name, row in two_federations.items() if row["method"] != "knn_per"}
    assert "ditto has the highest mean, 79.8 %; all of the other 2 are told apart" in page_of(
        without, "board.png", "records.md"
    )

    centers = ("fedavg", "ditto", "local")
    same = [record("digits", name, number, clients(0.5)) for name in centers for number in range(3)]
    assert "; none of the other 2 can be told apart from it." in page_of(
        board(*same), "board.png", "records.md"
    )


def test_advice_says_who_is_ahead_where_and_of_whom():
    records = []
    for number in range(REPETITIONS):
        noise = clients(0, number)
        for federation, method, center in (
            ("digits", "local", 0.7),
            ("digits", "fedavg", 0.6),
            ("digits", "ditto", 0.8),
            ("digits", "fedncm", 0.69),
            ("table", "local", 0.7),
            ("table", "fedavg", 0.6),
            ("table", "ditto", 0.71),
            ("table", "fedncm", 0.75),
        ):
            row = record(federation, method, number, (noise + center).tolist())
            row["baselines"]["alone"] = (noise + 0.72).tolist()
            if method == "fedncm":
                sent = {"up": 100_000 if federation == "digits" else 200_000, "down": 0}
                row |= {"rounds": 1, "bytes": sent, "evaluation": "global"}
            records.append(row)

    page = page_of(board(*records), "board.png", "records.md")
    sentences = [line for line in page.splitlines() if line.startswith("* **")]
    first, few, one, harm, home = sentences[:5]
    assert "ditto ranks best on average (place 1.5 of 4)" in first
    assert "2 federations are too few" in first and "better in table." in first
    assert "fedncm ranks best. It is 11.0 points behind the highest mean in digits" in few
    assert "A run of ditto, which" in few and "moves 30 to 60 times as many bytes" in few
    assert "Of the methods that give one, fedncm ranks best. Against it, ditto" in one
    assert "-4.0 to +11.0 points; it is told apart as better in digits, as worse in table." in one
    assert "With ditto, 0 % and 50 % of the clients" in harm
    assert "with fedavg, 100 % and 100 %" in harm and "first of 3 such shares" in harm
    assert "in digits 1 (ditto) is better and 2 worse; in table 1 (fedncm) is better" in home
    assert home.endswith("2 worse, of 3 methods.")


def test_names_in_the_figure_are_those_that_none_beats_at_less_cost():
    """One that a more accurate mark is close to has no name."""
    records = []
    for method, accuracy, size in (
        ("fedncm", 0.5, 1_000),
        ("fedcof", 0.7, 1_100),
        ("fed3r", 0.701, 1_200),
        ("fedavg", 0.6, 500_000),
        ("ditto", 0.71, 1_000_000),
    ):
        for number in range(REPETITIONS):
            row = record("digits", method, number, clients(accuracy))
            records.append(row | {"bytes": {"up": size, "down": size}})

    svg = picture(figure_of(board(*records)), "svg").decode()
    shown = [
        name for name in ("fedncm", "fedcof", "fed3r", "fedavg", "ditto") if f">{name}<" in svg
    ]
    assert shown == ["fedncm", "fed3r", "ditto"]


def test_marks_are_at_accuracy_and_cost_and_pale_while_repetitions_are_missing(two_federations):
    del two_federations["digits/ditto/2"]
    bytes_panel, seconds_panel, *_ = figure_of(two_federations).panels
    assert (bytes_panel.title, bytes_panel.subtitle) == ("digits", "MB a client")
    marks = {mark["name"]: mark for mark in marks_of(bytes_panel)}
    assert set(marks) == {"fedavg", "ditto", "knn_per"}
    rows = {row.name: row for row in standings(two_federations, "digits")}
    for name, mark in marks.items():
        assert mark["accuracy"] == pytest.approx(100 * rows[name].accuracy.mean)
        assert (mark["cost"], mark["is_complete"]) == (0.3, name != "ditto")

    assert {mark["cost"] for mark in marks_of(seconds_panel)} == {10.0}


def test_the_last_panel_has_mean_ranks_in_the_colors_of_the_kinds(two_federations):
    panel = figure_of(two_federations).panels[-1]
    marks = {mark["label"]: (mark["rank"], mark["kind"]) for mark in marks_of(panel)}
    ranks = rank_methods(two_federations).mean_rank
    assert {name: rank for name, (rank, _) in marks.items()} == ranks
    assert marks["local"][1] == "without a federation" and marks["fedavg"][1] == "one global model"
    assert marks["ditto"][1] == "a model per client"


def marks_of(panel):
    """Return the rows of data behind the marks of a panel: the longest of its data sets."""
    datasets = panel.chart.to_dict()["datasets"].values()
    return max(datasets, key=len)


def test_an_own_method_stands_among_the_others(two_federations):
    own = [record("table", "my:Own", number, clients(0.72, 10 * number)) for number in range(3)]
    for one in own:
        one["baselines"] = two_federations[f"table/local/{one['repetition']}"]["baselines"]
    ((federation, table, sentence),) = standing_of(two_federations | board(*own), "my:Own")
    assert federation == "table" and len(table.rows) == 7
    assert sentence == (
        "table: place 3 of 5 with 71.8 %, told apart as better than 2 rows and as worse than 4."
    )
