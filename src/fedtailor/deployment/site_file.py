"""Changes of ``site.toml`` by commands: the other lines stay as a person has written them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedtailor.core.atomic import write_whole
from fedtailor.core.errors import ConfigError
from fedtailor.core.reading import LARGEST_TOML, read_file

_HEADER = re.compile(r"\s*\[\s*(?P<name>[A-Za-z0-9_.-]+)\s*\]\s*(#.*)?\s*")
"""The first line of a section."""


def write_value(path: Path, section: str, key: str, value: str) -> None:
    """Set one value of a section, which is added at the end if it is missing.

    Raises:
        ConfigError: the section stands in one line, or the value in several.
        DataError: the file cannot be read.
        RunError: it cannot be written.
    """
    text = _read(path)
    values = tomllib.loads(text)
    values[section] = {**values.get(section, {}), key: value}
    _write(path, _with_value(text, section, _line(key, value)), values, section)


def write_section(path: Path, section: str, values: Mapping[str, Any]) -> None:
    """Put a section in the place of the one with its name; the new one is the last of the file.

    Raises:
        ConfigError: the section stands in one line.
        DataError: the file cannot be read.
        RunError: it cannot be written.
    """
    text = _read(path)
    rest = _without_section(text, section).rstrip()
    changed = f"{rest}\n\n{tomli_w.dumps({section: values})}"
    _write(path, changed, {**tomllib.loads(text), section: values}, section)


def _read(path: Path) -> str:
    return read_file(path, limit=LARGEST_TOML).decode()


def _write(path: Path, text: str, values: Mapping[str, Any], section: str) -> None:
    """Write the file if it has become what it should; lines cannot tell texts from sections."""
    try:
        is_right = tomllib.loads(text) == _as_read(values)
    except tomllib.TOMLDecodeError:
        is_right = False

    if not is_right:
        message = f"'{path}' cannot be changed: write {section} as a section [{section}] of lines."
        raise ConfigError(message, key=section, path=path, allowed=f"[{section}]", got="others")

    write_whole(path, text)


def _as_read(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are read again: tuples are lists in a file."""
    return tomllib.loads(tomli_w.dumps(values))


def _line(key: str, value: str) -> str:
    return tomli_w.dumps({key: value}).rstrip("\n")


def _with_value(text: str, section: str, line: str) -> str:
    """Return the text with a line of a section, in the place of an older one with its key."""
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    sections = _sections(lines)
    if section not in sections:
        return f"{text.rstrip()}{end}{end}[{section}]{end}{line}{end}"

    key = re.compile(rf"\s*{re.escape(line.partition(' ')[0])}\s*=")
    inside = [number for number, name in enumerate(sections) if name == section]
    for number in inside:
        if key.match(lines[number]):
            lines[number] = line + end
            return "".join(lines)

    # Right below the header, which may be the last line of the file.
    header = inside[0]
    lines[header] = lines[header].rstrip("\r\n") + end + line + end
    return "".join(lines)


def _without_section(text: str, section: str) -> str:
    """Return the text without a section and the sections in it."""
    lines = text.splitlines(keepends=True)
    kept = []
    for line, name in zip(lines, _sections(lines), strict=True):
        if name != section and not name.startswith(f"{section}."):
            kept.append(line)

    return "".join(kept)


def _sections(lines: list[str]) -> list[str]:
    """Return for every line the name of its section; a comment above a header belongs to it."""
    names = []
    name = ""
    for number, line in enumerate(lines):
        header = _HEADER.fullmatch(line)
        if header is None:
            names.append(name)
            continue

        name = header["name"]
        above = number
        while above and lines[above - 1].lstrip().startswith("#"):
            above -= 1
        names[above:] = [name] * (number + 1 - above)

    return names
