"""A Flower client as in Flower's examples.

NumPy arrays in and out, and a plain loop with the SGD of torch.

The data of all clients stay in the memory of the actor between rounds. The client has a separate
module so that Flower sends its name to the actors, and not its contents.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from flwr.client import Client, NumPyClient
from flwr.common import Context
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.arms import DECAY, LR, MOMENTUM, torch_module
from benchmarks.peers import work


@cache
def held(plan: work.Plan) -> tuple[Any, Any, list[Any]]:
    """Return images (rows, channels, height, width), labels, and the rows of every client."""
    found = work.data(plan)
    return found.normalized().permute(0, 3, 1, 2).contiguous(), found.labels, found.rows


class PlainClient(NumPyClient):
    """Trains the client that the server names."""

    def fit(
        self, parameters: list[Any], config: dict[str, Any]
    ) -> tuple[list[Any], int, dict[str, Any]]:
        """Train one client's epochs.

        Return weights, number of examples, and the number of steps.
        """
        torch.set_num_threads(1)
        plan = work.Plan(**json.loads(config["plan"]))
        images, labels, parts = held(plan)
        rows = parts[config["client"]]
        module = torch_module(plan.model, plan.classes).train()
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(value))
        optimizer = torch.optim.SGD(
            module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY
        )
        loader = DataLoader(
            TensorDataset(images[rows], labels[rows]), min(plan.batch, len(rows)), shuffle=True
        )
        steps = 0
        for _ in range(plan.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
                steps += 1
        return (
            [parameter.detach().numpy() for parameter in module.parameters()],
            len(rows),
            {"steps": steps},
        )


def client_fn(context: Context) -> Client:
    """Return a client."""
    return PlainClient().to_client()
