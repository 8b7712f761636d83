"""What Python programs have, as `Samples`: frames by the names of their columns, and the rows of several clients.

Arrays are `Any` here: whatever NumPy takes.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Real

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.data.recipe import FEW
from mpifed.data.samples import Samples, Values, array
from mpifed.data.source_files import listed, numbers_rows, stored_parts

Pair = tuple[Values, Values]  # samples and labels
Names = Sequence[str] | None  # of columns


def columns_of(values: Values) -> list[str] | None:
    """The names of the columns of a frame; None for what is no frame."""
    columns = getattr(values, "column_names", getattr(values, "columns", None))
    return None if columns is None or not hasattr(values, "__len__") else list(map(str, columns))


def by_name(values: Values, what: str, names: Names = None, kinds: str = "biuf") -> tuple[Values, Names]:
    """(the columns of a frame in the order of `names`, or as they are; their names), without those that number rows.

    What is no frame is given back. Raises DataError for a frame with other columns, or with one that holds something
    else than the `kinds` of NumPy, or a new one that names rows.
    """
    own = columns_of(values)
    if own is None:
        return values, names
    left, is_new = [column for column in own if numbers_rows(column)], names is None and kinds == "biuf"
    if names is None:
        names = [column for column in own if column not in left]
        if left:
            warnings.warn(f"{what}: column {listed(left)} numbers rows, and is left out", stacklevel=2)
    names, place = list(map(str, names)), {column: at for at, column in enumerate(own)}
    wrong = sorted(column for column in {*names} ^ {*own} if column in names or column not in left)
    if wrong or len(place) < len(own):
        raise DataError(
            f"{what}: a frame with the columns {listed(own)}; expected, in any order, are {listed(names)}: "
            f"{listed(wrong) or 'a name that is there twice'} differs"
        )
    for column in names:
        key = getattr(values, "column_names", values.columns)[place[column]]
        content = array(values[key], f"{what}: column {column!r}")  # NumPy alone makes numbers of dates of polars
        gaps = kinds == "biuf" and content.dtype.kind == "f" and np.isnan(content).any()
        if gaps or content.dtype.kind not in kinds:
            raise DataError(
                f"{what}: column {column!r} is {content.dtype}{' with gaps' if gaps else ''}; expected numbers: "
                "leave it out, or convert it; from_dataframe takes texts and gaps"
            )
        if is_new and content.dtype.kind in "iu" and len({*content.tolist()}) == len(content) > FEW:
            raise DataError(
                f"{what}: column {column!r}: another integer in each of {len(content)} rows, which names rows, as an "
                "index; leave it out, or give floats"
            )
    return values if own == names else np.asarray(values)[..., [place[column] for column in names]], names


def check_index(what: str, *values: Values) -> None:
    """Raise DataError for frames of pandas whose indices differ, since rows are matched by position."""
    indices = [each.index for each in values if hasattr(each, "iloc")]
    if any(not index.equals(indices[0]) for index in indices):
        raise DataError(
            f"{what}: the frames have other indices, and rows are matched by position; give them in one order, with "
            ".reset_index(drop=True)"
        )


def parts_of(given: Iterable[tuple[str, Pair]], names: Names, shape: Sequence[int] | None) -> list[Samples]:
    """Samples and labels of several origins, each with what messages call it, as they are stored.

    Raises DataError where they differ in what they are: the first says it, but `names` and `shape`, of the features and
    of a sample, where these are given.
    """
    pairs, labels = list[tuple[str, Values, Values]](), None
    for what, (X, y) in given:
        check_index(f"{what}: X and y", X, y)
        X, names = by_name(X, f"{what}: X", names)
        y, labels = by_name(y, f"{what}: y", labels, "biufUO")
        pairs.append((what, X, y))
    named = None if names is None else tuple(map(str, names))
    return [replace(part, names=named, labels=tuple(labels or ())) for part in stored_parts(pairs, shape)]


def samples_or_fraction(value: Values) -> tuple[Values, Values]:
    """(what is given, fraction of the rows) of an argument that is either; `Options` says whether it is a fraction."""
    return (None, value) if isinstance(value, (Real, str)) else (value, None)


def pair(value: Values, what: str) -> Pair:
    """Samples and labels."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise UsageError(f"{what}: a {type(value).__name__}, no pair; expected (X, y), samples and labels")
    return value[0], value[1]


def integer(value: object, name: str) -> int:
    """A whole number, also one of NumPy's."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # it says so itself
    except TypeError:
        raise UsageError(f"{name} = {value!r}: expected an integer") from None
