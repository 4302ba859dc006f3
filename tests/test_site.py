"""The site of the documentation builds without a warning, and its pages ask no other host."""

import json
import re
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from report.test_browser import CHROMIUM, MISSING, MODULES, NODE

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


LOOKED_AT = [
    "index.html",
    "tutorials/compare.html",
    "reference/algorithms/pfedfda.html",
    "reference/configuration.html",
    "results/which-method.html",
]
QUESTIONS = {
    "how do I bring my own data": "howto/own-data.html",
    "is federation worth it for my site": "reference/verdicts.html",
    "a new hospital joins": "howto/onboard.html",
    "differential privacy epsilon": "reference/epsilon.html",
    "resume a killed run": "howto/resume.html",
    "which method should I use": "results/which-method.html",
    "export to ONNX": "howto/export.html",
    "use a GPU": "howto/devices.html",
    "what leaves a hospital": "reference/what-leaves.html",
    "write my own method": "tutorials/write-a-method.html",
    "missing values": "howto/missing-values.html",
    "search learning rate": "howto/sweeping.html",
    "secure sums": "reference/secure-sums.html",
    "cross-validation": "howto/folds.html",
}
"""Questions that readers type, and the page that the search should name first."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def log_message(self, *_):
        """Write nothing."""


@pytest.mark.skipif(bool(MISSING), reason=f"not found: {', '.join(MISSING)}; see CONTRIBUTING.md")
def test_the_site_in_a_browser_has_no_fault_and_its_search_answers_questions(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    program = Path(__file__).with_name("site_browser.cjs")
    asked = json.dumps({"pages": LOOKED_AT, "questions": list(QUESTIONS)})
    try:
        done = subprocess.run(
            [NODE, str(program), address, str(MODULES), CHROMIUM, asked],
            capture_output=True,
            text=True,
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr

    found = json.loads(done.stdout)
    assert len(found["looks"]) == 4 * len(LOOKED_AT)
    for look in found["looks"]:
        assert look["console"] == look["elsewhere"] == look["faults"] == [], look
        assert look["wider"] <= 0, look

    assert found["answers"] == QUESTIONS
