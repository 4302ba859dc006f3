"""The same columns in the tables of all sites, in whatever order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedtailor.data.own.place import show
from fedtailor.data.own.table import Table


def check_columns_alike(tables: Sequence[Table]) -> bool:
    """Return whether all tables have the same columns; add each that some lack, at the tables that are fewer."""
    names = {name: None for table in tables for name in table.columns.used}  # in the order they are met
    alike = True
    for name in names:
        having = [table for table in tables if name in table.columns.used]
        if len(having) == len(tables):
            continue
        alike = False
        if 2 * len(having) < len(tables):
            message = f"Column {show(name)} is in {len(having)} of {len(tables)} tables only."
            for table in having:
                table.place.error("extra_column", message)
            continue
        for table in tables:
            if table not in having:
                table.place.error("missing_column", f"Column {show(name)} is missing; {len(having)} tables have it.")
    return alike


def ordered_features(table: Table, names: Sequence[str]) -> np.ndarray:
    """Return the features (rows, features) in the order of ``names``."""
    own = table.columns.feature_names
    if own == tuple(names):
        return table.cells.values
    position = {name: index for index, name in enumerate(own)}
    return table.cells.values[:, [position[name] for name in names]]
