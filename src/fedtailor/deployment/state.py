"""What a site keeps from round to round: one file per round, and the server says which one counts.

A site trains from the version that the server names, and keeps that one and a few others beside the
new one. So a lost answer, a request that comes twice, a round whose upload is left out, and a
server that goes back to its last checkpoint need no other rule.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from fedtailor.core.atomic import discard, make_folder, write_whole
from fedtailor.core.codec import decode, encode
from fedtailor.core.errors import DataError
from fedtailor.core.reading import damaged, read_file
from fedtailor.core.tree import Tree

_NAME = re.compile(r"round-(\d{6,10})-(\d{2,5})-([0-9a-f]{16})\.safetensors")
_LARGEST = 2**33
"""Bytes of a state."""
_SPARE = 4
"""States that are kept, even if the server says otherwise."""
_RUNS = 3
"""Runs of which states are kept."""


class Version(NamedTuple):
    """The round, and the attempt at it, that left a state."""

    round: int
    attempt: int


def forget_old_runs(folder: Path) -> None:
    """Remove the states of all but the last few runs; every run has a folder in ``folder``."""
    runs = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in runs[:-_RUNS]:
        shutil.rmtree(path, ignore_errors=True)


class _StateFile(NamedTuple):
    path: Path
    version: Version
    digest: str
    """The start of the SHA-256 of its content."""


class SiteState(NamedTuple):
    """The states of one site in one run, in a folder."""

    folder: Path
    """Of this run; it is made when the first state is written."""
    modules: Collection[str]
    """Whose NamedTuples a state may hold, see :func:`fedtailor.core.codec.decode`."""

    def save(self, version: Version, state: Tree) -> None:
        """Write a state; when this returns, it survives a crash of the machine.

        Raises:
            RunError: the file cannot be written.
        """
        # The digest in the name tells a damaged file from a whole one.
        raw = encode(state, modules=self.modules)
        digest = hashlib.sha256(raw).hexdigest()[:16]
        name = f"round-{version.round:06d}-{version.attempt:02d}-{digest}.safetensors"
        make_folder(self.folder, mode=0o700)

        # The same round can be done again, with another result.
        older = [file.path for file in self._files() if file.version == version]
        write_whole(self.folder / name, raw)
        for path in older:
            if path.name != name:
                discard(path)

    def digest(self, version: Version) -> str:
        """Return the start of the SHA-256 of a state.

        Raises:
            DataError: it is not there.
        """
        return self._find(version).digest

    def load(self, version: Version) -> Tree:
        """Return a state with the bits that were saved.

        Raises:
            DataError: it is not there, or damaged.
        """
        file = self._find(version)
        raw = read_file(file.path, limit=_LARGEST, within=self.folder)
        if hashlib.sha256(raw).hexdigest()[:16] != file.digest:
            raise damaged(file.path, "its SHA-256 is not the one in its name")
        return decode(raw, modules=self.modules)

    def _find(self, version: Version) -> _StateFile:
        for file in self._files():
            if file.version == version:
                return file

        rounds = ", ".join(str(version.round) for version in self.versions()) or "none"
        message = (
            f"the server wants to continue from round {version.round}, and this site has the "
            f"states of rounds {rounds}. A new run ('fedtailor serve' in a new folder) begins "
            "again."
        )
        raise DataError(message, path=self.folder, allowed=rounds, got=version.round)

    def keep(self, versions: Iterable[Version | None]) -> None:
        """Remove all other states but the newest few, to which a server may go back."""
        remaining = {*versions, *self.versions()[-_SPARE:]}
        for file in self._files():
            if file.version not in remaining:
                discard(file.path)

    def versions(self) -> list[Version]:
        """Return the versions that are kept, the oldest first."""
        return sorted(file.version for file in self._files())

    def _files(self) -> list[_StateFile]:
        files = []
        paths = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for path in paths:
            match = _NAME.fullmatch(path.name)
            if match is not None:
                version = Version(int(match[1]), int(match[2]))
                files.append(_StateFile(path, version, match[3]))

        return files
