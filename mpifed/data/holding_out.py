"""Test rows that are taken from the training rows of a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.protocols import Piece
from mpifed.data.memory import check_memory
from mpifed.data.natural import NaturalClients
from mpifed.data.partition import held_out, training_rows
from mpifed.data.sources.dataset import Dataset


def hold_out(data: Dataset, fraction: float, seed: int) -> Dataset:
    """The data with a fraction of its rows as test set; every natural client keeps a row to train on."""
    if data.test is not None:
        raise UsageError(f"--test-fraction {fraction:g}: this source has its own test rows; leave the option out")
    out = held_out(data.labels, fraction, seed)
    if data.natural is not None:
        out = _but_one(data.natural, out)
    if data.dtype is not None:
        size, what = int(out.sum()) * data.features * np.dtype(data.dtype).itemsize, f"--test-fraction {fraction:g}"
        check_memory(size, f"{what}: {out.sum()} rows of {data.features} features", "lower it")

    test = list(rows_where(out, data))
    test_X = test[0] if data.dtype is None else np.concatenate(test)
    return replace(
        data, labels=data.labels[~out], chunks=partial(rows_where, ~out, data), test=(test_X, data.labels[out]),
        partition=training_rows(data.partition, ~out, data.features) if data.partition else None,
        client_tests=None if data.client_tests is None else data.client_tests[~out],
        natural=data.natural.of_rows(~out, out) if data.natural else None,
    )  # fmt: skip


def rows_where(chosen: NDArray[np.bool_], data: Dataset) -> Iterator[Piece]:
    """The chunks of the chosen rows [s]; none without rows."""
    start = 0
    for X in data.chunks():
        rows = chosen[start : start + X.shape[0]]
        start += X.shape[0]
        if rows.any():
            yield X if rows.all() else X[rows]


def _but_one(natural: NaturalClients, out: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`out` [s] without the first row of each client who would have no other."""
    rows, first = np.unique(natural.owner, return_index=True)
    remaining = np.bincount(natural.owner[~out], minlength=len(natural.ids))
    out = out.copy()
    out[first[remaining[rows] == 0]] = False
    if not out.any():
        raise UsageError("--test-fraction: every client has a single row, which it needs to train on; leave it out")
    return out
