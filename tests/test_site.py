"""The site of the documentation builds without a warning, and its pages ask no other host."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytest.importorskip("sphinx", reason="make docs installs it")
pytestmark = pytest.mark.slow


class Requests(HTMLParser):
    """Collects what a browser loads for a page."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attributes):
        names = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
        self.addresses += [value for name, value in attributes if name == names.get(tag)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", folder / "doctrees", ROOT / "docs", folder / "html"],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_no_page_asks_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text())
        assert requests.addresses
        outside = [address for address in requests.addresses if re.match(r"(\w+:)?//", address)]
        assert outside == [], page.name

    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )['\"]?(https?:)?//", sheet.read_text()), sheet.name


def test_the_search_knows_every_part(site):
    index = (site / "searchindex.js").read_text()
    for name in ("tutorials/demo", "howto/own-data", "reference/commands", "results/papers"):
        assert f'"{name}"' in index
