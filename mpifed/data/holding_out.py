"""Test rows that are taken from the training rows of a source: common ones, and those of each client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.partition import Partition, held_out
from mpifed.data.partitioners import stream
from mpifed.data.samples import Samples, stack_rows
from mpifed.data.source_files import listed


def hold_out(data: Samples, fraction: float, seed: int) -> Samples:
    """The data with a fraction of its rows as test set; every natural client keeps a row to train on."""
    if data.test is not None:
        raise UsageError(f"--test-fraction {fraction:g}: this source has its own test rows; leave the option out")
    out = held_out(data.y, fraction, seed)
    if data.ids is not None:
        out = _but_one(data.ids, out)
    training = data.rows(np.flatnonzero(~out))
    return replace(training, test=replace(data, partition=None).rows(np.flatnonzero(out)))


def without_small(data: Samples, least: int) -> tuple[Samples, str]:
    """(the data without the rows of natural clients that have fewer than `least` to train on, who they are)."""
    present, counts = np.unique(data.ids, return_counts=True)
    small = counts < least
    if small.all():
        raise UsageError(f"--min-rows {least}: the largest client has {counts.max()} training rows; lower it")
    whose = listed([data.owners[at] for at in present[small]], 3)
    left_out = f"{counts[small].sum()} rows of {small.sum()} clients with fewer than {least} are left out: {whose}"
    if not small.any():
        return data, ""
    return data.rows(np.flatnonzero(~np.isin(data.ids, present[small]))), left_out


def _but_one(ids: Array, out: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """`out` [s] without the first row of each client who would have no other."""
    present, first = np.unique(ids, return_index=True)
    out = out.copy()
    out[first[~np.isin(present, ids[~out])]] = False
    if not out.any():
        raise UsageError("--test-fraction: every client has a single row, which it needs to train on; leave it out")
    return out


def with_owners_tests(data: Samples) -> Samples:
    """The data with the test rows of natural clients behind, for these to test with.

    They stay among the common test rows as well. The data are as they came where the source says of no test row whose
    it is, or has `own_tests` itself.
    """
    test = data.test
    if test is None or test.ids is None or data.own_tests is not None:
        return data
    own = np.flatnonzero(np.isin(test.ids, data.ids))
    if not len(own):
        return data
    y, ids = np.concatenate([data.y, test.y[own]]), np.concatenate([data.ids, test.ids[own]])
    X = stack_rows([data.X, test.X[own]])
    return replace(data, X=X, y=y, ids=ids, own_tests=np.arange(len(y)) >= len(data.y))


def own_tests(
    partition: Partition, y: Array, given: NDArray[np.bool_] | None, fraction: float | None, seed: int
) -> NDArray[np.bool_] | None:
    """[s] True for the rows with which the client that holds them tests; None where there are none.

    Parameters
    ----------
    partition : of all rows
    y : [s] classes or targets
    given : those that the source determines
    fraction : of each client's rows, to be drawn; None where the source determines them
    seed : of the draw

    Raises
    ------
    UsageError : when the fraction gives no client a row, or does not go with the partition or the source.
    DataError : when a client would have no row to train on.
    """
    what = "own_tests of this source" if fraction is None else f"--client-test-fraction {fraction:g}"
    if given is None and fraction is None:
        return None
    if given is not None and fraction is not None:
        raise UsageError(f"{what}: this source has the clients' own test rows; leave the option out")
    if partition.split != "rows":
        raise UsageError(
            f"{what}: the data are split by {partition.split}, so a sample is not one client's alone, and its holders "
            "would have to test together; use --test-fraction, or --split rows"
        )
    if given is None:
        assert fraction is not None
        return _draw_tests(partition, y, fraction, seed)
    for client, group in enumerate(partition.holds[:, 0]):
        if given[partition.rows[group]].all():
            rows = len(partition.rows[group])
            raise DataError(f"client {client}: all its {rows} rows are test rows; keep one to train on")
    return given


def _draw_tests(partition: Partition, y: Array, fraction: float, seed: int) -> NDArray[np.bool_]:
    """[s] True for `fraction` of each client's rows, rounded to a whole number that leaves one to train on.

    Every row of a client is as likely as another, and of each class there are the client's share, up to one row: the
    rows, in a random order within each class, are taken at equal distances from a random start.
    """
    groups = [partition.rows[group] for group in partition.holds[:, 0]]
    rows, counts = np.concatenate(groups), np.array([len(group) for group in groups])
    classes = y[rows] if np.issubdtype(y.dtype, np.integer) else np.zeros(len(rows), dtype=np.int64)
    rng = stream(seed, "client tests")
    order = np.lexsort((rng.random(len(rows)), classes, np.repeat(np.arange(len(groups)), counts)))
    tests = np.minimum(np.rint(fraction * counts).astype(np.int64), counts - 1)  # [N]
    if not tests.any():
        raise UsageError(
            f"--client-test-fraction {fraction:g}: no client has rows enough for a test row, the largest has "
            f"{counts.max()}; raise it, or make fewer clients"
        )
    client = np.repeat(np.arange(len(groups)), tests)
    number = np.arange(len(client)) - np.repeat(np.cumsum(tests) - tests, tests)  # of each client's test rows, from 0
    places = np.floor((number + rng.random(len(groups))[client]) * counts[client] / tests[client]).astype(np.int64)
    starts = np.cumsum(counts) - counts
    mask = np.zeros(len(y), dtype=np.bool_)
    mask[rows[order[starts[client] + np.minimum(places, counts[client] - 1)]]] = True
    return mask
