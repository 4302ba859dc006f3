"""Partitions, which divide examples among clients, by name.

A module of this package is imported when one of its partitions is used, so that listing is
immediate.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from fedtailor.data.partitions.base import Partition


class PartitionEntry(NamedTuple):
    """A row of the table of partitions."""

    target: str
    """``module:class`` within this package."""
    description: str

    def load(self) -> type[Partition]:
        """Import the module and return the class."""
        module, name = self.target.split(":")
        partition = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return cast("type[Partition]", partition)


PARTITIONS: Mapping[str, PartitionEntry] = {
    "classes": PartitionEntry(
        "classes:Classes",
        "every client holds k classes, each class shared evenly: classes(k=2)",
    ),
    "cyclic_classes": PartitionEntry(
        "classes:CyclicClasses",
        "client i holds classes i to i+k-1, equal sizes (FedCR): cyclic_classes(k=5)",
    ),
    "dirichlet": PartitionEntry(
        "dirichlet:Dirichlet",
        "shares of each class drawn from a Dirichlet: dirichlet(alpha=0.5, min_size=10)",
    ),
    "dirichlet_quota": PartitionEntry(
        "dirichlet:DirichletQuota",
        "every client has `quota` examples, whose classes are drawn from a Dirichlet (FedLDA): "
        "dirichlet_quota(alpha=0.5, quota=500)",
    ),
    "domain_labels": PartitionEntry(
        "domains:DomainLabels",
        "every client has one domain and k of its labels (pFedVEM): domain_labels(k=5)",
    ),
    "domains": PartitionEntry(
        "domains:Domains",
        "clients within every domain, divided by a Dirichlet: domains(per_domain=4, alpha=0.5)",
    ),
    "iid": PartitionEntry("dirichlet:Iid", "equal parts of all examples at random: iid"),
    "label_slices": PartitionEntry(
        "slices:LabelSlices",
        "every client has k labels, each label cut at random places (pFedVEM): label_slices(k=5); "
        "as released (bug): labels share their cut points, unless shared_cuts=false",
    ),
    "natural": PartitionEntry(
        "domains:Natural", "one client per writer, site or domain of the data: natural"
    ),
    "subclass_slices": PartitionEntry(
        "slices:SubclassSlices",
        "every client has one subclass of every label, cut at random places (pFedVEM): "
        "subclass_slices; as released (bug): see label_slices",
    ),
}
"""Partitions by name."""
