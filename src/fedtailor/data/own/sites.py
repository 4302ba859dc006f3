"""Checks of all sites together: missing classes and parts, and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedtailor.data.own.findings import Findings, Place, Site
from fedtailor.data.own.names import show
from fedtailor.data.own.rules import ALL_SITES, NAMES, ONE_SITE, SIMILAR_NAMES


class Names(NamedTuple):
    """Names after :func:`fedtailor.data.own.names.safe_name`: the facts for ``rules.NAMES``."""

    what: str
    """What they are, as the beginning of a sentence."""
    names: Sequence[str]


class AllSites:
    """The sites with examples together: the facts for ``rules.ALL_SITES``."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.trained: Counter[str] = Counter()
        self.tested: Counter[str] = Counter()
        self.having: Counter[str] = Counter()
        for site in sites:
            self.trained.update(site.train)
            self.tested.update(site.test)
            self.having.update({*site.train, *site.test})

        self.classes: list[str] = sorted(self.having)
        self.untrained: list[str] = [name for name in self.classes if not self.trained[name]]
        self.largest: int = max(sum(site.train.values()) for site in sites)
        self.are_several = len(sites) > 1


@dataclass
class OneSite:
    """A site among all: the facts for ``rules.ONE_SITE``."""

    site: Site
    sites: AllSites

    @property
    def title(self) -> str:
        """What it is called in a message."""
        return f"Site {self.name}" if self.site.name else "The data"

    @property
    def name(self) -> str:
        """Its name in quotes."""
        return show(self.site.name)

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return sum(self.site.train.values())

    @property
    def classes(self) -> list[str]:
        """The classes that it has, sorted."""
        return sorted({*self.site.train, *self.site.test})

    @property
    def tested_only(self) -> list[str]:
        """Classes that it tests and does not train, but other sites do."""
        names = [name for name in self.site.test if name not in self.site.train]
        return [name for name in names if self.sites.trained[name]]

    @property
    def alone(self) -> list[str]:
        """Classes that no other site has, sorted."""
        names = [name for name in self.classes if self.sites.having[name] == 1]
        return names if self.sites.are_several else []


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
        findings.check([rule], sites)

    if not sites.trained:
        return

    for site in filled:
        Place(findings, site.name, "").check(ONE_SITE, OneSite(site, sites))

    site_names = [site.name for site in findings.sites if site.name]
    for name in site_names:
        Place(findings, name, "").check(NAMES, Names("Site", [name]))

    classes = Names("Class", sorted({*sites.classes, *class_names}))
    findings.check(NAMES, classes)
    findings.check(SIMILAR_NAMES, Names("Site names", site_names))
    findings.check(SIMILAR_NAMES, classes._replace(what="Class names"))
