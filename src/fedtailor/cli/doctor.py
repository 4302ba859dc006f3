"""The command ``fedtailor doctor``."""

from __future__ import annotations

from fedtailor.cli.options import DataDir, Debug, Json
from fedtailor.cli.shell import print_json


def doctor(data_dir: DataDir = "", json: Json = False, debug: Debug = False) -> None:
    """Show versions, processor, engine, devices, folders, and the data sets on this machine."""
    from fedtailor.cli.show.lists import show_report
    from fedtailor.experiment.doctor import examine

    report = examine(data_dir)
    if json:
        print_json(report)
    else:
        show_report(report)
