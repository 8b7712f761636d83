"""Rows of files that are in memory as arrays: labels as classes or targets, and natural clients in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.natural import NaturalClients, canonical_order, natural_clients
from mpifed.data.sources.dataset import Dataset, typed_labels, whole
from mpifed.data.sources.texts import numbered


class Samples(NamedTuple):
    """Rows of one file or several."""

    X: Array  # [s, ...] uint8 or float32
    labels: Array  # [s] or [s, t], numbers or texts
    ids: Array | None = None  # [s] whose each row is, as texts


def of_arrays(
    files: Sequence[Path], task: str, rows: Samples, test: Samples | None = None, *, others: Sequence[str] = ()
) -> Dataset:
    """The data of rows to train on and to test with.

    Parameters
    ----------
    files : from which they were read
    task : "classification", "regression" or "auto"
    rows, test : of one shape; without `ids` of the test rows, none of these is a client's
    others : identifiers of clients who may have no rows

    Raises
    ------
    DataError : when test samples have another shape or kind of labels, or a label is no class.
    UsageError : when the task does not fit the labels.
    """
    X, shape = rows.X.reshape(len(rows.X), -1), rows.X.shape[1:]
    if test is not None and test.X.shape[1:] != shape:
        raise DataError(f"{files[-1]}: test samples of shape {test.X.shape[1:]}; those to train on have {shape}")
    labels, test_labels, classes = typed(files, task, rows.labels, None if test is None else test.labels)
    data = Dataset(
        X.shape[1], X.dtype, labels, whole(X),
        None if test is None or test_labels is None else (test.X.reshape(len(test.X), -1), test_labels),
        top=255.0 if X.dtype == np.uint8 else None, shape=shape if len(shape) > 1 else None, files=tuple(files),
        classes=classes,
    )  # fmt: skip
    if rows.ids is None:
        return data
    names, owner, test_owner = numbered(rows.ids, None if test is None else test.ids)
    natural = natural_clients([*names, *{*others} - {*names}], owner, test_owner)
    return _in_client_order(data, natural, X)


def _in_client_order(data: Dataset, natural: NaturalClients, X: Array) -> Dataset:
    """The data of natural clients, their rows X [s, p] in an order of their content."""
    order, test, test_owner = canonical_order(natural.owner, data.labels, [X]), data.test, natural.test_owner
    if test is not None:
        test_owner = np.full(len(test[1]), -1) if test_owner is None else test_owner
        test_order = canonical_order(test_owner, test[1], [test[0]])
        test, test_owner = (test[0][test_order], test[1][test_order]), test_owner[test_order]
    return replace(
        data, labels=data.labels[order], chunks=whole(X[order]), test=test,
        natural=natural._replace(owner=natural.owner[order], test_owner=test_owner),
    )  # fmt: skip


def typed(
    files: Sequence[Path], task: str, labels: Array, test: Array | None
) -> tuple[Array, Array | None, tuple[str, ...] | None]:
    """(labels, test labels, names of the classes where they are texts): int64 classes, or float64 real targets.

    Parameters
    ----------
    files : from which they were read; the last one has the test rows
    task : "classification", "regression" or "auto"
    labels, test : [s] or [s, t], numbers or texts

    Raises
    ------
    DataError : when the test labels are of another kind, or a label is no class.
    UsageError : when the task does not fit the labels.
    """
    texts = labels.dtype.kind == "U"
    if test is not None and (texts != (test.dtype.kind == "U") or test.ndim != labels.ndim):
        raise DataError(f"{files[-1]}: test labels of {test.dtype}, those to train on are {labels.dtype}")
    if texts:
        if task == "regression" or labels.ndim > 1:
            raise UsageError(f"{files[0]}: labels that are texts are classes, not real targets; one for each sample")
        names, codes, test_codes = numbered(labels, test)
        return codes, test_codes, tuple(names)
    real, test_real = labels.astype(np.float64), None if test is None else test.astype(np.float64)
    if labels.ndim > 1:
        return real, test_real, None
    y = typed_labels(files[0], real, task)
    task = "classification" if y.dtype == np.int64 else "regression"
    return y, None if test_real is None else typed_labels(files[-1], test_real, task), None
