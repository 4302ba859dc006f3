"""Calling a model function of the user: options checked, every failure a sentence."""

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
        ConfigError: an option the function does not take, or an exception of the function (which is chained).
    """
    _check_options(function, target, options)
    try:
        return function(input_shape, num_classes, **options)
    except FedtailorError:
        raise
    except (Exception, SystemExit) as error:
        shape = f"{target}({input_shape}, {num_classes}{''.join(f', {k}={v!r}' for k, v in options.items())})"
        message = f"the call {shape} raised {type(error).__name__}: {error}"
        raise refuse_target(message, target, key="model.name") from error


def _check_options(function: Callable[..., Any], target: str, options: Mapping[str, Any]) -> None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C have none
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    names = [parameter.name for parameter in parameters[2:]]
    for option in options:
        if option not in names:
            known = f"Known: {', '.join(names)}." if names else "It takes none."
            raise ConfigError(
                f"unknown option '{option}' of model '{target}'{did_you_mean(option, names) or '.'} {known}",
                key=f"model.options.{option}",
                allowed=names,
                got=option,
            )
