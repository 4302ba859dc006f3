"""Algorithms that show how far the interface reaches, written as a user would write them; tests only."""

from probes.fedpac import FedPAC
from probes.fedrep import FedRep
from probes.scaffold import Scaffold

PROBES = {"fedpac": FedPAC, "fedrep": FedRep, "scaffold": Scaffold}

__all__ = ["PROBES", "FedPAC", "FedRep", "Scaffold"]
