"""Pages that follow from code and records are written for the site, and git does not keep them."""

import subprocess
import tomllib

import pytest

from fedtailor.experiment.config import SECTIONS, make_config, to_toml
from marks import quick
from write_pages import DOCS, ROOT, WRITERS, pages_of

SLOW = {"algorithm_pages", "leaderboard_page", "papers_page"}
"""The first has tests of its own, and the others draw figures of all records."""


@pytest.mark.parametrize("writer", quick(WRITERS, *set(WRITERS) - SLOW))
def test_every_written_page_has_a_title_and_is_ignored_by_git(writer):
    pages = pages_of(writer)
    assert pages
    assert all(text.startswith("# ") for text in pages.values())

    paths = [str(DOCS / name) for name in pages]
    ignored = subprocess.run(
        ["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    if (ROOT / ".git").exists():
        assert ignored == paths


def test_the_page_of_commands_has_every_command_and_option():
    (text,) = pages_of("commands_page").values()
    for words in ("run", "site start", "deploy demo", "data check", "audit noise"):
        assert f"`fedtailor {words}`\n" in text
    assert "`-a, --algorithm NAME`" in text and "`--rounds NUMBER`" in text


def test_the_page_of_the_configuration_has_every_option():
    (text,) = pages_of("configuration_page").values()
    for section, options in tomllib.loads(to_toml(make_config({}))).items():
        if section in SECTIONS:
            _, _, rest = text.partition(f"### `[{section}]`\n")
            rows = rest.partition("\n### ")[0]
            assert [name for name in options if f"| `{name}` |" not in rows] == [], section

    for row in (
        "| `lr` | `0.01` | number",
        "| `rounds` |",
        "| `participation` |",
        "| `full_last_round` | `true` |",
        '| `every` | `"auto"` | whole number >= 0 or `"auto"` |',
        "| `quorum` |",
        "| `least_examples` |",
        "| `smallest_sum` |",
    ):
        assert row in text, row
    empty = [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert empty == [], "options without a docstring"
