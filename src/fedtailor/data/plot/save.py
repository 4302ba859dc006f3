"""Pictures as files: a specification becomes an HTML page, a PNG or an SVG."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.atomic import write_whole
from fedtailor.core.errors import ConfigError, did_you_mean
from fedtailor.data.plot.style import Picture

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:; \
script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'">
<title>{title}</title>
<script>{library}</script>
</head>
<body>
<div id="picture"></div>
<script>
vegaEmbed("#picture", {specification}, {{renderer: "svg", actions: {{export: true, source: false, compiled: false, \
editor: false}}}});
</script>
</body>
</html>
"""
"""The policy keeps the page off the network, whatever the drawing library tries to load."""


def save(chart: Picture, path: Path) -> None:
    """Write a picture as ``.html`` (self-contained: it needs no network), ``.png`` (two pixels per
    point) or ``.svg``.

    The file appears whole, and replaces an existing one.

    Raises:
        ConfigError: the path has another ending.
        RunError: the file cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in _WRITERS:
        allowed = sorted(_WRITERS)
        hint = did_you_mean(ending, allowed) or "."
        raise ConfigError(
            f"'{path.name}': a picture's ending must be {', '.join(allowed)}, got '{ending}'{hint}",
            key="out",
            path=str(path),
            allowed=allowed,
            got=ending,
        )

    write_whole(path, _WRITERS[ending](chart.to_dict()))


def _to_html(specification: Mapping[str, Any]) -> bytes:
    """Return a page. Names are data in JSON without ``<``, so that no name can end the script."""
    import vl_convert

    text = json.dumps(specification).replace("<", "\\u003c")
    title = specification["title"]["text"]
    if isinstance(title, list):
        title = " ".join(title)
    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return _PAGE.format(title=html.escape(title), library=library, specification=text).encode()


def _to_png(specification: Mapping[str, Any]) -> bytes:
    import vl_convert

    return vl_convert.vegalite_to_png(dict(specification), scale=2, allowed_base_urls=[])


def _to_svg(specification: Mapping[str, Any]) -> bytes:
    import vl_convert

    return vl_convert.vegalite_to_svg(dict(specification), allowed_base_urls=[]).encode()


_WRITERS: Mapping[str, Callable[[Mapping[str, Any]], bytes]] = {
    ".html": _to_html,
    ".png": _to_png,
    ".svg": _to_svg,
}
