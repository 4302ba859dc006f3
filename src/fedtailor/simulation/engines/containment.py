"""Containment: a client's program ends no other program, and changes nothing that another one uses.

This is about faults, not about attacks: what a program does to Python objects that it shares with
others (the algorithm, its class, the model, modules), to files, or from threads that it leaves
running, cannot be seen. Nor can a program be stopped that never returns, or that ends the process;
of that, the engine ``processes`` loses one client.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from fedtailor.core.engine import Failure, Job, Program
from fedtailor.core.per_example import cut
from fedtailor.simulation.engines.plain_output import plain
from fedtailor.simulation.engines.private_inputs import PrivateInputs, SpoiledData
from fedtailor.simulation.engines.surroundings import Settings, Surroundings, thread_restored
from fedtailor.training.step_runner import PLAIN, StepRunner, steps_run_by


def run_job(program: Program, common: Any, job: Job, runner: StepRunner = PLAIN) -> Any:
    """Run one client's program, and its training steps by ``runner``; whatever it raises becomes a
    :class:`Failure`.

    Raises:
        SpoiledData: it changed the data of all clients, of which there is no copy.
    """
    process = os.getpid()
    private: PrivateInputs | None = None
    try:
        private = PrivateInputs(common, [job.inputs])
        with steps_run_by(runner), thread_restored():
            output = program(job.task, private.common, private.inputs[0])

        private.check()
        return plain(cut(output, job.size))
    except BaseException as error:
        private = None
        return failure_of(error)
    finally:
        if os.getpid() != process:
            os._exit(0)  # the program forked: only one of the two processes continues the run


def contained(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that belongs to one client; whatever it raises becomes a :class:`Failure`."""
    settings = Settings.current()
    try:
        with thread_restored():
            return plain(function(*arguments))
    except BaseException as error:
        return failure_of(error)
    finally:
        if Settings.current() != settings:
            settings.apply()


def run_one_by_one(program: Program, common: Any, jobs: Sequence[Job]) -> list[Any]:
    """Run clients one after the other in this thread, and restore their surroundings after each of
    them.

    Raises:
        SpoiledData: one of them changed the data of all clients, of which there is no copy.
    """
    surroundings = Surroundings()
    outputs = []
    for job in jobs:
        outputs.append(run_job(program, common, job))
        surroundings.restore()
    return outputs


def failure_of(error: BaseException) -> Failure:
    """Return the failure that an exception is, without the variables of its calls, which take
    memory.

    Raises:
        BaseException: the exception is no matter of one client.
    """
    refuse_to_contain(error)
    for each in _chain(error):
        traceback.clear_frames(_TRACEBACK(each))
    return Failure(error)


def refuse_to_contain(error: BaseException) -> None:
    """Raise an exception again that concerns the whole run: an interruption, or spoiled data."""
    if isinstance(error, SpoiledData) or comes_from_a_signal(error):
        raise error


def comes_from_a_signal(error: BaseException) -> bool:
    """Return whether a signal such as Ctrl-C is the reason for an exception, and not the program
    that raised it.

    Python handles signals in the main thread, where a ``KeyboardInterrupt`` counts as one, unless
    the signal is ignored. Handlers written in Python are found in the traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        return False

    codes = set(_codes_of_handlers())
    interruptible = callable(signal.getsignal(signal.SIGINT))
    for each in _chain(error):
        if interruptible and isinstance(each, KeyboardInterrupt):
            return True
        if codes and any(frame.f_code in codes for frame, _ in traceback.walk_tb(_TRACEBACK(each))):
            return True

    return False


def _codes_of_handlers() -> Iterator[CodeType]:
    """Yield the code of every handler of a signal that is written in Python."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler):
            function = handler if hasattr(handler, "__code__") else type(handler).__call__
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code


_TRACEBACK = vars(BaseException)["__traceback__"].__get__
_CAUSE = vars(BaseException)["__cause__"].__get__
_CONTEXT = vars(BaseException)["__context__"].__get__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, and those during whose handling it was raised."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = _CAUSE(error) or _CONTEXT(error)  # its own class may define these names anew
