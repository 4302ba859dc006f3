"""Write the generated pages of docs: ``make docs``.

Every module of :data:`WRITERS` has a function ``pages`` that returns the texts of its pages by
their paths relative to docs. A test fails when a page is not what its writer would write.
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
    "papers_page",
)
GENERATED_FOLDERS = ("algorithms",)
"""Folders that hold generated pages only."""


sys.path.insert(0, str(ROOT))  # the papers' page reads the package `experiments` of the clone


def pages_of(writer: str) -> dict[str, str]:
    """Return the texts of a writer's pages by their paths relative to docs."""
    texts: dict[str, str] = importlib.import_module(writer).pages()
    return texts


def outdated(pages: dict[str, str]) -> list[str]:
    """Return the pages that are missing, different in docs, or written by nobody."""
    changed = [
        name
        for name, text in pages.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text() != text
    ]
    folders = {Path(name).parts[0] for name in pages} & set(GENERATED_FOLDERS)
    there = [
        path.relative_to(DOCS).as_posix()
        for folder in folders
        for path in (DOCS / folder).iterdir()
    ]
    return sorted([*changed, *(name for name in there if name not in pages)])


def main() -> None:
    """Write every page that has changed, and remove those that nobody writes any more."""
    for writer in WRITERS:
        pages = pages_of(writer)
        changed = outdated(pages)
        for name in changed:
            path = DOCS / name
            if name in pages:
                path.parent.mkdir(exist_ok=True)
                path.write_text(pages[name])
            else:
                path.unlink()
        sys.stderr.write(
            f"{writer}: {len(pages)} pages, {len(changed)} changed {' '.join(changed)}\n"
        )


if __name__ == "__main__":
    main()
