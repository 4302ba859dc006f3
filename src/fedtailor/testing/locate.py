"""Where in a user's file an exception comes from."""

from __future__ import annotations

import dataclasses
import importlib
import traceback
from pathlib import Path
from typing import Any

import torch

from fedtailor.core.algorithm import Algorithm

_LIBRARIES = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).parent.parent),
    str(Path(importlib.__file__).parent),
    dataclasses.__file__,
)


def explain(error: BaseException, cls: type[Any]) -> str:
    """Return what was raised, and the line of the algorithm's file that it comes from."""
    cause = root_cause(error)
    reason = f"{type(cause).__name__}: {_first_sentences(str(cause))}"
    place = place_of(cause, cls)
    return f"{reason}, in {place}" if place else reason


def root_cause(error: BaseException) -> BaseException:
    """Return the exception at the start of a chain of causes."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return cause


def place_of(error: BaseException, cls: type[Any]) -> str:
    """Return file, line, function and source of the innermost frame that is the user's, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = _files(cls)
    mine = [frame for frame in frames if frame.filename in own]
    mine = mine or [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<"))]
    if not mine:
        return ""
    frame = mine[-1]
    source = f": `{frame.line}`" if frame.line else ""
    return f"{Path(frame.filename).name}, line {frame.lineno}, {frame.name}{source}"


def _files(cls: type[Any]) -> set[str]:
    """Return the files in which the methods of an algorithm are written."""
    classes = [base for base in cls.__mro__ if issubclass(base, Algorithm) and base is not Algorithm]
    functions = [function for base in classes for function in vars(base).values()]
    files = {function.__code__.co_filename for function in functions if hasattr(function, "__code__")}
    return {file for file in files if not file.startswith("<")}


def _first_sentences(text: str) -> str:
    """Shorten PyTorch's explanations, which go on for a paragraph."""
    line = " ".join(text.split())
    end = line.find(". ", 40)
    return (line if end < 0 else line[:end]).rstrip(".")
