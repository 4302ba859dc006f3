"""Our numbers beside the papers': verdicts, their counts, best rounds, and paired differences."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

from experiments.cells import Printed, expand
from experiments.difference import difference
from experiments.paper import Score, load_paper
from experiments.records import (
    Tally,
    add_record,
    compare,
    count,
    judged_numbers,
    other_shares,
    read_records,
    values_by_round,
)
from fedtailor.core.errors import DataError

PAPER = """
[paper]
title = "Small"
authors = "Nobody"
venue = "Nowhere"
year = 2024

[tolerance]
1 = 2.5
3 = 1

[base]
data = {clients = 4}
federation = {rounds = 10}

[columns.a]
label = "A"

[columns.b]
label = "B"
data = {fraction = 0.5}

[methods.fedavg]
label = "FedAvg"
point = "global"
algorithm = {name = "fedavg"}

[methods.local]
label = "Local"
point = "personalized"
algorithm = {name = "local"}

[scores.PM]
label = "PM"
[scores.GM]
label = "GM"
point = "global"

[[explanations]]
columns = ["b"]
methods = ["local"]
scores = ["PM"]
text = "The rate is inferred."

[tables.1]
title = "All"
columns = ["a", "b"]
unit = "percent"
[tables.1.reference]
fedavg = {PM = [50.0, nan], GM = [40.0, 40.0]}
local = {PM = [50.0, 60.0]}

