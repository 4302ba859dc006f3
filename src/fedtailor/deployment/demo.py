"""The demonstration of sites: a server and four sites on this machine, which divide digits.

At the last site, every label is that of another example, as after an error in its tables.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from fedtailor.algorithms import load_algorithm
from fedtailor.core.atomic import write_whole
from fedtailor.core.errors import RunError
from fedtailor.core.reading import read_object
from fedtailor.data.division import divide
from fedtailor.data.options import DataOptions
from fedtailor.deployment.federation_folder import FederationFolder
from fedtailor.deployment.flower.processes import free_port, require_flower
from fedtailor.deployment.init import CERTIFICATE, KEYS, add_site, init_server, init_site
from fedtailor.deployment.options import FEDERATION_FILE, SITE_FILE
from fedtailor.deployment.roster import ROSTER_FILE, SiteRoster, roster_of, spell
from fedtailor.deployment.site_file import write_values
from fedtailor.deployment.supervise import Supervisor
from fedtailor.deployment.trust import acceptable_roster, pin_roster
from fedtailor.experiment.config import make_config
from fedtailor.experiment.folder import refuse_existing
from fedtailor.experiment.run import run
from fedtailor.serving.run import load

SITES = ("clinic", "hospital", "practice", "registry")
_MIXED_UP = "registry"
"""The site whose labels are shuffled."""
_SERVER = "server"
_COMMAND = [sys.executable, "-m", "fedtailor"]
_PARTITION = "dirichlet(alpha=1.0, min_size=100)"
_TEST_SHARE = 0.88
"""So few examples to train on that a federation can help, and enough to tell whether it does."""
_TRAINED: dict[str, Any] = {
    "algorithm": {"name": "pfedfda"},
    "model": {"name": "mlp"},
    "training": {"epochs": 20, "lr": 0.1},
}
"""Without an encoder, a network is trained in rounds."""
_ON_FEATURES: dict[str, Any] = {"algorithm": {"name": "one_shot_fda"}, "model": {"name": "linear"}}
"""With one, models follow from sums over its features."""


def run_demo(
    folder: Path,
    *,
    rounds: int,
    encoder: str = "",
    secure: bool = False,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Start a server and four sites, train, stop them, and compare with a simulation.

    Args:
        folder: to write; every site has its own folder in it, as it would on its own machine.
        rounds: of training.
        encoder: frozen encoder of the pictures: there are two exchanges then, and no training.
        secure: whether the server gets sums over sites only.
        say: is told what happens.

    Returns:
        The result of the run, with ``exchanges``, their number if the method has no rounds,
        ``uses``, which model each site uses, and ``same_as_simulation``: whether all sites have the
        personal models of a simulation, bit for bit.

    Raises:
        ConfigError: the folder is taken, or there is no such encoder.
        RunError: Flower is missing, or a process fails.
    """
    refuse_existing(folder)
    require_flower()
    if encoder:
        from fedtailor.encoders.load import load_encoder

        load_encoder(encoder)

    folder.mkdir(parents=True, exist_ok=True)
    server = prepare(folder, rounds=rounds, encoder=encoder, port=free_port())
    say(f"a server and {len(SITES)} sites, each with its own data and key: {', '.join(SITES)}")

    if secure:
        # A site reads whom it trusts when it starts.
        fingerprint = spell(_trust_each_other(folder).pin, short=True)
        say(f"the sites trust each other in secure sums, by the roster {fingerprint}")

    # Every site prints to NAME.log.
    with Supervisor(folder, _environment()) as sites:
        for name in SITES:
            sites.start(name, [*_COMMAND, "site", "start", str((folder / name).resolve())])

        say("the sites are starting; the server waits for them")
        _serve(folder)

    say("a simulation of the same run, to compare")
    (made,) = FederationFolder(server).runs()
    result = read_object(made / "result.json", within=made)
    result["exchanges"] = load_algorithm(result["algorithm"]).exchanges
    result["same_as_simulation"] = has_bits_of_simulation(folder)
    result["uses"] = {name: model_of(folder / name) for name in SITES}
    return result


def model_of(site: Path) -> str:
    """Return the name of the model that a site uses: of the method, or one that it has alone."""
    card = load(site / "model").model(0).card
    return str(card["algorithm"])


