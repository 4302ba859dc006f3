"""The findings about a user's own data: sites, examples, classes and problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fedtailor.data.dataset import Dataset

MAX_SITES = 10_000
"""Most sites; more are usually a folder of single files that was read as sites."""

MAX_PROBLEMS = 1_000
"""Most errors that are kept in full, and most other problems; more are only counted."""

KINDS_IN_WORDS: Mapping[str, tuple[str, str]] = {
    "ambiguous_layout": (
        "folder level with both sites and parts",
        "folder levels with both sites and parts",
    ),
    "broken_symlink": ("broken link", "broken links"),
    "broken_table": ("table with an unreadable line", "tables with an unreadable line"),
    "class_at_one_site": (
        "site with classes that no other site has",
        "sites with classes that no other site has",
    ),
    "class_in_test_only": (
        "group of classes with test examples only",
        "groups of classes with test examples only",
    ),
    "class_names_differ": ("file with other class names", "files with other class names"),
    "class_not_trained": (
        "site that is tested on untrained classes",
        "sites that are tested on untrained classes",
    ),
    "damaged_archive": ("damaged archive", "damaged archives"),
    "damaged_image": ("damaged image", "damaged images"),
    "damaged_table": ("damaged table", "damaged tables"),
    "dark_16_bit": ("case of nearly black 16-bit images", "cases of nearly black 16-bit images"),
    "dark_8_bit": ("case of nearly black 8-bit images", "cases of nearly black 8-bit images"),
    "dates": ("column of dates", "columns of dates"),
    "dicom": ("case of DICOM files", "cases of DICOM files"),
    "duplicate_across_sites": ("duplicate at another site", "duplicates at other sites"),
    "duplicate_column": ("repeated column", "repeated columns"),
    "duplicate_in_site": ("duplicate within a site", "duplicates within a site"),
    "duplicate_other_class": ("duplicate in another class", "duplicates in another class"),
    "duplicate_site": ("repeated site", "repeated sites"),
    "duplicate_train_test": (
        "test example that is in training too",
        "test examples that are in training too",
    ),
    "empty_class": ("class without images", "classes without images"),
    "empty_column": ("column without values", "columns without values"),
    "empty_file": ("empty file", "empty files"),
    "empty_folder": ("empty folder", "empty folders"),
    "empty_site": ("site without examples", "sites without examples"),
    "extra_column": ("table with an extra column", "tables with an extra column"),
    "few_examples": ("site with few training examples", "sites with few training examples"),
    "float_label": (
        "file with labels that are not whole numbers",
        "files with labels that are not whole numbers",
    ),
    "free_text": ("column of free text", "columns of free text"),
    "group_at_several_sites": (
        "case of groups at several sites",
        "cases of groups at several sites",
    ),
    "group_in_train_and_test": (
        "case of groups in training and test",
        "cases of groups in training and test",
    ),
    "identifier": ("column called like an identifier", "columns called like an identifier"),
    "image_outside": ("image outside the folder", "images outside the folder"),
    "image_paths": (
        "column of paths that is not called image",
        "columns of paths that are not called image",
    ),
    "image_sizes": ("case of different image sizes", "cases of different image sizes"),
    "image_too_large": ("image that is too large", "images that are too large"),
    "label_out_of_range": ("file with labels out of range", "files with labels out of range"),
    "labels_as_floats": ("file with labels stored as floats", "files with labels stored as floats"),
    "likely_regression": ("likely regression target", "likely regression targets"),
    "misplaced_file": ("image at another depth", "images at another depth"),
    "missing_array": ("file without a required array", "files without a required array"),
    "missing_column": ("table with a missing column", "tables with a missing column"),
    "missing_group": ("table or file without groups", "tables or files without groups"),
    "missing_group_column": (
        "table without the column of groups",
        "tables without the column of groups",
    ),
    "missing_image": ("missing image", "missing images"),
    "missing_label": ("table with missing labels", "tables with missing labels"),
    "missing_label_column": ("table without the label column", "tables without the label column"),
    "missing_value": ("column with empty cells", "columns with empty cells"),
    "mixed_column": ("column with both numbers and text", "columns with both numbers and text"),
    "mixed_labels": (
        "label column with both numbers and text",
        "label columns with both numbers and text",
    ),
    "negative_label": ("file with negative labels", "files with negative labels"),
    "no_examples": ("data set without examples", "data sets without examples"),
    "no_features": ("table without features", "tables without features"),
    "no_test": ("site without test examples", "sites without test examples"),
    "no_training": ("site without training examples", "sites without training examples"),
    "non_utf8_name": ("name that is not UTF-8", "names that are not UTF-8"),
    "not_a_file": ("file that is not a regular file", "files that are not regular files"),
    "not_a_number": (
        "column with text in place of numbers",
        "columns with text in place of numbers",
    ),
    "not_an_image": ("unreadable image", "unreadable images"),
    "not_finite": ("case of values that are not finite", "cases of values that are not finite"),
    "not_found": ("missing path", "missing paths"),
    "object_array": ("array of Python objects", "arrays of Python objects"),
    "one_class": ("data set of a single class", "data sets of a single class"),
    "one_class_site": ("site with a single class", "sites with a single class"),
    "option_unused": ("option without effect", "options without effect"),
    "pyarrow_missing": ("Parquet file that needs pyarrow", "Parquet files that need pyarrow"),
    "ragged_row": ("row of another length", "rows of another length"),
    "several_labels": ("case of several labels per example", "cases of several labels per example"),
    "shape_differs": (
        "file with examples of another shape",
        "files with examples of another shape",
    ),
    "similar_names": ("group of similar names", "groups of similar names"),
    "stray_file": ("file of another kind", "files of another kind"),
    "symlink_folder": ("link to a folder", "links to folders"),
    "symlink_loop": ("link that leads back to itself", "links that lead back to themselves"),
    "symlink_outside": ("link out of the folder", "links out of the folder"),
    "time_series": ("column of time series", "columns of time series"),
    "too_deep": ("folder that is too deep", "folders that are too deep"),
    "too_large": ("file that is too large", "files that are too large"),
    "too_many_categories": ("column with too many categories", "columns with too many categories"),
    "too_many_classes": ("case of too many classes", "cases of too many classes"),
    "too_many_files": ("case of too many files", "cases of too many files"),
    "too_many_sites": ("case of too many sites", "cases of too many sites"),
    "truncated_image": ("truncated image", "truncated images"),
    "type_differs": ("file with examples of another type", "files with examples of another type"),
    "unknown_layout": ("unknown layout", "unknown layouts"),
    "unnamed_column": ("unnamed column", "unnamed columns"),
    "unreadable_file": ("unreadable file", "unreadable files"),
    "unreadable_folder": ("unreadable folder", "unreadable folders"),
    "unsafe_name": ("unsafe name", "unsafe names"),
    "unseen_category": ("column with unseen categories", "columns with unseen categories"),
    "unsupported_image": ("image with unsupported pixels", "images with unsupported pixels"),
    "unusable": (
        "case of files that do not fit together",
        "cases of files that do not fit together",
    ),
    "unused_array": ("file with unused arrays", "files with unused arrays"),
    "unused_column": ("table with unused columns", "tables with unused columns"),
    "unused_label": ("case of classes without examples", "cases of classes without examples"),
    "validation_folder": ("validation folder", "validation folders"),
    "value_out_of_range": ("file with values out of range", "files with values out of range"),
    "values_unscaled": ("file with unscaled values", "files with unscaled values"),
    "wrong_class_names": ("file with wrong class names", "files with wrong class names"),
    "wrong_column_type": ("column of an unsupported type", "columns of an unsupported type"),
    "wrong_encoding": ("file that is not UTF-8", "files that are not UTF-8"),
    "wrong_group": ("option for groups that is wrong", "options for groups that are wrong"),
    "wrong_return": ("wrong return value", "wrong return values"),
    "wrong_shape": ("array of a wrong shape", "arrays of a wrong shape"),
    "wrong_split": ("table with a wrong split column", "tables with a wrong split column"),
    "wrong_type": ("array of a wrong type", "arrays of a wrong type"),
}
"""Every kind of problem in words: singular and plural."""


class Problem(NamedTuple):
    """A problem with a file, a row or a site."""

    severity: Literal["error", "skipped", "warning"]
    """error: the data cannot be used as it is; skipped: the file or site is left out; warning: it
    is still used."""
    kind: str
    """A short name that never changes, such as ``truncated_image``; :data:`KINDS_IN_WORDS` has them
    all."""
    site: str
    path: str
    """The file, relative to the data's folder; for a row of a table ``file:row``."""
    message: str
    """A sentence."""


