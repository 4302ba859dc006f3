"""Programs that are compared: the loop of common tools, and how several take turns.

The loop, called the peer, does what common tools do: a torch.nn module, a DataLoader over (x, y)
tuples, one client after another. ``tune`` gives it our settings outside a step, which no compared
tool has.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

LR = 0.01
MOMENTUM = 0.5
DECAY = 5e-4

SETTINGS: dict[str, dict[str, Any]] = {
    "cifar_cnn": {"shape": (3, 32, 32), "classes": 10, "batch": 50, "mflop": 19.26, "epochs": 1},
    "emnist_cnn": {"shape": (1, 28, 28), "classes": 62, "batch": 16, "mflop": 9.26, "epochs": 2},
    "mlp": {"shape": (1, 28, 28), "classes": 10, "batch": 10, "mflop": 0.32, "epochs": 6},
}
"""Model -> shape of an image, batch, and millions of operations of a step for one image."""

_CONVOLUTIONS = {
    "cifar_cnn": ([(3, 16, 5, 0), (16, 32, 5, 1), (32, 64, 3, 1)], 576),
    "emnist_cnn": ([(1, 16, 5, 0), (16, 32, 5, 1)], 800),
}
"""Model -> channels in and out, kernel and padding of its convolutions; features after them."""


def torch_module(name: str, classes: int) -> Any:
    """Build the network as its paper writes it."""
    from torch import nn

    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, classes))

    convolutions, features = _CONVOLUTIONS[name]
    layers: list[Any] = []
    for channels, out, kernel, padding in convolutions:
        layers.append(nn.Conv2d(channels, out, kernel, padding=padding))
        layers += [nn.LeakyReLU(), nn.MaxPool2d(2)]

    layers += [nn.Flatten(), nn.Linear(features, 128), nn.LeakyReLU(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


def random_examples(name: str, clients: int, examples: int) -> tuple[Any, Any]:
    """Return random images and labels of all clients, and ``examples`` for each."""
    import torch

    setting = SETTINGS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * examples, *setting["shape"], generator=generator)
    return x, torch.randint(setting["classes"], (len(x),), generator=generator)


def as_lists(x: Any, y: Any, clients: int, examples: int) -> list[list[Any]]:
    """Return the examples of every client as a list of pairs, as peers keep them in memory."""
    starts = range(0, clients * examples, examples)
    return [[(x[row], y[row]) for row in range(start, start + examples)] for start in starts]


def tune(module: Any) -> None:
    """Give the peer our allocator setting, and convolutions channels last."""
    import torch

    from fedtailor.simulation.engines.workers import keep_pages

    keep_pages()
    module.to(memory_format=torch.channels_last)


def take_turns(
    module: str,
    model: str,
    blocks: int,
    arms: Sequence[str],
    before: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Run every arm of a benchmark in turn, each in a process of its own; return their answers.

    Args:
        module: the benchmark; with ``--serve ARM`` it answers every line with a number.
        model: the value of its option ``--model``.
        blocks: how often every arm has a turn, after a first one that does not count.
        arms: their names.
        before: is called before each block.
    """
    command = [sys.executable, "-m", module, "--model", model, "--serve"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = {arm: subprocess.Popen([*command, arm], **pipes) for arm in arms}
    answers: dict[str, list[float]] = {arm: [] for arm in arms}

    for block in range(-1, blocks):
        before()
        for arm, process in processes.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = float(process.stdout.readline())
            if block >= 0:
                answers[arm].append(answer)

    for process in processes.values():
        process.communicate()

    return answers


def speedups(times: dict[str, list[float]]) -> dict[str, float]:
    """Return the times of the peer relative to ours: medians over blocks.

    The peer has its better setting in each block, then each setting.
    """
    better = [min(pair) for pair in zip(times["peer"], times["peer_1"], strict=True)]
    compared = {
        "peer_better": better,
        "peer_default_threads": times["peer"],
        "peer_1_thread": times["peer_1"],
        "peer_tuned": times["peer_tuned"],
    }

    ratios = {}
    for label, values in compared.items():
        pairs = zip(values, times["ours"], strict=True)
        ratios[label] = round(statistics.median(theirs / ours for theirs, ours in pairs), 3)

    return ratios
