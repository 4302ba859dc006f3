"""The version of the records in a run folder. No torch.

Every version stays readable: ``tests/experiment/folders`` holds a folder of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.errors import DataError

SCHEMA_VERSION = 2
"""Of the folders that are written.

Version 1 had no number. Version 2 adds ``bins`` and ``confusion`` of every client and evaluation (``clients.jsonl``)
and of the complete test part (``rounds.jsonl``), ``best`` (``rounds.jsonl``) and ``selected`` (``result.json``).
"""


def schema_of(provenance: Mapping[str, Any], path: Path) -> int:
    """Return the version of the records in a folder, from its provenance.

    Raises:
        DataError: a newer fedtailor has made the folder, or the version is not a number.
    """
    version = provenance.get("schema", 1)
    if type(version) is not int or version < 1:
        raise DataError(f"'{path}' is damaged: the version of its records is {version!r:.40}.", path=str(path))
    if version > SCHEMA_VERSION:
        raise DataError(
            f"'{path}' was made by a newer fedtailor, version {version} of the records; this one reads up to "
            f"{SCHEMA_VERSION}.",
            path=str(path),
            allowed=SCHEMA_VERSION,
            got=version,
        )
    return version
