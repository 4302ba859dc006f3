"""The output of ``fedtailor list`` and ``fedtailor doctor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.cli.show.console import table
from fedtailor.core.options import show
from fedtailor.experiment.catalog import MODEL, NUM_CLASSES


def show_list(kind: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the entries of a table."""
    title = {"datasets": "Data sets"}.get(kind, kind.capitalize())
    rows = [[entry["name"], entry["description"]] for entry in entries]
    table(title, ["name", "description"], rows, left=2)


def show_algorithms(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print the algorithms: what clients send and keep, and the bytes per round and client."""
    columns = [
        "name",
        "description",
        "clients send",
        "clients keep",
        "primary\nevaluation",
        "KiB\ndown",
        "KiB\nup",
    ]
    rows = []
    for entry in entries:
        fields_kept = ", ".join(entry["kept_by_clients"]) or "-"
        traffic = [f"{entry[key] / 1024:.0f}" for key in ("bytes_down", "bytes_up")]
        words = [entry["name"], entry["description"], _sent(entry), fields_kept]
        rows.append([*words, entry["primary_evaluation"], *traffic])

    below = (
        f"KiB: at most, per client and round, for the model {MODEL} with {NUM_CLASSES} classes. "
        "*: the server sees this for every single client, so secure aggregation is not possible; "
        "of everything else it needs only means or sums over clients. "
        "primary evaluation: the model that the method is about, "
        "the server's (global) or each client's (personalized)."
    )
    for entry in entries:
        for option, bug in entry["as_released"].items():
            below += f" {entry['name']}.{option}: as released (bug): {bug}."
    table("Algorithms", columns, rows, left=5, below=below)


def show_algorithm(entry: Mapping[str, Any]) -> None:
    """Print one algorithm: what it is, what it sends, and its options with their defaults."""
    traffic = f"{entry['bytes_down'] / 1024:.0f} KiB down, {entry['bytes_up'] / 1024:.0f} KiB up"
    rows = [
        ["description", entry["description"]],
        ["clients send", _sent(entry)],
        ["clients keep", ", ".join(entry["kept_by_clients"]) or "-"],
        ["per client and round", f"{traffic}, for the model {MODEL} with {NUM_CLASSES} classes"],
        ["primary evaluation", entry["primary_evaluation"]],
        ["after the rounds", entry["adaptation"]],
        ["new clients", entry["onboarding"]],
        ["presets", ", ".join(entry["presets"]) or "-"],
    ]
    for option, default in entry["options"].items():
        bug = entry["as_released"].get(option)
        note = f" (as released, a bug: {bug})" if bug else ""
        rows.append([f"option {option}", f"{show(default)}{note}"])

    below = "To set an option: --set algorithm.OPTION=VALUE. "
    below += "*: the server sees this for every single client."
    table(entry["name"], ["what", "value"], rows, left=2, below=below)


def _sent(entry: Mapping[str, Any]) -> str:
    """Return the fields of an upload, with a star where the server sees those of single clients."""
    names = []
    for field, reduction in entry["uploads"].items():
        names.append(f"{field}*" if reduction == "each" else field)

    return ", ".join(names) or "-"


def show_report(report: Mapping[str, Any]) -> None:
    """Print what ``doctor`` found, each fact once."""
    versions = report["versions"]
    machine = report["machine"]
    commit = f", commit {report['commit']}" if report["commit"] else ""
    torch = f"{machine['torch_threads']} threads, {machine['torch_cpu_capability']}"
    rows = [
        ["fedtailor", f"{versions['fedtailor']}{commit}"],
        ["Python", versions["python"]],
        ["torch", f"{machine['torch']}, {torch}"],
    ]
    for name, version in versions.items():
        if name not in ("fedtailor", "python", "torch"):
            rows.append([name, version])

    freed = "returned to the system (slower)"
    if report["keeps_freed_pages"]:
        freed = "kept for the next step"

    rows += [
        ["system", machine["system"]],
        ["processor", f"{machine['processor']}, {_cores(machine)}"],
        ["engine", f"{report['engine']} (chosen by auto for short runs)"],
        ["devices", ", ".join(report["devices"])],
        ["freed memory", freed],
    ]

    if report["data_folder"] == report["cache_folder"]:
        rows.append(["data and cache folder", report["data_folder"]])
    else:
        rows += [["data folder", report["data_folder"]], ["cache folder", report["cache_folder"]]]

    labels = {
        "included": "data sets that need no files",
        "present": "present data sets",
        "partial": "data sets with missing files",
        "absent": "missing data sets",
    }
    for state, label in labels.items():
        names = [name for name, its_state in report["datasets"].items() if its_state == state]
        if names:
            rows.append([label, ", ".join(names)])

    below = "How to get a data set: fedtailor data list"
    table("This machine", ["what", "found"], rows, left=2, below=below)


def _cores(machine: Mapping[str, Any]) -> str:
    """Return the number of cores, the logical ones only where they are more."""
    physical = machine["physical_cores"]
    logical = machine["logical_cores"]
    cores = "1 core" if physical == 1 else f"{physical} cores"
    return cores if logical == physical else f"{cores} ({logical} logical)"
