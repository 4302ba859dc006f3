"""Checks of all sites together: classes, parts and names; units and codes of one column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from fedtailor.core.errors import joined
from fedtailor.core.text import counted, listed, quoted
from fedtailor.data.own.findings import Finding, Findings, Site
from fedtailor.data.own.patterns import missing_value_text
from fedtailor.data.own.units import FEWEST, find_units

FEW = 20
"""Sites with fewer training examples get a warning."""


class _AllSites:
    """The classes of all sites."""

    def __init__(self, sites: list[Site]) -> None:
        self.count = len(sites)
        self.train = {name for site in sites for name in site.train}
        self.test = {name for site in sites for name in site.test}
        self.any = Counter(name for site in sites for name in {*site.train, *site.test})
        """How many sites have examples of a class."""


def cross_check(
    findings: Findings, class_names: Iterable[str] = (), *, needs_two_classes: bool = True
) -> None:
    """Check ``findings.sites`` and add their problems.

    Args:
        findings: the sites to check; the problems are added to it.
        class_names: classes in addition to those of the sites' examples.
        needs_two_classes: there are no other sites, which may have more.
    """
    filled = [site for site in findings.sites if site.train or site.test]
    if not filled:
        return

    sites = _AllSites(filled)
    classes = sorted(sites.any)
    if len(classes) == 1:
        message = f"All examples are of class {quoted(classes[0])}"
        if needs_two_classes:
            findings.add("one_class", f"{message}; at least two classes are needed.")
        else:
            meaning = "a model that follows the site's shares of classes will hardly find others"
            findings.add("one_class_site", f"{message}: {meaning}.")

    if not sites.train:
        findings.add("no_training", "All examples are for testing, none are for training.")
        return

    # From here on, some site can be trained.
    untrained = [name for name in classes if name not in sites.train]
    if untrained:
        message = f"No site has training examples of {listed(untrained)}, only test examples: "
        findings.add("class_in_test_only", f"{message}no model can learn it.")

    if not sites.test and max(sum(site.train.values()) for site in filled) < 2:
        message = "No site has more than one example, which is too few for both training and"
        findings.add("no_training", f"{message} testing.")

    for site in filled:
        for kind, message, _ in _check_site(site, sites):
            findings.add(kind, message, site=site.name, severity="warning")

    # Names are used as they are, so that results can be found by them; outputs escape them.
    site_names = [site.name for site in findings.sites if site.name]
    findings.warn_of_similar_names("Site names", site_names)
    findings.warn_of_similar_names("Class names", sorted({*classes, *class_names}))


def _check_site(site: Site, sites: _AllSites) -> Iterator[Finding]:
    """Yield what is unusual about a site among all."""
    title = f"Site {quoted(site.name)}" if site.name else "The data"
    classes = sorted({*site.train, *site.test})
    examples = sum(site.train.values())
    if not examples:
        yield Finding("no_training", f"{title} has test examples but no training examples.")
    else:
        if examples < FEW:
            number = counted(examples, "training example")
            message = (
                f"{title} has {number}, fewer than {FEW}: its scores say nothing by themselves."
            )
            yield Finding("few_examples", message)

        if sites.test and not site.test:
            message = f"{title} has no test examples, although other sites have some: it is not "
            yield Finding("no_test", f"{message}scored on its own data.")

        if len(classes) == 1 < len(sites.any):
            message = f"{title} has examples of only one class, {listed(classes)}."
            yield Finding("one_class_site", message)

        # Classes that no site trains are a problem of the data, not of this site.
        tested = [name for name in site.test if name not in site.train and name in sites.train]
        if tested:
            message = f"{title} has test examples of {listed(tested)}, but no training examples."
            yield Finding("class_not_trained", message)

    alone = [name for name in classes if sites.any[name] == 1]
    if alone and sites.count > 1:
        message = f"Only site {quoted(site.name)} has examples of {listed(alone)}."
        yield Finding("class_at_one_site", message)


_NINES = [int(digit * count) for digit in "789" for count in range(1, 6)]
_CODES = frozenset([0, -1, *_NINES, *(-number for number in _NINES)])
"""Numbers that are written for a missing value: 0, -9, 99, 999 and the like."""

_SHARE = 0.05
"""A value that means missing fills at least this share of a site's cells."""
_ELSEWHERE = 0.01
"""A zero that means missing at one site has at most this share at some other."""


def compare_sites(name: str, values: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    """Yield what is unlike between sites in a column of numbers.

    Args:
        name: of the column.
        values: of each site (rows,), NaN for an empty cell.
    """
    filled = {site: cells[~np.isnan(cells)] for site, cells in values.items()}
    empty = [site for site, cells in filled.items() if not len(cells) and len(values[site])]
    if empty and len(empty) < len(filled):
        message = (
            f"Column {quoted(name)} has no value at {listed(empty)}: other sites' medians fill it."
        )
        yield Finding("empty_at_site", message)

    for code in _possible_codes(filled):
        sites = _find_code(code, filled)
        if not sites:
            continue

        counts = joined(f"{quoted(site)} {count}" for site, count in sites.items())
        option = missing_value_text(name, f"{code:g}")
        message = (
            f"Column {quoted(name)} has many cells of {code:g}, far from all other values: "
            f"{counts}. If it means that nothing was measured: {option}."
        )
        yield Finding("value_means_missing", message)
        # A value that means missing must not hide another unit, or look like one.
        filled = {site: cells[cells != code] for site, cells in filled.items()}

    yield from find_units(name, filled)


def _possible_codes(filled: Mapping[str, np.ndarray]) -> list[float]:
    """Return the numbers for a missing value that are the smallest or largest one of a site."""
    ends: set[float] = set()
    for cells in filled.values():
        if len(cells):
            ends |= {float(cells.min()), float(cells.max())}

    return sorted(ends & _CODES)


def _find_code(code: float, filled: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return in how many cells of which sites a number seems to mean missing.

    It is far from all other values of these sites, by more than the distance of their quartiles.
    Others may have another unit. A zero is often a measurement, so at some site there must be
    hardly any.
    """
    counts = {site: int((cells == code).sum()) for site, cells in filled.items() if len(cells)}
    sites = {
        site: count
        for site, count in counts.items()
        if count >= 3 and count >= _SHARE * len(filled[site])
    }
    if not sites:
        return {}

    if code == 0 and all(counts[site] > _ELSEWHERE * len(filled[site]) for site in counts):
        return {}

    others = np.concatenate([filled[site][filled[site] != code] for site in sites])
    if len(np.unique(others)) < FEWEST:
        # At a site with nothing but the code, the other sites say what is usual.
        others = np.concatenate([cells[cells != code] for cells in filled.values()])
    if len(np.unique(others)) < FEWEST:
        return {}

    low, high = np.quantile(others, [0.25, 0.75])
    return sites if np.abs(others - code).min() > high - low else {}
