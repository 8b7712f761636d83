"""What Python programs give. Arrays are `Any` here: whatever NumPy takes."""

from __future__ import annotations

import operator

from mpifed.core.errors import DataError, UsageError
from mpifed.data.samples import Values

Pair = tuple[Values, Values]  # samples and labels


def is_frame(values: Values) -> bool:
    """Whether values have columns with names, as a frame, a table of Arrow or a `datasets.Dataset`."""
    return hasattr(values, "columns") or hasattr(values, "column_names")


def check_index(what: str, *values: Values) -> None:
    """Raise DataError for frames of pandas whose indices differ, since rows are matched by position."""
    indices = [each.index for each in values if hasattr(each, "iloc")]
    if any(not index.equals(indices[0]) for index in indices):
        raise DataError(
            f"{what}: the frames have other indices, and rows are matched by position; give them in one order, with "
            ".reset_index(drop=True)"
        )


def integer(value: object, name: str) -> int:
    """A whole number, also one of NumPy's."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # it says so itself
    except TypeError:
        raise UsageError(f"{name} = {value!r}: expected an integer") from None
