"""The page on what leaves a site names every field of every method, with the bytes that a round
counts."""

import re

import pytest

from contract.cases import ALGORITHMS, build
from federations import TASKS, make_federation
from fedtailor.core.message import Field
from fedtailor.core.participation import parse_participation
from fedtailor.core.schedule import Schedule
from fedtailor.experiment.what_leaves import describe_leaving, to_markdown
from fedtailor.simulation.engines.reference import Reference
from fedtailor.testing.runs import run


@pytest.fixture
def federation():
    """Return clients that have examples of every class: rows of absent classes would not be
    sent."""
    return make_federation(TASKS["mlp"](), sizes=(20, 30, 25), new_sizes=())


def page_of(name, federation, **options):
    return describe_leaving(
        build(name, **options),
        name,
        federation.common_task,
        setup=[],
        schedule=Schedule(rounds=1),
        model="mlp",
        dataset="small",
    )


def rows_of(text, heading):
    """Return the cells of the first table below a heading, by the first cell."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return {
        line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ") for line in lines
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in ALGORITHMS), ("fedpac", {"combine_heads": False})],
)
def test_every_field_is_on_the_page_with_its_bytes(name, options, federation):
    page = page_of(name, federation, **options)
    (report,) = run(build(name, **options), Reference(), federation, rounds=1).reports
    declared = build(name, **options).messages(federation.common_task)
    text = to_markdown(page)
    sent = [field for field, spec in declared.items() if spec.reduction != "none"]
    received = [field for field, spec in declared.items() if spec.down]
    assert [each["field"] for each in page["up"]] == sent and [
        each["field"] for each in page["down"]
    ] == received

    up = rows_of(text, "What a site sends") if sent else {}
    total = 0
    for cells in up.values():
        total += int(re.match(r"[\d,]+", cells[3])[0].replace(",", ""))
    assert {first.strip("`") for first in up if first.startswith("`")} == set(sent)
    assert total == page["bytes"]["up"] and total * len(report.cohort) == report.bytes_up
    down = rows_of(text, "What a site receives") if received else {}
    assert {first.strip("`") for first in down} == set(received)
    total = sum(int(cells[3].replace(",", "")) for cells in down.values())
    assert total == page["bytes"]["down"] and total * len(report.trained) == report.bytes_down

    single = [field for field, spec in declared.items() if spec.reduction == "each"]
    assert page["server_sees_single_sites"] == single
    assert ("The method discloses single sites" in text) == bool(single)
    assert all("**the value of every single site**" in up[f"`{field}`"] for field in single)
    for each in page["up"]:
        needed = {"mean": "weighted mean", "sum": "sum", "each": "every single site"}[
            declared[each["field"]].reduction
        ]
        assert needed in up[f"`{each['field']}`"][4]
    weights = {spec.weight for spec in declared.values() if spec.reduction == "mean"} - {"equal"}
    assert {each["kind"] for each in page["weights"]} == weights
    assert page["in_the_words_of_the_method"] and "``" not in text


def test_only_models_that_hold_examples_are_said_to(federation):
    holding = {name for name in ALGORITHMS if page_of(name, federation)["model_holds_examples"]}
    assert holding == {"knn_per"}
    assert "holds features and labels of its training examples" in to_markdown(
        page_of("knn_per", federation)
    )


def test_a_method_of_your_own_may_declare_anything(federation):
    """It has no documentation, and a kind of field that is not known."""

    class Own(ALGORITHMS["fedavg"]):
        def messages(self, task):
            return {"secret": Field(kind="gradient", shapes=(2,), weight="magic")}

    own = Own()
    schedule = Schedule(rounds=3, participation=parse_participation(0.5))
    page = describe_leaving(
        own, "mine:Own", federation.common_task, setup=[], schedule=schedule, model="m", dataset="d"
    )
    text = to_markdown(page)
    assert rows_of(text, "What a site sends")["`secret`"][1] == "`gradient`"
    assert "with probability 0.5" in text and not page["model_holds_examples"]
    assert page["in_the_words_of_the_method"] == ""


def test_names_cannot_change_the_page(federation):
    page = {**page_of("fedavg", federation), "dataset": "a | b\n# `<script>`\x1b[31m"}
    text = to_markdown(page)
    assert (
        "<" not in text and "\x1b" not in text and len(re.findall("^# ", text, re.MULTILINE)) == 1
    )
