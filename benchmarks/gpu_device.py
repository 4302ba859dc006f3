"""What the GPU benchmarks set and say of a device."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from train_step import machine

_LAUNCHES = ("LaunchKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync")


def set_precision(arguments: argparse.Namespace) -> dict[str, Any]:
    """Set what libraries may do to float32; return how it is set."""
    torch.backends.cuda.matmul.allow_tf32 = arguments.tf32  # older than fp32_precision, and must not be mixed with it
    torch.backends.cudnn.allow_tf32 = arguments.tf32
    torch.backends.cudnn.benchmark = arguments.autotune
    torch.backends.cudnn.deterministic = arguments.deterministic
    return {
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "convolution_tf32": torch.backends.cudnn.allow_tf32,
        "tf32_note": "the same in every arm, the peer too; PyTorch's default: matmul off, convolution on",
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
    }


def about(device: str) -> dict[str, Any]:
    """Describe the machine, its accelerator, and the software."""
    found = machine()
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["cuda"], found["cudnn"] = torch.version.cuda, torch.backends.cudnn.version()
    else:
        found["device"] = f"cpu, {torch.get_num_threads()} threads"
    return found


def require_device(parser: argparse.ArgumentParser, device: str) -> None:
    """End the program if the device is not there."""
    if device == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device: torch {torch.__version__} finds no CUDA device here")


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def settle_memory(device: str) -> int:
    """Give cached memory back and start the peaks anew; return the bytes held but not allocated: the pools of graphs.

    What a graph computes with counts as allocated only while it is captured; later it is in the graph's private pool.
    """
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def peak_memory(device: str, pools: int) -> dict[str, float]:
    """Return the peaks since memory was settled: ``allocated`` with pools is what arms are compared by."""
    if device != "cuda":
        return {}
    peaks = {
        "peak_mib": torch.cuda.max_memory_allocated() + pools,
        "graph_pools_mib": pools,
        "peak_mib_reserved": torch.cuda.max_memory_reserved(),
    }
    return {name: size / 2**20 for name, size in peaks.items()}


def usable(device: str) -> bool:
    """Return whether the device still works: an error within a kernel ends it for the whole process."""
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True


class _Operators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_calls(run: Callable[[], object], device: str) -> dict[str, int]:
    """Return how often it calls kernels, copies and graphs; on the CPU, operators of PyTorch."""
    if device != "cuda":
        with _Operators() as operators:
            run()
        return {"operators": operators.count}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    return {event.key: event.count for event in profile.key_averages() if any(name in event.key for name in _LAUNCHES)}
