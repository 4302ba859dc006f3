"""The report of papers: printed and measured numbers, and figures from records."""

import re
from pathlib import Path

import pytest

from fedtailor.cli.main import main
from fedtailor.papers.page import build_report
from fedtailor.papers.records import compare, read_records
from fedtailor.papers.tables import load_paper, paper_names

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def report(*names, table=""):
    papers = {name: load_paper(name) for name in names}
    return build_report(papers, {name: read_records(RESULTS, name) for name in names}, table=table)


@pytest.fixture(scope="module")
def page():
    return report("pfedvem")


def test_every_number_with_a_record_is_in_the_page(page):
    paper = load_paper("pfedvem")
    tables = {each.name: each for section in page.sections for each in section.tables}
    for name in paper.tables:
        rows = [
            row
            for row in compare(paper, name, read_records(RESULTS, "pfedvem"))
            if row["value"] is not None
        ]
        shown = tables[f"pfedvem-table-{name}"].table.rows if rows else []
        expected = [(round(100 * row["value"], 1), row["verdict"] or "") for row in rows]
        assert [(row[6], row[10]) for row in shown] == expected


def test_every_number_outside_has_its_explanation(page):
    remarks = next(section.remarks for section in page.sections if section.name == "pfedvem")
    outside = [remark for remark in remarks if remark.startswith("Outside: ")]
    rows = [row for section in page.sections for each in section.tables for row in each.table.rows]
    labels = {(row[0], row[1], row[2]) for row in rows if row[10] == "outside"}
    assert len(labels) > 0
    listed = [
        place for remark in outside for place in re.findall(r"[^:;,]+ \([+-]\d+\.\d\)", remark)
    ]
    assert len(listed) == len(labels)
    for column, method, score in labels:
        places = [
            place for remark in outside for place in remark.split("; ") if f"{column}: " in place
        ]
        assert sum(f"{method} {score} (" in place for place in places) == 1, (column, method, score)
    assert all(remark.endswith(".") for remark in outside)


def test_figures_are_those_of_the_records(page):
    figures = {figure.name: figure for figure in page.figures}
    assert {"pfedvem-fmnist_100-accuracy-by-client", "pfedvem-fmnist_100-accuracy-by-size"} <= set(
        figures
    )
    record = next(
        each
        for each in read_records(RESULTS, "pfedvem")
        if each["method"] == "fedper" and each["by_client"]
    )
    right = record["by_client"]["correct"]["personalized"][0]
    accuracy = round(100 * right / record["by_client"]["num_test"][0], 2)
    table = figures["pfedvem-fmnist_100-accuracy-by-size"].table
    assert any(accuracy in row and "FedPer" in row for row in table.rows)


def test_names_of_figures_are_unique():
    page = report(*paper_names())
    names = [figure.name for figure in page.figures]
    assert len(names) == len(set(names))
    assert page.html.count("http://") == page.html.count("https://") == 0


def test_the_command_writes_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["experiments", "report", "pfedfda", "1", "--results", str(RESULTS)]
    assert main([*arguments, "--out", "page.html", "--figures", "figures"]) == 0
    assert "page.html: " in capsys.readouterr().err
    assert "CIFAR10-S" in (tmp_path / "page.html").read_text()
    assert main([*arguments, "--out", str(tmp_path / "page.txt")]) == 3
    assert main([*arguments, "--figures", "figures"]) == 3
    assert "never overwritten" in capsys.readouterr().err
