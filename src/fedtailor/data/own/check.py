"""The check of a user's data that ``fedtailor data check`` prints."""

from __future__ import annotations

from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import read_own
from fedtailor.data.own.report import OwnData


def check(path: str, options: DataOptions) -> OwnData:
    """Read everything and look at all of it: what :func:`fedtailor.data.own.read.load_own` takes passes, and only that.

    The cache is not used. Problems of files, of sites and of names are all in the findings; the data set is None where
    one of them is an error. See ``docs/own-data.md`` for every kind of problem.

    Example:
        >>> check("missing", DataOptions()).findings.errors[0].kind
        'not_found'
    """
    return read_own(path, options)
