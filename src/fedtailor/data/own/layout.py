"""The layout of a user's data, recognized from the names and kinds of files alone."""

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

from fedtailor.core.errors import DataError
from fedtailor.data.cache import CACHE_VERSION
from fedtailor.data.options import DataOptions
from fedtailor.data.own.dicom import SENTENCE, beginning_of, find_dicom, is_dicom
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.findings import Findings, counted, show
from fedtailor.data.own.images import SUFFIXES, Picture
from fedtailor.data.own.names import listed, safe_name
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
"""The supported layouts, in words."""

TABLES = (".csv", ".parquet", ".pq")

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""``package.module:function``."""
_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_VALIDATION = {"val", "valid", "validation", "dev"}
_TOO_FRESH = 2.0  # seconds in which a file can change again without a trace in its times


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A recognized layout and the files to read."""

    kind: Literal["images", "arrays", "tables", "target"]
    words: str
    """One of :data:`LAYOUTS`."""
    name: str
    """Name of the folder or file, as a name for the data set."""
    folder: Path = Path()
    files: Sequence[File] = ()
    """All files of the folder; empty if not all files that will be read are known in advance."""
    sites: Sequence[str] = ()
    """Names of all sites, including those without examples; empty if the data has no sites."""
    classes: Sequence[str] = ()
    """Names of the class folders, including empty ones."""
    pictures: Sequence[Picture] = ()
    """Image files, training images first, each part sorted by site, class and name."""
    arrays: Sequence[tuple[str, dict[str, Path]]] = ()
    """Each site and its files by part."""
    tables: Sequence[tuple[str, Path]] = ()
    """Each site and its file; the site is empty if there is only one file."""
    target: str = ""
    """``package.module:function``."""

    def signature(self, options: DataOptions) -> str:
        """Return a digest of the folder, every file's path, size, times and number, the options and
        the readers.

        It is empty if the files to read are not known in advance or one was changed just now: then
        nothing is cached.
        """
        if not self.files:
            return ""

        last_change = max(file.changed for file in self.files) / 1e9
        if last_change > time.time() - _TOO_FRESH:
            return ""

        chosen = [
            options.label_column,
            options.group,
            options.missing,
            options.image_size,
            options.color,
        ]
        readers = [
            path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))
        ]
        described = json.dumps(
            [CACHE_VERSION, readers, self.words, self.name, str(self.folder), chosen, self.files]
        )

        return hashlib.sha256(described.encode("ascii")).hexdigest()


def recognize(path: str, findings: Findings) -> Layout | None:
    """Return the layout of a folder, a file or a function; None, with the problem added, if none is
    recognized.

    Folders are searched for tables at the top, then for ``train.npz`` or ``test.npz`` in their
    folders, then for images. The depth with the most images decides, and images elsewhere are left
    out.
    """
    place = os.path.expanduser(path)
    layout = None
    if os.path.isdir(place):
        tree = walk(Path(place), findings)
        if tree is not None:
            layout = _of_folder(tree, findings)
    elif os.path.isfile(place) and Path(place).suffix.lower() in TABLES:
        file = Path(place).resolve()
        name = _set_name(file.stem)
        layout = Layout(
            kind="tables", words=LAYOUTS[6], name=name, folder=file.parent, tables=(("", file),)
        )
    elif os.path.isfile(place) and (
        find_dicom([Path(place)]) or is_dicom(beginning_of(Path(place)))
    ):
        findings.add(
            "error", "dicom", "", safe_name(Path(place).name), f"The file is DICOM. {SENTENCE}"
        )
    elif os.path.isfile(place):
        _refuse(
            findings,
            "unknown_layout",
            f"{show(path)} is a file, but not a .csv or .parquet file; unpack archives.",
        )
    elif _TARGET.fullmatch(path):
        layout = Layout(
            kind="target", words=LAYOUTS[7], name=_set_name(path.replace(":", ".")), target=path
        )
    else:
        _refuse(findings, "not_found", _nothing_at(path))

    if layout is not None:
        findings.layout = layout.words
    if layout is None or not layout.sites:  # the top folders were those of classes
        findings.problems[:] = [problem._replace(site="") for problem in findings.problems]

    return layout


