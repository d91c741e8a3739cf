"""Rows of a table for further work: a DataFrame where pandas is installed, otherwise plain rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame, or a list of dicts where pandas is missing: nothing else here needs it."""
    try:
        import pandas
    except ImportError:
        return [dict(row) for row in rows]
    return pandas.DataFrame([dict(row) for row in rows])
