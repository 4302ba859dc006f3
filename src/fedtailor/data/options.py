"""The options of the ``[data]`` section: the data, the partition and the clients."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedtailor.core.errors import find_name
from fedtailor.core.options import Flag, NonNegativeInt, NoResult, Range, check_options, wrong_value
from fedtailor.data.datasets import DATASETS
from fedtailor.data.partitions import parse_partition

if TYPE_CHECKING:
    from fedtailor.data.cell_rules import CellRules
    from fedtailor.data.dataset import InputKind

ArrayKind = Literal["auto", "pictures", "series", "features"]
TestPolicy = Literal["own", "given", "by_label", "by_subclass", "complete"]


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The ``[data]`` section.

    Raises:
        ConfigError: a value has the wrong type or is out of range, a name is unknown, or options
            exclude each other.
    """

    dataset: Annotated[
        str,
        Flag("--dataset", "NAME", "Data set (see: fedtailor list datasets).", short="-d"),
    ] = "digits"
    """Name of a known data set; ignored if ``path`` is given."""
    dir: Annotated[
        str,
        NoResult(),
        Flag(
            "--data-dir",
            "FOLDER",
            "Folder of the data sets (default: FEDTAILOR_DATA, else ~/.cache/fedtailor).",
        ),
    ] = ""
    """Folder of the known data sets; empty: FEDTAILOR_DATA, else ~/.cache/fedtailor."""
    path: Annotated[
        str,
        Flag("--data", "PATH", "Your own data: a folder, a table, or package.module:function."),
    ] = ""
    """Your own data instead of a known data set: a folder, or ``package.module:function`` that
    returns arrays."""
    label_column: str = ""
    """Your own tables: the column with the class; empty: the one whose name says so, such as label
    or diagnosis."""
    encoder: Annotated[
        str,
        Flag(
            "--encoder",
            "TARGET",
            "Frozen encoder of the examples: onnx:FILE, or package.module:function.",
        ),
    ] = ""
    """A frozen encoder, whose features take the place of the examples: ``onnx:FILE``, or
    ``package.module:function`` that returns a ``torch.nn.Module``; empty: none."""
    group: str = ""
    """Your own data: says which examples must stay together, such as those of a patient. Tables: a
    column. Folders of
    images: a regular expression with one group, which is searched for in the path of a file."""
    missing: Literal["impute", "indicator", "refuse"] = "impute"
    """Your own tables: empty cells are replaced (numbers by the median of the clients' medians of
    training examples, weighted by cells; text by the category "missing"), or an error. indicator:
    replaced too, and a column of numbers gets a feature that is 1 where its cell was empty."""
    numbers: Literal["standard", "bins", "quantile"] = "standard"
    """Your own tables: numbers are features as they are (standard), by how far they fill each of
    some bins with as many examples (bins), or by the normal score of their rank (quantile). Ranks
    are those among the training examples of all sites."""
    decimal: Literal["auto", "point", "comma"] = "auto"
    """Your own tables: what a comma in a number is. comma: the decimal point; point: a separator of
    thousands; auto: what all numbers with a comma in a column can be."""
    missing_values: dict[str, Any] = field(default_factory=dict)
    """Your own tables: values that mean a missing one, by column, such as {chol = [0]}."""
    leave_out: tuple[str, ...] = ()
    """Your own tables: columns that are not used, such as dates and identifiers. Not every table
    must have them."""
    kind: ArrayKind = "auto"
    """Your own arrays: what ``x`` holds. auto: features if it has two axes, else pictures. An array
    (rows, a, b) must say it, unless it holds bytes, or neither a nor b is twice the other."""
    image_size: Annotated[int, Range(ge=0, le=1024)] = 0
    """Your own images: they are resized to a square of this side; 0: no resizing, all images must
    have one size."""
    color: Literal["auto", "gray", "rgb"] = "auto"
    """Your own images: auto is rgb if any image has colors."""
    partition: Annotated[
        str,
        Flag(
            "--partition",
            "TEXT",
            'How examples are divided among clients, such as "dirichlet(alpha=0.5)".',
        ),
    ] = ""
    """How examples are divided among clients; empty: natural if the data has sites, else
    dirichlet(alpha=0.5)."""
    clients: Annotated[int, Range(ge=0), Flag("--clients", "NUMBER", "Number of clients.")] = 0
    """Number of clients including new ones; 0: the number that the partition defines, else 20."""
    new_clients: NonNegativeInt | tuple[str, ...] = 0
    """Clients that are new: they never take part in training. The names of sites, or how many of
    the last clients."""
    subset: NonNegativeInt = 0
    """Examples kept before the partition, the same number of every class (only from the training
    part if the test examples are official ones); 0: all."""
    fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of each client's training examples that is kept; test examples are not affected."""
    subsampling: Literal["nested", "release"] = "nested"
    """Which training examples ``fraction`` keeps. nested: a smaller fraction is a part of a larger
    one. release: those that pFedFDA's released code draws, with seed 0 whatever ``seed`` is."""
    train_size: NonNegativeInt = 0
    """Largest number of training examples of a client; 0: no limit."""
    test: Literal["auto"] | TestPolicy = "auto"
    """Test examples of a client: a share of its ``own`` examples; its ``given`` test examples; or
    official test
    examples: those with its labels, with its subclasses, or all of them. auto: given for data by
    writer or site that come divided, else own."""
    test_share: Annotated[float, Range(ge=0, lt=1)] = 0.2
    """Share of each client's own examples that is used for testing."""
    folds: Annotated[
        int,
        Range(ge=0, le=20),
        Flag(
            "--folds",
            "NUMBER",
            "Cross-validation at each client: train once per fold, so that every example is "
            "tested once.",
        ),
    ] = 0
    """Cross-validation at each client: its own examples are divided into so many folds (2 to 20),
    and a run trains once per fold, which is then tested on. Folds hold the classes in equal shares,
    and never divide a group. 0: none, but ``test_share``."""
    fold: Annotated[int, Range(ge=0, le=20)] = 0
    """Which fold is tested on, from 1; 0: all, one after the other. A run writes it into the folder
    of a fold."""
    val_fraction: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of each client's kept training examples for validation: personalized models are scored
    on them too."""
    shift: str = ""
    """Corruption of some clients' images, such as cifar_s(clients=50, pairing='release'); empty:
    none."""
    normalize: Literal["auto", "dataset", "training", "l2"] = "auto"
    """Mean and standard deviation that normalize values: those of the ``dataset``, or of all
    ``training`` examples;
    auto: training for tables of numbers and series, dataset for images and for features of an
    encoder, which are used as they are. l2: every row of features gets the Euclidean norm 1."""
    mean: tuple[float, ...] = ()
    """Means of pixels scaled to [0, 1] that replace those of the data set: one, or one per
    channel."""
    std: tuple[float, ...] = ()
    """Standard deviations that belong to ``mean``."""
    split: Annotated[
        str,
        Flag(
            "--split",
            "PATH",
            "Split of an earlier run, or one that fedtailor data partition wrote.",
        ),
    ] = ""
    """A split file, which replaces ``partition`` and all options that divide."""
    seed: Annotated[int | Literal["run"], Range(ge=0)] = 42
    """Seed of partition, split and corruptions; "run": the seed of the run."""

    def standardizes(self, kind: InputKind, *, is_embedded: bool = False) -> bool:
        """Return whether mean and deviation of the training examples normalize values.

        Args:
            kind: of the values.
            is_embedded: whether a frozen encoder made them.
        """
        # Tables and series have units of their own; all pictures have a white.
        by_default = self.normalize == "auto" and kind != "images" and not is_embedded
        by_training = self.normalize == "training" or by_default
        return by_training and not self.mean and not self.std

    def num_kept(self, num_train: int) -> int:
        """Return how many of a client's training examples are kept: at least one, if any."""
        number = max(math.floor(self.fraction * num_train), min(num_train, 1))
        return min(number, self.train_size) if self.train_size else number

    @property
    def cell_rules(self) -> CellRules | None:
        """How the cells of tables are read; None: in the usual way."""
        if self.decimal == "auto" and not self.missing_values:
            return None

        from fedtailor.data.cell_rules import CellRules

        return CellRules(self.decimal, self.missing_values)

    @property
    def num_new(self) -> int:
        """The number of new clients."""
        return len(self.new_clients) if isinstance(self.new_clients, tuple) else self.new_clients

    @property
    def runs_all_folds(self) -> bool:
        """Whether a run trains once per fold."""
        return self.folds > 0 and self.fold == 0

    @property
    def title(self) -> str:
        """A short name of the data, for folders."""
        if not self.path:
            return self.dataset
        return [part for part in re.split(r"[:/\\]", self.path) if part][-1]

    def __post_init__(self) -> None:
        check_options(self, owner="data")
        if not self.path:
            dataset = find_name("dataset", self.dataset, DATASETS, key="data.dataset")
            object.__setattr__(self, "dataset", dataset)

        # What cannot be a rule for cells is refused before any data are read.
        self.cell_rules  # noqa: B018

        # Without a number of clients, the data decides.
        if self.clients:
            refuse_too_many_new(self.num_new, self.clients)
        if isinstance(self.new_clients, tuple):
            self._check_names(self.new_clients)

        for option, other in (("mean", "std"), ("std", "mean")):
            if getattr(self, option) and not getattr(self, other):
                raise wrong_value(f"data.{other}", f"given with data.{option}", ())

        self._refuse_without_effect()
        self._check_folds()
        if self.subsampling == "release":
            self._check_release()

        # The texts are read here, so that an error comes before any data are.
        if self.partition:
            parse_partition(self.partition)

        if self.shift.strip():
            from fedtailor.data.corruptions.shift import parse_shift

            parse_shift(self.shift)

    def _check_names(self, names: tuple[str, ...]) -> None:
        key = "data.new_clients"
        if self.split:
            raise wrong_value(key, "a number with data.split", names, "The file has an order.")
        if len(set(names)) < len(names):
            raise wrong_value(key, "different names", names)

    def _refuse_without_effect(self) -> None:
        """Refuse options that have no effect because another one overrides them."""
        reasons: dict[str, str] = {}
        if self.split:
            reasons |= dict.fromkeys(DIVIDING, "data.split is given: the file divides the data")
        if self.encoder:
            what = "data.encoder is given, which gets values as they are"
            reasons |= dict.fromkeys(("mean", "std"), what)
        if self.mean:
            reasons["normalize"] = "data.mean and data.std are given"
        if self.folds:
            reasons["test_share"] = "data.folds is given: a fold is the test part"
        if not self.path:
            reasons |= dict.fromkeys(OWN, "data.path is not given: it is for your own data")

        for option in fields(self):
            value = getattr(self, option.name)
            default = {} if option.name == "missing_values" else option.default
            if option.name in reasons and value != default:
                hint = f"It has no effect, because {reasons[option.name]}."
                raise wrong_value(f"data.{option.name}", "left out", value, hint)

    def _check_folds(self) -> None:
        """Refuse numbers of folds that are none, and test examples that do not come in folds."""
        if self.folds == 1:
            raise wrong_value("data.folds", "0 (none), or from 2 to 20", 1)
        if self.fold > self.folds:
            raise wrong_value("data.fold", f"at most data.folds ({self.folds})", self.fold)
        if self.folds and self.test not in ("auto", "own"):
            raise wrong_value("data.test", "'own' with data.folds", self.test)

    def _check_release(self) -> None:
        """Refuse options under which the training examples would not be those of the release."""
        wrong = {
            "fraction": ("< 1", self.fraction == 1),
            "train_size": ("= 0", self.train_size > 0),
            "val_fraction": ("= 0", self.val_fraction > 0),
        }
        for name, (allowed, is_wrong) in wrong.items():
            if is_wrong:
                allowed = f"{allowed} with data.subsampling = 'release'"
                hint = "It keeps the examples that pFedFDA's released code keeps for training."
                raise wrong_value(f"data.{name}", allowed, getattr(self, name), hint)


DIVIDING = (
    "partition",
    "clients",
    "subset",
    "fraction",
    "subsampling",
    "train_size",
    "test",
    "test_share",
    "folds",
    "fold",
    "val_fraction",
)
"""Options that divide the data; a split file replaces them."""


KIND_OF: Mapping[ArrayKind, InputKind] = {
    "pictures": "images",
    "series": "series",
    "features": "table",
}
"""What examples are, by ``data.kind``."""

OWN = (
    "label_column",
    "group",
    "missing",
    "numbers",
    "decimal",
    "missing_values",
    "leave_out",
    "kind",
    "image_size",
    "color",
)
"""Options of your own data."""


def refuse_too_many_new(new_clients: int, clients: int) -> None:
    """Check that at least one client is not new.

    Raises:
        ConfigError: all clients are new.
    """
    if new_clients >= clients:
        allowed = f"less than the number of clients ({clients})"
        raise wrong_value("data.new_clients", allowed, new_clients)
