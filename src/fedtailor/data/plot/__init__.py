"""Pictures of data, for papers: each is one Vega-Lite specification that :func:`save` writes as HTML, PNG or SVG."""

from fedtailor.data.plot.bubbles import bubbles, count_classes
from fedtailor.data.plot.contact import contact_sheet, corruption_sheet
from fedtailor.data.plot.save import save
from fedtailor.data.plot.sizes import sizes

__all__ = ["bubbles", "contact_sheet", "corruption_sheet", "count_classes", "save", "sizes"]
