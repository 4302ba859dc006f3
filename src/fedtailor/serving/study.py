"""An estimator-like front: data first, then ``fit``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.options import wrong_value
from fedtailor.experiment.config import make_config
from fedtailor.experiment.run import default_folder
from fedtailor.experiment.run import run as run_experiment
from fedtailor.serving.run import Run, load


class Study:
    """Data of several sites, and what is done with it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        """Use the options of the ``[data]`` section.

        :func:`from_folder` and :func:`from_dataset` make such objects.

        Raises:
            ConfigError: an option is wrong.
        """
        self.data = dict(data)
        make_config({"data": self.data})

    def fit(
        self,
        algorithm: str = "pfedfda",
        *,
        rounds: int | None = None,
        participation: float | str | None = None,
        model: str = "",
        seed: int = 0,
        out: str | Path | None = None,
        config: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Run:
        """Train a method on the data, and return the finished run.

        Args:
            algorithm: its name, or ``package.module:Class``.
            rounds: of the run (``federation.rounds``).
            participation: share of the clients in a round, or a plan
                (``federation.participation``).
            model: its name, or ``package.module:function``; empty: the default for the data.
            seed: of the run.
            out: the run folder; None: a new one under ``runs/``. A run in it that was interrupted
                is resumed.
            config: further sections of a configuration, such as ``{"training": {"lr": 0.05}}``.
            options: of the algorithm, such as ``cov_ridge=0.01``.

        Raises:
            ConfigError: an option is wrong.
            DataError: the data cannot be used.
            RunError: the run could not continue.
        """
        # Arguments come before the sections of `config`.
        sections = _sections({} if config is None else config)
        federation = sections.setdefault("federation", {})
        for key, value in (("rounds", rounds), ("participation", participation)):
            if value is not None:
                federation[key] = value

        sections["algorithm"] = {**sections.get("algorithm", {}), "name": algorithm, **options}
        if model:
            sections.setdefault("model", {})["name"] = model

        checked = make_config({**sections, "data": self.data, "seed": seed})
        path = default_folder(checked) if out is None else Path(out)
        run_experiment(checked, out=path)
        return load(path)

    def __repr__(self) -> str:
        return f"Study({', '.join(f'{key}={value!r}' for key, value in self.data.items())})"


def _sections(config: Any) -> dict[str, dict[str, Any]]:
    """Return a copy of the sections of a configuration.

    Raises:
        ConfigError: it does not hold sections, or names data.
    """
    is_mapping = isinstance(config, Mapping)
    if not is_mapping or not all(isinstance(section, Mapping) for section in config.values()):
        raise wrong_value("config", "a mapping of sections: {'training': {'lr': 0.05}}", config)
    if "data" in config:
        hint = "The data was given when the study was made."
        raise wrong_value("config", "without the section data", config["data"], hint)
    return {name: dict(section) for name, section in config.items()}


def from_folder(path: str | Path, **data: Any) -> Study:
    """Return a study of your own data.

    Args:
        path: a folder, a table, or ``package.module:function``, as ``--data`` takes it.
        data: further options of the ``[data]`` section, such as ``image_size=64`` or
            ``val_fraction=0.1``.

    Raises:
        ConfigError: an option is wrong.

    Example:
        >>> from_folder("my_hospitals", val_fraction=0.1)
        Study(path='my_hospitals', val_fraction=0.1)
    """
    return Study({"path": str(path), **data})


def from_dataset(name: str = "digits", **data: Any) -> Study:
    """Return a study of a known data set, divided among clients.

    Args:
        name: see ``fedtailor list datasets``.
        data: further options of the ``[data]`` section, such as ``clients=10``.

    Raises:
        ConfigError: the data set or an option is wrong.

    Example:
        >>> run = from_dataset("digits", clients=3).fit("fedavg", rounds=2, out="runs/study")
        >>> run.clients.names
        ['0', '1', '2']
    """
    return Study({"dataset": name, **data})
