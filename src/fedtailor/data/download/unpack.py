"""Safe unpacking of archives: plain files only, inside one folder, at most a given size."""

from __future__ import annotations

import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, NamedTuple

from fedtailor.core.errors import DataError

MAX_FILES = 500_000
"""More files than this in one archive are refused (SUN397 has 108,754 pictures)."""

_CHUNK = 2**20
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
_FORBIDDEN = re.compile(
    r'[\x00-\x1f\x7f\\:*?"<>|]'
)  # characters that some system does not allow in names


class _Member(NamedTuple):
    name: str
    plain: bool
    """Whether it is a plain file, not a link or a device. Folders are not members."""
    open: Callable[[], IO[bytes] | None]


def unpack(
    archive: Path,
    kind: Literal["tar", "zip"],
    target: Path,
    *,
    max_bytes: int,
    strip: str = "",
    last: Callable[[Path], bool] = lambda path: False,
    report: Callable[[int], None] = lambda files: None,
) -> None:
    """Unpack into a temporary folder inside ``target``, then move each file to its place, replacing
    existing files.

    Args:
        archive: the file.
        kind: ``tar`` (compressed or not) or ``zip``.
        target: existing folder.
        max_bytes: most bytes that the files may have together.
        strip: leading folder to remove from the names.
        last: returns whether the file of a path is moved after all others.
        report: called with the number of unpacked files.

    Raises:
        DataError: the archive is damaged, too large, or holds a link, a device or a name that leads
            outside.
        OSError: a file cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target) as name:
        folder = Path(name)
        try:
            places = _extract(archive, kind, folder, strip, max_bytes, report)
        except _DAMAGE as reason:
            raise _refuse(
                archive, "an intact archive", f"{type(reason).__name__}: {reason}"
            ) from reason

        for place in sorted(places, key=lambda place: last(target / place)):
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / place, target / place)


def _extract(
    archive: Path,
    kind: str,
    folder: Path,
    strip: str,
    max_bytes: int,
    report: Callable[[int], None],
) -> list[Path]:
    """Write the files and return their paths relative to the folder."""
    places: list[Path] = []
    left = max_bytes
    members = _tar_members(archive) if kind == "tar" else _zip_members(archive)
    for member in members:
        place = _place(archive, member, strip)
        path = folder / place
        if len(places) == MAX_FILES:
            raise _refuse(archive, f"at most {MAX_FILES} files", "more")

        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("xb")
        except FileExistsError:
            raise _refuse(archive, "each name once", repr(member.name)) from None

        with file:
            opened = member.open()
            if opened is None:
                raise _refuse(archive, "plain files only", repr(member.name))

            with opened as source:
                while chunk := source.read(min(_CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        raise _refuse(archive, f"at most {max_bytes} bytes when unpacked", "more")

                    file.write(chunk)

        places.append(place)
        report(len(places))

    return places


def _tar_members(archive: Path) -> Iterator[_Member]:
    """Yield the members of a tar archive in their order, without folders."""
    with tarfile.open(archive, "r|*") as tar:
        for info in tar:
            if not info.isdir():
                yield _Member(info.name, info.isreg(), lambda info=info: tar.extractfile(info))  # type: ignore[misc]


def _zip_members(archive: Path) -> Iterator[_Member]:
    """Yield the members of a zip archive in their order, without folders."""
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if not info.filename.endswith("/"):  # is_dir() fails for an empty name
                kind = (
                    info.external_attr >> 28
                )  # on Unix 8 is a plain file; 0 where the archive was made elsewhere
                yield _Member(info.filename, kind in (0, 8), lambda info=info: packed.open(info))  # type: ignore[misc]


def _place(archive: Path, member: _Member, strip: str) -> Path:
    """Return the path of a member, relative to the target."""
    if not member.plain:
        raise _refuse(archive, "plain files only", f"a link or device named {member.name!r}")

    parts = [part for part in member.name.split("/") if part != "."]
    if not all(parts) or ".." in parts or _FORBIDDEN.search(member.name):
        raise _refuse(archive, "names of files within a folder", repr(member.name))
    if strip and parts[0] == strip:
        parts = parts[1:]
    if not parts:
        raise _refuse(archive, "names of files within a folder", repr(member.name))

    return Path(*parts)


def _refuse(archive: Path, allowed: str, got: str) -> DataError:
    return DataError(
        f"{archive}: expected {allowed}, got {got}.", path=str(archive), allowed=allowed, got=got
    )
