"""Checks of all sites together: missing classes and parts, and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedtailor.data.own.findings import Findings, Site, counted, show
from fedtailor.data.own.names import check_names, listed

FEW = 10
"""Sites with fewer training examples get a warning."""


def cross_check(findings: Findings, class_names: Sequence[str] = ()) -> None:
    """Check ``findings.sites`` and add their problems.

    Args:
        findings: the sites to check; the problems are added to it.
        class_names: classes in addition to those of the sites' examples.
    """
    sites = [site for site in findings.sites if site.train or site.test]
    if not sites:
        return

    trained: Counter[str] = Counter()
    tested: Counter[str] = Counter()
    for site in sites:
        trained.update(site.train)
        tested.update(site.test)

    classes = sorted({*trained, *tested})
    if len(classes) < 2:
        message = f"All examples are of class {show(classes[0])}; at least two classes are needed."
        findings.add("error", "one_class", "", "", message)

    unseen = [name for name in classes if not trained[name]]
    if unseen and trained:
        message = f"No site has training examples of {listed(unseen)}, only test examples: no model can learn it."
        findings.add("warning", "class_in_test_only", "", "", message)

    if not trained:
        findings.add(
            "error", "no_training", "", "", "All examples are for testing, none are for training."
        )
        return

    if not tested and max(sum(site.train.values()) for site in sites) < 2:
        message = (
            "No site has more than one example, which is too few for both training and testing."
        )
        findings.add("error", "no_training", "", "", message)

    for site in sites:
        _check_site(site, unseen, divided=bool(tested), several=len(classes) > 1, findings=findings)

    _check_spread(sites, findings)
    check_names("Site", [site.name for site in findings.sites if site.name], findings)
    check_names("Class", sorted({*classes, *class_names}), findings)


def _check_site(
    site: Site, unseen: Sequence[str], *, divided: bool, several: bool, findings: Findings
) -> None:
    """Check one site; ``divided``: some site has test examples; ``several``: there are several
    classes.
    """

    def add(severity: str, kind: str, message: str) -> None:
        where = f"Site {show(site.name)}" if site.name else "The data"
        findings.add(
            "error" if severity == "error" else "warning", kind, site.name, "", f"{where} {message}"
        )

    examples = sum(site.train.values())
    if not examples:
        add("warning", "no_training", "has test examples but no training examples.")
        return

    if examples < FEW:
        add(
            "warning",
            "few_examples",
            f"has {counted(examples, 'training example')}, fewer than {FEW}.",
        )

    if divided and not site.test:
        message = "has no test examples, although other sites have some: it is not scored on its own data."
        add("warning", "no_test", message)

    if several and len({*site.train, *site.test}) == 1:
        add(
            "warning",
            "one_class_site",
            f"has examples of only one class, {show(next(iter(site.train)))}.",
        )

    missing = [name for name in site.test if name not in site.train and name not in unseen]
    if missing:
        add(
            "warning",
            "class_not_trained",
            f"has test examples of {listed(missing)}, but no training examples.",
        )


def _check_spread(sites: Sequence[Site], findings: Findings) -> None:
    """Warn of classes that only one site has."""
    if len(sites) < 2:
        return

    at: Counter[str] = Counter()
    for site in sites:
        at.update({*site.train, *site.test})

    for site in sites:
        alone = sorted(name for name in {*site.train, *site.test} if at[name] == 1)
        if alone:
            message = f"Only site {show(site.name)} has examples of {listed(alone)}."
            findings.add("warning", "class_at_one_site", site.name, "", message)
