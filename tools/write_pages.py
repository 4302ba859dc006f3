"""Write the pages of the site that follow from code or records. docs/conf.py calls it.

Every module of :data:`WRITERS` has a function ``pages`` that returns the texts of its pages by
their paths relative to docs. Git does not keep these pages (docs/.gitignore).
"""

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
WRITERS = (
    "algorithm_pages",
    "api_page",
    "architecture_page",
    "commands_page",
    "configuration_page",
    "data_problems_page",
    "leaderboard_page",
    "papers_page",
)
GENERATED_FOLDER = DOCS / "reference" / "algorithms"
"""A folder that holds generated pages only."""


sys.path.insert(0, str(ROOT))  # the papers' page reads the package `experiments` of the clone


def pages_of(writer: str) -> dict[str, str]:
    """Return the texts of a writer's pages by their paths relative to docs."""
    texts: dict[str, str] = importlib.import_module(writer).pages()
    return texts


def main() -> None:
    """Write every page that has changed, and remove those that nobody writes any more."""
    pages = {name: text for writer in WRITERS for name, text in pages_of(writer).items()}
    for name, text in pages.items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        # A page that is the same keeps its time, so that Sphinx need not read it again.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    for path in GENERATED_FOLDER.iterdir():
        if path.relative_to(DOCS).as_posix() not in pages:
            path.unlink()


if __name__ == "__main__":
    main()