def refuse_missing(path: str) -> None:
    """Check that there is something at a path, or that it names a function.

    Raises:
        DataError: there is nothing.
    """
    if not os.path.exists(os.path.expanduser(path)) and not _TARGET.fullmatch(path):
        message = _with_layouts(_nothing_at(path))
        raise DataError(safe_name(message), key="data.path", path=safe_name(path), got="not_found")


def _nothing_at(path: str) -> str:
    return f"There is no folder or file {show(path)}."


def _with_layouts(message: str) -> str:
    return f"{message} Supported layouts: {', '.join(LAYOUTS)}."


def _refuse(findings: Findings, kind: str, message: str) -> None:
    findings.add("error", kind, "", "", _with_layouts(message))


def _of_folder(tree: Tree, findings: Findings) -> Layout | None:
    """Return the layout of a folder."""
    if not tree.files:
        _refuse(findings, "empty_folder", "The folder holds no files.")
        return None

    tables = [file for file in tree.files if not file.folders and file.suffix in TABLES]
    arrays = [file for file in tree.files if len(file.folders) == 1 and _part_of_npz(file)]
    images = [file for file in tree.files if file.suffix in SUFFIXES]
    others = sorted(set(tree.files).difference(tables, arrays, images))
    dicom = find_dicom([tree.path(file) for file in others])

    if dicom:
        first = safe_name(dicom[0].relative_to(tree.folder).as_posix())
        what = counted(len(dicom), "file of the folder is", "files of the folder are")
        findings.add("error", "dicom", "", first, f"{what} DICOM. {SENTENCE}")
        return None

    if tables:
        _leave_out(set(tree.files).difference(tables, images), findings)
        if images:
            findings.notes.append(
                f"{counted(len(images), 'image')} of the folder will be read if a table names them."
            )

        return _of_tables(tree, tables, findings)

    if arrays:
        _leave_out(set(tree.files).difference(arrays), findings)
        return _of_arrays(tree, arrays, findings)

    _leave_out(set(tree.files).difference(images), findings)
    return _of_images(tree, images, findings)


def _leave_out(files: Iterable[File], findings: Findings) -> None:
    """Add the problem of every file of another kind."""
    for file in sorted(files):
        site = safe_name(file.folders[0]) if file.folders else ""
        findings.add("skipped", "stray_file", site, file.shown, "This kind of file is not read.")


def _part_of_npz(file: File) -> str:
    """Return ``train`` or ``test`` for a file of arrays, else an empty text."""
    name = file.parts[-1].lower()
    return name.removesuffix(".npz") if name in ("train.npz", "test.npz") else ""


