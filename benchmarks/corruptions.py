"""Corrupted images per second, and the time that the clients of CIFAR-S take.

    python benchmarks/corruptions.py [--clients 50] [--examples 600] [--size 32] [--frost FOLDER]
    [--json]

Images are smooth random fields with 3 channels; the speed of JPEG and Poisson noise depends little
on the content. Every corruption runs at all severities over the images of one client, repeatedly
for half a second. The time for all clients follows from the pairs of corruption and severity that
they get. One process with one thread; no cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from fedtailor.data.corruptions.pictures import draw_frost, load_frost
from fedtailor.data.corruptions.plasma import num_draws, plasma
from fedtailor.data.corruptions.shift import CifarS, pairs

LEAST_SECONDS = 0.5


def smooth_images(count: int, size: int) -> np.ndarray:
    """Return random images (count, size, size, 3), uint8."""
    side = 2 ** max(1, (size - 1).bit_length())
    uniform = np.random.default_rng(0).random((3 * count, num_draws(side)))
    fields = plasma(uniform, 2.0)[:, :size, :size].reshape(count, 3, size, size)
    return np.ascontiguousarray((255 * fields).astype(np.uint8).transpose(0, 2, 3, 1))


def seconds_for(images: np.ndarray, kind: str, severity: int, frost: list[np.ndarray]) -> float:
    """Return the time for corrupting all images once."""
    rows = np.arange(len(images))
    repeats = 0
    start = time.perf_counter()
    while repeats == 0 or time.perf_counter() - start < LEAST_SECONDS:
        corrupt(images, kind, severity, rows=rows, seed=0, frost=frost)
        repeats += 1
    return (time.perf_counter() - start) / repeats


def measure(clients: int, examples: int, size: int, frost: list[np.ndarray]) -> dict[str, Any]:
    """Return images per second of every corruption and severity, and seconds for all clients of
    both pairings.
    """
    load_before = os.getloadavg()
    images = smooth_images(examples, size)
    taken = {
        (kind, level): seconds_for(images, kind, level, frost)
        for kind in CORRUPTIONS
        for level in SEVERITIES
    }
    totals = {
        pairing: sum(
            taken[pair] for pair in pairs(CifarS(clients, pairing), clients) if pair is not None
        )
        for pairing in ("release", "unique")
    }
    return {
        "clients": clients,
        "examples": examples,
        "size": size,
        "images_per_second": {
            kind: {str(level): round(examples / taken[kind, level]) for level in SEVERITIES}
            for kind in CORRUPTIONS
        },
        "seconds_for_all_clients": {pairing: round(total, 2) for pairing, total in totals.items()},
        "processor": platform.processor() or platform.machine(),
        "numpy": np.__version__,
        "load_before": [round(value, 2) for value in load_before],
        "load_after": [round(value, 2) for value in os.getloadavg()],
    }


def show(record: dict[str, Any]) -> None:
    print(f"images per second, {record['size']} x {record['size']} x 3, severities 1 to 5")
    for kind, speeds in record["images_per_second"].items():
        print(f"  {kind:15s}" + "".join(f"{speed:>10,}" for speed in speeds.values()))
    for pairing, total in record["seconds_for_all_clients"].items():
        print(
            f"{record['clients']} clients with {record['examples']} images, pairing {pairing}: {total:.2f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument(
        "--frost", type=Path, help="folder with photographs; otherwise drawn textures"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    frost = load_frost(arguments.frost, {}) if arguments.frost else draw_frost()
    record = measure(arguments.clients, arguments.examples, arguments.size, frost)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        show(record)


if __name__ == "__main__":
    main()
