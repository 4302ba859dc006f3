"""Generated pages are what their writers would write."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from experiments.paper import load_paper
from fedtailor.algorithms import load_algorithm
from write_pages import WRITERS, outdated, pages_of


@pytest.mark.parametrize("writer", WRITERS)
def test_pages_are_up_to_date(writer, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    assert outdated(pages_of(writer)) == [], "run: make docs"


def test_the_comparison_shows_every_point_of_a_method(monkeypatch):
    """FedPAC's combined heads are far from its locally trained ones: one number alone misleads."""
    monkeypatch.setattr("sys.path", [*sys.path])
    rows = [
        line.strip("| ").split(" | ")
        for line in pages_of("comparison_page")["comparison.md"].splitlines()
    ]
    (names,) = [row for row in rows if row[0] == "algorithm" and "local mean" in row]
    (shown,) = [
        dict(zip(names, row, strict=True))
        for row in rows
        if row[0] == "fedpac" and len(row) == len(names)
    ]
    record = Path(__file__).parents[1] / "benchmarks/results/fashion_mnist-dir0.1-half-fedpac.json"
    measured = json.loads(record.read_text())["metrics"]
    for point in ("local", "personalized"):
        assert shown[f"{point} mean"] == f"{100 * measured[point]['accuracy']['mean']:.1f}"
    assert (
        float(shown["local mean"]) - float(shown["personalized mean"]) > 5
        and shown["global mean"] == "-"
    )


def test_the_page_of_scarce_data_has_all_its_numbers(monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    text = pages_of("scarce_data_page")["scarce-data.md"]
    assert "?" not in text
    findings = " ".join(text.partition("## How it was measured")[0].split())
    assert "The selected ridges are 0.5, 0.3 and 0.3. On digits 0.01 is selected" in findings
    for world, ridge in {
        "cifar10-5": "0.5",
        "cifar10-10": "0.3",
        "cifar10-25": "0.3",
        "digits-25": "0.01",
    }.items():
        scarce_data = importlib.import_module("scarce_data")
        chosen = scarce_data.selected(world, scarce_data.searches(world)["pFedFDA, ridge"])
        assert chosen.endswith(f"-ridge{ridge}")


def test_what_is_outdated_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("write_pages.DOCS", tmp_path)
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "gone.md").write_text("text")
    (tmp_path / "same.md").write_text("text")
    (tmp_path / "changed.md").write_text("text")
    found = outdated({"same.md": "text", "changed.md": "new", "algorithms/new.md": "new"})
    assert found == ["algorithms/gone.md", "algorithms/new.md", "changed.md"]


def test_defaults_that_are_not_those_of_the_methods_own_papers_have_their_origin(monkeypatch):
    """A default said to be from another paper's experiments is what the file of that paper sets."""
    monkeypatch.setattr("sys.path", [*sys.path])
    origins = importlib.import_module("comparison_page").ORIGINS
    tuned_elsewhere = {
        "apfl.alpha",
        "ditto.penalty",
        "fedbabu.finetune_epochs",
        "perfedavg.adapt_epochs",
        "moon.penalty",
    }
    assert tuned_elsewhere <= {f"{origin.algorithm}.{origin.option}" for origin in origins}
    for origin in origins:
        if origin.paper:
            options = [method.algorithm for method in load_paper(origin.paper).methods.values()]
            stated = {
                one.get(origin.option) for one in options if one.get("name") == origin.algorithm
            }
            assert getattr(load_algorithm(origin.algorithm), origin.option) in stated, origin
