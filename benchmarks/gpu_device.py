"""What the GPU benchmarks set and say of a device."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from train_step import machine


def set_precision(arguments: argparse.Namespace) -> dict[str, Any]:
    """Set what libraries may do to float32; return how it is set."""
    form = "tf32" if arguments.tf32 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = form
    torch.backends.cudnn.conv.fp32_precision = form
    torch.backends.cudnn.benchmark = arguments.autotune
    torch.backends.cudnn.deterministic = arguments.deterministic
    return {
        "matmul_fp32_precision": torch.backends.cuda.matmul.fp32_precision,
        "convolution_fp32_precision": torch.backends.cudnn.conv.fp32_precision,
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


def usable(device: str) -> bool:
    """Return whether the device still works: an error within a kernel ends it for the whole process."""
    try:
        synchronize(device)
    except RuntimeError:
        return False
    return True
