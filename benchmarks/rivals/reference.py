"""The model after some rounds, in NumPy and float64: what every adapter is compared with. Shares no code with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gradient(w1: Array, w2: Array, x: Array, y: NDArray[np.int64], penalty: float) -> tuple[Array, Array]:
    """Of the mean cross-entropy of softmax(swish(x w1) w2) and penalty (||w1||^2 + ||w2||^2)."""
    z = x @ w1
    gate = 1 / (1 + np.exp(-z))
    h = z * gate
    scores = h @ w2
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    slope = (p @ w2.T) * (gate + z * gate * (1 - gate))
    return x.T @ slope + 2 * penalty * w1, h.T @ p + 2 * penalty * w2


def federated_averaging(
    clients: Sequence[tuple[Array, NDArray[np.int64]]],
    start: tuple[Array, Array],
    batch: int,
    step: float,
    rounds: int,
    penalty: float,
) -> Array:
    """The flat model after rounds of one local epoch of all clients, rows in their order, weighted by their samples."""
    model = [np.asarray(part, np.float64) for part in start]
    samples = np.array([len(y) for _, y in clients])
    for _ in range(rounds):
        local = []
        for x, y in clients:
            w = [part.copy() for part in model]
            for first in range(0, len(y), batch):
                rows = slice(first, first + batch)
                slopes = gradient(*w, x[rows].astype(np.float64), y[rows], penalty)
                w = [part - step * slope for part, slope in zip(w, slopes, strict=True)]
            local.append(w)
        shares = samples / samples.sum()
        model = [sum(share * w[layer] for share, w in zip(shares, local, strict=True)) for layer in (0, 1)]
    return np.concatenate([part.ravel() for part in model])
