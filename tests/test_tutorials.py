"""Running a tutorial gives what its page shows."""

import re

import pytest

from tutorial import BLOCK, ROOT, run_page, without_times

NEEDS_FLOWER = {"three-sites"}
"""Pages that run in the environment of `make test-sites-full`."""
PAGES = sorted(
    path
    for path in (ROOT / "docs" / "tutorials").glob("*.md")
    if "\n$ " in path.read_text() and path.name != "index.md"
)
NUMBER = re.compile(r"-?\d*\.?\d+(?:e[+-]?\d+)?")


def test_there_are_tutorials_and_their_blocks_are_seen():
    assert PAGES
    for path in PAGES:
        text = path.read_text()
        blocks = [match for match in BLOCK.finditer(text) if match["file"] or "$ " in match["text"]]
        assert len(blocks) == len(re.findall(r"^```(console|\{code-block\})", text, re.MULTILINE))


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_running_the_page_gives_the_page(path, tmp_path):
    if path.stem in NEEDS_FLOWER:
        pytest.importorskip("flwr", reason="make test-sites-full runs it")

    shown = without_times(path.read_text())
    printed = without_times(run_page(path.read_text(), tmp_path))
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown), "python tools/tutorial.py PAGE"

    # Another processor may tell a few test examples differently.
    for new, old in zip(NUMBER.findall(printed), NUMBER.findall(shown)):
        assert float(new) == pytest.approx(float(old), rel=0.2, abs=5)
