"""Import of a user's own function or class, named as ``package.module:name``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedtailor.core.errors import ConfigError, did_you_mean


def find_target(target: str, *, what: str, key: str) -> Any:
    """Import the function or class that ``package.module:name`` names.

    It is in an installed package or the current folder.

    Args:
        target: the text.
        what: the kind of thing, such as ``model``, for messages.
        key: the option that holds it, for messages.

    Raises:
        ConfigError: the module cannot be imported, or has no function or class of that name.
    """
    form = f"package.module:{'Class' if what == 'algorithm' else 'function'}"
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise refuse_target(
            f"write your own {what} as {form}, got '{target}'", target, key=key, allowed=form
        )

    here = os.getcwd()
    if not target.startswith("fedtailor.") and here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last, so that a user's file never hides an installed package

    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (
        Exception,
        SystemExit,
    ) as error:  # a user's module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}"
        message = f"the module '{module_name}' of {what} '{target}' cannot be imported: {reason}"
        raise refuse_target(message, target, key=key) from error

    found = getattr(module, name, None)
    if not callable(found):
        known = [
            other
            for other, value in vars(module).items()
            if callable(value) and not other.startswith("_")
        ]
        hint = did_you_mean(name, known).rstrip("?")
        kind = form.partition(":")[2].lower()
        raise refuse_target(
            f"the module '{module_name}' has no {kind} '{name}'{hint}", target, key=key
        )

    return found


def refuse_target(
    message: str, target: str, *, key: str, allowed: str | None = None
) -> ConfigError:
    """Return the error for a target that cannot be used."""
    return ConfigError(f"{message.rstrip('.')}.", key=key, allowed=allowed, got=target)
