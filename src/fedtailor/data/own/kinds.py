"""Every kind of problem of a user's own data, and sentences that several share.

To add a kind, write it here and add it where the data are checked: the counts and the
reference of the site (``make docs``) take it from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

Severity = Literal["error", "skipped", "warning"]
"""error: the data cannot be used as it is; skipped: the file or site is left out; warning: it is
still used."""


class Kind(NamedTuple):
    """A kind of problem."""

    severities: tuple[Severity, ...]
    """The first one is usual."""
    words: str
    """What problems of this kind are, in the plural."""


SECTIONS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Folders and files": {
        "error": {
            "not_found": "missing paths",
            "empty_folder": "empty folders",
            "unknown_layout": "data in none of the layouts",
            "ambiguous_layout": "folders called train or test beside others",
            "validation_folder": "folders for validation beside those for training",
            "unreadable_folder": "folders that cannot be listed",
            "duplicate_site": "files or folders of the same site, such as `A.csv` and `A.parquet`",
            "spreadsheet": "spreadsheets, such as `.xlsx`, beside tables",
            "dicom": "DICOM files (`.dcm`, or the mark `DICM` at byte 128)",
            "unusable": "files that do not fit together in any other way",
        },
        "skipped, error": {
            "unreadable_file": "unreadable files, or files of more than 2 GiB",
            "empty_file": "files of 0 bytes",
        },
        "skipped": {
            "too_deep": "folders below 8 levels",
            "stray_file": "files of a kind that is not read",
            "misplaced_file": "images at another depth than most",
            "not_a_file": "pipes, sockets or devices",
            "link": "links out of the folder, to folders, or to nothing",
        },
    },
    "Images": {
        "error": {
            "image_sizes": "images of several sizes without `data.image_size`",
            "missing_image": "images of a table that do not exist",
            "image_outside": "images of a table outside its folder",
        },
        "skipped": {
            "not_an_image": "unreadable images",
            "truncated_image": "images whose file ends too early",
            "damaged_image": "images that cannot be decoded",
            "image_too_large": "images of more than 50 million pixels",
            "unsupported_image": "images of floats, negative values or more than 16 bits",
        },
        "warning": {
            "dark_images": "nearly black images: no value of any is above a quarter of white",
        },
    },
    "Groups": {
        "error": {
            "missing_group": "examples without a group",
            "wrong_group": "values of `data.group` for images without one group in parentheses",
            "group_in_train_and_test": "groups in training and test of data that come divided",
        },
        "warning": {
            "group_at_several_sites": "groups at several sites",
        },
    },
    "Arrays, and what a function returns": {
        "error": {
            "damaged_archive": "damaged `.npz` or `.h5` files",
            "h5py_missing": "`.h5` files without h5py, which reads them",
            "two_arrays": "`.npz` and `.h5` files of the same part of a site",
            "missing_array": "files without `x` or `y`",
            "wrong_type": "arrays of neither whole numbers nor floats",
            "object_array": "arrays of Python objects, or links in `.h5` files: never read",
            "wrong_class_names": "`class_names` that are not texts, or have a name twice",
            "class_names_differ": "`class_names` that differ between files",
            "wrong_encoder": "arrays `encoder` that are not the record of an encoder",
            "encoders_differ": "features of different encoders",
            "too_large": "more than 2 GiB of arrays and tables, or 32 GiB of images",
            "wrong_return": "functions that return something else",
            "unclear_kind": "arrays of three axes that can be pictures or series",
            "wrong_kind": "data of another kind than `data.kind` says",
            "wrong_shape": "arrays of a shape that `data.kind` has not, or other rows than `y`",
            "negative_label": "labels below 0",
            "label_out_of_range": "labels beyond the class names, or above 9,999",
            "shape_differs": "examples of another shape than those of the first site",
            "type_differs": "images of floats at one site, of whole numbers at another",
            "value_out_of_range": "images of whole numbers that are negative or beyond 65535",
        },
        "warning, error": {
            "option_unused": "options without effect on these data",
        },
        "warning": {
            "unused_array": "arrays besides `x`, `y`, `class_names`, `groups` and `encoder`",
            "unused_label": "numbers below the largest label without examples",
            "axes_unusual": "series with fewer times than channels",
            "values_unscaled": (
                "images of floats that are not within [0, 1], which are used as they are"
            ),
        },
    },
    "Tables": {
        "error": {
            "damaged_table": "damaged Parquet files",
            "broken_table": "tables with an unreadable line",
            "no_header": "tables whose first line holds values, not names of columns",
            "second_header": "tables with a second line of headers",
            "pyarrow_missing": "Parquet files without pyarrow, which reads them",
            "missing_label_column": "tables without the column of labels, or where none is obvious",
            "not_a_number": (
                "text in place of numbers, or numbers with a comma that can be a decimal point or "
                "not"
            ),
            "no_features": "tables without features",
            "ragged_row": "rows with more or fewer cells than the header",
            "missing_column": "columns that other tables have",
            "extra_column": "columns that other tables do not have",
            "wrong_column_type": "columns of neither numbers nor text",
            "unnamed_column": "columns without a name",
            "duplicate_column": "columns that appear twice",
            "missing_group_column": (
                "tables without the column `data.group`, or whose labels are in it"
            ),
            "missing_label": "rows without a label",
            "wrong_split": "values of a column `split` other than train or test",
            "not_finite": "values that are NaN, infinite, or beyond 32-bit floats",
            "dates": "columns of dates or times",
            "time_series": "columns of time series: lists of numbers in cells",
            "image_paths": "columns of paths of images that are not called `image`",
            "free_text": "columns of free text",
            "stray_text": "columns of numbers with text in at most 5 % of their cells",
            "too_many_categories": "columns with more than 50 categories",
        },
        "error, warning": {
            "wrong_encoding": "files that are not UTF-8",
        },
        "skipped": {
            "empty_column": "columns without any value",
        },
        "warning, error": {
            "missing_value": "empty cells, in tables to predict or with `data.missing` refuse",
        },
        "warning": {
            "unit_differs": "columns that seem to have another unit at a site",
            "value_means_missing": "numbers that seem to mean missing",
            "empty_at_site": "columns without any value at a site",
            "unseen_category": "categories that no training example has",
            "no_values": "rows without the value of any feature, in tables to predict",
            "unused_column": "columns of tables of images that are not used",
            "unknown_left_out": "names in `data.leave_out` that no table has as a column",
            "mixed_column": "columns with both numbers and text, which are categories",
            "identifier": "features called like an identifier, such as `patient_id`",
        },
    },
    "Sites and classes": {
        "error": {
            "no_examples": "data without examples",
            "one_class": "data of a single class",
            "several_labels": "several labels of an example, in one cell or as rows of `y`",
            "float_label": "labels that are neither text nor whole numbers",
            "likely_regression": (
                "more than 30 whole numbers as labels, with fewer than 5 examples each on average"
            ),
            "too_many_classes": "more than 10,000 classes",
        },
        "skipped": {
            "empty_site": "sites without readable examples",
            "empty_class": "classes without readable images",
        },
        "error, warning": {
            "no_training": "data or sites without training examples",
        },
        "warning": {
            "class_in_test_only": "classes with test examples only",
            "few_examples": "sites with fewer than 20 training examples",
            "no_test": "sites without test examples, although others have some",
            "one_class_site": "sites with examples of only one class",
            "class_not_trained": (
                "sites that are tested on a class in which only other sites have training examples"
            ),
            "class_at_one_site": "sites with classes that no other site has",
            "similar_names": "names that differ only by case, spaces or Unicode form",
            "mixed_labels": "label columns with both numbers and text",
            "doubtful_label": "classes whose names may stand for no label, such as NA",
            "single_rows": "more than 20 classes, most of them in one row only",
            "many_numbers": "more than 30 whole numbers as labels",
        },
    },
    "Duplicates": {
        "warning": {
            "duplicate_train_test": "test examples that are in training too",
            "duplicate_other_class": "examples that are in another class too",
            "duplicate_across_sites": "examples that are at another site too",
            "duplicate_in_site": "examples that are at the same site twice",
        },
    },
}
"""The words of every kind, by section of the page and severities; what others cause comes last."""


def _collect_kinds() -> dict[str, Kind]:
    collected: dict[str, Kind] = {}
    for by_severities in SECTIONS.values():
        for severities, kinds in by_severities.items():
            allowed = cast(tuple[Severity, ...], tuple(severities.split(", ")))
            collected |= {kind: Kind(allowed, words) for kind, words in kinds.items()}

    return collected


KINDS: Mapping[str, Kind] = _collect_kinds()
"""Every kind of problem."""

SEVERAL_LABELS = (
    "Several labels per example (multi-label) are not supported: give one label per row, or a "
    "table for each question."
)
NO_REGRESSION = "Only classification is supported, not regression."
DATES = (
    "Dates are not supported: give a number instead, such as age in years or days since admission."
)
SERIES = (
    "Time series are not supported: give one number per cell, such as their mean and their slope."
)
