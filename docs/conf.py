"""The documentation site: ``make docs`` builds it."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src"), str(ROOT)]

import fedtailor
import inventories
import write_pages

# Pages that follow from code and records are written first; git does not keep them.
write_pages.main()

project = "fedtailor"
author = "the fedtailor authors"
version = release = fedtailor.__version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
root_doc = "index"

# A wrong link or a page that no list names is a warning, and `make docs` fails on warnings.
# So is a public name that is not there; names of other projects need not be known.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!fedtailor\.toolkit\.|fedtailor\.[A-Za-z_]+$).*")]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False

# Links into other projects come from lists in this folder: a build needs no network.
intersphinx_mapping = {
    project: (address, inventories.write(ROOT / "docs" / "_build" / f"{project}.inv", project))
    for project, address in inventories.ADDRESSES.items()
}

copybutton_prompt_text = "$ "  # output is not copied

html_theme = "pydata_sphinx_theme"
html_title = "fedtailor"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(ROOT / "docs" / "_static" / "search.js")
html_favicon = "_static/icon.svg"
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_start": ["navbar-logo"],
    "navbar_end": ["theme-switcher"],
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "back_to_top_button": False,
}
copyright = "the fedtailor authors. Apache License 2.0"


def keep_first_line(app, what, name, obj, options, lines):
    """Keep Napoleon from reading the start of a field's text, up to a colon, as its type."""
    if what in ("attribute", "property", "data") and lines:
        lines.insert(0, "")


def setup(app):
    """Connect what this site adds to Sphinx."""
    app.connect("autodoc-process-docstring", keep_first_line, priority=100)
