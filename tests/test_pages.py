"""Generated pages are what their writers would write."""

import importlib
import sys

import pytest

from fedtailor.algorithms import load_algorithm
from fedtailor.papers.tables import load_paper
from write_pages import WRITERS, outdated, pages_of


@pytest.mark.parametrize("writer", WRITERS)
def test_pages_are_up_to_date(writer, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    assert outdated(pages_of(writer)) == [], "run: make docs"


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
            stated = {one.get(origin.option) for one in options if one["name"] == origin.algorithm}
            assert getattr(load_algorithm(origin.algorithm), origin.option) in stated, origin
