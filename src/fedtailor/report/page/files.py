"""The files of a report: the page, and a PNG, an SVG and a CSV of every figure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedtailor.core.atomic import write_folder_whole, write_whole
from fedtailor.core.errors import ConfigError
from fedtailor.core.reading import read_file
from fedtailor.experiment.reader import refuse_inside_run
from fedtailor.report.figures.figure import WIDE, Figure
from fedtailor.report.page.build import MARK, Page

_PIXELS_PER_POINT = 2
_LARGEST_PAGE = 2**28
_ENDINGS = ("png", "svg", "csv")


def check_page_path(path: Path) -> None:
    """Check that a report can be written to a file: it is not in a run folder, and what is there is
    a report.

    Raises:
        ConfigError: it lies in a run folder, has another ending, or something else is there.
    """
    refuse_inside_run(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"--out '{path}' must end in .html.",
            key="out",
            path=str(path),
            allowed=".html",
            got=path.suffix,
        )

    if os.path.lexists(path) and not _is_report(path):
        raise ConfigError(
            f"'{path}' already exists and is not a report, so it is not overwritten. Choose another file with --out.",
            key="out",
            path=str(path),
            allowed="a file that does not exist, or an older report",
            got=str(path),
        )


def check_figures_folder(folder: Path) -> None:
    """Check that the figures can be written to a folder: it does not exist, and PNG can be drawn.

    Raises:
        ConfigError: it exists or lies in a run folder, or the extra ``plot`` is missing.
    """
    refuse_inside_run(folder)
    if os.path.lexists(folder):
        message = f"'{folder}' already exists and is never overwritten. Choose another folder with --figures."
        raise ConfigError(
            message, key="figures", allowed="a name that does not exist", got=str(folder)
        )

    if find_spec("vl_convert") is None:
        raise ConfigError(
            'figures as PNG need vl_convert, which is not installed: pip install "fedtailor[plot]". '
            "The report itself does not need it.",
            key="figures",
            allowed="fedtailor[plot]",
            got="not installed",
        )


def write_page(page: Page, path: Path) -> int:
    """Write a page whole, and return its size in bytes.

    Raises:
        RunError: the file cannot be written.
    """
    raw = page.html.encode()
    write_whole(path, raw)
    return len(raw)


def write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write PNG, SVG and CSV of every figure to a new folder, which appears whole; return the
    files.

    Raises:
        RunError: a file cannot be written.
    """
    write_folder_whole(
        folder, ((name, content) for figure in figures for name, content in _files_of(figure))
    )
    return [folder / f"{figure.name}.{ending}" for figure in figures for ending in _ENDINGS]


def _files_of(figure: Figure) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files of a figure."""
    import vl_convert

    svg = figure.draw(WIDE).standalone(figure.title, figure.caption)
    png = vl_convert.svg_to_png(svg, scale=_PIXELS_PER_POINT)
    for ending, content in zip(
        _ENDINGS, (png, svg.encode(), figure.table.to_csv().encode()), strict=True
    ):
        yield f"{figure.name}.{ending}", content


def _is_report(path: Path) -> bool:
    """Return whether a file is a report."""
    try:
        return MARK.encode() in read_file(path, limit=_LARGEST_PAGE)[:4096]
    except Exception:
        return False
