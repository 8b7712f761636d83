"""Conversion of a source's labels to classes 0, 1, ..."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array, vectors
from mpifed.data.samples import Samples
from mpifed.data.source_files import listed


class Labels(NamedTuple):
    """Classes or targets of the training and test rows."""

    y: Array  # [s] int64 classes, or float64 real targets, or `vectors` of several of a row
    test_y: Array | None  # [s] of the test rows
    meaning: tuple[str, ...]  # label of each class in the source, or names of several of a row; () for real targets
    classes: int  # 0 for real targets; 2 of each of several labels of a row


def encode(data: Samples, rule: str, given: bool = False) -> Labels:
    """Classes from the labels of a source, by a rule.

    Parameters
    ----------
    data : the source's data
    rule : "all", each distinct label is a class, in ascending order; "even-odd", odd labels are class 1; "class:K",
        label K is class 1
    given : whether the user stated the classes, of which rows may lack some

    Raises
    ------
    UsageError : when the rule does not fit the labels.
    DataError : when there is only one class, or a test label does not occur in the training rows.
    """
    labels, test = data.y, data.test.y if data.test else None
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim > 1:
        several = labels.dtype.kind != "f"
        if rule != "all":
            what = "several of a row" if several else "real targets, not classes; add --task classification"
            raise UsageError(f"--labels {rule}: the labels are {what}")
        meaning = (data.classes or tuple(map(str, range(labels.shape[1])))) if several else ()
        return Labels(_targets(labels), None if test is None else _targets(test), meaning, 2 * several)
    values, texts = np.unique(labels), data.classes
    if texts and given:
        values = np.arange(len(texts))
    names = [texts[value] for value in values.tolist()] if texts else list(map(str, values.tolist()))
    if len(values) < 2:
        raise DataError(f"{_file(data, 0)}: all rows have the label {names[0]}; expected at least two classes")
    wanted = rule.removeprefix("class:")
    code: Callable[[Array], Array]
    if rule == "all":
        if test is not None:
            _check_known(data, test, values, names)
        code, meaning = lambda y: np.searchsorted(values, y), tuple(names)
    elif wanted != rule and wanted in names:
        code, meaning = partial(np.equal, values[names.index(wanted)]), (f"not {wanted}", wanted)
    elif rule == "even-odd" and not texts:
        code, meaning = partial(np.bitwise_and, 1), ("even", "odd")
    else:
        known = "all" if texts else "all, even-odd"
        raise UsageError(f"--labels {rule[:40]}: expected {known}, or class:K with K one of {listed(names)}")
    test_y = None if test is None else code(test).astype(np.int64)
    return Labels(code(labels).astype(np.int64), test_y, meaning, len(meaning))


def _targets(labels: Array) -> Array:
    """[s] real targets: numbers, or vectors where there are several of each row."""
    return vectors(labels) if labels.ndim > 1 else labels


def _check_known(data: Samples, test: Array, values: Array, names: list[str]) -> None:
    """Raise DataError for the first of the `test` labels that is not among the training labels `values`."""
    for row in np.flatnonzero(~np.isin(test, values))[:1].tolist():
        raise DataError(
            f"{_file(data, -1)}: row {row + 1} has the label {data.classes[test[row]] if data.classes else test[row]}, "
            f"which no training row has; expected one of {listed(names)}; int64 labels are classes, real targets are "
            "float64"
        )


def _file(data: Samples, number: int) -> str:
    return str(data.files[number]) if data.files else "the source"
