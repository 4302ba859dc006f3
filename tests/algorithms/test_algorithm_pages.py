"""The pages that scripts of docs write are what they would write, and say what a reader needs."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from fedtailor.algorithms import TABLE

DOCS = Path(__file__).resolve().parents[2] / "docs"


def script(name):
    """Import a script of the folder of documents."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator():
    return script("generate")


@pytest.fixture(scope="module")
def pages(generator):
    return generator.pages()


def test_pages_are_up_to_date(pages):
    there = {path.name: path.read_text() for path in (DOCS / "algorithms").glob("*.md")}
    assert there.keys() == pages.keys(), "run: make docs"
    assert [name for name in pages if pages[name] != there[name]] == [], "run: make docs"


@pytest.mark.parametrize("name", ["comparison", "performance"])
def test_pages_of_records_are_up_to_date(name, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    assert (DOCS / f"{name}.md").read_text() == script(f"{name}_page").page(), "run: make docs"


@pytest.mark.parametrize("name", TABLE)
def test_a_page_has_all_parts(name, pages):
    page = pages[f"{name}.md"]
    assert page.startswith(f"# {name}\n")
    assert "**Messages**" in page and "**Deviations**" in page, "the module's docstring has Messages: and Deviations:"
    assert "``" not in page.replace("```", "") and ":class:" not in page
    assert re.search(r"\b(19|20)\d\d\b", page) or name == "local", "no year: cite the paper"
    rows = re.findall(r"^\| `\w+` \|.*$", page, flags=re.MULTILINE)
    assert all(len(re.split(r"(?<!\\)\|", row)) in (6, 7) for row in rows)


def test_options_have_bounds_and_words(generator):
    from fedtailor.algorithms.pfedfda import PFedFDA

    text = generator.options(PFedFDA)
    assert '| `beta` | `"single"` |' in text and "number >= 0" in text


def test_the_index_links_every_page(pages):
    assert all(f"[{name}]({name}.md)" in pages["README.md"] for name in TABLE)


def test_words_are_explained_and_every_page_links_there(pages):
    glossary = pages["README.md"].partition("## Glossary")[2]
    words = ("n_i", "cohort", "head", "body", "extra", "buffer", "global", "local", "personalized", "judged at")
    assert all(f"**{word}" in glossary for word in words)
    assert all("(README.md#glossary)" in pages[f"{name}.md"] for name in TABLE)


def test_presets_say_what_they_set_and_how_to_choose_them(pages):
    assert "`paper`: `cov_ridge = 0.0001`, `cov_offset = 0.0`" in pages["pfedfda.md"]
    chosen = {name for name in TABLE if "--set algorithm.preset=paper\n" in pages[f"{name}.md"]}
    assert chosen == {"pfedfda", "fedcr", "fedsr"}


def test_rows_that_are_sent_and_the_model_of_a_page_are_said(pages):
    assert "215,380; up 107,690 (1 of 2) |" in pages["ifca.md"]
    assert "(with `wideresnet16`)" in pages["fedbn.md"]


def test_references_become_code(generator):
    assert generator.markdown("see :class:`Training` and ``x``") == "see `Training` and `x`"
