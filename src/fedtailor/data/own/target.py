"""Own data as the return value of a user's function: ``package.module:function``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtailor.core.errors import DataError, calling
from fedtailor.core.targets import find_target
from fedtailor.core.text import escaped, quoted
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.options import DataOptions
from fedtailor.data.own.arrays import Part, SiteArrays, check_options, combine_arrays, warn_if_dark
from fedtailor.data.own.examples import Examples, check_groups
from fedtailor.data.own.findings import FindingPlace, Findings

_RETURNS = (
    "a Dataset, or a mapping from site to (x, y) or to ((x_train, y_train), (x_test, y_test))"
)


def read_target(name: str, options: DataOptions, findings: Findings) -> Dataset | None:
    """Call the user's function without arguments, and read the arrays that it returns.

    It returns a :class:`Dataset`, which is used as it is, or a mapping from the name or number of
    each site to ``(x, y)`` or to ``((x_train, y_train), (x_test, y_test))``. These are arrays, or
    values that NumPy converts to arrays, with the shapes and values that
    :func:`fedtailor.data.own.arrays.read_npz_sites` accepts.

    Args:
        name: ``package.module:function``; the module is in an installed package or the current
            folder.
        options: ``kind`` says what arrays hold; options for image files give a warning.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None after an error.

    Raises:
        ConfigError: the module cannot be imported, or has no such function.
        DataError: the function raised an exception, which is chained, or ended the program.
    """
    function = find_target(name, what="data", key="data.path")
    with calling(f"{name}()", key="data.path", got=name, allowed=_RETURNS, kind=DataError):
        returned = function()

    if isinstance(returned, Dataset):
        _check_dataset(returned, name, findings)
        if returned.groups is None:
            check_options(options, findings)

        return returned if check_groups(returned, findings) else None

    sites = _read_sites(returned, name, findings)
    if sites is None:
        return None

    parts = []
    for site, value in sites.items():
        parts += _read_parts(FindingPlace(findings, site, name), value)

    return combine_arrays(name, list(sites), parts, (), options, findings, sources={})


def _check_dataset(dataset: Dataset, name: str, findings: Findings) -> None:
    """Add the numbers of examples of a data set that is used as it is, and warnings."""
    class_names = dataset.names
    rows = np.arange(len(dataset.y))
    examples = Examples(
        x=dataset.x,
        y=dataset.y,
        site=np.zeros_like(rows) if dataset.domains is None else dataset.domains,
        is_test=rows >= dataset.num_official_train,
    )
    findings.sites.extend(examples.count_sites(dataset.domain_names or ("",), class_names))
    for note in dataset.notes:
        findings.note(note)

    examples.report_duplicates([(name, range(len(rows)))], findings)
    # Other scales are the user's own choice.
    has_usual_scale = dataset.white in (255, 65535) and dataset.normalize == Normalization()
    if dataset.kind == "images" and has_usual_scale:
        warn_if_dark(float(dataset.x.max()), dataset.white, findings)


def _read_sites(returned: Any, name: str, findings: Findings) -> dict[str, Any] | None:
    """Return the value of each site; None, with the problem added, if it is not a mapping."""
    if not isinstance(returned, Mapping):
        _refuse(FindingPlace(findings, "", name), returned)
        return None

    sites: dict[str, Any] = {}
    for key, value in returned.items():
        is_name = isinstance(key, str | int | np.integer) and not isinstance(key, bool)
        if not is_name or not str(key).strip():
            got = f"{quoted(key)} of type {type(key).__name__}"
            message = f"{name}() must return a mapping from names or numbers of sites, got {got}."
            findings.add("wrong_return", message, path=name)
            continue

        site = escaped(str(key))
        if site in sites:
            message = f"{name}() returned two sites with the same printed name {quoted(site)}."
            findings.add("duplicate_site", message, site=site, path=name)

        sites[site] = value

    return sites


def _read_parts(place: FindingPlace, value: Any) -> list[SiteArrays]:
    """Return the parts of a site; none, with the problem added, if they are wrong."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        _refuse(place, value)
        return []

    # Two pairs are training and test; anything else is one pair.
    if all(isinstance(part, tuple) and len(part) == 2 for part in value):
        parts = [_read_part(place, "train", value[0]), _read_part(place, "test", value[1])]
    else:
        parts = [_read_part(place, "train", value)]

    return [part for part in parts if part is not None]


def _read_part(place: FindingPlace, part: Part, pair: Any) -> SiteArrays | None:
    """Return x and y as arrays, or None with the problem added."""
    what = f"{place.path}() returned for site {quoted(place.site)}"
    try:
        first, second = pair
        x = np.asarray(first)
        y = np.asarray(second)
    except Exception as error:  # a user's array-like may raise anything
        message = f"{what} a value that is not an array: {error}".rstrip(".")
        place.add("wrong_return", f"{message}.")
        return None

    return SiteArrays(place, part, x, y)


def _refuse(place: FindingPlace, got: Any) -> None:
    """Add the problem of a wrong return value."""
    where = f" for site {quoted(place.site)}" if place.site else ""
    length = f" of length {len(got)}" if isinstance(got, tuple | list) else ""
    message = f"{place.path}() must return {_RETURNS}; it returned{where} {_type_of(got)}{length}."
    place.add("wrong_return", message)


def _type_of(value: Any) -> str:
    return "nothing (None)" if value is None else type(value).__qualname__
