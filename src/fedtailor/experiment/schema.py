"""The version of the records in a run folder. No torch.

Every version stays readable: ``tests/experiment/folders`` holds a folder of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.errors import DataError

SCHEMA_VERSION = 3
"""Of the folders that are written.

Version 1 had no number. Version 2 adds ``bins`` and ``confusion`` of every client and evaluation
(``clients.jsonl``) and of the complete test part (``rounds.jsonl``), ``best`` (``rounds.jsonl``)
and ``selected`` (``result.json``). Version 3 gives two names that had two meanings each to one of
them: the training metrics of a method, ``metrics`` before, are ``training_metrics``, and the label
``clients`` of an evaluation (known or new) is ``group``. :func:`upgrade_round` and
:func:`upgrade_client` give older lines these names. Version 3 adds, after the last round,
``auroc``, ``auroc_by_class`` and ``score_bins`` (``clients.jsonl``) and the metric ``auroc`` of
evaluations (``rounds.jsonl``); ``mean_interval`` of metrics; and ``by_class`` and more about every
site (``result.json``).
"""


def schema_of(provenance: Mapping[str, Any], path: Path) -> int:
    """Return the version of the records in a folder, from its provenance.

    Raises:
        DataError: a newer fedtailor has made the folder, or the version is not a number.
    """
    version = provenance.get("schema", 1)
    if type(version) is not int or version < 1:
        raise DataError(
            f"'{path}' is damaged: the version of its records is {version!r:.40}.", path=str(path)
        )

    if version > SCHEMA_VERSION:
        raise DataError(
            f"'{path}' was made by a newer fedtailor, version {version} of the records; this one reads up to "
            f"{SCHEMA_VERSION}.",
            path=str(path),
            allowed=SCHEMA_VERSION,
            got=version,
        )

    return version


def upgrade_round(record: dict[str, Any]) -> dict[str, Any]:
    """Give a line of ``rounds.jsonl`` the names of the present version. Other values stay as they
    are.

    A run that an older version began and this one resumed holds lines of both.

    Example:
        >>> upgrade_round({"round": 1, "metrics": {"loss": 0.5}, "evaluations": [{"clients": "new", "metrics": {}}]})
        {'round': 1, 'training_metrics': {'loss': 0.5}, 'evaluations': [{'group': 'new', 'metrics': {}}]}
    """
    evaluations = record.get("evaluations")
    upgraded = _renamed(record, "metrics", "training_metrics")
    if isinstance(evaluations, list):
        upgraded["evaluations"] = [
            _renamed(each, "clients", "group") if isinstance(each, dict) else each
            for each in evaluations
        ]
    return upgraded


def upgrade_client(record: dict[str, Any]) -> dict[str, Any]:
    """Give a line of ``clients.jsonl`` the names of the present version.

    Example:
        >>> upgrade_client({"round": 1, "client": 4, "point": "training", "metrics": {"loss": 0.5}})
        {'round': 1, 'client': 4, 'point': 'training', 'training_metrics': {'loss': 0.5}}
    """
    if record.get("point") == "training":
        return _renamed(record, "metrics", "training_metrics")
    return _renamed(record, "clients", "group")


def _renamed(record: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return a record with another name for a value, in the same place; the new name is left as it
    is.
    """
    if new in record:
        return dict(record)
    return {new if name == old else name: value for name, value in record.items()}
