"""Test rows that are taken from the training rows of a source: common ones, and those of each client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array, Flags
from mpifed.data.partition import Partition
from mpifed.data.partitioners import by_kind, stream
from mpifed.data.samples import Samples, stack_rows


def hold_out(data: Samples, fraction: float, seed: int) -> Samples:
    """The data with a fraction of each class, or of all rows of real targets, as test set.

    Every natural client keeps a row to train on. Raises UsageError when one of the two sets would be empty.
    """
    if data.test is not None:
        raise UsageError(f"--test-fraction {fraction:g}: this source has its own test rows; leave the option out")
    y, rng = data.y, stream(seed, "test")
    _, kind = np.unique(y if y.ndim == 1 and y.dtype.kind in "iu" else np.zeros(len(y)), return_inverse=True)
    out = np.zeros(len(y), dtype=np.bool_)
    for members in by_kind(kind, kind.max() + 1):
        out[rng.choice(members, round(fraction * len(members)), replace=False)] = True
    if data.ids is not None:
        present, first = np.unique(data.ids, return_index=True)
        out[first[~np.isin(present, data.ids[~out])]] = False
    if out.all() or not out.any():
        raise UsageError(
            f"--test-fraction {fraction:g}: of {len(y)} rows, {out.sum()} would be for testing; both sets need one, "
            "and every natural client one to train on"
        )
    training = data.rows(np.flatnonzero(~out))
    return replace(training, test=replace(data, partition=None).rows(np.flatnonzero(out)))


def with_owners_tests(data: Samples) -> Samples:
    """The data with the test rows of natural clients behind, for these to test with.

    They stay among the common test rows as well. The data are as they came where the source says of no test row whose
    it is, or has `own_tests` itself.
    """
    test = data.test
    if test is None or test.ids is None or data.own_tests is not None:
        return data
    own = test.rows(np.flatnonzero(np.isin(test.ids, data.ids)))
    y, ids = np.concatenate([data.y, own.y]), np.concatenate([data.ids, own.ids])
    own_tests = np.arange(len(y)) >= len(data.y)
    return replace(data, X=stack_rows([data.X, own.X]), y=y, ids=ids, own_tests=own_tests if len(own.y) else None)


def own_tests(partition: Partition, y: Array, given: Flags | None, fraction: float | None, seed: int) -> Flags | None:
    """[s] True for the rows with which the client that holds them tests; None where there are none.

    Of rows that are drawn, every one of a client is as likely as another, and of each class there are the client's
    share, up to one row: the rows, in a random order within each class, are taken at equal distances from a random
    start.

    Parameters
    ----------
    partition : of all rows
    y : [s] classes or targets
    given : those that the source determines
    fraction : of each client's rows, to be drawn, rounded to a whole number that leaves one to train on; None where the
        source determines them
    seed : of the draw

    Raises
    ------
    UsageError : when the fraction gives no client a row, or does not go with the partition or the source.
    """
    if given is None and fraction is None:
        return None
    what = "own_tests of this source" if fraction is None else f"--client-test-fraction {fraction:g}"
    if given is not None and fraction is not None:
        raise UsageError(f"{what}: this source has the clients' own test rows; leave the option out")
    if partition.split != "rows":
        raise UsageError(
            f"{what}: the data are split by {partition.split}, so a sample is not one client's alone, and its holders "
            "would have to test together; use --test-fraction, or --split rows"
        )
    if fraction is None:
        return given
    groups = [partition.rows[group] for group in partition.holds[:, 0]]
    rows, counts = np.concatenate(groups), partition.counts
    starts, of_client = np.cumsum(counts) - counts, np.repeat(np.arange(len(groups)), counts)
    classes = y[rows] if np.issubdtype(y.dtype, np.integer) else np.zeros(len(rows), dtype=np.int64)
    rng = stream(seed, "client tests")
    order = np.lexsort((rng.random(len(rows)), classes, of_client))
    tests = np.minimum(np.rint(fraction * counts).astype(np.int64), counts - 1)  # [N]
    if not tests.any():
        raise UsageError(f"{what}: no client has rows enough for a test row, the largest has {counts.max()}; raise it")
    client = np.repeat(np.arange(len(groups)), tests)
    at = np.arange(len(client)) - np.repeat(np.cumsum(tests) - tests, tests)  # number of each client's test rows
    places = np.floor((at + rng.random(len(groups))[client]) * counts[client] / tests[client]).astype(np.int64)
    mask = np.zeros(len(y), dtype=np.bool_)
    mask[rows[order[starts[client] + np.minimum(places, counts[client] - 1)]]] = True
    return mask
