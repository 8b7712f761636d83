"""Conversion of a source's labels to classes 0, 1, ..."""

from __future__ import annotations

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.block import vectors
from mpifed.data.samples import Samples
from mpifed.text import listed


def encode(data: Samples, rule: str, given: bool = False) -> tuple[list[Array], tuple[str, ...], int]:
    """(labels of the training rows, and of test rows if there are some, what classes are called, how many).

    They are int64 classes, float64 real targets or `vectors` of several of a row; real targets have 0 classes without
    names, and several labels of a row names of their own, and 2 classes of each.

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
    parts, texts = [data.y, *([data.test.y] if data.test else [])], data.classes
    if data.y.dtype.kind == "f" or data.y.ndim > 1:
        several = data.y.dtype.kind != "f"
        if rule != "all":
            what = "several of a row" if several else "real targets, not classes; add --task classification"
            raise UsageError(f"--labels {rule}: the labels are {what}")
        meaning = (texts or tuple(map(str, range(data.y.shape[1])))) if several else ()
        return [vectors(y) if y.ndim > 1 else y for y in parts], meaning, 2 * several
    values = np.arange(len(texts)) if texts and given else np.unique(data.y)
    names = [texts[value] if texts else str(value) for value in values.tolist()]
    if len(values) < 2:
        raise DataError(f"{data.places.whole()}: all rows have the label {names[0]}; expected at least two classes")
    wanted = rule.removeprefix("class:")
    if rule == "even-odd" and not texts:
        return [y & 1 for y in parts], ("even", "odd"), 2
    if wanted != rule and wanted in names:
        those = values[names.index(wanted)]
        return [(y == those).astype(np.int64) for y in parts], (f"not {wanted}", wanted), 2
    if rule != "all":
        known = "all" if texts else "all, even-odd"
        raise UsageError(f"--labels {rule[:40]}: expected {known}, or class:K with K one of {listed(names)}")
    for row in np.flatnonzero(~np.isin(parts[-1], values))[:1].tolist():
        label = texts[parts[-1][row]] if texts else parts[-1][row]
        raise DataError(
            f"{(data.test or data).places.at(row)}: no training row has the label {label}; expected one of "
            f"{listed(names)}; int64 labels are classes, real targets are float64"
        )
    return [np.searchsorted(values, y) for y in parts], tuple(names), len(names)