def prepare(folder: Path, *, rounds: int, encoder: str = "", port: int) -> Path:
    """Make all folders, register the sites, and return the folder of the server."""
    server = folder / _SERVER
    experiment = folder / "experiment.toml"
    values = {
        "seed": 0,
        **(_ON_FEATURES if encoder else _TRAINED),
        "data": {"encoder": encoder, "test_share": _TEST_SHARE},
        "federation": {"rounds": rounds},
        "deploy": {"host": "localhost", "port": port, "deadline": 120},
    }
    write_whole(experiment, tomli_w.dumps(values))
    server_folder = init_server(server, "localhost", port, experiment)
    for name, (x, y) in divide_digits().items():
        site = folder / name
        made = init_site(site, name, "data", f"localhost:{port}")

        # The server may know what the site has found of its model, which it uses only where it is
        # clearly better.
        text = (site / SITE_FILE).read_text(encoding="utf-8")
        share = 'share = ["scores", "metrics"'
        text = text.replace(f"{share}]", f'fallback = "best"\n{share}, "verdict"]')
        if encoder:
            text = text.replace("encoders = []", tomli_w.dumps({"encoders": [encoder]}).strip())

        # A simulation of the demonstration divides the examples in the same way.
        write_whole(site / SITE_FILE, f"{text}split_seed = {DataOptions().seed}\n")
        add_site(server_folder, name, made.public_key, new=False)
        shutil.copy(server / KEYS / CERTIFICATE, site / CERTIFICATE)

        data = site / "data" / name
        data.mkdir(parents=True)
        class_names = np.array([str(label) for label in range(10)])
        np.savez(data / "train.npz", x=x, y=y, class_names=class_names)

    return server


def _environment() -> dict[str, str]:
    """Return the environment of all processes. An encoder may lie in the current folder."""
    places = [os.getcwd(), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def _serve(folder: Path) -> None:
    """Make the run.

    Raises:
        RunError: it fails.
    """
    arguments = [*_COMMAND, "serve", str(folder / _SERVER)]
    done = subprocess.run(arguments, check=False, stdout=subprocess.DEVNULL, env=_environment())

    # Ctrl-C reached the server too.
    if done.returncode in (6, 130):
        raise KeyboardInterrupt
    if done.returncode != 0:
        logs = f"the logs are in '{folder}'"
        raise RunError(f"the server ended with code {done.returncode}; {logs}.", path=folder)


def _trust_each_other(folder: Path) -> SiteRoster:
    """Do what operator and sites do before secure sums, and return the roster."""
    server = folder / _SERVER
    path = folder / ROSTER_FILE
    write_whole(path, roster_of(FederationFolder(server)).to_text())

    # Here, one machine has all sites; elsewhere, people compare the fingerprint by telephone.
    for name in SITES:
        roster = acceptable_roster(folder / name, path, replace=False)
        pin_roster(folder / name, roster)

    write_values(server / FEDERATION_FILE, "privacy", {"secure_sums": True}, missing={})
    return roster


def has_bits_of_simulation(folder: Path) -> bool:
    """Simulate the run of a demonstration, and return whether all sites have the same models."""
    values = tomllib.loads((folder / _SERVER / FEDERATION_FILE).read_text(encoding="utf-8"))
    del values["deploy"]

    # A simulation has the data of all sites in one place.
    together = folder / "all"
    for name in SITES:
        shutil.copytree(folder / name / "data" / name, together / name)

    values["data"] = {**values.get("data", {}), "path": str(together)}
    values["evaluation"] = {**values.get("evaluation", {}), "baselines": "none"}
    simulation = folder / "simulation"
    run(make_config(values), out=simulation)

    for name in SITES:
        model = f"models/{name}.safetensors"
        real = folder / name / "model" / model
        if real.read_bytes() != (simulation / model).read_bytes():
            return False

    return True


def divide_digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the images (n, 8, 8, 1), 0 to 255, and the labels (n,) of every site."""
    options = DataOptions(dataset="digits", clients=len(SITES), partition=_PARTITION)
    division = divide(options, run_seed=0)
    dataset = division.dataset
    parts = {}
    for name, client in zip(SITES, division.positions, strict=True):
        examples = np.sort(np.concatenate(client))

        # Sites have pictures, as files hold them: whole numbers up to 255.
        images = np.round(dataset.x[examples] * (255.0 / dataset.white)).astype(np.uint8)
        labels = dataset.y[examples]
        if name == _MIXED_UP:
            labels = np.random.default_rng(0).permutation(labels)
        parts[name] = (images, labels)

    return parts
