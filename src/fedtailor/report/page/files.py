"""The files of a report: the page, and a picture and a CSV file of every figure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedtailor.core.atomic import write_whole
from fedtailor.core.folders import write_folder_whole
from fedtailor.core.options import wrong_value
from fedtailor.core.reading import read_file
from fedtailor.experiment.reader import refuse_inside_run
from fedtailor.report.charts import FORMATS, picture
from fedtailor.report.page.build import MARK, Page, render_page
from fedtailor.report.parts import Figure, Section

_LARGEST_PAGE = 2**28


def check_page_path(path: Path) -> None:
    """Check that a report can be written to a file: only an older report may be there.

    Raises:
        ConfigError: it lies in a run folder, has another ending, or something else is there.
    """
    refuse_inside_run(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise wrong_value("--out", "a name that ends in .html", str(path))

    if os.path.lexists(path) and not _is_report(path):
        raise wrong_value("--out", "a new file, or an older report", str(path))


def check_figures_folder(folder: Path) -> None:
    """Check that the figures can be written to a folder.

    Raises:
        ConfigError: it exists or lies in a run folder.
    """
    refuse_inside_run(folder, "--figures")
    if os.path.lexists(folder):
        raise wrong_value("--figures", "a new folder", str(folder))


def write_page(page: Page, path: Path) -> int:
    """Write a page whole, and return its size in bytes.

    Raises:
        RunError: the file cannot be written.
    """
    raw = page.html.encode()
    write_whole(path, raw)

    return len(raw)


def write_figures(figures: Sequence[Figure], folder: Path, ending: str) -> list[Path]:
    """Write every figure and its numbers to a new folder, which appears whole.

    Args:
        figures: of a page.
        folder: that does not exist.
        ending: one of :data:`fedtailor.report.charts.FORMATS`.

    Returns:
        The files.

    Raises:
        RunError: a file cannot be written.
    """
    names: list[str] = []

    def contents() -> Iterator[tuple[str, bytes]]:
        for figure in figures:
            names.append(f"{figure.name}.{ending}")
            yield names[-1], picture(figure, ending)
            if figure.table is not None:
                names.append(f"{figure.name}.csv")
                yield names[-1], figure.table.to_csv().encode()

    write_folder_whole(folder, contents())
    return [folder / name for name in names]


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a page that needs no network, or as a picture, by the ending of the file.

    The file appears whole, and replaces an existing one.

    Raises:
        ConfigError: the path has another ending.
        RunError: the file cannot be written.
    """
    ending = path.suffix.lower().removeprefix(".")
    allowed = ["html", *FORMATS]
    if ending not in allowed:
        endings = ", ".join(f".{name}" for name in allowed)
        raise wrong_value("--out", f"a name that ends in {endings}", path.name)

    if ending == "html":
        section = Section(name="figure", title="Figure", figures=[figure])
        write_whole(path, render_page(figure.title, [section]))
    else:
        write_whole(path, picture(figure, ending))


def _is_report(path: Path) -> bool:
    try:
        return MARK.encode() in read_file(path, limit=_LARGEST_PAGE)[:4096]
    except Exception:
        return False
