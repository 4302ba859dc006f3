"""What only shows when all sites are seen together: classes and parts that are missing, and names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fedtailor.data.own.names import check_names, listed
from fedtailor.data.own.place import show
from fedtailor.data.own.report import Findings, Site

FEW = 10
"""Sites with fewer training examples are pointed out."""


def cross_check(findings: Findings, class_names: Sequence[str] = ()) -> None:
    """Look at ``findings.sites`` and add what is wrong with them.

    Args:
        findings: read, and added to.
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
        message = (
            f"All examples are of class {show(classes[0])}; there is nothing to learn with fewer than two classes."
        )
        findings.add("error", "one_class", "", "", message)
    unseen = [name for name in classes if not trained[name]]
    if unseen and trained:
        message = f"No site has training examples of {listed(unseen)}, only test examples: no model can know it."
        findings.add("warning", "class_in_test_only", "", "", message)
    if not trained:
        findings.add("error", "no_training", "", "", "All examples are for testing, none for training.")
        return
    if not tested and max(sum(site.train.values()) for site in sites) < 2:
        message = "No site has more than one example, which leaves none for training beside those for testing."
        findings.add("error", "no_training", "", "", message)
    for site in sites:
        _check_site(site, unseen, divided=bool(tested), several=len(classes) > 1, findings=findings)
    _check_spread(sites, findings)
    check_names("Site", [site.name for site in findings.sites if site.name], findings)
    check_names("Class", sorted({*classes, *class_names}), findings)


def _check_site(site: Site, unseen: Sequence[str], *, divided: bool, several: bool, findings: Findings) -> None:
    """Look at one site; ``divided``: some site has test examples; ``several``: there are several classes."""

    def add(severity: str, kind: str, message: str) -> None:
        where = f"Site {show(site.name)}" if site.name else "The data"
        findings.add("error" if severity == "error" else "warning", kind, site.name, "", f"{where} {message}")

    examples = sum(site.train.values())
    if not examples:
        add("warning", "no_training", "has test examples but none for training.")
        return
    if examples < FEW:
        add("warning", "few_examples", f"has {examples} training examples, fewer than {FEW}.")
    if divided and not site.test:
        add("warning", "no_test", "has no test examples, though others have: it is not scored on data of its own.")
    if several and len({*site.train, *site.test}) == 1:
        add("warning", "one_class_site", f"has examples of one class only, {show(next(iter(site.train)))}.")
    missing = [name for name in site.test if name not in site.train and name not in unseen]
    if missing:
        add("warning", "class_not_trained", f"has test examples of {listed(missing)}, but none for training.")


def _check_spread(sites: Sequence[Site], findings: Findings) -> None:
    """Warn of classes that one site alone has."""
    if len(sites) < 2:
        return
    at: Counter[str] = Counter()
    for site in sites:
        at.update({*site.train, *site.test})
    for site in sites:
        alone = sorted(name for name in {*site.train, *site.test} if at[name] == 1)
        if alone:
            message = f"Site {show(site.name)} alone has examples of {listed(alone)}."
            findings.add("warning", "class_at_one_site", site.name, "", message)
