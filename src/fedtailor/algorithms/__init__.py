"""Algorithms: one module for each, and the table of their names. Listing them imports no torch."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtailor.core.errors import ConfigError, find_name

if TYPE_CHECKING:
    from fedtailor.core.algorithm import Algorithm


class Entry(NamedTuple):
    """A line of the table."""

    class_name: str
    """In the module of the method's name."""
    paper: str
    """Authors and year."""
    summary: str
    """What the method does, in a line."""


ALGORITHMS = {
    "apfl": Entry(
        "APFL",
        "Deng et al. 2020",
        "every client predicts with a mixture of a model of its own and the global one",
    ),
    "ditto": Entry(
        "Ditto",
        "Li et al. 2021",
        "FedAvg, plus a model for every client that is kept close to the global one",
    ),
    "fed3r": Entry(
        "Fed3R",
        "Fani et al. 2024",
        "one exchange: ridge regression on the features of a frozen body",
    ),
    "fedala": Entry(
        "FedALA",
        "Zhang et al. 2023",
        "before training, clients mix the global model into their last layers by learned weights",
    ),
    "fedavg": Entry(
        "FedAvg",
        "McMahan et al. 2017",
        "one global model, the mean of the clients'",
    ),
    "fedavg_ft": Entry(
        "FedAvgFT",
        "McMahan et al. 2017",
        "FedAvg, and every client fine-tunes a copy of the final model",
    ),
    "fedbabu": Entry(
        "FedBABU",
        "Oh et al. 2022",
        "shared body under a fixed random head, which every client tunes in the end",
    ),
    "fedbn": Entry(
        "FedBN",
        "Li et al. 2021",
        "FedAvg, but every client keeps its own normalization layers",
    ),
    "fedcgs": Entry(
        "FedCGS",
        "Guan et al. 2025",
        "one exchange: Gaussian heads on the features of a frozen body",
    ),
    "fedcof": Entry(
        "FedCOF",
        "Goswami et al. 2025",
        "one exchange of class means, whose scatter over clients gives covariances",
    ),
    "fedcr": Entry(
        "FedCR",
        "Zhang et al. 2023",
        "shared body with Gaussian features aligned by class, personal heads",
    ),
    "feddyn": Entry(
        "FedDyn",
        "Acar et al. 2021",
        "one global model, found with regularizers that remember every client's gradient",
    ),
    "fedem": Entry(
        "FedEM",
        "Marfoq et al. 2021",
        "a few shared models, which every client mixes with weights of its own",
    ),
    "fedfomo": Entry(
        "FedFomo",
        "Zhang et al. 2021",
        "every client mixes models of other clients that lower its validation loss",
    ),
    "fedlda": Entry(
        "FedLDA",
        "McLaughlin and Su 2023",
        "shared body and Gaussian classifier, a class prior per client",
    ),
    "fedncm": Entry(
        "FedNCM",
        "Legate et al. 2023",
        "one exchange: the nearest class mean on the features of a frozen body",
    ),
    "fednova": Entry(
        "FedNova",
        "Wang et al. 2020",
        "one global model; clients that take more steps do not count more for it",
    ),
    "fedpac": Entry(
        "FedPAC",
        "Xu et al. 2023",
        "shared body with features aligned by class, a new combination of heads for every client",
    ),
    "fedper": Entry(
        "FedPer",
        "Arivazhagan et al. 2019",
        "shared body, personal heads, trained together",
    ),
    "fedproto": Entry(
        "FedProto",
        "Tan et al. 2022",
        "personal models of any kind, whose features share global class means",
    ),
    "fedprox": Entry(
        "FedProx",
        "Li et al. 2020",
        "FedAvg with local models held near the received one",
    ),
    "fedrep": Entry(
        "FedRep",
        "Collins et al. 2021",
        "shared body, personal heads, trained one after the other",
    ),
    "fedrod": Entry(
        "FedRoD",
        "Chen and Chao 2022",
        "shared body and generic head for balanced classes, plus a personal head",
    ),
    "fedsr": Entry(
        "FedSR",
        "Nguyen et al. 2022",
        "FedAvg with simple Gaussian features; heads can be tuned (FedSR-FT)",
    ),
    "ifca": Entry(
        "IFCA",
        "Ghosh et al. 2020",
        "a model per cluster of clients, who choose by training loss",
    ),
    "knn_per": Entry(
        "KNNPer",
        "Marfoq et al. 2022",
        "FedAvg, mixed with the labels of a client's nearest training examples",
    ),
    "lg_fedavg": Entry(
        "LGFedAvg",
        "Liang et al. 2020",
        "shared upper layers, personal lower ones",
    ),
    "local": Entry("Local", "", "every client trains alone; nothing is sent"),
    "moon": Entry(
        "Moon",
        "Li et al. 2021",
        "FedAvg with features pulled to the global model's and away from the client's last ones",
    ),
    "mr_mtl": Entry(
        "MRMTL",
        "Liu et al. 2022",
        "a model for every client, held near the mean of all of them",
    ),
    "one_shot_fda": Entry(
        "OneShotFDA",
        "",
        "two exchanges: pooled Gaussians of frozen features, a prior and an offset per client",
    ),
    "perfedavg": Entry(
        "PerFedAvg",
        "Fallah et al. 2020",
        "a global model made to be adapted by one gradient step (meta-learning)",
    ),
    "pfedbayes": Entry(
        "PFedBayes",
        "Zhang et al. 2022",
        "a Gaussian over every weight of a client's model, near a global Gaussian",
    ),
    "pfedfda": Entry(
        "PFedFDA",
        "McLaughlin and Su 2024",
        "shared body, a Gaussian classifier per client, blended with the global one",
    ),
    "pfedgp": Entry(
        "PFedGP",
        "Achituve et al. 2021",
        "shared body under Gaussian process classifiers of each client's own examples",
    ),
    "pfedhn": Entry(
        "PFedHN",
        "Shamsian et al. 2021",
        "a network at the server makes every client's model from a few numbers of the client",
    ),
    "pfedme": Entry(
        "PFedMe",
        "Dinh et al. 2020",
        "a global model made to be near the clients' models, which minimize loss plus distance",
    ),
    "pfedvem": Entry(
        "PFedVEM",
        "Zhu et al. 2023",
        "shared body, Gaussian heads around a latent global one, weighted by confidence",
    ),
    "scaffold": Entry(
        "Scaffold",
        "Karimireddy et al. 2020",
        "one global model, from local steps corrected by control variates",
    ),
}
"""Name -> where the algorithm is, and what a list says of it; in alphabetical order."""


