"""Test rows that are taken from the training rows of a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.protocols import Piece
from mpifed.data.natural import NaturalClients
from mpifed.data.partition import held_out, training_rows
from mpifed.data.sources.dataset import Dataset, listed


def hold_out(data: Dataset, fraction: float, seed: int) -> Dataset:
    """The data with a fraction of its rows as test set; every natural client keeps a row to train on."""
    if data.test is not None:
        raise UsageError(f"--test-fraction {fraction:g}: this source has its own test rows; leave the option out")
    out = held_out(data.labels, fraction, seed)
    natural = data.natural
    if natural is not None:
        out = _but_one(natural, out)
        natural = natural._replace(test_owner=natural.owner[out])
    test = list(rows_where(out, data))
    test_X = test[0] if data.dtype is None else np.concatenate(test)
    return of_rows(~out, replace(data, test=(test_X, data.labels[out]), natural=natural))


def without_small(data: Dataset, least: int) -> tuple[Dataset, str]:
    """(the data without the rows of natural clients that have fewer than `least` to train on, who they are)."""
    natural = data.natural
    assert natural is not None
    counts = np.bincount(natural.owner)
    small = np.flatnonzero(counts < least)
    if len(small) == len(counts):
        raise UsageError(f"--min-rows {least}: the largest client has {counts.max()} training rows; lower it")
    whose = listed([natural.ids[at] for at in small.tolist()], 3)
    left_out = f"{counts[small].sum()} rows of {len(small)} clients with fewer than {least} are left out: {whose}"
    return of_rows(counts[natural.owner] >= least, data), left_out if len(small) else ""


def of_rows(keep: NDArray[np.bool_], data: Dataset) -> Dataset:
    """The data with the training rows alone where `keep` [s] is True."""
    return replace(
        data, labels=data.labels[keep], chunks=partial(rows_where, keep, data),
        partition=training_rows(data.partition, keep, data.features) if data.partition else None,
        client_tests=None if data.client_tests is None else data.client_tests[keep],
        natural=data.natural.of_rows(keep) if data.natural else None,
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
