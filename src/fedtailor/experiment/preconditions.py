"""Checks of a run before anything is written: data and options that it cannot use are refused."""

from __future__ import annotations

from typing import Any

import torch

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.devices import HOST
from fedtailor.core.errors import ConfigError, DataError
from fedtailor.core.federation import Federation
from fedtailor.core.robust import unprotected_fields
from fedtailor.core.schedule import Schedule
from fedtailor.core.task import Task, Training
from fedtailor.experiment.config import Config


def refuse_untrainable(config: Config, federation: Federation) -> None:
    """Check that a client can train: otherwise all models would stay as they were at the start.

    Raises:
        DataError: no client can.
    """
    if not federation.roster.trainable_clients:
        section = config.data
        clients = len(federation.splits)
        raise DataError(
            f"no client has a training example: lower data.clients ({clients}) or data.test_share "
            f"({section.test_share:g}), or raise data.fraction ({section.fraction:g}).",
            key="data.clients",
            got=clients,
        )


def refuse_impossible_augmentation(training: Training, shape: tuple[int, ...]) -> None:
    """Check that examples of a shape can be moved and mirrored as ``[training]`` asks for.

    Raises:
        ConfigError: the examples are not images, or would be moved out of view.
    """
    if not training.augments:
        return

    if len(shape) != 3:
        name = "flip" if training.flip else "crop_padding"
        message = f"training.{name} is for images, but examples have the shape {shape}."
        raise ConfigError(message, key=f"training.{name}", allowed="images", got=str(shape))

    if training.crop_padding >= min(shape[1:]):
        allowed = f"less than {min(shape[1:])}, the side of an image"
        message = f"training.crop_padding must be {allowed}, got {training.crop_padding}."
        raise ConfigError(
            message, key="training.crop_padding", allowed=allowed, got=training.crop_padding
        )


def notes_on_device(device: torch.device) -> list[str]:
    """Return a note if a run takes place on another device than the CPU."""
    if device == HOST:
        return []
    return [
        f"the device {device} was not tried before this version came out: compare some rounds with "
        "--device cpu."
    ]


def notes_on_idle_training(
    algorithm: Algorithm[Any, Any, Any], federation: Federation, schedule: Schedule
) -> list[str]:
    """Return a note if clients train whose work has no effect."""
    if not schedule.everybody_trains(algorithm):
        return []

    state = algorithm.init_client(federation.common_task, federation.info(0), rng.new_key(0))
    if tree.leaves(state):
        return []

    return [
        "with federation.train 'all', the training of clients outside the cohort has no effect: "
        "with this method, clients keep nothing from round to round."
    ]


def notes_on_unprotected_fields(
    algorithm: Algorithm[Any, Any, Any], task: Task, schedule: Schedule
) -> list[str]:
    """Return a note if the robust rule leaves some of what clients upload as it is."""
    fields = unprotected_fields(schedule.robust, algorithm.messages(task))
    if not fields:
        return []

    names = ", ".join(f"'{name}'" for name in fields)
    what = "is not a mean" if len(fields) == 1 else "are not means"
    them = "it" if len(fields) == 1 else "them"
    return [
        f"federation.robust = '{schedule.robust}' protects means over clients. {names} of "
        f"{type(algorithm).__name__} {what}, so one client can still corrupt {them}; 'krum' looks "
        "at whole uploads."
    ]
