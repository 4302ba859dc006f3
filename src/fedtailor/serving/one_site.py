"""The federation of one site: only it has data, and its programs run as those of the client with
its number.
"""

from __future__ import annotations

import torch

from fedtailor.core.federation import Federation, Split
from fedtailor.core.task import Task
from fedtailor.data.dataset import Dataset, Normalization
from fedtailor.data.input_specification import InputSpecification
from fedtailor.data.split import ClientPositions
from fedtailor.data.tensors import tables
from fedtailor.serving.site_data import SiteData


def federation_of_one(
    site: SiteData,
    positions: ClientPositions,
    inputs: InputSpecification,
    task: Task,
    number: int,
    population: int,
) -> Federation:
    """Return a federation in which only the site with this number has data.

    Args:
        site: its examples, on the scale of the model's training data.
        positions: their division.
        inputs: of the model.
        task: of the site.
        number: of the site.
        population: number of sites that can take part in training; a site with a number from here
            on is new.
    """
    normalize = Normalization(tuple(inputs.mean.tolist()), tuple(inputs.std.tolist()))
    dataset = Dataset(
        name=site.name,
        x=site.x,
        y=site.y,
        num_classes=inputs.num_classes,
        normalize=normalize,
        white=inputs.white,
    )
    x, scale = tables(dataset, normalize)
    nothing = torch.empty(0, dtype=torch.int64)
    empty = Split(nothing, nothing, nothing)
    own = Split(*map(torch.from_numpy, positions))

    return Federation(
        x=x,
        y=torch.from_numpy(site.y),
        splits=[*([empty] * number), own],
        common_task=Task(task.model, task.num_classes, task.input_shape),
        num_new=max(number + 1 - population, 0),
        scale=scale,
    )
