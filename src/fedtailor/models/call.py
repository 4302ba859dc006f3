"""Calls of a user's model function, with checked options and readable errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedtailor.core.errors import ConfigError, FedtailorError, did_you_mean
from fedtailor.core.targets import refuse_target


def call_function(
    function: Callable[..., Any],
    target: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: Mapping[str, Any],
) -> Any:
    """Call ``function(input_shape, num_classes, **options)``.

    Raises:
        ConfigError: the function does not take an option, or raises an exception, which is chained.
    """
    _check_options(function, target, options)
    try:
        return function(input_shape, num_classes, **options)
    except FedtailorError:
        raise
    except (Exception, SystemExit) as error:
        arguments = [
            str(input_shape),
            str(num_classes),
            *(f"{name}={value!r}" for name, value in options.items()),
        ]
        call = f"{target}({', '.join(arguments)})"
        message = f"the call {call} raised {type(error).__name__}: {error}"
        raise refuse_target(message, target, key="model.name") from error


def _check_options(function: Callable[..., Any], target: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a function does not take."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C have no signature
        return

    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return

    names = [parameter.name for parameter in parameters[2:]]
    for option in options:
        if option not in names:
            known = f"Known: {', '.join(names)}." if names else "It takes none."
            hint = did_you_mean(option, names) or "."
            raise ConfigError(
                f"unknown option '{option}' of model '{target}'{hint} {known}",
                key=f"model.options.{option}",
                allowed=names,
                got=option,
            )
