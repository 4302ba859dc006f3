"""Which layout a user's data have, decided from the names and kinds of files alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedtailor.data.options import DataOptions
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.images import SUFFIXES, Picture
from fedtailor.data.own.names import listed, safe_name
from fedtailor.data.own.place import show
from fedtailor.data.own.report import Findings
from fedtailor.data.own.walk import File, Tree, walk

LAYOUTS = (
    "SITE/CLASS/image",
    "SITE/{train,test}/CLASS/image",
    "CLASS/image",
    "{train,test}/CLASS/image",
    "SITE/{train,test}.npz",
    "SITE.csv or SITE.parquet",
    "one .csv or .parquet file",
    "package.module:function",
)
"""The layouts that are understood, in words."""

TABLES = (".csv", ".parquet", ".pq")

_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_VALIDATION = {"val", "valid", "validation", "dev"}
_TOO_FRESH = 2.0  # seconds in which a file can change again without a trace in its times


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is to be read, and how."""

    kind: Literal["images", "arrays", "tables", "target"]
    words: str
    """One of :data:`LAYOUTS`."""
    name: str
    """Name of the folder or file, as a name for the data set."""
    folder: Path = Path()
    files: Sequence[File] = ()
    """All files of the folder; empty where only some of what is read is known beforehand."""
    sites: Sequence[str] = ()
    """Names of all sites, also of those without examples; empty where the data have no sites."""
    classes: Sequence[str] = ()
    """Names of the folders of classes, also of empty ones."""
    pictures: Sequence[Picture] = ()
    """Those for training first; within each part by site, class and name."""
    arrays: Sequence[tuple[str, dict[str, Path]]] = ()
    """Site and its files by part."""
    tables: Sequence[tuple[str, Path]] = ()
    """Site and its file; the site is empty where there is one file only."""
    target: str = ""
    """``package.module:function``."""

    def signature(self, options: DataOptions) -> str:
        """Return a digest that changes with the folder, any file's path, size, times or number, options and readers.

        It is empty if what is read is not known beforehand, or was changed this very moment: nothing is to be kept.
        """
        if not self.files or max(file.changed for file in self.files) / 1e9 > time.time() - _TOO_FRESH:
            return ""
        chosen = [options.label_column, options.image_size, options.color]
        readers = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
        described = json.dumps([readers, self.words, self.name, str(self.folder), chosen, self.files])
        return hashlib.sha256(described.encode("ascii")).hexdigest()


def recognize(path: str, findings: Findings) -> Layout | None:
    """Return the layout of a folder, a file or a function; None, with the problem added, if it has none.

    The first that fits: tables at the top of the folder; ``train.npz`` or ``test.npz`` in its folders; images. Of
    images the depth at which most are is taken, and what is elsewhere is left out.
    """
    place = os.path.expanduser(path)
    layout = None
    if os.path.isdir(place):
        tree = walk(Path(place), findings)
        layout = None if tree is None else _of_folder(tree, findings)
    elif os.path.isfile(place) and Path(place).suffix.lower() in TABLES:
        file = Path(place).resolve()
        name = _set_name(file.stem)
        layout = Layout(kind="tables", words=LAYOUTS[6], name=name, folder=file.parent, tables=(("", file),))
    elif os.path.isfile(place):
        _refuse(findings, "unknown_layout", f"{show(path)} is a file, but no .csv or .parquet file; unpack archives.")
    elif re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", path):
        layout = Layout(kind="target", words=LAYOUTS[7], name=_set_name(path.replace(":", ".")), target=path)
    else:
        _refuse(findings, "not_found", f"There is no folder or file {show(path)}.")
    if layout is not None:
        findings.layout = layout.words
    if layout is None or not layout.sites:  # the folders seen so far were those of classes
        findings.problems[:] = [problem._replace(site="") for problem in findings.problems]
    return layout


def _refuse(findings: Findings, kind: str, message: str) -> None:
    findings.add("error", kind, "", "", f"{message} Layouts that are understood: {', '.join(LAYOUTS)}.")


