"""The pages of methods say what a reader needs."""

import re
from pathlib import Path

import pytest

import algorithm_pages
from fedtailor.algorithms import ALGORITHMS


@pytest.fixture(scope="module")
def pages():
    return {Path(name).name: text for name, text in algorithm_pages.pages().items()}


def test_a_page_has_all_parts(pages):
    for name in ALGORITHMS:
        page = pages[f"{name}.md"]
        assert page.startswith(f"# {name}\n")
        # The module's docstring has Messages: and Deviations:.
        assert "**Messages**" in page and "**Deviations**" in page, name
        assert "``" not in page.replace("```", "") and ":class:" not in page, name
        assert re.search(r"\b(19|20)\d\d\b", page) or name == "local", f"{name}: cite the paper"
        rows = re.findall(r"^\| `\w+` \|.*$", page, flags=re.MULTILINE)
        assert all(len(re.split(r"(?<!\\)\|", row)) in (6, 7) for row in rows), name


def test_the_index_links_every_page(pages):
    assert all(f"[{name}]({name}.md)" in pages["index.md"] for name in ALGORITHMS)


def test_presets_say_what_they_set_and_how_to_choose_them(pages):
    assert "`paper`: `cov_ridge = 0.0001`, `cov_offset = 0.0`" in pages["pfedfda.md"]
    assert "`tuned`: `prior_smoothing = 0.1`, `cov_ridge = 0.3`" in pages["pfedfda.md"]
    chosen = {
        name for name in ALGORITHMS if "--set algorithm.preset=paper\n" in pages[f"{name}.md"]
    }
    assert chosen == {"pfedfda", "fedcr", "fedlda", "fedsr"}