[tables.2]
title = "Again"
columns = ["a"]
unit = "percent"
[tables.2.reference]
local = {PM = [51.0]}
"""


@pytest.fixture
def paper(tmp_path):
    return load(tmp_path, PAPER)


def load(tmp_path, text):
    (tmp_path / "small").mkdir(exist_ok=True)
    (tmp_path / "small" / "paper.toml").write_text(text)
    return load_paper("small", tmp_path)


def record(paper, column, method, seed=0, curve=(), **accuracies):
    """Return a record with mean accuracies by evaluation point."""
    cell = expand(paper, "1", column, method, seed)
    metrics = {point: {"accuracy": {"mean": accuracy}} for point, accuracy in accuracies.items()}
    usual = {"point": "personalized", "clients": "known", "evaluated": 4.0}
    return {
        **cell.place(),
        "digest": cell.digest,
        "result": {"clients": 4, "metrics": metrics},
        "curve": [{**usual, "mean": mean, **changes} for mean, changes in curve],
    }


def find_row(paper, records, column="a", method="local", score="PM"):
    (row,) = [
        row
        for row in compare(paper, "1", records)
        if (row.cell.column, row.cell.method, row.printed.name) == (column, method, score)
    ]
    return row


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [(0.525, "within"), (0.475, "within"), (0.5251, "outside"), (0.47, "outside")],
)
def test_a_difference_of_exactly_the_tolerance_is_within(accuracy, verdict, paper):
    row = find_row(paper, [record(paper, "a", "local", personalized=accuracy)])
    assert (row.verdict, row.tolerance) == (verdict, 0.025)


def test_more_seeds_have_the_tolerance_stated_for_them(paper):
    records = [
        record(paper, "a", "local", seed, personalized=accuracy)
        for seed, accuracy in enumerate([0.50, 0.53, 0.53])
    ]
    two = find_row(paper, records[:2])
    assert (two.tolerance, two.verdict, two.seeds) == (0.025, "within", [0, 1])
    three = find_row(paper, records)
    assert (three.tolerance, three.verdict) == (0.01, "outside")
    assert three.deviation == pytest.approx(0.03 / 3**0.5)


def test_what_is_not_printed_or_not_run_or_without_tolerance_has_no_verdict(paper, tmp_path):
    records = [record(paper, "b", "fedavg", **{"global": 0.41})]
    assert find_row(paper, records, "b", "fedavg").verdict is None
    assert find_row(paper, records, "a", "fedavg").verdict is None
    assert find_row(paper, records, "b", "fedavg", "GM").verdict == "within"

    silent = load(tmp_path, PAPER.replace("[tolerance]\n1 = 2.5\n3 = 1\n", ""))
    assert find_row(silent, records, "b", "fedavg", "GM").verdict is None


def test_the_best_round_is_of_rounds_in_which_all_clients_were_scored(paper):
    others = [(0.7, {"evaluated": 1.0}), (0.8, {"clients": "new"}), (0.9, {"point": "local"})]
    first = record(paper, "a", "local", 0, [(0.6, {}), (0.5, {}), *others], personalized=0.5)
    row = find_row(paper, [first])
    assert (row.best_of_rounds, row.scored_rounds, row.mean) == (0.6, 2, 0.5)

    # It is a mean over seeds, and each seed needs two rounds.
    second = record(paper, "a", "local", 1, [(0.4, {}), (0.5, {})], personalized=0.5)
    assert find_row(paper, [first, second]).best_of_rounds == pytest.approx(0.55)
    last_only = record(paper, "a", "local", 1, [(0.5, {})], personalized=0.5)
    assert find_row(paper, [first, last_only]).best_of_rounds is None


def test_the_complete_test_part_counts_as_one_client_and_conditions_have_no_curve(paper):
    complete = (0.6, {"evaluated": 1.0, "point": "global_complete"})
    run = record(paper, "a", "fedavg", 0, [complete])
    score = Score(label="GM", point="global_complete", figure="mean")
    assert values_by_round(Printed("GM", score, None, None), run) == [0.6]
    for other in (replace(score, figure="smallest10"), replace(score, condition="frost-3")):
        assert values_by_round(Printed("GM", other, None, None), run) == []


def test_another_program_and_the_best_round_have_verdicts_of_their_own(tmp_path):
    text = PAPER.replace("year = 2024", "year = 2024\nprints_rounds = true")
    text = text.replace(
        "[tables.2]", "[tables.1.programs]\nlocal = {PM = [54.0, nan]}\n\n[tables.2]"
    )
    paper = load(tmp_path, text)
    records = [
        record(paper, "a", "local", curve=[(0.5, {}), (0.55, {})], personalized=0.55),
        record(paper, "b", "local", curve=[(0.6, {}), (0.4, {})], personalized=0.4),
    ]
    row = find_row(paper, records)
    assert (row.verdict, row.program_verdict, row.best_verdict) == ("outside", "within", "outside")
    assert row.needs_seeds

    last = find_row(paper, records, "b")
    assert (last.verdict, last.program_verdict, last.best_verdict) == ("outside", None, "within")
    assert not last.needs_seeds

    program, best, few = other_shares(judged_numbers(paper, records))
    assert program.startswith("1 of 1 numbers") and "1 of 2 numbers" in best
    assert few.startswith("1 runs")

    longer = load(tmp_path, text.replace("rounds = 10", "rounds = 11"))
    few_rounds = [
        {**one, "digest": expand(longer, "1", one["column"], "local").digest} for one in records
    ]
    assert find_row(longer, few_rounds, "b").best_verdict is None

    silent = load(tmp_path, text.replace("prints_rounds = true", ""))
    assert find_row(silent, records, "b").best_verdict is None


def test_runs_and_numbers_are_counted_once(paper):
    records = [
        record(paper, "a", "fedavg", **{"global": 0.45}),  # PM and GM outside
        record(paper, "a", "local", personalized=0.52),  # both tables print it: the first counts
        record(paper, "b", "local", personalized=0.50),  # outside, explained
        record(paper, "b", "fedavg", **{"global": 0.40}),  # GM within, PM not printed
    ]
    rows = judged_numbers(paper, records)
    verdicts = [(row.cell.column, row.cell.method, row.printed.name, row.verdict) for row in rows]
    assert verdicts == [
        ("a", "fedavg", "PM", "outside"),
        ("a", "fedavg", "GM", "outside"),
        ("a", "local", "PM", "within"),
        ("b", "fedavg", "GM", "within"),
        ("b", "local", "PM", "outside"),
    ]
    assert count(rows) == Tally(
        runs=4, runs_within=2, numbers=5, numbers_within=2, elsewhere=0, unexplained=1
    )
    assert "2 of 4 runs (50 %)" in str(count(rows))


@pytest.mark.parametrize("cause", ["found", "elsewhere", "open"])
def test_an_explanation_says_what_is_known_and_is_of_its_cells_only(cause, tmp_path):
    text = PAPER.replace('text = "The rate', f'cause = "{cause}"\ntext = "The rate')
    paper = load(tmp_path, text)
    row = find_row(paper, [record(paper, "b", "local", personalized=0.5)], "b")
    assert row.cause == cause and row.explanation.endswith("The rate is inferred.")
    assert (row.explanation == "The rate is inferred.") == (cause == "found")
    tally = count([row])
    assert (tally.elsewhere, tally.unexplained) == (cause == "elsewhere", cause == "open")

    for other in (("a", "local", "PM"), ("b", "fedavg", "PM"), ("b", "local", "GM")):
        assert paper.explanations_of(*other) == []


def test_records_are_lines_in_order_and_one_of_the_same_run_is_replaced(paper, tmp_path):
    records = [
        record(paper, "b", "local", 0, personalized=0.1),
        record(paper, "a", "local", 1, personalized=0.2),
        record(paper, "a", "local", 0, personalized=0.3),
        record(paper, "a", "local", 1, personalized=0.4),
    ]
    for line in records:
        path = add_record(line, tmp_path)

    assert read_records("small", tmp_path) == [records[2], records[3], records[0]]

    # A killed process can leave half a line; what is no record is named.
    path.write_text(path.read_text() + '{"half')
    assert len(read_records("small", tmp_path)) == 3
    path.write_text('{"seed": 0}\n')
    with pytest.raises(DataError, match="line 1"):
        read_records("small", tmp_path)


# ---------------------------------------------------------------- differences, client by client

SIZES = [10, 20, 40, None]
FIRST = [[5, 15, 20, None], [6, 11, 30, None]]
SECOND = [[4, 16, 10, None], [7, 10, 20, None]]


def make_cell(method, figure="pooled"):
    cell = expand(load_paper("pfedfda"), "scarce", "cifar10_dir05_25_release", method)
    (printed,) = cell.printed
    return replace(cell, printed=(replace(printed, score=replace(printed.score, figure=figure)),))


def client_record(cell, seed, correct, split="a"):
    return {
        "digest": cell.digest,
        "seed": seed,
        "by_client": {"num_test": SIZES, "correct": {"personalized": correct}},
        "provenance": {"split_sha256": split},
    }


def pairs(first, second, splits="aa"):
    return [
        client_record(cell, seed, correct[seed], splits[seed])
        for cell, correct in ((first, FIRST), (second, SECOND))
        for seed in (0, 1)
    ]


def test_the_mean_difference_has_the_interval_of_a_paired_t_test():
    first, second = make_cell("pfedfda", "mean"), make_cell("fedavg_ft", "mean")
    gap = difference(first, second, pairs(first, second))
    ours, theirs = (
        np.mean([np.array(correct[:3]) / SIZES[:3] for correct in by_seed], 0)
        for by_seed in (FIRST, SECOND)
    )
    expected = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert gap.mean == pytest.approx((ours - theirs).mean())
    assert gap.over_clients == pytest.approx((expected.low, expected.high))
    spread = 12.706 * abs(gap.by_seed[0] - gap.by_seed[1]) / 2  # t with one degree of freedom
    assert gap.over_seeds == pytest.approx((gap.mean - spread, gap.mean + spread), abs=1e-4)


def test_a_pooled_difference_is_that_of_all_examples():
    first, second = make_cell("pfedfda"), make_cell("fedavg_ft")
    gap = difference(first, second, pairs(first, second))
    assert gap.by_seed == pytest.approx({0: 10 / 70, 1: 10 / 70})


def test_seeds_with_splits_of_their_own_have_no_interval_over_clients():
    first, second = make_cell("pfedfda"), make_cell("fedavg_ft")
    gap = difference(first, second, pairs(first, second, splits="ab"))
    assert gap.over_clients is None and gap.over_seeds is not None


def test_records_that_cannot_be_compared_are_refused():
    first, second = make_cell("pfedfda"), make_cell("fedavg_ft")
    ours = client_record(first, 0, FIRST[0])
    without_clients = client_record(second, 0, SECOND[0])
    del without_clients["by_client"]
    for other in (
        client_record(second, 1, SECOND[1]),  # another seed
        client_record(second, 0, SECOND[0], split="b"),
        client_record(second, 0, [None, *SECOND[0][1:]]),  # other clients
        without_clients,
    ):
        with pytest.raises(DataError):
            difference(first, second, [ours, other])

    # The records do not say which clients are the smallest.
    smallest = make_cell("fedavg_ft", "smallest10")
    with pytest.raises(DataError, match="no mean over all clients"):
        difference(first, smallest, [ours, client_record(second, 0, SECOND[0])])

    # A run again would not help where no test examples belong to a client.
    complete = replace(second.printed[0].score, point="global_complete")
    second = replace(second, printed=(replace(second.printed[0], score=complete),))
    with pytest.raises(DataError, match="belong to a client"):
        difference(first, second, [ours, client_record(second, 0, SECOND[0])])