def load_algorithm(name: str) -> type[Algorithm[Any, Any, Any]]:
    """Return the class of an algorithm: a name of the table, or a user's ``package.module:Class``.

    Raises:
        ConfigError: the name is unknown, the module cannot be imported, or the class is no
            algorithm that can be run.
    """
    cls: type[Algorithm[Any, Any, Any]]
    if ":" not in name:
        name = find_name("algorithm", name, ALGORITHMS, key="algorithm.name")
        cls = pkgutil.resolve_name(f"fedtailor.algorithms.{name}:{ALGORITHMS[name].class_name}")
        return cls

    from fedtailor.core.targets import find_target

    cls = find_target(name, what="algorithm", key="algorithm.name")
    problem = problem_with(cls)
    if problem:
        message = f"algorithm '{name}' {problem.rstrip('.')}."
        raise ConfigError(message, key="algorithm.name", got=name)
    return cls


def problem_with(cls: Any) -> str:
    """Return why something is not the class of an algorithm that can run, or an empty string."""
    from fedtailor.core.algorithm import Algorithm

    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        return "is not a subclass of fedtailor.toolkit.Algorithm"

    if inspect.isabstract(cls):
        return f"lacks {', '.join(sorted(cls.__abstractmethods__))}"

    # Options are fields of frozen dataclasses; their names are keys of the section [algorithm].
    for base in cls.__mro__:
        if base is Algorithm or not issubclass(base, Algorithm):
            continue

        hints = inspect.get_annotations(base).items()
        options = {name for name, kind in hints if "ClassVar" not in str(kind)}
        if options and "__dataclass_params__" not in vars(base):
            return (
                f"has fields, but '{base.__name__}' lacks the decorator "
                "@dataclass(frozen=True, kw_only=True)"
            )

        reserved = sorted({"name", "preset", "training"} & options)
        if reserved:
            return f"has a field '{reserved[0]}', a name that [algorithm] needs: choose another one"

    expected = [field.name for field in dataclasses.fields(cls) if field.init]
    if list(inspect.signature(cls).parameters) != expected:
        return (
            "has an __init__ of its own: leave it out, and declare options as fields of a frozen "
            "dataclass"
        )
    return ""
