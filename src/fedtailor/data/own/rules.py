"""The rules that find what is wrong with a user's data, and every kind of problem.

A rule is a sentence, a severity, and a small check of facts. To add a finding, add a rule to the
list of its facts: the check of the data, the counts and the page ``docs/own-data.md``
(``make docs``) take it from here. What only a reader can notice is in
:mod:`fedtailor.data.own.kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from fedtailor.data.columns import MAX_CATEGORIES
from fedtailor.data.own.facts import (
    AllSites,
    Block,
    ColumnNumbers,
    ColumnTexts,
    Feature,
    Header,
    Labels,
    Names,
    OneSite,
    ValueRange,
)
from fedtailor.data.own.findings import Findings, Place
from fedtailor.data.own.kinds import (
    DATES,
    REPORTED_KINDS,
    SERIES,
    SEVERAL_LABELS,
    Kind,
    Severity,
)
from fedtailor.data.own.names import (
    At,
    counted,
    first_repeated,
    listed,
    reasons_for_care,
    show,
    similar_names,
)
from fedtailor.data.own.patterns import (
    DATE,
    DECIMAL_COMMA,
    IMAGE,
    LIST,
    MAX_CLASSES,
    MISSING_LABELS,
    MISSING_WORDS,
    describe_regression,
    is_identifier,
    option_text,
    several_labels,
)

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Rule(Generic[Facts]):
    """One thing that can be wrong."""

    kind: str
    severity: Severity
    words: str
    """What problems of this kind are, in the plural; several rules of a kind say it once."""
    sentence: str
    """The message, with ``{0}`` for the result of the check, and ``{facts}`` for the facts."""
    check: Callable[[Facts], object]
    """Returns anything that is true if something is wrong; a list gives a problem for each of its
    elements, and :class:`fedtailor.data.own.names.At` says in which row."""

    def results(self, facts: Facts) -> list[Any]:
        """Return what the check finds in some facts."""
        result = self.check(facts)
        if not result:
            return []

        return result if isinstance(result, list) else [result]


FEW = 10
"""Sites with fewer training examples get a warning."""

# Sites and classes -----------------------------------------------------------------------------

ALL_SITES: Sequence[Rule[AllSites]] = (
    Rule(
        "one_class",
        "error",
        "data of a single class",
        "All examples are of class {0}; at least two classes are needed.",
        lambda sites: len(sites.classes) == 1 and show(sites.classes[0]),
    ),
    Rule(
        "no_training",
        "error",
        "data or sites without training examples",
        "All examples are for testing, none are for training.",
        lambda sites: not sites.trained,
    ),
    Rule(
        "class_in_test_only",
        "warning",
        "classes with test examples only",
        "No site has training examples of {0}, only test examples: no model can learn it.",
        lambda sites: sites.trained and listed(sites.untrained),
    ),
    Rule(
        "no_training",
        "error",
        "",
        "No site has more than one example, which is too few for both training and testing.",
        lambda sites: not sites.tested and sites.largest < 2,
    ),
)

ONE_SITE: Sequence[Rule[OneSite]] = (
    Rule(
        "no_training",
        "warning",
        "",
        "{facts.title} has test examples but no training examples.",
        lambda site: not site.examples,
    ),
    Rule(
        "few_examples",
        "warning",
        "sites with fewer than 10 training examples",
        f"{{facts.title}} has {{0}}, fewer than {FEW}.",
        lambda site: 0 < site.examples < FEW and counted(site.examples, "training example"),
    ),
    Rule(
        "no_test",
        "warning",
        "sites without test examples, although others have some",
        "{facts.title} has no test examples, although other sites have some: it is not scored on "
        "its own data.",
        lambda site: site.examples and site.sites.tested and not site.site.test,
    ),
    Rule(
        "one_class_site",
        "warning",
        "sites with examples of only one class",
        "{facts.title} has examples of only one class, {0}.",
        lambda site: (
            site.examples
            and len(site.classes) == 1 < len(site.sites.classes)
            and listed(site.classes)
        ),
    ),
    Rule(
        "class_not_trained",
        "warning",
        "sites that are tested on a class in which only other sites have training examples",
        "{facts.title} has test examples of {0}, but no training examples.",
        lambda site: site.examples and listed(site.tested_only),
    ),
    Rule(
        "class_at_one_site",
        "warning",
        "sites with classes that no other site has",
        "Only site {facts.name} has examples of {0}.",
        lambda site: listed(site.alone),
    ),
)

NAMES: Sequence[Rule[Names]] = (
    Rule(
        "unsafe_name",
        "warning",
        "names of sites or classes with control or HTML characters, or like a formula",
        "{0}; it is used, and escaped in all outputs.",
        lambda names: [
            f"{names.what} {show(name)} {' and '.join(reasons)}"
            for name in names.names
            if (reasons := reasons_for_care(name))
        ],
    ),
)

SIMILAR_NAMES: Sequence[Rule[Names]] = (
    Rule(
        "similar_names",
        "warning",
        "names that differ only by case, spaces or Unicode form",
        "{facts.what} {0} differ only by case, spaces or Unicode form; they are kept apart.",
        lambda names: [listed(group) for group in similar_names(names.names)],
    ),
)

# Labels ----------------------------------------------------------------------------------------

_REGRESSION = "Only classification is supported, not regression."

LABELS: Sequence[Rule[Labels]] = (
    Rule(
        "several_labels",
        "error",
        "several labels of an example, in one cell or as rows of `y`",
        "Column {facts.name} holds several labels in one cell, such as {0.value}. "
        + SEVERAL_LABELS,
        lambda labels: labels.at(several_labels(labels.texts)),
    ),
    Rule(
        "float_label",
        "error",
        "labels that are neither text nor whole numbers",
        "Labels must be text or whole numbers: column {facts.name} holds {0.value}. " + _REGRESSION,
        lambda labels: labels.are_numbers and labels.at(labels.first_fraction),
    ),
    Rule(
        "likely_regression",
        "error",
        "more than 30 whole numbers as labels, with fewer than 5 examples each on average",
        "The labels in {facts.name} look like a regression target: {0}. Only classification is "
        "supported. If the numbers are classes, name them: write texts such as 'class 7' into a "
        "table, or give class_names with arrays.",
        lambda labels: (
            labels.are_numbers and describe_regression(labels.different, labels.examples)
        ),
    ),
)

ALL_LABELS: Sequence[Rule[Labels]] = (
    Rule(
        "mixed_labels",
        "warning",
        "label columns with both numbers and text",
        "Column {facts.name} holds numbers such as {0[0]} and text such as {0[1]}. Each is a "
        "separate class.",
        lambda labels: (
            not labels.are_numbers
            and labels.first_number
            and (show(labels.first_number), show(labels.first_text))
        ),
    ),
    Rule(
        "too_many_classes",
        "error",
        f"more than {MAX_CLASSES:,} classes",
        f"Column {{facts.name}} holds {{0}} different labels; at most {MAX_CLASSES} are read.",
        lambda labels: labels.different > MAX_CLASSES and labels.different,
    ),
)
# Tables ----------------------------------------------------------------------------------------

HEADER: Sequence[Rule[Sequence[str]]] = (
    Rule(
        "unnamed_column",
        "error",
        "columns without a name",
        "Column {0[0]} has no name; the columns are: {0[1]}.",
        lambda names: "" in names and (names.index("") + 1, listed(names, 20)),
    ),
    Rule(
        "duplicate_column",
        "error",
        "columns that appear twice",
        "Column {0} appears more than once.",
        lambda names: first_repeated(names),
    ),
)

ROLES: Sequence[Rule[Header]] = (
    Rule(
        "missing_label_column",
        "error",
        "",
        "No column {0[0]} for the labels (data.label_column){0[1]}; the columns are: {0[2]}.",
        lambda header: header.label not in header.names and header.missing(header.label),
    ),
    Rule(
        "missing_group_column",
        "error",
        "tables without the column `data.group`, or whose labels are in it",
        "Column {0} holds the labels, so it cannot be the column of groups (data.group).",
        lambda header: header.group == header.label and show(header.group),
    ),
    Rule(
        "missing_group_column",
        "error",
        "",
        "No column {0[0]} for the groups (data.group){0[1]}; the columns are: {0[2]}.",
        lambda header: header.group not in ("", *header.names) and header.missing(header.group),
    ),
    Rule(
        "no_features",
        "error",
        "",
        "No column is left for features; an image is missing too: {0}.",
        lambda header: not header.image and not header.others and listed(header.names, 20),
    ),
    Rule(
        "unused_column",
        "warning",
        "columns of tables of images that are not used",
        "Because there is a column 'image', other columns are not used: {0}.",
        lambda header: header.image and listed(header.others, 20),
    ),
)

LABEL_CELLS: Sequence[Rule[ColumnTexts]] = (
    Rule(
        "missing_label",
        "error",
        "rows without a label",
        "There is no label in {0.rows}; the first is row {0.row}.",
        lambda cells: cells.at(lambda text: text.lower() in MISSING_LABELS),
    ),
)

GROUP_CELLS: Sequence[Rule[ColumnTexts]] = (
    Rule(
        "missing_group",
        "error",
        "",
        "There is no group in {0.rows}; the first is row {0.row}.",
        lambda cells: cells.at(lambda text: text.lower() in MISSING_WORDS),
    ),
)

SPLIT_CELLS: Sequence[Rule[ColumnTexts]] = (
    Rule(
        "wrong_split",
        "error",
        "values of a column `split` other than train or test",
        "Column 'split' must say train or test: {0.rows} with another value, first {0.value}.",
        lambda cells: cells.at(lambda text: text.lower() not in ("train", "test")),
    ),
)

NUMBER_CELLS: Sequence[Rule[ColumnNumbers]] = (
    Rule(
        "not_finite",
        "error",
        "values that are NaN, infinite, or beyond 32-bit floats",
        "Column {facts.title} has values beyond 32-bit floats in {0.rows}; the first is in row "
        "{0.row}.",
        lambda cells: cells.at(np.isinf(cells.values)),
    ),
)

FILLED_CELLS: Sequence[Rule[ColumnNumbers]] = (
    Rule(
        "missing_value",
        "error",
        "",
        "Column {facts.title} has empty cells in {0.rows}; the first is in row {0.row} "
        '(data.missing = "refuse").',
        lambda cells: cells.at(np.isnan(cells.values)),
    ),
)

TEXT_FEATURES: Sequence[Rule[Feature]] = (
    Rule(
        "not_a_number",
        "error",
        "",
        "Column {facts.title} holds numbers with a comma, such as {0}. Write numbers with a point "
        "and without commas, such as 1.5 or 1500.",
        lambda feature: feature.all_like(DECIMAL_COMMA),
    ),
    Rule(
        "dates",
        "error",
        "columns of dates or times",
        "Column {facts.title} holds dates or times, such as {0}. " + DATES,
        lambda feature: feature.mostly_like(DATE),
    ),
    Rule(
        "time_series",
        "error",
        "columns of time series: lists of numbers in cells",
        "Column {facts.title} holds lists of numbers, such as {0}. " + SERIES,
        lambda feature: feature.mostly_like(LIST),
    ),
    Rule(
        "image_paths",
        "error",
        "columns of paths of images that are not called `image`",
        "Column {facts.title} holds paths of images, such as {0}. A column with the paths of "
        "images must be called 'image'.",
        lambda feature: feature.mostly_like(IMAGE),
    ),
    Rule(
        "free_text",
        "error",
        "columns of free text",
        "Column {facts.title} holds free text, such as {0}. Free text is not supported, only "
        "numbers and categories: remove the column.",
        lambda feature: (
            feature.average_words >= 5 and feature.is_varied and show(feature.others[0])
        ),
    ),
    Rule(
        "too_many_categories",
        "error",
        f"columns with more than {MAX_CATEGORIES} categories",
        "Column {facts.title} has {facts.many} different texts, such as {facts.example}; at most "
        f"{MAX_CATEGORIES} categories are read. {{0}}",
        lambda feature: feature.exceeds(MAX_CATEGORIES) and feature.reason_for_many,
    ),
    Rule(
        "mixed_column",
        "warning",
        "columns with both numbers and text, which are categories",
        "Column {facts.title} holds numbers such as {0} and text such as {facts.example}: each is "
        "a category, also the numbers. If it should hold numbers, correct or empty the cells with "
        "text.",
        lambda feature: feature.numbers and show(feature.numbers[0]),
    ),
)
"""Columns with text, over all tables. The first error says what a column holds."""

FEATURES: Sequence[Rule[Feature]] = (
    Rule(
        "identifier",
        "warning",
        "features called like an identifier, such as `patient_id`",
        "Column {facts.title} is a feature, although its name is that of an identifier. Remove it, "
        "or if it says which rows belong together, such as those of a patient: {0}.",
        lambda feature: is_identifier(feature.name) and option_text("group", feature.name),
    ),
)
"""All columns with a value."""

# Arrays ----------------------------------------------------------------------------------------

ARRAYS: Sequence[Rule[Block]] = (
    Rule(
        "wrong_shape",
        "error",
        "arrays that are neither images nor features, or whose rows differ from those of `y`",
        "The labels y are one-hot, of shape {facts.y.shape}: store y.argmax(axis=1).",
        lambda block: block.is_one_hot,
    ),
    Rule(
        "several_labels",
        "error",
        "",
        "The labels y have the shape {facts.y.shape}. " + SEVERAL_LABELS,
        lambda block: block.has_several_labels,
    ),
    Rule(
        "wrong_shape",
        "error",
        "",
        "Expected y of shape (rows,) and x of shape (rows, ...) with the same number of rows, got "
        "x of shape {facts.x.shape} and y of shape {facts.y.shape}.",
        lambda block: not block.has_a_label_per_row,
    ),
    Rule(
        "wrong_type",
        "error",
        "",
        "Expected x of whole numbers or floats, got type {facts.x.dtype}.",
        lambda block: block.x.dtype.kind not in ("buif" if block.x.ndim == 2 else "uif"),
    ),
    Rule(
        "wrong_shape",
        "error",
        "",
        "Expected x of shape (rows, height, width), (rows, height, width, channels) or (rows, "
        "features), got {facts.x.shape}.",
        lambda block: 0 in block.x.shape[1:] or block.x.ndim not in (2, 3, 4),
    ),
    Rule(
        "wrong_type",
        "error",
        "",
        "Expected labels y of whole numbers, got type {facts.y.dtype}; names go into class_names.",
        lambda block: block.y.dtype.kind not in "buif",
    ),
    Rule(
        "float_label",
        "error",
        "",
        "Labels must be whole numbers: not so in {0.rows}, the first is {0.value} at index "
        "{0.row}. " + _REGRESSION,
        lambda block: block.y.dtype.kind == "f" and block.at(block.y != np.floor(block.y)),
    ),
    Rule(
        "negative_label",
        "error",
        "labels below 0",
        "Labels must be from 0 to {facts.largest_label}, got {0.value} at index {0.row}.",
        lambda block: block.at(block.y < 0),
    ),
    Rule(
        "label_out_of_range",
        "error",
        f"labels beyond the class names, or above {MAX_CLASSES - 1:,}",
        "Labels must be from 0 to {facts.largest_label}, got {0.value} at index {0.row}.",
        lambda block: block.at(block.y > block.largest_label),
    ),
    Rule(
        "wrong_shape",
        "error",
        "",
        "The channels of images of shape {facts.x.shape} are unclear: store them in the last axis.",
        lambda block: block.x.ndim == 4 and block.channels is None,
    ),
    Rule(
        "labels_as_floats",
        "warning",
        "labels that are whole numbers stored as floats",
        "Labels are whole numbers stored as floats; they are converted.",
        lambda block: block.y.dtype.kind == "f",
    ),
)
"""One array of examples and one of labels."""

FINITE_ARRAYS: Sequence[Rule[Block]] = (
    Rule(
        "not_finite",
        "error",
        "",
        "There are values that are not finite as 32-bit floats (NaN, infinite or too large) in "
        "{0.rows}; the first at index {0.row}.",
        lambda block: block.at_not_finite,
    ),
)

ARRAYS_ALIKE: Sequence[Rule[tuple[Block, Block]]] = (
    Rule(
        "shape_differs",
        "error",
        "examples of another shape than those of the first site",
        "Expected examples of shape {facts[0].shape} as in {facts[0].title}, got shape "
        "{facts[1].shape}.",
        lambda blocks: blocks[0].shape != blocks[1].shape,
    ),
    Rule(
        "type_differs",
        "error",
        "images of floats at one site, of whole numbers at another",
        "Expected examples of type {facts[0].x.dtype} as in {facts[0].title}, got type "
        "{facts[1].x.dtype}.",
        lambda blocks: blocks[0].x.ndim == 4 and (blocks[0].has_floats != blocks[1].has_floats),
    ),
)

IMAGE_VALUES: Sequence[Rule[ValueRange]] = (
    Rule(
        "value_out_of_range",
        "error",
        "images of whole numbers that are negative or beyond 65535",
        "Images of whole numbers must be from 0 to 255 or to 65535, got values from "
        "{facts.low:g} to {facts.high:g}.",
        lambda values: not values.are_floats and not 0 <= values.low <= values.high <= 65535,
    ),
    Rule(
        "values_unscaled",
        "warning",
        "images of floats that are not within [0, 1], which are used as they are",
        "Images hold floats from {facts.low:g} to {facts.high:g}, not within [0, 1]: they are used "
        "as they are.",
        lambda values: values.are_floats and not 0 <= values.low <= values.high <= 1,
    ),
)

_RULES: Mapping[str, Sequence[Sequence[Rule[Any]]]] = {
    "Sites and classes": (ALL_SITES, ONE_SITE, NAMES, SIMILAR_NAMES, LABELS, ALL_LABELS),
    "Arrays, and what a function returns": (ARRAYS, FINITE_ARRAYS, ARRAYS_ALIKE, IMAGE_VALUES),
    "Tables": (
        HEADER,
        ROLES,
        LABEL_CELLS,
        GROUP_CELLS,
        SPLIT_CELLS,
        NUMBER_CELLS,
        FILLED_CELLS,
        TEXT_FEATURES,
        FEATURES,
    ),
}


def _collect_sections() -> dict[str, dict[str, Kind]]:
    """Collect the kinds of problems by section of the page."""
    sections = {section: dict(kinds) for section, kinds in REPORTED_KINDS.items()}
    rules = [(section, rule) for section, lists in _RULES.items() for rule in chain(*lists)]
    for section, rule in rules:
        if rule.words:
            sections[section][rule.kind] = Kind((rule.severity,), rule.words)

    # Rules without words may add a severity to a kind.
    for _, rule in rules:
        kinds = next(kinds for kinds in sections.values() if rule.kind in kinds)
        severities, words = kinds[rule.kind]
        if rule.severity not in severities:
            kinds[rule.kind] = Kind((*severities, rule.severity), words)

    return sections


SECTIONS: Mapping[str, Mapping[str, Kind]] = _collect_sections()
"""Every kind of problem, by section of the page."""

KINDS: Mapping[str, Kind] = {
    kind: entry for kinds in SECTIONS.values() for kind, entry in kinds.items()
}
"""Every kind of problem."""


def check(rules: Sequence[Rule[Facts]], facts: Facts, place: Place, row: int | None = None) -> bool:
    """Add what breaks the rules, up to the first error; return whether there is no error.

    Args:
        rules: in the order in which they are tried.
        facts: what they are about.
        place: where the problems are.
        row: the row of problems whose rule does not find one itself.
    """
    for rule in rules:
        results = rule.results(facts)
        for result in results:
            at = result if isinstance(result, At) else At(row)
            message = rule.sentence.format(result, facts=facts)
            (at.place or place).add(rule.kind, message, at.row, rule.severity)

        if results and rule.severity == "error":
            return False

    return True


def summarize_kinds(findings: Findings, severity: Severity) -> str:
    """Return how many problems there are of each kind, such as ``unreadable images (2)``."""
    counts = sorted(
        (kind, count) for (of, kind), count in findings.counts.items() if of == severity
    )
    return ", ".join(f"{KINDS[kind].words} ({count})" for kind, count in counts)
