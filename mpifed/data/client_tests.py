"""Test rows of the clients' own: rows of each client on which it does not train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.data.partition import Partition
from mpifed.data.partitioners import stream
from mpifed.data.sources.dataset import Dataset


def with_owners_tests(data: Dataset, y: Array, test_y: Array | None) -> tuple[Dataset, Array]:
    """(the data, [s] their classes or targets), with the test rows of natural clients behind, for these to test with.

    They stay among the common test rows as well. The data are as they came where the source says of no test row whose
    it is, or has its own `client_tests`.

    Parameters
    ----------
    data : whose rows are as they came
    y : [s] classes or targets
    test_y : [t] of the test rows
    """
    natural, test = data.natural, data.test
    if natural is None or natural.test_owner is None or test is None or test_y is None or data.client_tests is not None:
        return data, y
    own, X = natural.test_owner >= 0, test[0]
    if not own.any():
        return data, y

    def chunks() -> Iterator[Piece]:
        if data.dtype is None:
            from scipy.sparse import vstack  # slow to import

            yield vstack([*data.chunks(), X[own]], "csr")
            return
        yield from data.chunks()
        yield X[own]

    owner = np.concatenate([natural.owner, natural.test_owner[own]])
    with_tests = replace(
        data, dtype=None if data.dtype is None else np.result_type(data.dtype, X.dtype), chunks=chunks,
        labels=np.concatenate([data.labels, test[1][own]]), natural=natural._replace(owner=owner),
        client_tests=np.arange(len(owner)) >= len(y),
    )  # fmt: skip
    return with_tests, np.concatenate([y, test_y[own]])


def client_tests(
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
    UsageError : when the fraction is not between 0 and 1, gives no client a row, or does not go with the partition.
    DataError : when a client would have no row to train on.
    """
    if fraction is not None:
        if given is not None:
            raise UsageError(
                f"--client-test-fraction {fraction:g}: this source has the clients' own test rows; leave the option out"
            )
        given = drawn(partition, y, fraction, seed)
    if given is None:
        return None
    if partition.split != "rows":
        raise UsageError(_not_by_rows("client_tests of this source", partition.split))
    untrained = [number for number, group in enumerate(partition.rows) if given[group].all()]
    if untrained:
        client, rows = int(np.flatnonzero(partition.holds[:, 0] == untrained[0])[0]), len(partition.rows[untrained[0]])
        raise DataError(f"client {client}: all its {rows} rows are test rows; keep one to train on")
    return given


def drawn(partition: Partition, y: Array, fraction: float, seed: int) -> NDArray[np.bool_]:
    """[s] True for `fraction` of each client's rows, rounded to a whole number that leaves one to train on.

    Every row of a client is as likely as another, and of each class there are the client's share, up to one row: the
    rows, in a random order within each class, are taken at equal distances from a random start.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"--client-test-fraction {fraction:g}: expected a number above 0 and below 1, for example 0.2")
    if partition.split != "rows":
        raise UsageError(_not_by_rows(f"--client-test-fraction {fraction:g}", partition.split))
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


def _not_by_rows(what: str, split: str) -> str:
    return (
        f"{what}: the data are split by {split}, so a sample is not one client's alone, and its "
        "holders would have to test together; use --test-fraction, or --split rows"
    )
