"""The layout of a user's data, recognized from the names and kinds of files alone."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path, PurePath

from fedtailor.core.errors import DataError
from fedtailor.core.text import counted, escaped, listed, quoted
from fedtailor.data.cache import digest_of
from fedtailor.data.options import OWN, DataOptions
from fedtailor.data.own.archives import ENDINGS
from fedtailor.data.own.duplicates import Occurrence
from fedtailor.data.own.findings import Findings, Unusable
from fedtailor.data.own.images import SUFFIXES, Picture
from fedtailor.data.own.table import TABLES
from fedtailor.data.own.walk import (
    USE_INSTEAD_OF_DICOM,
    File,
    FolderContents,
    begins_like_dicom,
    find_dicom,
    walk,
)

SITE_CLASS = "SITE/CLASS/image"
SITE_PART_CLASS = "SITE/{train,test}/CLASS/image"
CLASS = "CLASS/image"
PART_CLASS = "{train,test}/CLASS/image"
SITE_ARRAYS = "SITE/{train,test}.{npz,h5}"
ARRAYS = "{train,test}.{npz,h5}"
SITE_TABLES = "SITE.csv or SITE.parquet"
ONE_TABLE = "one .csv or .parquet file"
FUNCTION = "package.module:function"

ENCODER_FILE = "encoder.json"
"""Beside embedded features: which encoder made them."""

LAYOUTS = (
    SITE_CLASS,
    SITE_PART_CLASS,
    CLASS,
    PART_CLASS,
    SITE_ARRAYS,
    ARRAYS,
    SITE_TABLES,
    ONE_TABLE,
    FUNCTION,
)
"""The supported layouts, in words."""

_SUPPORTED = f"Supported layouts: {', '.join(LAYOUTS)}."

_BY_LEVELS = {
    ("names", "names"): SITE_CLASS,
    ("names", "parts", "names"): SITE_PART_CLASS,
    ("names",): CLASS,
    ("mixed",): CLASS,
    ("names", "mixed"): SITE_CLASS,
    ("parts", "names"): PART_CLASS,
}
"""The layouts of images, by the kinds of folder names at each level."""

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
"""``package.module:function``."""
_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
_VALIDATION = {"val", "valid", "validation", "dev"}
_TOO_FRESH = 2.0
"""Seconds in which a file can change again without a trace in its times."""


@dataclass(frozen=True, kw_only=True)
class FolderLayout:
    """A recognized layout and what to read: pictures, arrays, tables, or a function."""

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
    """Each site and its files by part; the site is empty if the folder holds the files itself."""
    tables: Sequence[tuple[str, Path]] = ()
    """Each site and its file; the site is empty if there is only one file."""
    target: str = ""
    """``package.module:function``."""

    def signature(self, options: DataOptions, purpose: str = "federation") -> str:
        """Return a digest of all that decides the data: files, options, purpose and readers.

        Of every file, path, size, times and number count, not its content.

        It is empty if the files to read are not known in advance or one was changed just now: then
        nothing is cached.
        """
        if not self.files:
            return ""

        # Two changes within the resolution of a clock look like one.
        last_change = max(file.changed for file in self.files) / 1e9
        if last_change > time.time() - _TOO_FRESH:
            return ""

        # What becomes of numbers is decided after reading.
        chosen = [getattr(options, name) for name in OWN if name != "numbers"]
        return digest_of(self.words, self.name, str(self.folder), purpose, chosen, self.files)


def recognize(path: str, findings: Findings) -> FolderLayout | None:
    """Return the layout of data; None, with the problem added, if none is recognized.

    Folders are searched for tables at the top, then for ``train.npz``, ``test.npz`` or the same
    with ``.h5`` in their folders, then for images. The depth with the most images decides, and
    images elsewhere are left out.
    """
    layout = None
    try:
        layout = _recognize(path, findings)
        findings.layout = layout.words
    except Unusable as error:
        findings.add(error.kind, error.message, path=error.path)

    if layout is None or not layout.sites:  # the top folders were those of classes
        findings.problems[:] = [problem._replace(site="") for problem in findings.problems]

    return layout


def _recognize(path: str, findings: Findings) -> FolderLayout:
    # Unlike those of Path, these functions take names that no file can have.
    expanded = os.path.expanduser(path)
    if os.path.isdir(expanded):
        return _of_folder(walk(Path(expanded), findings), findings)

    if os.path.isfile(expanded):
        return _of_file(Path(expanded), path)

    if _TARGET.fullmatch(path):
        name = _set_name(path.replace(":", "."))
        return FolderLayout(words=FUNCTION, name=name, target=path)

    raise Unusable("not_found", _nothing_at(path))


def refuse_missing(path: str) -> None:
    """Check that there is something at a path, or that it names a function.

    Raises:
        DataError: there is nothing.
    """
    if not os.path.exists(os.path.expanduser(path)) and not _TARGET.fullmatch(path):
        message = escaped(_nothing_at(path))
        raise DataError(message, key="data.path", path=escaped(path), got="not_found")


def _nothing_at(path: str) -> str:
    where = "" if os.path.isabs(os.path.expanduser(path)) else f" in {quoted(os.getcwd())}"
    return f"There is no folder or file {quoted(path)}{where}. {_SUPPORTED}"


def _of_file(file: Path, path: str) -> FolderLayout:
    """Return the layout of a file, which must be a table."""
    if file.suffix.lower() in TABLES:
        file = file.resolve()
        return FolderLayout(
            words=ONE_TABLE,
            name=_set_name(file.stem),
            folder=file.parent,
            tables=[("", file)],
        )

    if find_dicom([file]) or begins_like_dicom(file):
        raise Unusable("dicom", f"The file is DICOM. {USE_INSTEAD_OF_DICOM}", file.name)

    advice = "save it as CSV UTF-8" if file.suffix.lower() in _SPREADSHEETS else "unpack archives"
    message = f"{quoted(path)} is a file, but not a .csv or .parquet file; {advice}."
    raise Unusable("unknown_layout", f"{message} {_SUPPORTED}")


def _of_folder(tree: FolderContents, findings: Findings) -> FolderLayout:
    """Return the layout of a folder."""
    if not tree.files:
        raise Unusable("empty_folder", f"The folder holds no files. {_SUPPORTED}")

    # Each kind of file at its own depth; what is nowhere is told as a stray file.
    tables = [file for file in tree.files if not file.folders and file.suffix in TABLES]
    arrays = [file for file in tree.files if len(file.folders) < 2 and _part_of_arrays(file)]
    images = [file for file in tree.files if file.suffix in SUFFIXES]
    others = sorted(set(tree.files).difference(tables, arrays, images))
    dicom = find_dicom([tree.path(file) for file in others])
    if dicom:
        files = counted(len(dicom), "file of the folder is", "files of the folder are")
        first = dicom[0].relative_to(tree.folder).as_posix()
        raise Unusable("dicom", f"{files} DICOM. {USE_INSTEAD_OF_DICOM}", first)

    name = _set_name(tree.folder.name)
    layout = FolderLayout(words="", name=name, folder=tree.folder, files=tree.files)
    if tables:
        _refuse_spreadsheets(others, findings)
        _leave_out([*arrays, *others], findings)
        if images:
            number = counted(len(images), "image")
            findings.note(f"{number} of the folder will be read if a table names them.")

        return _of_tables(layout, tree, tables)

    # Arrays come before images: a folder may hold previews of them.
    if arrays:
        _leave_out([*images, *others], findings)
        return _of_arrays(layout, tree, arrays, findings)

    _leave_out(others, findings)
    return _of_images(layout, tree, images, findings)


def _refuse_spreadsheets(files: Iterable[File], findings: Findings) -> None:
    """Add an error for every spreadsheet at the top: a site would be lost without notice."""
    for file in sorted(files):
        if not file.folders and file.suffix in _SPREADSHEETS:
            message = "Spreadsheets are not read: save it as CSV UTF-8, or move it elsewhere."
            findings.add("spreadsheet", message, path=file.escaped)


def _leave_out(files: Iterable[File], findings: Findings) -> None:
    """Add the problem of every file of another kind."""
    for file in sorted(files):
        if file.parts[-1] == ENCODER_FILE:  # says again, for people, what the arrays say
            continue

        site = file.folders[0] if file.folders else ""
        message = "This kind of file is not read."
        if file.suffix in TABLES:
            message = "Tables are read from the folder itself, not from folders in it."

        findings.add("stray_file", message, site=site, path=file.escaped)


def _part_of_arrays(file: File) -> str:
    """Return ``train`` or ``test`` for a file of arrays, else an empty text."""
    name = PurePath(file.parts[-1].lower())
    return name.stem if name.stem in ("train", "test") and name.suffix in ENDINGS else ""


def _by_part(tree: FolderContents, files: Sequence[File]) -> dict[str, Path]:
    """Return the files of arrays of a site by part.

    Raises:
        Unusable: there are two of a part.
    """
    by_part: dict[str, Path] = {}
    for file in files:
        part = _part_of_arrays(file)
        if part in by_part:
            message = f"There is {quoted(by_part[part].name)} too; keep one of the two."
            raise Unusable("two_arrays", message, file.escaped)

        by_part[part] = tree.path(file)

    return by_part


def _of_tables(layout: FolderLayout, tree: FolderContents, files: Sequence[File]) -> FolderLayout:
    """Return the layout of a folder with one table per site, or with a single table."""
    paths = [tree.path(file) for file in files]
    if len(paths) == 1:
        return replace(layout, words=ONE_TABLE, tables=[("", paths[0])])

    sites = [escaped(path.stem) for path in paths]
    _check_distinct(sites)
    tables = list(zip(sites, paths, strict=True))
    return replace(layout, words=SITE_TABLES, sites=sites, tables=tables)


def _of_arrays(
    layout: FolderLayout, tree: FolderContents, files: Sequence[File], findings: Findings
) -> FolderLayout:
    """Return the layout of a folder with one folder of arrays per site, or with arrays itself."""
    at_top = _by_part(tree, [file for file in files if not file.folders])
    if at_top:
        _leave_out([file for file in files if file.folders], findings)
        return replace(layout, words=ARRAYS, arrays=[("", at_top)])

    sites = _top_folders(tree)
    _check_distinct(sites)
    by_folder: dict[str, list[File]] = {}
    for file in files:
        by_folder.setdefault(escaped(file.folders[0]), []).append(file)

    by_site = sorted((site, _by_part(tree, own)) for site, own in by_folder.items())
    return replace(layout, words=SITE_ARRAYS, sites=sites, arrays=by_site)


def _of_images(
    layout: FolderLayout, tree: FolderContents, images: Sequence[File], findings: Findings
) -> FolderLayout:
    """Return the layout of a folder of images."""
    if not images:
        message = "The folder holds no supported images, arrays or tables."
        raise Unusable("unknown_layout", f"{message} {_SUPPORTED}")

    # The depth with the most images is that of the data.
    depths = Counter(len(file.folders) for file in images)
    depth = max(depths, key=lambda level: (depths[level], level))
    chosen = [file for file in images if len(file.folders) == depth]
    levels = [{file.folders[level].lower() for file in chosen} for level in range(depth)]
    words = _name_layout(levels)
    for file in images:
        if len(file.folders) != depth:
            message = f"Most images are {depth} folders deep ({words}); this one is elsewhere."
            site = file.parts[0] if file.folders else ""
            findings.add("misplaced_file", message, site=site, path=file.escaped)

    # Folders without images count too: they become empty sites and classes.
    sites = _top_folders(tree) if words.startswith("SITE") else []
    _check_distinct(sites)
    pictures = [_picture(tree, file, words) for file in chosen]
    # Training images first, each part sorted by site, class and name.
    pictures.sort(key=attrgetter("where.site", "where.label", "path"))
    pictures.sort(key=lambda picture: picture.where.part != "train")
    classes = {escaped(folders[-1]) for folders in tree.folders if len(folders) == depth}
    return replace(layout, words=words, sites=sites, classes=sorted(classes), pictures=pictures)


def _name_layout(levels: Sequence[Collection[str]]) -> str:
    """Return the layout by the folder names at each level.

    Raises:
        Unusable: there is none with such names.
    """
    kinds = [_kind_of_level(names) for names in levels]
    if "validation" in kinds:
        names = sorted(_VALIDATION.intersection(levels[kinds.index("validation")]))
        message = (
            f"Folders called {listed(names)} are beside those for training: rename them to test or "
            "move their images into training and set data.val_fraction."
        )
        raise Unusable("validation_folder", message)

    # Above the classes, train and test beside other names could be parts or sites.
    if len(kinds) > 1 and kinds[-2] in ("mixed", "partial"):
        parts = listed(sorted(_PARTS.keys() & levels[-2]))
        others = listed(sorted(set(levels[-2]) - _PARTS.keys()))
        message = f"Folders {parts} are beside {others}: use only train and test, or other names."
        raise Unusable("ambiguous_layout", f"{message} {_SUPPORTED}")

    words = _BY_LEVELS.get(tuple("names" if kind == "partial" else kind for kind in kinds), "")
    if not words:
        where = f"{len(kinds)} folders deep" if kinds else "at the top"
        parts = ", with train and test in an unexpected place" if "parts" in kinds else ""
        raise Unusable("unknown_layout", f"Images are {where}{parts}. {_SUPPORTED}")

    return words


def _kind_of_level(names: Collection[str]) -> str:
    """Return the kind of a level: parts, names, mixed, partial or validation.

    Parts are train and test; partial is one of them beside names.
    """
    parts = {_PARTS[name] for name in names if name in _PARTS}
    others = set(names) - _PARTS.keys()
    # Validation examples in training would be used twice.
    if "train" in parts and others and others <= _VALIDATION:
        return "validation"

    if parts and not others:
        return "parts"

    if parts == {"train", "test"}:
        return "mixed"

    return "partial" if parts else "names"


def _picture(tree: FolderContents, file: File, words: str) -> Picture:
    """Return an image file with its site, part and class."""
    site = escaped(file.folders[0]) if words.startswith("SITE") else ""
    level = {SITE_PART_CLASS: 1, PART_CLASS: 0}.get(words)
    part = "train" if level is None else _PARTS[file.folders[level].lower()]
    label = escaped(file.folders[-1])
    return Picture(tree.path(file), Occurrence(site, part, label, file.escaped))


def _top_folders(tree: FolderContents) -> list[str]:
    """Return the names of the folders at the top, safe to print."""
    return [escaped(folders[0]) for folders in tree.folders if len(folders) == 1]


def _check_distinct(sites: Collection[str]) -> None:
    """Check that all sites have different names.

    Raises:
        Unusable: two have the same name.
    """
    twice = [name for name, count in Counter(sites).items() if count > 1]
    if twice:
        message = f"Two files or folders belong to the same site: {listed(twice)}."
        raise Unusable("duplicate_site", message)


def _set_name(name: str) -> str:
    """Return a name for the data set: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^\w.-]+", "_", name).strip("._") or "own"