def _of_folder(tree: Tree, findings: Findings) -> Layout | None:
    """Return the layout of a folder."""
    if not tree.files:
        _refuse(findings, "empty_folder", "The folder holds no file.")
        return None
    tables = [file for file in tree.files if not file.folders and file.suffix in TABLES]
    arrays = [file for file in tree.files if len(file.folders) == 1 and _part_of_npz(file)]
    images = [file for file in tree.files if file.suffix in SUFFIXES]
    if tables:
        _leave_out(set(tree.files).difference(tables, images), findings)
        if images:
            findings.notes.append(f"{len(images)} images of the folder are read where a table names them.")
        return _of_tables(tree, tables, findings)
    if arrays:
        _leave_out(set(tree.files).difference(arrays), findings)
        return _of_arrays(tree, arrays, findings)
    _leave_out(set(tree.files).difference(images), findings)
    return _of_images(tree, images, findings)


def _leave_out(files: Iterable[File], findings: Findings) -> None:
    """Add the files that are none of what is read."""
    for file in sorted(files):
        site = safe_name(file.folders[0]) if file.folders else ""
        findings.add("skipped", "stray_file", site, file.shown, "A file of another kind than those that are read.")


def _part_of_npz(file: File) -> str:
    """Return ``train`` or ``test`` for a file of arrays, else an empty text."""
    name = file.parts[-1].lower()
    return name.removesuffix(".npz") if name in ("train.npz", "test.npz") else ""


def _of_tables(tree: Tree, files: Sequence[File], findings: Findings) -> Layout | None:
    """Return the layout of a folder with one table per site, or with one only."""
    sites = [safe_name(Path(file.parts[0]).stem) for file in files] if len(files) > 1 else [""]
    if not _distinct(sites, findings):
        return None
    return Layout(
        kind="tables",
        words=LAYOUTS[5] if len(files) > 1 else LAYOUTS[6],
        name=_set_name(tree.folder.name),
        folder=tree.folder,
        files=tree.files,
        sites=sites if len(files) > 1 else (),
        tables=[(site, tree.path(file)) for site, file in zip(sites, files, strict=True)],
    )


def _of_arrays(tree: Tree, files: Sequence[File], findings: Findings) -> Layout | None:
    """Return the layout of a folder with one folder of arrays per site."""
    sites = _site_folders(tree)
    if not _distinct(sites.values(), findings):
        return None
    arrays: dict[str, dict[str, Path]] = {}
    for file in files:
        arrays.setdefault(sites[file.folders[0]], {})[_part_of_npz(file)] = tree.path(file)
    return Layout(
        kind="arrays",
        words=LAYOUTS[4],
        name=_set_name(tree.folder.name),
        folder=tree.folder,
        files=tree.files,
        sites=list(sites.values()),
        arrays=sorted(arrays.items()),
    )


def _of_images(tree: Tree, images: Sequence[File], findings: Findings) -> Layout | None:
    """Return the layout of a folder of images."""
    if not images:
        _refuse(findings, "unknown_layout", "The folder holds no image, array or table that is understood.")
        return None
    depths = Counter(len(file.folders) for file in images)
    depth = max(depths, key=lambda each: (depths[each], each))
    chosen = [file for file in images if len(file.folders) == depth]
    levels = [{file.folders[level].lower() for file in chosen} for level in range(depth)]
    words = _name_layout(levels, findings)
    if not words:
        return None
    for file in images:
        if len(file.folders) != depth:
            message = f"Images are expected {depth} folders deep, as most are ({words}); this one is elsewhere."
            findings.add(
                "skipped", "misplaced_file", safe_name(file.parts[0]) if file.folders else "", file.shown, message
            )
    sites = _site_folders(tree) if words.startswith("SITE") else {}
    if not _distinct(sites.values(), findings):
        return None
    pictures = [_picture(tree, file, words) for file in chosen]
    pictures.sort(key=lambda each: (each.where.part != "train", each.where.site, each.where.label, each.path))
    return Layout(
        kind="images",
        words=words,
        name=_set_name(tree.folder.name),
        folder=tree.folder,
        files=tree.files,
        sites=list(sites.values()),
        classes=sorted({safe_name(folders[-1]) for folders in tree.folders if len(folders) == depth}),
        pictures=pictures,
    )


