"""Step sizes of a new job, from the curvature of a loss on minibatches of its data."""

from __future__ import annotations

import numpy as np

from mpifed.data.shards import shard_of
from mpifed.data.store import Federation

_LARGEST_RATE, _LEAST_TAU = 0.1, 0.1
_SATURATED = 20.0  # up to which curvature SSCA's default does well on classes, whose losses have bounded slopes
_CLIENTS, _VALUES = 64, 2**22  # read: clients at most, and values of each
_WHAT = "the curvature on a minibatch"


def curvature(data: Federation, batch_size: int) -> float:
    """The largest eigenvalue of X'X / b over minibatches X [b, p + 1] of scaled rows and an intercept's ones.

    No loss of a linear model whose second derivative by its scores is at most 1 is more curved on them. A minibatch of
    each of up to 64 clients is read; of columns, the eigenvalues of those who share rows are added, which bounds that
    of whole rows.
    """
    sums: dict[int, list[float]] = {}  # by group of rows: eigenvalues, and columns of those clients
    clients = np.flatnonzero(data.counts * data.widths)  # who have any values
    for client in clients[np.linspace(0, len(clients) - 1, min(_CLIENTS, len(clients))).astype(int)].tolist():
        shard = shard_of(data, client)
        size = max(1, min(batch_size, shard.samples, _VALUES // max(1, shard.features)))
        X = np.empty((size, shard.features))
        shard.take(np.unique(np.linspace(0, shard.samples - 1, size).astype(int)), X)
        total = sums.setdefault(int(data.holds[client, 0]), [0.0, 0])
        total[0] += float(np.linalg.eigvalsh(X @ X.T / size)[-1])
        total[1] += shard.features
    return 1 + max(value * data.features / max(1, width) for value, width in sums.values())


def learning_rate(of: float) -> str:
    """A learning rate for a curvature, and why, as a job has it."""
    if 1 / of >= _LARGEST_RATE:
        return str(_LARGEST_RATE)
    return f"{_one_digit(1 / of)}  # 1 / {of:.3g}, {_WHAT}: more may diverge{_remedy(of)}"


def tau(of: float, classes: int) -> str:
    """SSCA's tau for a curvature, and why; empty where its default does."""
    if of / 4 <= _LEAST_TAU or (classes and of <= _SATURATED):
        return ""
    return f"{_one_digit(of / 4)}  # 1/4 of {of:.3g}, {_WHAT}: less may diverge{_remedy(of)}"


def _remedy(of: float) -> str:
    return "; `mpifed data --scale` lowers it" if of > _SATURATED else ""


def _one_digit(value: float) -> str:
    """A number rounded down to its first digit."""
    size = 10.0 ** np.floor(np.log10(value))
    return f"{np.floor(value / size * (1 + 1e-9)) * size:.1g}"
