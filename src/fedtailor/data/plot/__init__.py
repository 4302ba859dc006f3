"""Pictures of data, for papers: each is one Vega-Lite specification that :func:`save` writes as
HTML, PNG or SVG.

Drawing needs the extra ``fedtailor[plot]``.
"""

from importlib.util import find_spec

from fedtailor.core.errors import ConfigError

_missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
if _missing:
    raise ConfigError(
        f'drawing needs {" and ".join(_missing)}, which is not installed: pip install "fedtailor[plot]".',
        key="plot",
        allowed="fedtailor[plot]",
        got="not installed",
    )

from fedtailor.data.plot.bubbles import bubbles, count_classes  # noqa: E402  # these import altair
from fedtailor.data.plot.contact import contact_sheet, corruption_sheet  # noqa: E402
from fedtailor.data.plot.save import save  # noqa: E402
from fedtailor.data.plot.sizes import MAX_BARS, size_bars, sizes  # noqa: E402

__all__ = [
    "MAX_BARS",
    "bubbles",
    "contact_sheet",
    "corruption_sheet",
    "count_classes",
    "save",
    "size_bars",
    "sizes",
]
