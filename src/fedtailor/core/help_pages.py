"""Which page of the documentation helps with an error, by the option that it names."""

PAGES = {
    "algorithm": "reference/algorithms/index",
    "checkpoint": "howto/resume",
    "data": "howto/own-data",
    "data.dataset": "howto/data",
    "data.dir": "howto/data",
    "data.encoder": "howto/encoders",
    "data.folds": "howto/folds",
    "data.group": "howto/groups",
    "data.label_column": "howto/own-tables",
    "data.partition": "howto/partitions",
    "data.shift": "howto/corruptions",
    "data.split": "howto/splits",
    "deploy": "howto/prepare-sites",
    "engine": "howto/engines",
    "engine.device": "howto/devices",
    "evaluation": "reference/evaluation",
    "federation": "reference/configuration",
    "federation.history": "howto/changing-clients",
    "federation.robust": "howto/wrong-numbers",
    "federation.server_optimizer": "howto/server-optimizers",
    "flower": "howto/prepare-sites",
    "model": "howto/own-network",
    "privacy": "reference/privacy",
    "privacy.roster": "howto/site-trust",
    "privacy.secure_sums": "reference/secure-sums",
    "serve": "howto/fallback",
    "site": "howto/site-faults",
    "site.policy": "howto/site-policy",
    "sweep": "howto/sweeping",
    "track": "howto/follow-a-run",
    "training": "reference/configuration",
}
"""Pages of the site, without an ending, by an option or its section."""


def help_page(key: str | None) -> str | None:
    """Return the page that explains an option, or its section.

    >>> help_page("data.partition")
    'howto/partitions'
    >>> help_page("training.lr")
    'reference/configuration'
    """
    while key:
        if key in PAGES:
            return PAGES[key]
        key = key.rpartition(".")[0]

    return None
