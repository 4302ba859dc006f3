"""Engines: how many clients run at the same time, and where; and the options that name one.

No torch, so that listing is fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from fedtailor.core.options import Flag, NoResult, Range, check_options, wrong_value

ENGINES = {
    "auto": (
        "on a CPU: workers, or processes for a long run of a small model; the same bits; on "
        "another device: batched"
    ),
    "batched": "clients stacked into one vectorized program; on the CPU or another device",
    "processes": (
        "one process per physical core, one client at a time in each; for models whose steps take "
        "less than a millisecond, where threads slow each other down; the same bits as reference"
    ),
    "ray": (
        "actors of a Ray cluster, on one machine or on many, one client at a time in each; the "
        "same bits as reference; needs the package ray"
    ),
    "reference": (
        "a plain loop over clients on one thread; on the CPU or another device; the other engines "
        "are tested against it"
    ),
    "workers": (
        "one thread per physical core, one client at a time in each; the same bits as reference"
    ),
}

CPU_ONLY = ("processes", "ray", "workers")
"""The engines that run programs in other threads or processes, on the CPU."""
_DEVICES = r"auto|cpu|mps|cuda(:\d{1,3})?"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The ``[engine]`` section."""

    name: Annotated[
        Literal["auto", "batched", "processes", "ray", "reference", "workers"],
        Flag("--engine", "NAME", "Engine that runs the clients (see: fedtailor list engines)."),
    ] = "auto"
    """Engine; the resolved configuration names the engine that ``auto`` chose."""
    workers: Annotated[int, Range(ge=0), NoResult()] = 0
    """Threads of ``workers``, processes of ``processes`` or actors of ``ray``; 0: one per physical
    core, or per CPU of the Ray cluster. Does not change results."""
    block: Annotated[int, Range(ge=1)] = 32
    """Largest number of clients that ``batched`` stacks."""
    device: Annotated[
        str,
        Flag(
            "--device",
            "NAME",
            "Where tensors live: cpu (default), auto, cuda or cuda:1.",
        ),
    ] = "cpu"
    """Where tensors live: ``cpu``, or ``cuda``, ``cuda:1`` and so on; ``auto`` takes the first CUDA
    device if there is one. For the engines ``reference`` and ``batched``; the others run on the
    CPU. ``mps`` is refused: it has no float64."""
    ray_address: Annotated[
        str,
        NoResult(),
        Flag(
            "--ray-address",
            "ADDRESS",
            "Ray cluster of --engine ray: auto or HOST:PORT (default: its own).",
        ),
    ] = ""
    """Ray cluster of ``ray``: ``auto`` (the one on this machine) or ``host:port``; empty: one of
    its own."""

    def __post_init__(self) -> None:
        check_options(self, owner="engine")
        if self.ray_address and self.name != "ray":
            allowed = f"empty with engine.name = '{self.name}'"
            raise wrong_value("engine.ray_address", allowed, self.ray_address)

        if not re.fullmatch(_DEVICES, self.device):
            raise wrong_value("engine.device", "auto, cpu, cuda, cuda:NUMBER or mps", self.device)

        # What auto finds is checked when it is found.
        if self.device != "auto":
            refuse_engine(self.name, self.device)


def refuse_engine(name: str, device: str) -> None:
    """Check that an engine runs on a device.

    Raises:
        ConfigError: it runs on the CPU only.
    """
    if device != "cpu" and name in CPU_ONLY:
        allowed = f"auto, batched or reference with engine.device = '{device}'"
        raise wrong_value("engine.name", allowed, name, f"'{name}' runs on the CPU only.")
