"""The folders of data sets and of decoded data."""

import os
from pathlib import Path


def data_folder(folder: str | Path = "") -> Path:
    """Return the argument, else ``FEDTAILOR_DATA``, else ``~/.cache/fedtailor``: the data sets."""
    chosen = str(folder) or os.environ.get("FEDTAILOR_DATA", "") or "~/.cache/fedtailor"
    return Path(chosen).expanduser()


def cache_folder() -> Path:
    """Return the folder of decoded data: ``FEDTAILOR_CACHE`` or ``~/.cache/fedtailor``."""
    return Path(os.environ.get("FEDTAILOR_CACHE", "") or "~/.cache/fedtailor").expanduser()
