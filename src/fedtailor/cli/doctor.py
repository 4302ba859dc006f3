"""The command ``fedtailor doctor``."""

from __future__ import annotations

from fedtailor.cli.options import NOTHING_NAMED, Json, Named, with_config_flags
from fedtailor.cli.shell import print_result


@with_config_flags("data.dir")
def doctor(named: Named = NOTHING_NAMED, json: Json = False) -> None:
    """Show versions, processor, engine, devices, folders and the data sets on this machine."""
    from fedtailor.cli.show.lists import show_report
    from fedtailor.experiment.doctor import examine

    report = examine(named["data.dir"] or "")
    print_result(report, json, show_report)
