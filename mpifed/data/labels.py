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
    labels, texts, test = data.y, data.classes, None if data.test is None else data.test.y
    if labels.dtype.kind == "f" or labels.ndim > 1:
        several = labels.dtype.kind != "f"
        if rule != "all":
            what = "several of a row" if several else "real targets, not classes; add --task classification"
            raise UsageError(f"--labels {rule}: the labels are {what}")
        meaning = (texts or tuple(map(str, range(labels.shape[1])))) if several else ()
        return Labels(_targets(labels), None if test is None else _targets(test), meaning, 2 * several)
    values = np.arange(len(texts)) if texts and given else np.unique(labels)
    names = [texts[value] if texts else str(value) for value in values.tolist()]
    if len(values) < 2:
        raise DataError(f"{_file(data, 0)}: all rows have the label {names[0]}; expected at least two classes")
    wanted, meaning = rule.removeprefix("class:"), tuple(names)
    code: Callable[[Array], Array]
    if rule == "all":
        code = lambda y: np.searchsorted(values, y)  # noqa: E731
        tested = np.zeros(0, int) if test is None else test
        for row in np.flatnonzero(~np.isin(tested, values))[:1].tolist():
            label = texts[tested[row]] if texts else tested[row]
            raise DataError(
                f"{_file(data, -1)}: row {row + 1} has the label {label}, which no training row has; expected one of "
                f"{listed(names)}; int64 labels are classes, real targets are float64"
            )
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


def _file(data: Samples, number: int) -> str:
    return str(data.files[number]) if data.files else "the source"
