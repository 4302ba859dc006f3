"""Changes of ``site.toml`` by commands: the other lines stay as a person has written them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.container import OutOfOrderTableProxy

from fedtailor.core.atomic import write_whole
from fedtailor.core.reading import LARGEST_TOML, read_file


def write_values(
    path: Path, section: str, values: Mapping[str, Any], *, missing: Mapping[str, Any]
) -> None:
    """Set values of a section, which is added at the end if it is missing.

    Args:
        path: of the file.
        section: its name.
        values: by key.
        missing: values that are set only where the section has none.

    Raises:
        DataError: the file cannot be read.
        RunError: it cannot be written.
    """
    document = _read(path)
    table = _section(document, section)
    table.update(values)
    for key, value in missing.items():
        table.setdefault(key, value)

    write_whole(path, tomlkit.dumps(document))


def write_section(path: Path, section: str, values: Mapping[str, Any]) -> None:
    """Put the values of a section in the place of those that it has; comments stay.

    Raises:
        DataError: the file cannot be read.
        RunError: it cannot be written.
    """
    document = _read(path)
    if isinstance(document.get(section), OutOfOrderTableProxy):
        # Its parts stand in several places, and are removed as one.
        del document[section]

    table = _section(document, section)
    for key in list(table):
        del table[key]

    table.update(values)
    write_whole(path, tomlkit.dumps(document))


def _read(path: Path) -> tomlkit.TOMLDocument:
    return tomlkit.parse(read_file(path, limit=LARGEST_TOML))


def _section(document: tomlkit.TOMLDocument, name: str) -> MutableMapping[str, Any]:
    """Return a section of the file; it is added at the end if it is missing."""
    if name not in document:
        document[name] = tomlkit.table()

    section: MutableMapping[str, Any] = document[name]
    return section
