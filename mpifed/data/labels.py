"""Conversion of a source's labels to classes 0, 1, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array, vectors
from mpifed.data.sources.dataset import Dataset, listed


class Labels(NamedTuple):
    """Classes or targets of the training and test rows."""

    y: Array  # [s] int64 classes, or float64 real targets
    test_y: Array | None  # [s] of the test rows
    meaning: tuple[str, ...]  # label of each class in the source; () for real targets


def encode(data: Dataset, rule: str) -> Labels:
    """Classes from the labels of a source, by a rule.

    Parameters
    ----------
    data : the source's data
    rule : "all", each distinct label is a class, in ascending order; "even-odd", odd labels are class 1; "class:K",
        label K is class 1; "below:K", labels smaller than K are class 1

    Raises
    ------
    UsageError : when the rule does not fit the labels.
    DataError : when there is only one class, or a test label does not occur in the training rows.
    """
    labels, test = data.labels, data.test[1] if data.test else None
    if not np.issubdtype(labels.dtype, np.integer):
        if rule != "all":
            raise UsageError(f"--labels {rule}: the labels are real targets, not classes; add --task classification")
        return Labels(_targets(labels), None if test is None else _targets(test), ())
    values = np.unique(labels)
    texts = data.classes
    if len(values) < 2:
        only = texts[values[0]] if texts else values[0]
        raise DataError(f"{_file(data, 0)}: all rows have the label {only}; expected at least two classes")
    code, meaning = _code(rule, values, texts)
    if rule == "all":
        _check_known(data, values)
    return Labels(code(labels), None if test is None else code(test), meaning)


def _targets(labels: Array) -> Array:
    """[s] real targets: numbers, or vectors where there are several of each row."""
    return labels if labels.ndim == 1 else labels[:, 0] if labels.shape[1] == 1 else vectors(labels)


def _code(rule: str, values: Array, texts: tuple[str, ...] | None) -> tuple[Callable[[Array], Array], tuple[str, ...]]:
    """(function from labels [s] to classes [s], meaning of each class), for labels with the distinct `values`.

    Where labels are texts, `values` are indices into `texts`.
    """
    names = tuple(texts[value] for value in values.tolist()) if texts else tuple(map(str, values.tolist()))
    if rule == "all":
        return lambda y: np.searchsorted(values, y), names
    if texts:
        _, _, wanted = rule.partition(":")
        if not rule.startswith("class:") or wanted not in names:
            raise UsageError(f"--labels {rule[:40]}: expected all, or class:K with K one of {listed(names)}")
        return lambda y: (y == values[names.index(wanted)]).astype(np.int64), (f"not {wanted}", wanted)
    if rule == "even-odd":
        return lambda y: y % 2, ("even", "odd")
    name, _, wanted = rule.partition(":")
    if name == "below" and wanted.isdecimal() and len(wanted) < 19 and values[0] < int(wanted) <= values[-1]:
        return lambda y: (y < int(wanted)).astype(np.int64), (f"{wanted} and above", f"below {wanted}")
    if name != "class" or wanted not in names:
        raise UsageError(
            f"--labels {rule[:40]}: expected all, even-odd, class:K with K one of {listed(values)}, or below:K "
            f"with K above {values[0]} and at most {values[-1]}"
        )
    return lambda y: (y == int(wanted)).astype(np.int64), (f"not {wanted}", wanted)


def _check_known(data: Dataset, values: Array) -> None:
    """Raise DataError for the first test label that is not among the training labels `values`."""
    if data.test is None:
        return
    strange = np.flatnonzero(~np.isin(data.test[1], values))
    if len(strange):
        label, texts = data.test[1][strange[0]], data.classes
        known = [texts[value] for value in values.tolist()] if texts else values
        raise DataError(
            f"{_file(data, -1)}: row {strange[0] + 1} has the label {texts[label] if texts else label}, which no "
            f"training row has; expected one of {listed(known)}; int64 labels are classes, real targets are float64"
        )


def _file(data: Dataset, number: int) -> str:
    return str(data.files[number]) if data.files else "the source"