@dataclass
class Site:
    """The numbers of examples of one site by class."""

    name: str
    train: dict[str, int] = field(default_factory=dict)
    """Training examples by class name; all examples if the data does not come divided."""
    test: dict[str, int] = field(default_factory=dict)


@dataclass
class Findings:
    """All findings; the readers add to them."""

    layout: str = ""
    """The recognized layout, in words."""
    sites: list[Site] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """The number of problems by (severity, kind), including those beyond ``MAX_PROBLEMS``."""
    notes: list[str] = field(default_factory=list)
    """Notes on sizes, colors, orientation and other conversions."""

    def add(
        self,
        severity: Literal["error", "skipped", "warning"],
        kind: str,
        site: str,
        path: str,
        message: str,
    ) -> None:
        """Add a problem."""
        is_error = severity == "error"
        before = sum(
            count for (other, _), count in self.counts.items() if (other == "error") == is_error
        )
        self.counts[severity, kind] = self.counts.get((severity, kind), 0) + 1

        if (
            before < MAX_PROBLEMS
        ):  # errors and others have separate limits: many warnings never hide an error
            self.problems.append(Problem(severity, kind, site, path, message))

    @property
    def errors(self) -> Sequence[Problem]:
        """The problems that make the data unusable."""
        return [problem for problem in self.problems if problem.severity == "error"]


