"""Rows of tables as numbers: categories one-hot or as ordinals, and gaps filled, both fitted on training rows alone.

A source gives codes for texts, and NaN for gaps: what they become depends on which rows are for training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.memory import check_memory

CATEGORICAL = ("one-hot", "ordinal")
FILLS = ("zero", "mean", "median")  # of gaps
MOST_COLUMNS = 2**16  # that categories may become
_FEW_ROWS = 20  # of which each may have a category of its own


class RawColumns(NamedTuple):
    """The columns of raw rows [s, p] of float32."""

    categories: dict[int, tuple[str, ...]]  # by column: the sorted texts whose indices are its values
    categorical: str | None  # one of `CATEGORICAL`
    fill: str  # one of `FILLS`, or "error" where there are no gaps


class Fitted(NamedTuple):
    """What the training rows say."""

    fills: Array  # [p] float32 in place of NaN; NaN: no category at all
    present: dict[int, Array]  # by column of categories: the ascending codes that occur


def fit_columns(columns: RawColumns, chunks: Callable[[], Iterator[Array]], names: tuple[str, ...]) -> Fitted:
    """Categories that occur, and values for the gaps.

    Parameters
    ----------
    columns : of the raw rows
    chunks : called for each pass: the raw training rows [b, p]
    names : [p]

    Raises
    ------
    UsageError, DataError : when a column has nothing to fill gaps with, has another text in every row, or categories
        would become too many columns.
    """
    features = len(names)
    counts = {at: np.zeros(len(texts), np.int64) for at, texts in columns.categories.items()}
    gaps, sums = np.zeros(features, np.int64), np.zeros(features)
    rows = 0
    for X in chunks():
        absent = np.isnan(X)
        gaps, rows = gaps + absent.sum(axis=0), rows + len(X)
        sums += np.where(absent, 0, X).sum(axis=0, dtype=np.float64)
        for at, count in counts.items():
            count += np.bincount(X[~absent[:, at], at].astype(np.int64), minlength=len(count))
    for at, count in counts.items() if columns.categorical == "one-hot" else ():
        if count.max(initial=0) == 1 and count.sum() > _FEW_ROWS:
            raise DataError(
                f"column {names[at]!r}: another text in each of {count.sum()} training rows, which "
                "names rows and is no category; leave it out, by --ignore NAME, or of a frame by drop(columns=...)"
            )
    if (
        columns.categorical == "one-hot"
        and (width := sum(int((count > 0).sum()) for count in counts.values())) > MOST_COLUMNS
    ):
        raise UsageError(
            f"--categorical one-hot: {width} columns, more than {MOST_COLUMNS}; use ordinal, or drop columns"
        )
    fills = np.zeros(features, np.float32)
    if columns.fill in ("mean", "median"):
        if len(empty := np.flatnonzero(gaps == rows)):
            raise DataError(
                f"--missing {columns.fill}: column {names[empty[0]]!r} has no value in the training rows; remove it"
            )
        fills = (sums / np.maximum(rows - gaps, 1)).astype(np.float32)
        if columns.fill == "median":
            fills = _medians(columns, chunks, np.flatnonzero(gaps), rows, fills)
    for at, count in counts.items():
        fills[at] = np.nan if columns.fill == "zero" else np.argmax(count)  # the most frequent one, the first of equals
        if columns.fill == "zero" and columns.categorical == "ordinal" and gaps[at]:
            raise UsageError(
                "--missing zero --categorical ordinal: 0 is the first category; use --missing median, which takes the "
                "most frequent one, or --categorical one-hot"
            )
    return Fitted(fills, {at: np.flatnonzero(count) for at, count in counts.items()})


def _medians(
    columns: RawColumns, chunks: Callable[[], Iterator[Array]], gappy: Array, rows: int, fills: Array
) -> Array:
    """The values `fills` [p], with medians of those columns that have gaps."""
    numbers = [at for at in gappy.tolist() if at not in columns.categories]
    if numbers:
        check_memory(8 * rows * len(numbers), f"--missing median: {rows} rows of {len(numbers)} columns", "use mean")
        fills[numbers] = np.nanmedian(np.concatenate([X[:, numbers] for X in chunks()]), axis=0)
    return fills


def transform(columns: RawColumns, fitted: Fitted, X: Array, names: tuple[str, ...]) -> Array:
    """Raw rows X [b, p] as numbers [b, q] of float32; DataError for an ordinal that no training row has."""
    gaps = np.isnan(X)
    if gaps.any():
        X = np.where(gaps, fitted.fills, X)
    one_hot, numbers = columns.categorical == "one-hot", [at for at in range(len(names)) if at not in fitted.present]
    ends = np.cumsum([len(fitted.present[at]) if one_hot and at in fitted.present else 1 for at in range(len(names))])
    out = np.zeros((len(X), ends[-1]), np.float32)
    out[:, ends[numbers] - 1] = X[:, numbers]
    for at, known in fitted.present.items():
        code = np.where(np.isnan(X[:, at]), -1, X[:, at]).astype(np.int64)
        place, met = np.searchsorted(known, code), np.isin(code, known)
        if one_hot:
            out[np.flatnonzero(met), ends[at] - len(known) + place[met]] = 1
            continue
        if not met.all():
            text = columns.categories[at][int(code[np.argmin(met)])]
            raise DataError(
                f"column {names[at]!r}: {text[:80]!r} in a test row, and in no training row; "
                "use --categorical one-hot, which has zeros for it"
            )
        out[:, ends[at] - 1] = place
    return out


def encoded_names(columns: RawColumns, fitted: Fitted, names: tuple[str, ...]) -> tuple[str, ...]:
    """[q] names of the columns that `transform` makes of columns with the names [p]: `colour=red` for a category."""
    if columns.categorical == "ordinal":
        return names
    parts = [
        [f"{name}={plain(columns.categories[at][code])}" for code in fitted.present[at]]
        if at in fitted.present
        else [name]
        for at, name in enumerate(names)
    ]
    return tuple(name for part in parts for name in part)


def plain(text: str) -> str:
    """A text as a name that HDF5 can store: without control characters, and not long."""
    return (text if text.isprintable() else text.encode("unicode_escape").decode("ascii"))[:200]
