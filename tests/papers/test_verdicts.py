"""Verdicts on printed numbers: tolerance, explanations, counts, and the page that shows them."""

import dataclasses
from pathlib import Path

import pytest

from fedtailor.core.errors import ConfigError
from fedtailor.papers.format import Score
from fedtailor.papers.records import compare, values_by_round
from fedtailor.papers.tables import Reading, expand, load_paper
from fedtailor.papers.verdicts import Tally, count, judged_numbers, places_by_explanation, sentence

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"

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
text = "The rate is inferred: with the other one it is 60.0."

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


def record(paper, column, method, seed, **accuracies):
    """Return a record with mean accuracies by evaluation point."""
    cell = expand(paper, "1", column, method, seed)
    metrics = {point: {"accuracy": {"mean": accuracy}} for point, accuracy in accuracies.items()}
    return {"digest": cell.digest, "seed": seed, "result": {"clients": 4, "metrics": metrics}}


def row(paper, records, **wanted):
    (found,) = [
        each
        for each in compare(paper, "1", records)
        if all(each[name] == value for name, value in {"score": "PM", **wanted}.items())
    ]
    return found


def test_a_difference_of_the_tolerance_is_within(paper):
    for accuracy, verdict in (
        (0.525, "within"),
        (0.475, "within"),
        (0.5251, "outside"),
        (0.47, "outside"),
    ):
        found = row(
            paper,
            [record(paper, "a", "local", 0, personalized=accuracy)],
            column="a",
            method="local",
        )
        assert (found["verdict"], found["tolerance"]) == (verdict, 0.025)


def test_more_seeds_have_the_tolerance_stated_for_them(paper):
    accuracies = [0.50, 0.53, 0.53]
    records = [
        record(paper, "a", "local", seed, personalized=each) for seed, each in enumerate(accuracies)
    ]
    two = row(paper, records[:2], column="a", method="local")
    assert (two["tolerance"], two["verdict"], two["seeds"]) == (0.025, "within", [0, 1])
    three = row(paper, records, column="a", method="local")
    assert (three["tolerance"], three["verdict"], three["seeds"]) == (0.01, "outside", [0, 1, 2])
    assert three["deviation"] == pytest.approx(0.03 / 3**0.5) and three["sem"] == pytest.approx(
        0.01
    )


def with_curve(found, curve):
    """Return a record with a curve; each point is a round, an accuracy, and what differs from the
    usual."""
    usual = {"point": "personalized", "clients": "known", "evaluated": 4.0}
    points = [
        {**usual, "round": number, "mean": accuracy, **other} for number, accuracy, other in curve
    ]
    return {**found, "curve": points}


def test_the_best_round_is_of_rounds_in_which_all_clients_were_scored(paper):
    found = record(paper, "a", "local", 0, personalized=0.5)
    others = [
        (1, 0.7, {"evaluated": 1.0}),
        (1, 0.8, {"clients": "new"}),
        (1, 0.9, {"point": "local"}),
    ]
    found = with_curve(found, [(1, 0.6, {}), (2, 0.5, {}), *others])
    judged = row(paper, [found], column="a", method="local")
    assert (judged["best_of_rounds"], judged["scored_rounds"]) == (0.6, 2)
    assert (judged["value"], judged["verdict"]) == (0.5, "within")


def test_the_best_round_is_the_mean_over_seeds_and_needs_two_rounds_of_each(paper):
    records = [record(paper, "a", "local", seed, personalized=0.5) for seed in range(2)]
    first = with_curve(records[0], [(1, 0.6, {}), (2, 0.5, {})])
    second = with_curve(records[1], [(1, 0.4, {}), (2, 0.5, {})])
    assert row(paper, [first, second], column="a", method="local")[
        "best_of_rounds"
    ] == pytest.approx(0.55)
    only_one = with_curve(records[1], [(2, 0.5, {})])
    assert row(paper, [first, only_one], column="a", method="local")["best_of_rounds"] is None
    assert row(paper, [first, records[1]], column="a", method="local")["best_of_rounds"] is None


def test_the_whole_test_part_counts_as_one_client_and_conditions_have_no_best_round(paper):
    found = with_curve(
        record(paper, "a", "fedavg", 0), [(1, 0.6, {"evaluated": 1.0, "point": "global_complete"})]
    )
    score = Score(label="GM", point="global_complete", figure="mean")
    assert values_by_round(Reading("GM", score, None, None), found) == [0.6]
    for other in (
        dataclasses.replace(score, figure="smallest10"),
        dataclasses.replace(score, condition="frost-3"),
    ):
        assert values_by_round(Reading("GM", other, None, None), found) == []


def test_what_is_not_printed_or_not_run_has_no_verdict(paper, tmp_path):
    records = [record(paper, "b", "fedavg", 0, **{"global": 0.41})]
    assert row(paper, records, column="b", method="fedavg")["verdict"] is None
    assert row(paper, records, column="b", method="fedavg", score="GM")["verdict"] == "within"
    assert row(paper, records, column="a", method="fedavg")["verdict"] is None
    silent = load(tmp_path, PAPER.replace("[tolerance]\n1 = 2.5\n3 = 1\n", ""))
    assert row(silent, records, column="b", method="fedavg", score="GM")["verdict"] is None