def _of_tables(tree: Tree, files: Sequence[File], findings: Findings) -> Layout | None:
    """Return the layout of a folder with one table per site, or with a single table."""
    several = len(files) > 1
    sites = [safe_name(Path(file.parts[0]).stem) for file in files] if several else [""]
    if not _distinct(sites, findings):
        return None

    return Layout(
        kind="tables",
        words=LAYOUTS[5] if several else LAYOUTS[6],
        name=_set_name(tree.folder.name),
        folder=tree.folder,
        files=tree.files,
        sites=sites if several else (),
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
        _refuse(
            findings, "unknown_layout", "The folder holds no supported images, arrays or tables."
        )
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
            message = f"Most images are {depth} folders deep ({words}); this one is elsewhere."
            site = safe_name(file.parts[0]) if file.folders else ""
            findings.add("skipped", "misplaced_file", site, file.shown, message)

    sites = _site_folders(tree) if words.startswith("SITE") else {}
    if not _distinct(sites.values(), findings):
        return None

    pictures = [_picture(tree, file, words) for file in chosen]
    pictures.sort(
        key=lambda each: (each.where.part != "train", each.where.site, each.where.label, each.path)
    )

    return Layout(
        kind="images",
        words=words,
        name=_set_name(tree.folder.name),
        folder=tree.folder,
        files=tree.files,
        sites=list(sites.values()),
        classes=sorted(
            {safe_name(folders[-1]) for folders in tree.folders if len(folders) == depth}
        ),
        pictures=pictures,
    )


def _name_layout(levels: Sequence[Collection[str]], findings: Findings) -> str:
    """Return the layout by the folder names at each level above the images, or an empty text with
    the error added.
    """
    kinds = [_kind_of_level(names) for names in levels]
    if "validation" in kinds:
        names = listed(sorted(_VALIDATION.intersection(levels[kinds.index("validation")])))
        message = (
            f"Beside the training folders there are folders called {names}. Rename them to test, or move their "
            "images into the training part; the option data.val_fraction sets validation data aside."
        )
        findings.add("error", "validation_folder", "", "", message)

        return ""

    if len(kinds) > 1 and kinds[-2] in ("mixed", "partial"):  # the level above the classes
        _refuse_mixture(levels[-2], findings)
        return ""

    kinds = ["names" if kind == "partial" else kind for kind in kinds]
    supported = {
        ("names", "names"): LAYOUTS[0],
        ("names", "parts", "names"): LAYOUTS[1],
        ("names",): LAYOUTS[2],
        ("mixed",): LAYOUTS[2],
        ("names", "mixed"): LAYOUTS[0],
        ("parts", "names"): LAYOUTS[3],
    }
    words = supported.get(tuple(kinds), "")

    if not words:
        where = "at the top" if not kinds else f"{len(kinds)} folders deep"
        parts = ", with train and test in an unexpected place" if "parts" in kinds else ""
        _refuse(findings, "unknown_layout", f"Images are {where}{parts}.")

    return words


def _refuse_mixture(names: Collection[str], findings: Findings) -> None:
    """Add the problem of folders called train or test beside others, at a level where parts are
    possible.
    """
    parts = sorted(_PARTS.keys() & names)
    others = sorted(set(names) - _PARTS.keys())
    message = (
        f"Folders {listed(parts)} are beside {listed(others)}, so sites and parts cannot be told apart. "
        "Use only train and test for parts, or give sites other names."
    )
    _refuse(findings, "ambiguous_layout", message)


def _kind_of_level(names: Collection[str]) -> str:
    """Return the kind of a level: parts (train, test), names, mixed, partial (one part and names)
    or validation.
    """
    parts = {_PARTS[name] for name in names if name in _PARTS}
    others = set(names) - _PARTS.keys()
    if "train" in parts and others and others <= _VALIDATION:
        return "validation"
    if parts and not others:
        return "parts"
    if parts == {"train", "test"}:
        return "mixed"

    return "partial" if parts else "names"


def _picture(tree: Tree, file: File, words: str) -> Picture:
    """Return an image file with its site, part and class."""
    site = safe_name(file.folders[0]) if words.startswith("SITE") else ""
    level = {LAYOUTS[1]: 1, LAYOUTS[3]: 0}.get(words, -1)
    part = _PARTS[file.folders[level].lower()] if level >= 0 else "train"
    return Picture(tree.path(file), Occurrence(site, part, safe_name(file.folders[-1]), file.shown))


def _site_folders(tree: Tree) -> dict[str, str]:
    """Return the name of the site of every folder at the top."""
    return {folders[0]: safe_name(folders[0]) for folders in tree.folders if len(folders) == 1}


def _distinct(sites: Collection[str], findings: Findings) -> bool:
    """Return whether all sites have different names; add the problem if not."""
    twice = [name for name, count in Counter(sites).items() if count > 1]
    if twice:
        message = f"Two files or folders belong to the same site: {listed(twice)}."
        findings.add("error", "duplicate_site", "", "", message)
    return not twice


def _set_name(name: str) -> str:
    """Return a name for the data set: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "own"
