"""Seconds of embedding pictures, beside a bare loop of the encoder over the same batches.

    python -m benchmarks.embedding [--encoder TARGET] [--images 640] [--pairs 5] [--json]

Both take the same random pictures of 32 x 32 pixels, in turn in one run, and the ratio is that
within a pair. Ours divides batches among cores, checks, marks and keeps every vector on the disk.
The bare loop is the module or the session of onnxruntime alone, with all cores in each batch. On a
machine with other work, look at the seconds of the processor.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.records import describe_machine, save_record


def random_pictures(count: int) -> Any:
    """Return a data set of random pictures."""
    from fedtailor.data.dataset import Dataset

    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), np.uint8)
    return Dataset(name="random", x=pixels, y=np.arange(count) % 2, num_classes=2)


def bare_loop(encoder: Any, dataset: Any) -> None:
    """Run the encoder over all batches, and keep the results in a list."""
    import torch

    from fedtailor.encoders.onnx_file import OnnxEncoder

    pictures = torch.from_numpy(dataset.x).permute(0, 3, 1, 2)
    run: Callable[[Any], Any] = getattr(encoder, "module", None)
    if isinstance(encoder, OnnxEncoder):
        import onnxruntime

        session = onnxruntime.InferenceSession(encoder.path, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name

        def run(batch: Any) -> Any:
            return session.run(None, {name: batch.numpy()})

    features = []
    with torch.inference_mode():
        for batch in pictures.split(encoder.batch):
            features.append(run((batch.float() / 255).contiguous()))


def seconds_of(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds by the clock, and those of the processor."""
    begun = time.perf_counter()
    worked = time.process_time()
    function()
    return time.perf_counter() - begun, time.process_time() - worked


def measure(target: str, images: int, pairs: int) -> dict[str, Any]:
    """Return the medians of all pairs."""
    from fedtailor.data.embedding import embed_rows
    from fedtailor.encoders.load import load_encoder

    encoder = load_encoder(target)
    dataset = random_pictures(images)
    rows = np.arange(images)
    bare_loop(encoder, random_pictures(2 * encoder.batch))  # what a first use costs

    ours = []
    bare = []
    for _ in range(pairs):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["FEDTAILOR_CACHE"] = cache
            ours.append(seconds_of(lambda: embed_rows(encoder, dataset, rows)))

        bare.append(seconds_of(lambda: bare_loop(encoder, dataset)))

    ratios = [[one / two for one, two in zip(*pair, strict=True)] for pair in zip(ours, bare)]
    return {
        "encoder": target,
        "images": images,
        "pairs": pairs,
        "images_per_second": images / statistics.median(clock for clock, _ in ours),
        "ratio": statistics.median(clock for clock, _ in ratios),
        "ratio_of_processor": statistics.median(processor for _, processor in ratios),
    }


def main() -> None:
    """Measure, and print the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="benchmarks.efficientnet:lite0")
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    machine = describe_machine()
    record = measure(arguments.encoder, arguments.images, arguments.pairs)
    for name, value in record.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    if arguments.json:
        save_record("embedding", arguments.encoder.partition(":")[0], {**record, **machine})


if __name__ == "__main__":
    main()
