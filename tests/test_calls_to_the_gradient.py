"""The way from the command to the gradient is short enough to be read."""

import sys
from pathlib import Path

import torch

from fedtailor.cli.main import main

SOURCE = Path(__file__).resolve().parent.parent / "src" / "fedtailor"
MOST = 15
"""Calls from ``fedtailor run`` to ``torch.autograd.grad``, Python frames of the package."""
MOST_BEFORE_TRAINING = 10
"""Those before the building block ``train``, which an algorithm calls."""


def package_frames():
    """Return the functions of the package on the stack, the outermost first."""
    frames = []
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            frames.append(f"{path.relative_to(SOURCE)}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return frames[::-1]


def test_few_calls_lead_from_the_command_to_the_gradient(tmp_path, monkeypatch):
    chains = []
    original = torch.autograd.grad

    def spy(*arguments, **named):
        if not chains:
            chains.append(package_frames())
        return original(*arguments, **named)

    monkeypatch.setattr(torch.autograd, "grad", spy)
    command = ["run", "-a", "fedavg", "--engine", "reference", "--clients", "3", "--rounds", "1"]
    assert main([*command, "--out", str(tmp_path / "run"), "--json"]) == 0
    (chain,) = chains
    shown = "\n".join(f"{number:2} {call}" for number, call in enumerate(chain, 1))
    before = [call for call in chain if not call.startswith("training/")]
    assert len(before) <= MOST_BEFORE_TRAINING, f"{len(before)} calls before training:\n{shown}"
    assert len(chain) <= MOST, f"{len(chain)} calls:\n{shown}"