def test_runs_and_numbers_are_counted_once(paper):
    records = [
        record(paper, "a", "fedavg", 0, **{"global": 0.45}),  # PM outside, GM outside
        record(
            paper, "a", "local", 0, personalized=0.52
        ),  # printed by both tables: the first counts
        record(paper, "b", "local", 0, personalized=0.50),  # outside, explained
        record(paper, "b", "fedavg", 0, **{"global": 0.40}),  # GM within, PM not printed
    ]
    rows = judged_numbers(paper, records)
    assert [(each["column"], each["method"], each["score"], each["verdict"]) for each in rows] == [
        ("a", "fedavg", "PM", "outside"),
        ("a", "fedavg", "GM", "outside"),
        ("a", "local", "PM", "within"),
        ("b", "fedavg", "GM", "within"),
        ("b", "local", "PM", "outside"),
    ]
    assert rows[2]["reference"] == 0.5
    assert count(rows) == Tally(
        runs=4, runs_within=2, numbers=5, numbers_within=2, elsewhere=0, unexplained=1
    )
    assert sentence(count(rows)).startswith("2 of 4 runs (50 %) are within")
    assert sentence(count([])).startswith("0 of 0 runs (0 %)")


def test_an_explanation_is_of_its_cells_only(paper):
    (explanation,) = paper.explanations_of("b", "local", "PM")
    assert explanation.text == "The rate is inferred: with the other one it is 60.0."
    for other in (("a", "local", "PM"), ("b", "fedavg", "PM"), ("b", "local", "GM")):
        assert paper.explanations_of(*other) == []


def test_numbers_with_the_same_explanation_stand_together_by_column(paper):
    records = [
        record(paper, "a", "fedavg", 0, **{"global": 0.45}),
        record(paper, "a", "local", 0, personalized=0.51),
        record(paper, "b", "local", 0, personalized=0.5),
        record(paper, "b", "fedavg", 0, **{"global": 0.5}),
    ]
    assert places_by_explanation(paper, judged_numbers(paper, records)) == {
        "Not yet explained.": "A: FedAvg PM (-5.0), FedAvg GM (+5.0); B: FedAvg GM (+10.0)",
        "The rate is inferred: with the other one it is 60.0.": "B: Local PM (-10.0)",
    }


def test_only_numbers_outside_have_an_explanation(paper):
    records = [record(paper, "a", "local", 0, personalized=0.51)]
    assert row(paper, records, column="a", method="local")["explanation"] == ""
    assert row(paper, records, column="b", method="local")["explanation"] == ""


def test_what_only_rules_out_causes_explains_nothing(tmp_path):
    text = PAPER.replace('text = "The rate', 'cause = "open"\ntext = "The rate')
    paper = load(tmp_path, text)
    found = row(
        paper, [record(paper, "b", "local", 0, personalized=0.5)], column="b", method="local"
    )
    assert (
        found["explanation"]
        == "Not yet explained. The rate is inferred: with the other one it is 60.0."
    )
    assert found["cause"] == "open" and count([found]).unexplained == 1


def test_a_cause_elsewhere_is_counted_apart(tmp_path):
    text = PAPER.replace('text = "The rate', 'cause = "elsewhere"\ntext = "The rate')
    paper = load(tmp_path, text)
    found = row(
        paper, [record(paper, "b", "local", 0, personalized=0.5)], column="b", method="local"
    )
    assert found["explanation"].startswith(
        "Not due to our algorithms and engines; the cause is not known. The rate is"
    )
    tally = count([found])
    assert (tally.elsewhere, tally.unexplained) == (1, 0)
    tally = count([found, {**found, "cause": "open"}])
    assert (tally.elsewhere, tally.unexplained) == (0, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "1 = 2.5",
            "1 = 0",
            "tolerance must be a section of percentage points by the least number of seeds",
        ),
        ("1 = 2.5", "one = 2.5", "got one = 2.5"),
        ("1 = 2.5", '1 = "2.5"', "got 1 = '2.5'"),
        ("[tolerance]", "[tolerances]", "did you mean 'tolerance'?"),
        ('columns = ["b"]\nmethods', 'columns = ["c"]\nmethods', "unknown column 'c'"),
        ('methods = ["local"]', 'methods = ["locl"]', "did you mean 'local'?"),
        ('scores = ["PM"]', 'scores = ["PN"]', "unknown score 'PN'"),
        ("text =", "reason =", "unknown option"),
        ("[[explanations]]", "[explanations]", "must be sections [[explanations]]"),
    ],
)
def test_mistakes(old, new, message, tmp_path):
    assert old in PAPER
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, PAPER.replace(old, new, 1))
    assert message in caught.value.message and "paper.toml" in caught.value.message


def test_the_tolerances_of_the_papers():
    papers = {
        name: load_paper(name, EXPERIMENTS) for name in ("pfedfda", "fedcr", "pfedvem", "fedlda")
    }
    found = {
        name: [paper.tolerance_of(seeds) for seeds in (1, 3, 4, 5)]
        for name, paper in papers.items()
    }
    assert found == {
        "pfedfda": [0.02] * 4,
        "fedcr": [0.015] * 4,
        "pfedvem": [0.025, 0.025, 0.025, 0.01],
        "fedlda": [None] * 4,
    }


def test_the_page_and_the_readme_begin_with_the_share():
    root = EXPERIMENTS.parent
    share = (root / "docs" / "papers.md").read_text().splitlines()[2].strip("*")
    assert "within the tolerance that was stated before them" in share
    assert share in (root / "README.md").read_text()
