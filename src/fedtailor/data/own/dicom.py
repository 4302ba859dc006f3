"""DICOM files, which are recognized to say what is supported instead."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

ENDINGS = (".dcm", ".dicom")
SENTENCE = "DICOM is not supported: export the images as PNG or TIFF, one file per image."

_MARK = b"DICM"
_MARK_AT = 128
_MOST_OPENED = 1_000
_UID = re.compile(r"(\.\d+)?")
"""Endings of the usual names of DICOM files without ``.dcm``: none, or the last part of a unique
identifier."""


def is_dicom(raw: bytes) -> bool:
    """Return whether the content of a file, or its beginning, is DICOM."""
    return raw[_MARK_AT : _MARK_AT + len(_MARK)] == _MARK


def find_dicom(paths: Sequence[Path]) -> list[Path]:
    """Return the DICOM files among files of no supported kind; only the first thousand without an
    ending are opened.
    """
    named = [path for path in paths if path.suffix.lower() in ENDINGS]
    unnamed = [path for path in paths if _UID.fullmatch(path.suffix)]
    return named + [path for path in unnamed[:_MOST_OPENED] if is_dicom(beginning_of(path))]


def beginning_of(path: Path) -> bytes:
    """Return the beginning of a regular file; nothing if it cannot be read, which its reader
    reports.
    """
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(_MARK_AT + len(_MARK))
    return b""
