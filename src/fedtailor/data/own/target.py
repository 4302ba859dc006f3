"""Own data as the return value of a user's function: ``package.module:function``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fedtailor.core.errors import DataError, FedtailorError
from fedtailor.core.targets import find_target
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.options import DataOptions
from fedtailor.data.own.assemble import combine_blocks, refuse_groups
from fedtailor.data.own.blocks import Block
from fedtailor.data.own.duplicates import Rows, report_duplicate_rows
from fedtailor.data.own.findings import MAX_SITES, Findings, Place, Site, show
from fedtailor.data.own.groups import check_groups
from fedtailor.data.own.names import safe_name
from fedtailor.data.own.scale import warn_if_dark

RETURNS = "a Dataset, or a mapping from site to (x, y) or to ((x_train, y_train), (x_test, y_test))"


def read_target(name: str, options: DataOptions, findings: Findings) -> Dataset | None:
    """Call the user's function without arguments, and read the arrays that it returns.

    It returns a :class:`Dataset`, which is used as it is, or a mapping from the name of each site
    to ``(x, y)`` or to ``((x_train, y_train), (x_test, y_test))``. These are arrays, or values that
    NumPy converts to arrays, with the shapes and values that
    :func:`fedtailor.data.own.arrays.read_npz_sites` accepts.

    Args:
        name: ``package.module:function``; the module is in an installed package or the current
            folder.
        options: none changes the result; options for image files give a warning.
        findings: problems, sites and notes are added to it.

    Returns:
        The data set, or None after an error.

    Raises:
        ConfigError: the module cannot be imported, or has no such function.
        DataError: the function raised an exception, which is chained, or ended the program.
    """
    returned = _call(name)
    if isinstance(returned, Dataset):
        findings.sites.extend(_describe(returned))
        findings.notes.extend(returned.notes)
        _add_warnings(returned, name, findings)
        if returned.groups is None:
            refuse_groups(options, findings)

        return returned if check_groups(returned, findings) else None

    sites = _sites(returned, name, findings)
    if sites is None:
        return None

    blocks = []
    for site, value in sites.items():
        blocks += _blocks(Place(findings, site, name), value)

    return combine_blocks(name, list(sites), blocks, (), options, findings, sources={})


def _sites(returned: Any, name: str, findings: Findings) -> dict[str, Any] | None:
    """Return the value of each site with a name; None, with the problem added, if the function
    returned no mapping.
    """
    if not isinstance(returned, Mapping):
        _refuse(findings, name, "", returned)
        return None

    if len(returned) > MAX_SITES:
        message = f"{name}() returned {len(returned)} sites; at most {MAX_SITES} are read."
        findings.add("error", "too_many_sites", "", name, message)
        return None

    sites: dict[str, Any] = {}
    for site, value in returned.items():
        if isinstance(site, str) and site:
            if safe_name(site) in sites:
                message = f"{name}() returned two sites with the same printed name {show(safe_name(site))}."
                findings.add("error", "duplicate_site", safe_name(site), name, message)

            sites[safe_name(site)] = value
        else:
            message = f"{name}() must return a mapping from names of sites, got {show(site)} of type {_kind(site)}."
            findings.add("error", "wrong_return", "", name, message)

    return sites


def _call(name: str) -> Any:
    """Return the value of the function."""
    try:
        return find_target(name, what="data", key="data.path")()
    except FedtailorError:
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # a user's function may raise anything, and so may its module
        message = f"the call {name}() raised {type(error).__name__}: {error}"
        raise DataError(
            f"{message.rstrip('.')}.", key="data.path", allowed=RETURNS, got=name
        ) from error


def _blocks(place: Place, value: Any) -> list[Block]:
    """Return the one or two parts of a site; none, with the problem added, if they are not pairs of
    arrays.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        _refuse(place.findings, place.path, place.site, value)
        return []
    if all(isinstance(part, tuple) and len(part) == 2 for part in value):
        found = [_block(place, "train", value[0]), _block(place, "test", value[1])]
    else:
        found = [_block(place, "train", value)]
    return [block for block in found if block is not None]


def _block(place: Place, part: Literal["train", "test"], pair: Any) -> Block | None:
    """Return x and y as arrays, or None with the problem added."""
    try:
        first, second = pair
        x = np.asarray(first)
        y = np.asarray(second)
    except Exception as error:  # a user's array-like may raise anything
        message = f"{place.path}() returned for site {show(place.site)} a value that is not an array: {error}"
        place.error("wrong_return", f"{message.rstrip('.')}.")
        return None

    if x.dtype.hasobject or y.dtype.hasobject:
        message = f"{place.path}() returned for site {show(place.site)} an array of Python objects, not of numbers."
        place.error("object_array", message)
        return None

    return Block(place, part, x, y)


def _refuse(findings: Findings, name: str, site: str, got: Any) -> None:
    """Add the problem of a wrong return value."""
    where = f" for site {show(site)}" if site else ""
    length = f" of length {len(got)}" if isinstance(got, tuple | list) else ""
    message = f"{name}() must return {RETURNS}; it returned{where} {_kind(got)}{length}."
    findings.add("error", "wrong_return", site, name, message)


def _kind(value: Any) -> str:
    return "nothing (None)" if value is None else type(value).__qualname__


def _add_warnings(dataset: Dataset, name: str, findings: Findings) -> None:
    """Add warnings about a data set that is used as it is."""
    count = len(dataset.y)
    sites = dataset.domains if dataset.domains is not None else np.zeros(count, dtype=np.int64)
    is_test = np.arange(count) >= dataset.num_official_train
    report_duplicate_rows(
        [Rows(name, range(count), dataset.x, dataset.y, sites, is_test)], findings
    )

    if (
        dataset.x.ndim == 4
        and dataset.white in (255, 65535)
        and dataset.normalize == Normalization()
    ):
        warn_if_dark(float(dataset.x.max()), dataset.white, findings)


def _describe(dataset: Dataset) -> list[Site]:
    """Return the number of examples by class name of each domain, or of all examples if there are
    no domains.
    """
    names = dataset.class_names or tuple(str(label) for label in range(dataset.num_classes))
    domains = (
        dataset.domains if dataset.domains is not None else np.zeros(len(dataset.y), dtype=np.int64)
    )
    sites = [Site(name) for name in dataset.domain_names or ("",)]
    is_test = np.arange(len(dataset.y)) >= dataset.num_official_train
    cells, counts = np.unique(np.stack([is_test, domains, dataset.y]), axis=1, return_counts=True)

    for (tested, domain, label), count in zip(cells.T, counts, strict=True):
        part = sites[domain].test if tested else sites[domain].train
        part[names[label]] = int(count)

    return sites
