"""The exact least-squares optimum of data of any size, a reference for algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.shards.scaling import Scaling

MOST_FEATURES = 4096  # whose Gram matrix takes 128 MiB
_ROWS = 4096  # converted to float64 at a time


def least_squares(chunks: Callable[[], Iterator[Array]], y: Array, scaling: Scaling) -> Table:
    """The minimum of 1/2 mean (x . w - y)^2 over w, and of 1/2 mean (x . w + b - y)^2 over w and b.

    A first pass sums the normal equations, a second one the loss, which avoids the cancellation in y'y - w'X'y.

    Parameters
    ----------
    chunks : called for each pass: raw rows [b, p] in order
    y : [s] targets
    scaling : of the raw values

    Returns
    -------
    `w` [p] float64 without an intercept, of least norm if not unique; `loss`; and `loss_with_intercept`
    """
    gram, right = np.zeros((1, 1)), np.zeros(1)
    for X, part in _pieces(chunks, y, scaling):
        Z = np.column_stack([X, np.ones(len(X))])
        gram = gram + Z.T @ Z
        right = right + Z.T @ part
    w = np.linalg.lstsq(gram[:-1, :-1], right[:-1], rcond=None)[0]
    with_b = np.linalg.lstsq(gram, right, rcond=None)[0]
    squares = np.zeros(2)
    for X, part in _pieces(chunks, y, scaling):
        squares += np.sum((X @ w - part) ** 2), np.sum((X @ with_b[:-1] + with_b[-1] - part) ** 2)
    losses = (squares / (2 * len(y))).tolist()
    return {"w": w, "loss": losses[0], "loss_with_intercept": losses[1]}


def _pieces(chunks: Callable[[], Iterator[Array]], y: Array, scaling: Scaling) -> Iterator[tuple[Array, Array]]:
    """(scaled rows [b, p] in float64, targets [b]), a few rows at a time."""
    done = 0
    for chunk in chunks():
        for start in range(0, len(chunk), _ROWS):
            X = scaling.apply(chunk[start : start + _ROWS], np.float64)
            yield X, y[done : done + len(X)]
            done += len(X)
