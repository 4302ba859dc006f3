"""Methods as a user writes them, such as ``fedavg_ft(finetune=head)``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fedtailor.core.errors import ConfigError
from fedtailor.core.options import wrong_value
from fedtailor.experiment.config import AlgorithmOptions, Config, parse_value

_FORM = "an algorithm, or an algorithm with options in brackets, such as fedavg_ft(finetune=head)"


def read_method(text: str) -> AlgorithmOptions:
    """Read a method.

    >>> read_method("ditto").name
    'ditto'
    >>> read_method("fedavg_ft(finetune=head, finetune_epochs=2)").options
    {'finetune': 'head', 'finetune_epochs': 2}

    Raises:
        ConfigError: the text is not of this form, or there is no such algorithm.
    """
    name, bracket, inside = text.strip().partition("(")
    if bracket and not inside.endswith(")"):
        raise wrong_value("a method", _FORM, text)

    options: dict[str, Any] = {}
    for part in inside.removesuffix(")").split(",") if inside.removesuffix(")").strip() else []:
        before, _, after = part.partition("=")
        key = before.strip()
        value = after.strip()
        if not (key and value) or key in options:
            allowed = "OPTION=VALUE, each once and with commas between them"
            raise wrong_value("options of a method", allowed, text)

        options[key] = parse_value(value)

    # A preset is not an option of the method, but is written like one.
    preset = {"preset": options.pop("preset")} if "preset" in options else {}
    return AlgorithmOptions(name=name.strip(), options=options, **preset)


def to_text(method: AlgorithmOptions) -> str:
    """Write a method so that :func:`read_method` reads it.

    >>> to_text(read_method("fedavg_ft(finetune = head, finetune_epochs=2)"))
    'fedavg_ft(finetune=head, finetune_epochs=2)'
    """
    options = dict(method.options)
    if method.preset != AlgorithmOptions().preset:
        options = {"preset": method.preset, **options}

    parts = []
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        parts.append(f"{name}={text}")

    return f"{method.name}({', '.join(parts)})" if parts else method.name


def read_methods(texts: Sequence[str]) -> list[AlgorithmOptions]:
    """Read several methods.

    Raises:
        ConfigError: a method is given twice, or cannot be read.
    """
    methods: list[AlgorithmOptions] = []
    for text in texts:
        method = read_method(text)
        if method in methods:
            message = f"the method '{text}' is given twice."
            raise ConfigError(message, key="algorithm", got=text)

        methods.append(method)

    return methods


def refuse_options_beside(config: Config, beside: str) -> None:
    """Check that no options of an algorithm would be ignored, because methods are named elsewhere.

    Args:
        config: has the algorithm.
        beside: what names the methods.

    Raises:
        ConfigError: it has options, or a preset.
    """
    algorithm = config.algorithm
    if not algorithm.options and algorithm.preset == AlgorithmOptions().preset:
        return

    ignored = ", ".join(algorithm.options) or "preset"
    hint = "Write them with the method, such as fedavg_ft(finetune=head)."
    raise wrong_value("[algorithm]", f"without options beside {beside}", ignored, hint)


def with_methods(config: Config, texts: Sequence[str]) -> list[Config]:
    """Return the configuration once per method; all else is the same.

    Raises:
        ConfigError: a method is given twice, or cannot be read; or options of the configuration's
            algorithm would be ignored.
    """
    if texts:
        refuse_options_beside(config, "-a")

    return [dataclasses.replace(config, algorithm=method) for method in read_methods(texts)]