def _name_layout(levels: Sequence[Collection[str]], findings: Findings) -> str:
    """Return the layout by the names of the folders at each level above the images, or an empty text with the error."""
    kinds = [_kind_of_level(names) for names in levels]
    if "validation" in kinds:
        names = listed(sorted(_VALIDATION.intersection(levels[kinds.index("validation")])))
        message = (
            f"Beside training folders there are {names}. Rename to test, or move the images into the training part"
        )
        findings.add("error", "validation_folder", "", "", f"{message}; validation data are set aside by an option.")
        return ""
    if len(kinds) > 1 and kinds[-2] in ("mixed", "partial"):  # right above the classes
        _refuse_mixture(levels[-2], findings)
        return ""
    kinds = ["names" if kind == "partial" else kind for kind in kinds]
    understood = {
        ("names", "names"): LAYOUTS[0],
        ("names", "parts", "names"): LAYOUTS[1],
        ("names",): LAYOUTS[2],
        ("mixed",): LAYOUTS[2],
        ("names", "mixed"): LAYOUTS[0],
        ("parts", "names"): LAYOUTS[3],
    }
    words = understood.get(tuple(kinds), "")
    if not words:
        where = "at the top" if not kinds else f"{len(kinds)} folders deep"
        parts = ", with train and test in an unexpected place" if "parts" in kinds else ""
        _refuse(findings, "unknown_layout", f"Images are {where}{parts}.")
    return words


def _refuse_mixture(names: Collection[str], findings: Findings) -> None:
    """Add the problem of folders called train or test beside others, where parts are possible."""
    parts, others = sorted(_PARTS.keys() & names), sorted(set(names) - _PARTS.keys())
    message = (
        f"Folders {listed(parts)} are beside {listed(others)}: sites would be taken for parts, or parts for sites. "
        "Call the parts train and test and nothing else, or give sites other names than these."
    )
    _refuse(findings, "ambiguous_layout", message)


def _kind_of_level(names: Collection[str]) -> str:
    """Return whether folders are the parts (train and test), names, or both mixed; partial: one part and names."""
    parts = {_PARTS[name] for name in names if name in _PARTS}
    others = set(names) - _PARTS.keys()
    if "train" in parts and others and others <= _VALIDATION:
        return "validation"
    if parts and not others:
        return "parts"
    return "mixed" if parts == {"train", "test"} else "partial" if parts else "names"


def _picture(tree: Tree, file: File, words: str) -> Picture:
    """Return an image file with its site, part and class."""
    site = safe_name(file.folders[0]) if words.startswith("SITE") else ""
    level = {LAYOUTS[1]: 1, LAYOUTS[3]: 0}.get(words, -1)
    part = _PARTS[file.folders[level].lower()] if level >= 0 else "train"
    return Picture(tree.path(file), Occurrence(site, part, safe_name(file.folders[-1]), file.shown))


def _site_folders(tree: Tree) -> dict[str, str]:
    """Return the folders at the top with the names of their sites."""
    return {folders[0]: safe_name(folders[0]) for folders in tree.folders if len(folders) == 1}


def _distinct(sites: Collection[str], findings: Findings) -> bool:
    """Return whether no two sites have the same name; add the problem."""
    twice = [name for name, count in Counter(sites).items() if count > 1]
    if twice:
        findings.add("error", "duplicate_site", "", "", f"Two files or folders are of the same site: {listed(twice)}.")
    return not twice


def _set_name(name: str) -> str:
    """Return a name for the data set: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "own"
