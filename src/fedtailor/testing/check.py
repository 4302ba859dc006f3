"""``check_algorithm``: what is wrong with an algorithm of one's own, in sentences."""

from __future__ import annotations

import dataclasses
import traceback
from dataclasses import replace
from typing import Any

from fedtailor.algorithms import load_algorithm, problem_with
from fedtailor.core.algorithm import Algorithm
from fedtailor.core.errors import ConfigError, FedtailorError, RunError
from fedtailor.testing import checks, declared, engine_checks, step_checks
from fedtailor.testing.advice import FLOAT64, advice, advice_on_error
from fedtailor.testing.case import Case
from fedtailor.testing.isolation import isolated
from fedtailor.testing.locate import explain, place_of, root_cause


def check_algorithm(
    algorithm: type[Algorithm[Any, Any, Any]] | Algorithm[Any, Any, Any] | str, **options: Any
) -> list[str]:
    """Run an algorithm on small uneven federations and say what is wrong with it, in sentences.

    Checked are: signatures, names and options; messages against ``messages``; the structure of states and models over
    rounds; that inputs are not changed; that clients one by one, stacked, padded, in threads and in another order get
    the same; that all randomness comes from the key; clients with 0, 1 and 2 examples, absent and new clients; the
    metric ``steps``; that use of a client's data is declared; that nothing depends on test data or on the data of
    others; networks with batch normalization and dropout, and for images; and that it learns. Where clients run
    stacked, results agree to 1e-12.

    Runs in float64 on one thread, and afterwards leaves PyTorch's default type, its threads and all random states as
    they were. They belong to the whole process: one check runs at a time, and other threads should make no tensors
    meanwhile.

    Args:
        algorithm: a class, an instance, or a name: of the package's table, or ``"package.module:Class"``.
        options: hyper-parameters in place of those of the class or instance. ``training`` is set by the checks.

    Returns:
        One sentence for each check that fails, in which client, field and line are named where there are any. If the
        algorithm does not run at all, the only sentence says why. An empty list: it is sound.

    Raises:
        ConfigError: there is nothing of that name.

    Example:
        >>> check_algorithm("fedavg")
        []
    """
    if isinstance(algorithm, str):
        algorithm = _load(algorithm)
    cls = algorithm if isinstance(algorithm, type) else type(algorithm)
    problem = problem_with(cls)
    if problem:
        said = declared.suspicions(cls) if isinstance(cls, type) and issubclass(cls, Algorithm) else []
        return [f"The class '{cls.__name__}' {problem}.", *said]
    wrong = declared.faults(cls)
    if wrong:
        return wrong + declared.suspicions(cls)
    with isolated():
        try:
            case = Case(algorithm(**options) if isinstance(algorithm, type) else replace(algorithm, **options))
        except Exception as error:  # whatever a user's class raises
            return [f"{cls.__name__} cannot be built: {_reason(error, cls)}."]
        try:
            case.base()
        except Exception as error:  # whatever a user's methods raise
            fault = f"{cls.__name__} does not run: {_why(error, case)} Other checks were left out."
            said = [fault, *declared.suspicions(cls), engine_checks.check_memory(case) or ""]
            return [sentence for sentence in said if sentence]
        return declared.suspicions(cls) + _sentences(case)


def _load(name: str) -> type[Algorithm[Any, Any, Any]]:
    """Return the class of a name; if its module fails in a dataclass, say where and what to write."""
    try:
        return load_algorithm(name)
    except ConfigError as error:
        cause = error.__cause__
        frames = traceback.extract_tb(cause.__traceback__) if cause else []
        if not any(frame.filename == dataclasses.__file__ for frame in frames):
            raise
        where = place_of(cause, Algorithm) if cause else ""
        hint = "Algorithms are written with @dataclass(frozen=True, kw_only=True)"
        raise ConfigError(f"{error.message.rstrip('.')}, in {where}. {hint}.", key=error.key, got=error.got) from cause


def _why(error: Exception, case: Case) -> str:
    """Return in sentences why nothing runs; numbers of a wrong type come first, as PyTorch does not say whose."""
    reason = _reason(error, type(case.algorithm))
    odd = case.odd_type()
    if odd:
        return f"{odd}. {FLOAT64}. ({reason}.)"
    try:
        messages = case.algorithm.messages(case.task())
    except Exception:  # whatever a user's method raises: this may be why nothing runs
        return f"{reason}.{advice_on_error(root_cause(error))}"
    problem = case.first_problem() if isinstance(error, RunError) and error.__cause__ is None else None
    hint = advice(problem, messages) if problem is not None else advice_on_error(root_cause(error))
    return f"{reason}.{hint}"


def _sentences(case: Case) -> list[str]:
    """Return what the checks say; one that fails altogether must not keep the others from being heard."""
    sentences: list[str] = []
    unchecked: list[tuple[str, str]] = []
    for check in (*checks.CHECKS, *step_checks.CHECKS, *engine_checks.CHECKS):
        try:
            said = check(case)
        except Exception as error:  # whatever a user's methods raise
            reason = _reason(error, type(case.algorithm))
            what = (check.__doc__ or "").strip().rstrip(".")
            said = None
            unchecked.append((what, reason))
        if said:
            sentences.append(said)
    news = [each for each in unchecked if not any(each[1].rpartition(": ")[2] in sentence for sentence in sentences)]
    if not news:
        return sentences
    others = f"; nor could {len(unchecked) - 1} more" if len(unchecked) > 1 else ""
    return [*sentences, f"{news[0][0]}: this could not be checked, because of {news[0][1]}{others}."]


def _reason(error: Exception, cls: type[Any]) -> str:
    """Return an error in words; a round whose clients failed says which client and method it was."""
    if isinstance(error, ConfigError) or (isinstance(error, FedtailorError) and error.__cause__ is None):
        return str(error).rstrip(".")
    if isinstance(error, FedtailorError):
        where = str(error).partition(": ")[0]
        return f"{where}: {explain(error, cls)}"
    return explain(error, cls)
