"""The walk through a user's folder, which lists its files without leaving it."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fedtailor.data.own.findings import MAX_SITES, Findings, counted, show
from fedtailor.data.own.names import is_utf8, safe_name

MAX_FILES = 2_000_000
"""More files than this are refused."""

MAX_DEPTH = 8
"""Folders nested more deeply are not entered; the deepest layout has 3 levels."""

_OF_THE_SYSTEM = {"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "lost+found"}


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
    def shown(self) -> str:
        """Its path within the folder, safe to print."""
        return safe_name("/".join(self.parts))


@dataclass
class Tree:
    """The contents of a folder, in order of names."""

    folder: Path
    files: list[File] = field(default_factory=list)
    folders: list[tuple[str, ...]] = field(default_factory=list)
    hidden: int = 0
    """Number of hidden files and folders, and those of operating systems, which are ignored."""

    def path(self, file: File) -> Path:
        """Return the path of a file."""
        return self.folder.joinpath(*file.parts)


class _Enough(Exception):
    """The folder is too large; the problem is among the findings."""


def walk(folder: Path, findings: Findings) -> Tree | None:
    """List the files of a folder; None if it is too large.

    Links to files within the folder are followed, links to folders are not. Files that are left out
    are added to ``findings``.
    """
    tree = Tree(folder.resolve())
    try:
        _enter((), tree, findings)
    except _Enough:
        return None

    if tree.hidden:
        findings.notes.append(
            f"{counted(tree.hidden, 'hidden file or folder was', 'hidden files or folders were')} ignored."
        )

    return tree


def _enter(parts: tuple[str, ...], tree: Tree, findings: Findings) -> None:
    """List one folder and those within it."""
    try:
        with os.scandir(tree.folder.joinpath(*parts)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        message = f"The folder cannot be read: {error.strerror or error}."
        findings.add("error", "unreadable_folder", _site(parts), _shown(parts), message)
        return

    kept = [entry for entry in entries if not _hidden(entry.name)]
    tree.hidden += len(entries) - len(kept)
    if not parts:
        _check_sites(kept, findings)

    for entry in kept:
        inner = (*parts, entry.name)
        if not is_utf8(entry.name):
            message = f"The name is not UTF-8; it is written as {show(safe_name(entry.name))}."
            findings.add("warning", "non_utf8_name", _site(inner), _shown(inner), message)

        if _is_folder(entry):
            _note_folder(inner, tree, findings)
        else:
            _note_file(entry, inner, tree, findings)


def _check_sites(entries: list[os.DirEntry[str]], findings: Findings) -> None:
    """Refuse more folders than sites are allowed, before any is entered."""
    count = sum(_is_folder(entry) for entry in entries)
    if count > MAX_SITES:
        message = (
            f"The folder holds {count} folders; at most {MAX_SITES} sites or classes are read."
        )
        findings.add("error", "too_many_sites", "", "", message)
        raise _Enough


def _note_folder(parts: tuple[str, ...], tree: Tree, findings: Findings) -> None:
    if len(parts) > MAX_DEPTH:
        message = f"Folders deeper than {MAX_DEPTH} are not entered."
        findings.add("skipped", "too_deep", _site(parts), _shown(parts), message)
        return
    tree.folders.append(parts)
    _enter(parts, tree, findings)


def _note_file(
    entry: os.DirEntry[str], parts: tuple[str, ...], tree: Tree, findings: Findings
) -> None:
    """Add a file to the tree, or a problem to the findings if it is left out."""
    try:
        if entry.is_symlink():
            refused = _refuse_link(Path(entry.path), tree.folder)
            if refused:
                findings.add("skipped", refused[0], _site(parts), _shown(parts), refused[1])
                return

        status = entry.stat()
    except OSError as error:
        message = f"The file cannot be read: {error.strerror or error}."
        findings.add("skipped", "unreadable_file", _site(parts), _shown(parts), message)
        return

    if not stat.S_ISREG(status.st_mode):
        message = "This is not a regular file but a pipe, a socket or a device."
        findings.add("skipped", "not_a_file", _site(parts), _shown(parts), message)
        return

    if len(tree.files) >= MAX_FILES:
        message = f"The folder holds more than {MAX_FILES} files; at most that many are read."
        findings.add("error", "too_many_files", "", "", message)
        raise _Enough

    tree.files.append(
        File(parts, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    )


def _refuse_link(link: Path, folder: Path) -> tuple[str, str] | None:
    """Return kind and message of the problem if a link must not be followed."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        if (
            isinstance(error, RuntimeError) or error.errno == errno.ELOOP
        ):  # RuntimeError: before Python 3.13
            return "symlink_loop", "This link leads to itself."

        return "broken_symlink", "This link is broken."

    if not target.is_relative_to(folder):
        return (
            "symlink_outside",
            "This link leads out of the data's folder and is not followed; copy its target.",
        )

    if link.is_relative_to(target):
        return "symlink_loop", "This link leads to a folder that contains it."

    if target.is_dir():
        return (
            "symlink_folder",
            "This link leads to a folder of the data, which is read in its own place.",
        )

    return None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def _hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in _OF_THE_SYSTEM


def _site(parts: tuple[str, ...]) -> str:
    return safe_name(parts[0]) if len(parts) > 1 else ""


def _shown(parts: tuple[str, ...]) -> str:
    return safe_name("/".join(parts))
