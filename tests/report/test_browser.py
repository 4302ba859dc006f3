"""A report in Chromium, at the widths of a desktop and of a phone, in light and dark, judged by
axe-core too.

It needs Chromium, Node.js, and a folder of Node packages with axe-core and puppeteer-core: see
CONTRIBUTING.md.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fedtailor.cli.show.status import StatusPage
from fedtailor.deployment.status import PAGE_FILE, STATUS_FILE, StatusReader
from fedtailor.deployment.status_port import StatusPort
from fedtailor.report.methods import read_methods
from fedtailor.report.page.build import build_page
from report.made_runs import CLASSES, write_run, write_seeds
from sites import VALUES, World, divide_digits, write_arrays

CHROMIUM = os.environ.get("FEDTAILOR_TEST_CHROMIUM") or shutil.which("chromium") or ""
MODULES = Path(os.environ.get("FEDTAILOR_TEST_NODE_MODULES") or "node_modules").resolve()
NODE = shutil.which("node") or ""
MISSING = [
    name
    for name, there in {
        "Chromium": CHROMIUM,
        "Node.js": NODE,
        "axe-core": (MODULES / "axe-core").is_dir(),
        "puppeteer-core": (MODULES / "puppeteer-core").is_dir(),
    }.items()
    if not there
]
HOSTILE = "<img src=http://a.b/c onerror=alert(1)><script>alert(2)</script>=1"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"not found: {', '.join(MISSING)}; CONTRIBUTING.md says how to get them",
    ),
]


def look(place):
    """Return what the browser and axe-core say of the page of a file or an address."""
    program = Path(__file__).with_name("browser.cjs")
    command = [NODE, str(program), str(place), str(MODULES), CHROMIUM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def open_in_browser(page, folder):
    """Return what the browser and axe-core say of a page."""
    path = folder / "page.html"
    path.write_text(page.html)
    return path, look(path)


def check(page, folder):
    """Check everything that must hold of any page; its tables saved as CSV are those that Python
    writes."""
    (figure,) = [figure for figure in page.figures if figure.name == "accuracy-by-client"]
    path, views = open_in_browser(page, folder)
    assert [(view["name"], view["scheme"]) for view in views] == [
        ("desktop", "light"),
        ("desktop", "dark"),
        ("phone", "light"),
        ("phone", "dark"),
    ]
    for view in views:
        assert view["console"] == []
        assert view["requests"] == [path.resolve().as_uri()]
        assert view["faults"] == []
        assert view["wider"] <= 0, "the page is wider than the screen"
        assert view["hidden"] == 0, "a chart has not exactly one drawing"
        assert view["csv"] == figure.table.to_csv()
        assert view["scripts"] == 2 and view["handlers"] == 0
        assert (
            view["sorted"]["sort"] == "descending"
            and view["sorted"]["up"] == view["sorted"]["down"][::-1]
        )


def test_a_comparison_in_the_browser(tmp_path):
    names = [f"class {number}" for number in range(CLASSES)]
    rich = write_run(
        tmp_path / "rich",
        "pfedvem",
        clients=100,
        rounds=20,
        class_names=names,
        condition="contrast-3",
        diagnostics={"beta_means": lambda client: client / 100},
        training={
            "feature_surprise": lambda client, number: client - number,
            "confidence": lambda client, number: 1.0 + client,
            "model_deviation": lambda client, number: 0.1 * client,
        },
    )
    others = [
        write_seeds(tmp_path / name, name, (0, 1), clients=100, rounds=20, class_names=names)
        for name in ("ditto", "fedavg_ft", "local")
    ]
    check(build_page(read_methods([rich, *others])), tmp_path)


def test_the_status_of_a_federation_in_the_browser(tmp_path):
    parts = divide_digits(rows=30)
    values = {**VALUES, "evaluation": {"every": 1, "personalized_every": 1}}
    world = World(tmp_path, values={**values, "federation": {"rounds": 4}})
    world.write(lambda folder, name: write_arrays(folder, *parts[name])).serve()
    server = tmp_path / "server"

    # As if it continued, so that the page loads itself again.
    status = StatusReader(server, server / "runs" / "0001").read()
    (server / STATUS_FILE).write_text(json.dumps(status))
    path = server / PAGE_FILE
    path.write_text(StatusPage()({**status, "state": "running"}))
    with StatusPort(server, 0) as port:
        address = f"{port.address}?token={port.token}"
        for place, url in ((path, path.as_uri()), (address, address)):
            for view in look(place):
                # The browser asks the port for an icon, if it asks for one.
                assert set(view["requests"]) <= {url, f"{port.address}favicon.ico"}
                assert view["faults"] == []
                assert view["wider"] <= 0 and view["hidden"] == 0
                assert view["scripts"] == 1 and view["handlers"] == 0
                assert view["console"] == []


def test_hostile_names_do_nothing_in_the_browser(tmp_path):
    run = write_run(
        tmp_path / "run",
        HOSTILE,
        client_names=["=1+1", "-2", f'a,"{HOSTILE}', HOSTILE],
        class_names=[HOSTILE] * CLASSES,
        dataset=HOSTILE,
        events=[{"kind": HOSTILE, "round": 1, "client": 0, "reason": HOSTILE * 20}],
    )
    check(build_page(read_methods([run]), refresh=0), tmp_path)
