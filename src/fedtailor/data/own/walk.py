"""The walk through a user's folder, which lists its files without leaving it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.text import escaped
from fedtailor.data.own.findings import FindingPlace, Findings

MAX_DEPTH = 8
"""Folders nested more deeply are not entered; the deepest layout has 3 levels."""

USE_INSTEAD_OF_DICOM = (
    "DICOM is not supported: export the images as PNG or TIFF, one file per image."
)

_OF_THE_SYSTEM = {"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "lost+found"}

_DICOM_ENDINGS = (".dcm", ".dicom")
_DICOM_MARK = b"DICM"
_DICOM_MARK_AT = 128
_MOST_OPENED = 1_000
_UID = re.compile(r"(\.\d+)?")
"""Endings of the usual names of DICOM files without ``.dcm``: none, or the last part of a unique
identifier."""


class File(NamedTuple):
    """A file of the folder."""

    parts: tuple[str, ...]
    """Names of the folders down to it and its own name, as in the file system."""
    size: int
    changed: int
    """Time of the last change of its content in nanoseconds."""
    touched: int
    """Time of the last change of its content, name or rights in nanoseconds."""
    number: int
    """Number in the file system (inode): files that are swapped keep theirs."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the folders down to it."""
        return self.parts[:-1]

    @property
    def suffix(self) -> str:
        """The ending of its name from the last dot on, in lower case."""
        return os.path.splitext(self.parts[-1])[1].lower()

    @property
    def escaped(self) -> str:
        """Its path within the folder, safe to print."""
        return escaped("/".join(self.parts))


@dataclass
class FolderContents:
    """The contents of a folder, in order of names."""

    folder: Path
    files: list[File] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)

    def path(self, file: File) -> Path:
        """Return the path of a file."""
        return self.folder.joinpath(*file.parts)


def walk(folder: Path, findings: Findings) -> FolderContents:
    """List the files of a folder.

    Links to files within the folder are followed, links to folders are not. Files that are left out
    are added to ``findings``, but for hidden ones and those of operating systems.
    """
    tree = FolderContents(folder.resolve())
    _enter((), tree, findings)
    return tree


def _enter(parts: tuple[str, ...], tree: FolderContents, findings: Findings) -> None:
    """List one folder and those within it."""
    try:
        with os.scandir(tree.folder.joinpath(*parts)) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
    except OSError as error:
        message = f"The folder cannot be read: {error.strerror or error}."
        _place(parts, findings).add("unreadable_folder", message)
        return

    # What operating systems and editors leave behind is not data of the user.
    visible = [
        entry
        for entry in entries
        if not entry.name.startswith(".") and entry.name.lower() not in _OF_THE_SYSTEM
    ]
    for entry in visible:
        inner = (*parts, entry.name)
        place = _place(inner, findings)
        if not _is_folder(entry):
            _add_file(entry, inner, tree, place)
        # The limit also ends folders that a file system nests without end.
        elif len(inner) > MAX_DEPTH:
            place.add("too_deep", f"Folders deeper than {MAX_DEPTH} are not entered.")
        else:
            tree.folders.append(inner)
            _enter(inner, tree, findings)


def _add_file(
    entry: os.DirEntry[str], parts: tuple[str, ...], tree: FolderContents, place: FindingPlace
) -> None:
    """Add a file to the tree, or a problem if it is left out."""
    try:
        reason = _refuse_link(Path(entry.path), tree.folder) if entry.is_symlink() else ""
        if reason:
            place.add("link", reason)
            return

        status = entry.stat()
    except OSError as error:
        place.add("unreadable_file", f"The file cannot be read: {error.strerror or error}.")
        return

    if not stat.S_ISREG(status.st_mode):
        place.add("not_a_file", "This is not a regular file but a pipe, a socket or a device.")
        return

    times = status.st_mtime_ns, status.st_ctime_ns
    tree.files.append(File(parts, status.st_size, *times, status.st_ino))


def _refuse_link(link: Path, folder: Path) -> str:
    """Return why a link is not followed; empty: it leads to a file within the folder."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        return "This link leads nowhere, or to itself."

    # A link must not make files public that are not in the folder.
    if not target.is_relative_to(folder):
        return "This link leads out of the data's folder and is not followed; copy its target."

    if target.is_dir():
        return "This link leads to a folder of the data, which is read in its own place."

    return ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # the file system does not tell types, and the entry cannot be looked at
        return False


def _place(parts: tuple[str, ...], findings: Findings) -> FindingPlace:
    return FindingPlace(findings, parts[0] if len(parts) > 1 else "", "/".join(parts))


def is_dicom(raw: bytes) -> bool:
    """Return whether the content of a file, or its beginning, is DICOM."""
    return raw[_DICOM_MARK_AT:].startswith(_DICOM_MARK)


def find_dicom(paths: Sequence[Path]) -> list[Path]:
    """Return the DICOM files; only the first thousand without an ending are opened."""
    named = [path for path in paths if path.suffix.lower() in _DICOM_ENDINGS]
    # Scanners write files without an ending, or with a number as one.
    unnamed = [path for path in paths if _UID.fullmatch(path.suffix)]
    return named + [path for path in unnamed[:_MOST_OPENED] if begins_like_dicom(path)]


def begins_like_dicom(path: Path) -> bool:
    """Return whether a file is DICOM; False if it cannot be read, which its reader reports."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return is_dicom(file.read(_DICOM_MARK_AT + len(_DICOM_MARK)))

    return False
