"""Checks of all sites together: missing classes and parts, and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fedtailor.data.own.findings import Finding, Findings, Site
from fedtailor.data.own.names import counted, listed, show

FEW = 20
"""Sites with fewer training examples get a warning."""


class _AllSites:
    """How many sites have examples of each class."""

    def __init__(self, sites: list[Site]) -> None:
        self.count = len(sites)
        self.train: Counter[str] = Counter()
        self.test: Counter[str] = Counter()
        self.any: Counter[str] = Counter()
        for site in sites:
            self.train.update(site.train.keys())
            self.test.update(site.test.keys())
            self.any.update(site.train.keys() | site.test.keys())


def cross_check(findings: Findings, class_names: Iterable[str] = ()) -> None:
    """Check ``findings.sites`` and add their problems.

    Args:
        findings: the sites to check; the problems are added to it.
        class_names: classes in addition to those of the sites' examples.
    """
    filled = [site for site in findings.sites if site.train or site.test]
    if not filled:
        return

    sites = _AllSites(filled)
    classes = sorted(sites.any)
    if len(classes) == 1:
        message = f"All examples are of class {show(classes[0])}; at least two classes are needed."
        findings.add("one_class", message)

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
    title = f"Site {show(site.name)}" if site.name else "The data"
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
        message = f"Only site {show(site.name)} has examples of {listed(alone)}."
        yield Finding("class_at_one_site", message)
