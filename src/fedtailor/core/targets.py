"""Import of a user's own function or class, named as ``package.module:name``."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any

from fedtailor.core.errors import ConfigError, did_you_mean
from fedtailor.core.options import wrong_value


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
    kind = "class" if what == "algorithm" else "function"
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        form = "package.module:Class" if kind == "class" else "package.module:function"
        raise wrong_value(key, f"{form} for your own {what}", target)

    # Last on the path, so that a user's file never hides an installed package.
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)

    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # A user's module may raise anything while it is imported.
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        message = f"the module '{module_name}' of {what} '{target}' cannot be imported: {reason}."
        raise ConfigError(message, key=key, got=target) from error

    value = getattr(module, name, None)
    if not callable(value):
        others = []
        for other, member in vars(module).items():
            if callable(member) and not other.startswith("_"):
                others.append(other)

        hint = did_you_mean(name, others).rstrip("?")
        message = f"the module '{module_name}' has no {kind} '{name}'{hint}."
        raise ConfigError(message, key=key, got=target)

    return value


def source_digest(target: str, *, what: str, key: str) -> str:
    """Return the SHA-256 of the file that holds a function or class; of no file that it imports.

    Args:
        target: the text, see :func:`find_target`.
        what: the kind of thing, for messages.
        key: the option that holds it, for messages.

    Raises:
        ConfigError: it cannot be imported, or is in no file.
    """
    value = find_target(target, what=what, key=key)
    if hasattr(value, "__qualname__"):
        module = inspect.getmodule(value)
    else:  # a partial, or another object without a file of its own
        module = sys.modules[target.partition(":")[0]]

    file = getattr(module, "__file__", None)
    if file is None:
        raise wrong_value(key, f"a {what} in a file", target)

    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
