"""Partitions along the domains, writers or sites of a data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtailor.core.options import NonNegativeFloat, PositiveFloat, PositiveInt
from fedtailor.data.dataset import Annotations
from fedtailor.data.partitions.base import Partition, positions_by_value
from fedtailor.data.partitions.dirichlet import ShareRule, draw_shares
from fedtailor.data.partitions.slices import cut_points, give_blocks


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """One client per domain, writer or site, in their order.

    With fewer clients than domains only the first domains are used, as in pFedFDA's experiment with
    the first 1000 writers (McLaughlin and Su 2024, NeurIPS).
    """

    name = "natural"
    by_domain = True

    def default_clients(self, annotations: Annotations) -> int:
        """Return the number of domains with examples."""
        return len(_by_domain(self, annotations)[0])

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Return the examples of each of the first domains."""
        present, by_domain = _by_domain(self, annotations)
        if clients > len(present):
            allowed = f"at most {len(present)} clients, one for each domain (or site) with examples"
            got = f"{clients} clients (was the data of some moved?)"
            raise self.impossible(allowed, got)
        return by_domain[:clients]


@dataclass(frozen=True, kw_only=True)
class Domains(Partition):
    """Each domain is divided among its own ``per_domain`` clients, by class as in ``dirichlet``.

    Table 7 of pFedFDA (McLaughlin and Su 2024, NeurIPS): Digit-5, four clients for each of five
    domains. Clients are in the order of the domains.
    """

    name = "domains"
    by_domain = True

    per_domain: PositiveInt = 4
    """Clients of a domain."""
    alpha: PositiveFloat = 0.5
    """Concentration: the clients of a domain differ more for smaller values."""
    min_size: NonNegativeFloat = 10.0
    """Least number of examples of a client."""

    def default_clients(self, annotations: Annotations) -> int:
        """Return ``per_domain`` times the number of domains with examples."""
        return self.per_domain * len(_by_domain(self, annotations)[0])

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Divide one domain after the other, with one stream of random numbers."""
        present, by_domain = _by_domain(self, annotations)
        needed = self.per_domain * len(present)
        if clients != needed:
            allowed = f"{self.per_domain} x {len(present)} = {needed} clients"
            reason = "per_domain for each domain with examples"
            raise self.impossible(f"{allowed}, {reason}", str(clients))

        blocks = [self.per_domain] * len(present)
        self.check_sizes(by_domain, blocks, [f"domain {domain}" for domain in present])

        generator = np.random.RandomState(seed % 2**32)
        rule = ShareRule(self.per_domain, self.alpha, self.min_size)
        parts = []
        for domain, positions in zip(present, by_domain, strict=True):
            # Positions within the domain become positions in the data set.
            _, classes = positions_by_value(annotations.labels[positions])
            pools = [positions[rows] for rows in classes]
            parts += draw_shares(self, pools, rule, generator, f" of domain {domain}")

        return parts


@dataclass(frozen=True, kw_only=True)
class DomainLabels(Partition):
    """Every client has one random domain and ``k`` random labels of it.

    The feature skew of pFedVEM (Zhu et al. 2023, CVPR, appendix E.3): a data set is drawn for each
    client, five labels in it, and random examples of these. The paper does not state the number of
    examples. Inferred here: the examples of a label in a domain are cut at random places into one
    block per client that drew both, as in ``label_slices`` with separate cut points for each label.
    Labels that no client drew are not used.
    """

    name = "domain_labels"
    by_domain = True

    k: PositiveInt = 5
    """Labels of a client."""

    def draw(self, annotations: Annotations, clients: int, seed: int) -> list[np.ndarray]:
        """Draw a domain and labels for each client, then cut each label among its clients."""
        # The labels of each domain, and the positions of each within the domain.
        present, by_domain = _by_domain(self, annotations)
        cells = [positions_by_value(annotations.labels[positions]) for positions in by_domain]
        for domain, (labels, _) in zip(present, cells, strict=True):
            if len(labels) < self.k:
                allowed = f"at least {self.k} labels in every domain"
                raise self.impossible(allowed, f"{len(labels)} in domain {domain}")

        # The clients that draw a label, by index of the domain and of the label in it.
        generator = np.random.default_rng([seed])
        takers: dict[tuple[int, int], list[int]] = {}
        for client, domain in enumerate(generator.integers(len(present), size=clients).tolist()):
            for label in generator.choice(len(cells[domain][0]), self.k, replace=False).tolist():
                takers.setdefault((domain, label), []).append(client)

        # The examples of every such label, cut into one block for each of its clients.
        takers = dict(sorted(takers.items()))
        pools = []
        names = []
        for domain, label in takers:
            labels, of_label = cells[domain]
            pools.append(by_domain[domain][of_label[label]])
            names.append(f"class {labels[label]} in domain {present[domain]}")

        # Every label in a domain has its own cut points.
        blocks = list(map(len, takers.values()))
        self.check_sizes(pools, blocks, names)
        cuts = []
        for pool, count in zip(pools, blocks, strict=True):
            cuts.append(cut_points(len(pool), count, generator))

        return give_blocks(pools, cuts, list(takers.values()), clients, generator)


def _by_domain(
    partition: Partition, annotations: Annotations
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the domains with examples, and the positions of each."""
    if annotations.domains is None:
        raise partition.impossible("domains (writers or sites)", "a data set without them")
    return positions_by_value(annotations.domains)
