"""Generated pages are what their writers would write."""

import pytest

from write_pages import WRITERS, outdated, pages_of


@pytest.mark.parametrize("writer", WRITERS)
def test_pages_are_up_to_date(writer):
    assert outdated(pages_of(writer)) == [], "run: make docs"


def test_what_is_outdated_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("write_pages.DOCS", tmp_path)
    (tmp_path / "algorithms").mkdir()
    (tmp_path / "algorithms" / "gone.md").write_text("text")
    (tmp_path / "same.md").write_text("text")
    (tmp_path / "changed.md").write_text("text")
    names = outdated({"same.md": "text", "changed.md": "new", "algorithms/new.md": "new"})
    assert names == ["algorithms/gone.md", "algorithms/new.md", "changed.md"]
