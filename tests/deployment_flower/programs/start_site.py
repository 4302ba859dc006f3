"""``fedtailor site start`` with another resident process: python start_site.py FOLDER."""

import sys
from pathlib import Path

from fedtailor.cli.main import main
from fedtailor.deployment.flower.processes import SiteProcesses

RESIDENT = Path(__file__).with_name("resident_site.py")
start = SiteProcesses.start


def start_other(processes, resident=None):
    """Start the site's processes with the program beside this file."""
    start(processes, [sys.executable, str(RESIDENT), sys.argv[1]])


SiteProcesses.start = start_other
sys.exit(main(["site", "start", sys.argv[1]]))