class OwnData(NamedTuple):
    """A user's data and the findings; ``dataset`` is None after an error."""

    dataset: Dataset | None
    findings: Findings


MAX_TOTAL_BYTES = 2 * 2**30
"""Most bytes of the examples in all array or table files together, as stored in memory."""

MAX_CLASSES = 10_000
"""Most classes; more are usually a column of numbers that was read as labels."""

MAX_SHOWN = 80
"""Most characters of a value in a message."""


class Unusable(Exception):
    """A file cannot be read; the reader adds a problem of that ``kind`` with that message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Place:
    """A file of a site, whose problems are added to ``findings``."""

    findings: Findings
    site: str
    path: str
    """The file, relative to the data's folder."""

    def error(self, kind: str, message: str, row: int | None = None) -> None:
        """Add a problem that makes the data unusable, in ``row`` of the file if given."""
        self.findings.add("error", kind, self.site, self._at(row), message)

    def warning(self, kind: str, message: str, row: int | None = None) -> None:
        """Add a problem despite which the data is used."""
        self.findings.add("warning", kind, self.site, self._at(row), message)

    def _at(self, row: int | None) -> str:
        return self.path if row is None else f"{self.path}:{row}"


def show(value: object) -> str:
    """Return a value in quotes for a message, cut to ``MAX_SHOWN`` characters, with control
    characters escaped.
    """
    text = repr(str(value))
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def counted(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun; the plural has an s unless it is given.

    >>> counted(1, "image"), counted(2, "image"), counted(3, "class", "classes")
    ('1 image', '2 images', '3 classes')
    """
    if number == 1:
        return f"1 {singular}"
    return f"{number} {plural or singular + 's'}"


def count_in_words(kind: str, number: int) -> str:
    """Return the number of problems of a kind in words.

    >>> count_in_words("not_an_image", 1), count_in_words("stray_file", 2)
    ('1 unreadable image', '2 files of another kind')
    """
    return counted(number, *KINDS_IN_WORDS[kind])


_REGRESSION_VALUES = 30
_REGRESSION_EXAMPLES = 5
"""More whole numbers than the first as labels, with fewer examples each than the second, look like
a regression."""


def looks_like_regression(values: int, examples: int) -> bool:
    """Return whether labels that are whole numbers, ``values`` different ones, look like a
    regression target.

    >>> looks_like_regression(10, 20), looks_like_regression(412, 500)
    (False, True)
    """
    return values > _REGRESSION_VALUES and examples < _REGRESSION_EXAMPLES * values


def regression_message(where: str, values: int, examples: int) -> str:
    """Return the beginning of the message for labels that look like a regression target."""
    return (
        f"The labels in {where} look like a regression target: {values} different whole numbers with "
        f"{examples / values:.1f} examples each on average. Only classification is supported: use few classes with "
        "several examples each."
    )


def has_errors(findings: Findings) -> bool:
    """Return whether there is an error, including those that are only counted."""
    return any(severity == "error" for severity, _ in findings.counts)


def no_examples(findings: Findings) -> None:
    """Add the problem that no site has an example."""
    findings.add("error", "no_examples", "", "", "No site has any examples.")


def skip_empty(findings: Findings, site: str, path: str) -> None:
    """Add the problem that a site has no examples and is left out; nothing is added if the data has
    no sites.
    """
    if site:
        findings.add(
            "skipped",
            "empty_site",
            site,
            path,
            f"Site {show(site)} has no examples and is left out.",
        )
