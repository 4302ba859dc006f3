"""Divided data as a federation of tensors; the other modules of ``data`` do without torch."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core.federation import UNSCALED, Federation, Splits
from fedtailor.core.options import wrong_value
from fedtailor.core.task import Task
from fedtailor.data.build import DividedData
from fedtailor.data.dataset import AS_THEY_ARE, Dataset, InputKind, Normalization


def to_federation(
    divided: DividedData, task: Task, normalize: Normalization | None = None
) -> Federation:
    """Return the federation; images are normalized when they are used, all others at once.

    Args:
        divided: the data.
        task: a task for ``dataset.input_shape`` and ``dataset.num_classes``.
        normalize: mean and standard deviation; None: :func:`normalization` finds them.
    """
    dataset = divided.dataset
    x, scale = tables(dataset, normalize or normalization(divided))
    published = divided.division.dataset
    test_groups = [client.num_test_groups(dataset.groups) for client in divided.positions]

    # With official test examples, the whole official test part is scored too.
    official_test = torch.arange(published.num_official_train, len(published.y))
    return Federation(
        x=x,
        y=torch.from_numpy(dataset.y),
        splits=Splits(divided.positions),
        common_task=task,
        num_new=divided.num_new,
        class_names=dataset.class_names,
        client_names=divided.client_names,
        conditions=divided.conditions,
        test_groups=tuple(test_groups),
        scale=scale,
        complete=official_test if divided.division.shared_test else official_test[:0],
    )


def normalization(divided: DividedData) -> Normalization:
    """Return the mean and standard deviation by which values are normalized.

    With ``normalize = "training"``, and for tables and series unless the options say otherwise,
    they are those of the training examples of all clients that are there from the start and not
    new, per channel or feature; a constant feature gets the deviation 1. They are merged from those
    of every client (:mod:`fedtailor.data.moments`), as real sites would do it.
    """
    dataset = divided.dataset
    fitted = divided.positions[divided.division.fitted]
    options = divided.division.options
    if options.normalize == "l2":
        refuse_rows_without_features(dataset.kind)
        return AS_THEY_ARE._replace(l2=True)

    by_training = options.standardizes(dataset.kind, is_embedded=dataset.encoder is not None)
    if not by_training or not any(len(client.train) for client in fitted):
        return dataset.normalize

    from fedtailor.data.moments import merge_moments, moments_of, normalization_of

    moments = merge_moments([moments_of(dataset.x, client.train) for client in fitted])
    return normalization_of(moments, dataset.white)


def tables(dataset: Dataset, normalize: Normalization) -> tuple[Tensor, Tensor]:
    """Return the examples as a tensor, and the scale to apply later.

    Images are (rows, channels, height, width), series (rows, channels, times).
    """
    mean = torch.tensor(normalize.mean)
    std = torch.tensor(normalize.std)
    if dataset.kind == "images":
        scale = torch.stack([torch.full_like(mean, dataset.white), mean, std])
        return model_layout(torch.from_numpy(dataset.x)), scale

    # Features that are used as they are stay where they lie, which may be a file.
    dtype = torch.get_default_dtype()
    is_ready = dataset.white == 1 and normalize == AS_THEY_ARE and dtype == torch.float32
    if is_ready and dataset.x.flags.writeable:
        return model_layout(torch.from_numpy(dataset.x)), UNSCALED

    values = torch.tensor(dataset.x, dtype=dtype)
    if normalize.l2:
        values = unit_rows(values)

    values.div_(dataset.white).sub_(mean).div_(std)
    return model_layout(values), UNSCALED


def refuse_rows_without_features(kind: InputKind) -> None:
    """Check that what is to get unit rows are rows of features.

    Raises:
        ConfigError: they are pictures or series.
    """
    if kind != "table":
        hint = "It is for rows of features."
        raise wrong_value("data.normalize", "another one for pictures and series", "l2", hint)


def unit_rows(features: Tensor) -> Tensor:
    """Return rows of features (n, d) with the Euclidean norm 1; rows of zeros stay."""
    return torch.nn.functional.normalize(features)


def model_layout(stored: Tensor) -> Tensor:
    """Return stored values as models take them: channels before height and width, or times."""
    if stored.dim() == 4:
        return stored.permute(0, 3, 1, 2)

    return stored.transpose(1, 2).contiguous() if stored.dim() == 3 else stored
