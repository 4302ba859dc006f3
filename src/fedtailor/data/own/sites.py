"""Checks of all sites together: missing classes and parts, and names."""

from __future__ import annotations

from collections.abc import Iterable

from fedtailor.data.own.facts import AllSites, Names, OneSite
from fedtailor.data.own.findings import Findings, Place
from fedtailor.data.own.rules import ALL_SITES, NAMES, ONE_SITE, SIMILAR_NAMES, check


def cross_check(findings: Findings, class_names: Iterable[str] = ()) -> None:
    """Check ``findings.sites`` and add their problems.

    Args:
        findings: the sites to check; the problems are added to it.
        class_names: classes in addition to those of the sites' examples.
    """
    filled = [site for site in findings.sites if site.train or site.test]
    if not filled:
        return

    sites = AllSites(filled)
    for rule in ALL_SITES:
        check([rule], sites, findings.place)

    if not sites.trained:
        return

    for site in filled:
        check(ONE_SITE, OneSite(site, sites), Place(findings, site.name, ""))

    site_names = [site.name for site in findings.sites if site.name]
    for name in site_names:
        check(NAMES, Names("Site", [name]), Place(findings, name, ""))

    classes = Names("Class", sorted({*sites.classes, *class_names}))
    check(NAMES, classes, findings.place)
    check(SIMILAR_NAMES, Names("Site names", site_names), findings.place)
    check(SIMILAR_NAMES, classes._replace(what="Class names"), findings.place)
