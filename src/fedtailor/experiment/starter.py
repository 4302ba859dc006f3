"""A small project of a user: a configuration, tables of four sites, and a method with its test."""

from __future__ import annotations

import math
import random
import shutil
from pathlib import Path

from fedtailor.core.atomic import make_folder, write_whole
from fedtailor.core.text import csv_text
from fedtailor.experiment.folder import refuse_existing

_CONFIGURATION = """\
# fedtailor run config.toml
# Every option: fedtailor run --help, or reference/configuration in the documentation.
seeds = [0]

[data]
path = "data"          # a table for each site; label_column = "NAME" names the class
val_fraction = 0.1     # of the training examples, for calibration and for choices

[algorithm]
name = "my_method:PersonalBias"

[training]
lr = 0.1
epochs = 5

[federation]
rounds = 20
"""

METHOD = '''\
"""Personal bias: FedAvg, but every client keeps the bias of the head for itself.

The bias follows the mix of classes, which differs by client.
"""

from dataclasses import dataclass
from typing import NamedTuple

from fedtailor import toolkit as ft
from fedtailor.toolkit import tree


class ServerState(NamedTuple):
    shared: dict  # all of the model but the bias of the head


@dataclass(frozen=True, kw_only=True)
class PersonalBias(ft.Algorithm):
    """All layers are averaged except the bias of the head."""

    onboard_epochs: ft.NonNegativeInt = 5
    """Epochs that train the bias of a client that never took part."""

    @property
    def onboarding(self):
        return [ft.FineTuning("head_bias", epochs=self.onboard_epochs)]

    def messages(self, task):
        shared, _ = divide(task, task.shapes(*ft.ALL))
        return {"shared": ft.Field(kind="model", shapes=shared, weight="num_train")}

    def init_server(self, task, key):
        shared, _ = divide(task, task.initial(key))
        return ServerState(shared)

    def init_client(self, task, info, key):
        _, bias = divide(task, task.initial(key))
        return bias

    def local_update(self, task, download, state, data, key):
        model = {**download.shared.shared, **state}
        trained = ft.train(task, ft.classification_loss, model, data=data.train, key=key)
        shared, bias = divide(task, trained.params)
        upload = {"shared": ft.Mean(shared, data.info.num_train)}
        metrics = {"steps": trained.steps, "loss": trained.loss}
        return ft.ClientUpdate(bias, upload, personal=trained.params, metrics=metrics)

    def onboard(self, task, download, info, data, key):
        options = {"context": download.shared.shared, "epochs": self.onboard_epochs}
        bias = self.init_client(task, info, key)
        trained = ft.train(task, ft.classification_loss, bias, data=data.train, key=key, **options)
        return ft.Onboarded(trained.params, trained.steps)

    def personalize(self, task, download, state, data, key):
        return {**download.shared.shared, **state}


def divide(task, params):
    """Split parameters into those that are shared and the bias of the head."""
    return tree.split(
        params, lambda name: not (task.model.groups[name] == "head" and name.endswith("bias"))
    )
'''

TEST = """\
import fedtailor


def test_it_keeps_the_contract():
    assert fedtailor.check_algorithm("my_method:PersonalBias") == []
"""

_SITES = {"athens": 1.0, "berlin": 0.0, "cairo": -1.0, "dublin": 0.3}
"""By how much the illness is more frequent at a site, in logits."""
_PATIENTS = 60


def write_project(folder: Path) -> list[Path]:
    """Write a project that runs at once, and return its files.

    The tables hold made-up patients; they are always the same.

    Args:
        folder: must not exist, or be empty.

    Raises:
        ConfigError: the folder is taken.
        RunError: a file cannot be written.
    """
    refuse_existing(folder)
    texts = {
        "config.toml": _CONFIGURATION,
        "my_method.py": METHOD,
        "test_my_method.py": TEST,
    }
    for number, (site, offset) in enumerate(_SITES.items()):
        texts[f"data/{site}.csv"] = _table(random.Random(number), offset)

    # A project that is half made would be in the way of the next attempt.
    try:
        make_folder(folder / "data")
        for name, text in texts.items():
            write_whole(folder / name, text)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    return [folder / name for name in texts]


def _table(generator: random.Random, offset: float) -> str:
    """Return the table of a site: age, pressure and sex of patients, and who is ill."""
    rows: list[list[object]] = [["age", "pressure", "sex", "diagnosis"]]
    for _ in range(_PATIENTS):
        age = round(generator.gauss(58, 10))
        pressure = round(generator.gauss(132, 16))
        logit = offset + (age - 58) / 6 + (pressure - 132) / 12
        is_ill = generator.random() < 1 / (1 + math.exp(-logit))
        diagnosis = "ill" if is_ill else "healthy"
        rows.append([age, pressure, generator.choice("fm"), diagnosis])

    return csv_text(rows)
