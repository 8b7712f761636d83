"""A shift of features between clients: each adds noise of its own strength to its rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.data.partition import Partition
from mpifed.data.partitioners import stream
from mpifed.data.scaling import Scaling
from mpifed.data.sources import Dataset

ROWS = 1024  # whose noise is drawn at once: how a source cuts its rows changes nothing


def with_noise(data: Dataset, scaling: Scaling, partition: Partition, variance: float, seed: int) -> Dataset:
    """The scaled training rows with Gaussian noise of variance `variance` (n + 1) / N on those of client n of N.

    So NIID-Bench shifts features (Q. Li, Y. Diao, Q. Chen, B. He, ICDE 2022, "noise-based feature imbalance"). Test
    rows are as they were. Raises UsageError for sparse rows, whose zeros it would fill.
    """
    if data.dtype is None:
        raise UsageError(f"--feature-noise {variance:g}: would fill the zeros of sparse rows; leave it out")
    samples = int(partition.counts.sum())
    deviation = np.empty((samples, 1), np.float32)  # of each row
    for client in range(partition.clients):
        deviation[partition.of(client)[0]] = np.sqrt(variance * (client + 1) / partition.clients)

    def noise(start: int, stop: int) -> Array:
        """[stop - start, p] of the rows from `start` to `stop`."""
        blocks = range(start // ROWS, -(-stop // ROWS))
        drawn = [stream(seed, "feature noise", block).standard_normal((ROWS, data.features), np.float32)
                 for block in blocks]  # fmt: skip
        first = start - blocks[0] * ROWS
        return np.concatenate(drawn)[first : first + stop - start] * deviation[start:stop]

    def chunks() -> Iterator[Array]:
        start = 0
        for X in data.chunks():
            for piece in np.array_split(X, range(ROWS, X.shape[0], ROWS)):
                yield scaling.apply(piece, np.float32) + noise(start, start + len(piece))
                start += len(piece)

    test = None if data.test is None else (scaling.apply(data.test[0], np.float32), data.test[1])
    return replace(data, dtype=np.float32, chunks=chunks, test=test, top=None)
