"""What refuses options of ``[privacy]`` that a method, a model or a schedule cannot keep."""

from __future__ import annotations

import torch

from fedtailor.core import rng, tree
from fedtailor.core.algorithm import AnyAlgorithm
from fedtailor.core.errors import ConfigError
from fedtailor.core.federation import ClientInfo, Roster
from fedtailor.core.options import wrong_value
from fedtailor.core.schedule import Schedule
from fedtailor.privacy.options import PrivacyOptions


def check_privacy(
    algorithm: AnyAlgorithm, roster: Roster, schedule: Schedule, privacy: PrivacyOptions
) -> None:
    """Check that the server can do its work with what it may see, and that noise can hide the rest.

    Raises:
        ConfigError: they do not fit together.
    """
    messages = algorithm.messages(algorithm.bind(roster.common_task))
    privacy.check_fields(type(algorithm).__name__, messages)
    if privacy.unit == "example":
        check_examples(algorithm, roster, privacy)
    _check_buffers(roster, privacy)
    privacy.check(schedule, len(roster.trainable_clients))


def check_examples(algorithm: AnyAlgorithm, roster: Roster, privacy: PrivacyOptions) -> None:
    """Check that noise can hide single examples in what clients send.

    Raises:
        ConfigError: it cannot.
    """
    cls = type(algorithm)
    trains = cls.bounds_examples and _says(cls, "bounds_examples")
    for name, allowed in algorithm.unbounded_options.items():
        allowed += " with privacy.unit = 'example'"
        raise wrong_value(f"algorithm.{name}", allowed, getattr(algorithm, name))

    sends_sums = _says(cls, "feature_bound") and algorithm.feature_bound is not None
    if sends_sums:
        _check_features(algorithm.feature_bound or 0.0, privacy, trains=trains)
        if not trains:
            return

    if not trains:
        raise ConfigError(
            f"privacy.unit = 'example' cannot promise anything for {cls.__name__}: "
            "what its clients send depends on examples in another way than by gradients of losses "
            "of single examples, or sums over their features.",
            key="privacy.unit",
            got="example",
        )

    _check_gradients(algorithm, roster)
    if privacy.noise_from == "server":
        _check_shares(algorithm, roster, privacy)


def _check_features(bound: float, privacy: PrivacyOptions, *, trains: bool) -> None:
    """Check what bounds sums over features; ``trains``: a method takes steps with noise too."""
    if not bound:
        hint = "It is the largest norm of features, a public number that no private data decides."
        allowed = "above 0 with privacy.unit = 'example'"
        raise wrong_value("algorithm.feature_clip", allowed, bound, hint)

    if not trains and privacy.clip != PrivacyOptions().clip:
        hint = "algorithm.feature_clip bounds what an example adds."
        allowed = "left out with sums over features"
        raise wrong_value("privacy.clip", allowed, privacy.clip, hint)


def _check_gradients(algorithm: AnyAlgorithm, roster: Roster) -> None:
    """Check that a bound of the gradients of examples bounds all that they add to uploads."""
    training = algorithm.training
    if training.class_weights != "none":
        hint = "Class weights follow from the numbers of examples, so one example changes all."
        allowed = "'none' with privacy.unit = 'example'"
        raise wrong_value("training.class_weights", allowed, training.class_weights, hint)
    if training.drop_last:
        hint = "Batches are drawn, and none is the last."
        raise wrong_value("training.drop_last", "false with privacy.unit = 'example'", True, hint)

    if training.clip_norm > 0:
        hint = "privacy.clip bounds the gradient of every example."
        allowed = "0 with privacy.unit = 'example'"
        raise wrong_value("training.clip_norm", allowed, training.clip_norm, hint)

    for task in (roster.common_task, *roster.client_tasks):
        buffers = task.names("buffer")
        if buffers:
            raise ConfigError(
                "privacy.unit = 'example' cannot protect the running means of batch normalization "
                f"('{buffers[0]}'): choose a model without them.",
                key="privacy.unit",
                got="example",
            )


def _check_shares(algorithm: AnyAlgorithm, roster: Roster, privacy: PrivacyOptions) -> None:
    """Check that the noises of clients make one noise on their sum."""
    training = algorithm.training
    key = "privacy.noise_from"
    if not privacy.secure_sums or training.steps != 1 or training.batch_size != 0:
        needed = "privacy.secure_sums = true, training.steps = 1 and training.batch_size = 0"
        hint = "Only then has the sum over clients one noise."
        raise wrong_value(key, f"'sites' unless {needed}", "server", hint)

    if training.optimizer != "sgd":
        allowed = "'sites' unless training.optimizer = 'sgd'"
        raise wrong_value(key, allowed, "server", "Noise would not add up.")

    if not _sums_noise(algorithm, roster):
        name = type(algorithm).__name__
        hint = (
            "Its uploads are not weighted by examples, or are sums over features of a body that "
            "the client has trained, or its clients keep something."
        )
        raise wrong_value(key, f"'sites' for {name}", "server", hint)


def _sums_noise(algorithm: AnyAlgorithm, roster: Roster) -> bool:
    """Return whether noise on the gradients of every client makes one noise on their sum.

    Uploads must be weighted by numbers of examples. And clients must keep nothing: what one keeps
    has its own noise only, and would reach later sums with less than they need. So would sums over
    features of the body that a client has just trained: that body is moved by an example, and moves
    the features of all others.
    """
    if algorithm.feature_bound:
        return False

    task = algorithm.bind(roster.common_task)
    fields = algorithm.messages(task).values()
    kinds = {(field.reduction, field.weight) for field in fields if field.reduction != "none"}
    if kinds != {("mean", "num_train")}:
        return False

    info = ClientInfo(torch.ones(()), torch.ones(task.num_classes))
    kept = [
        algorithm.init_client(task, info, rng.new_key(0)),
        algorithm.init_per_client(task, info, rng.new_key(0)),
    ]
    return not any(tree.leaves(part) for part in kept)


def _says(cls: type[AnyAlgorithm], claim: str) -> bool:
    """Return whether what a method claims holds for a class.

    It does not hold for a class derived from it that trains in another way.
    """
    for base in cls.__mro__:
        if claim in base.__dict__:
            return True
        if "local_update" in base.__dict__:
            return False

    return False


def _check_buffers(roster: Roster, privacy: PrivacyOptions) -> None:
    """Check that noise would not spoil running variances."""
    if privacy.unit == "client" and roster.common_task.shapes("buffer"):
        raise ConfigError(
            "privacy.unit = 'client' cannot protect the running statistics of batch normalization: "
            "choose a model with group normalization.",
            key="privacy.unit",
        )
