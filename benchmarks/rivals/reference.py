"""The model after some rounds, in NumPy and float64: what every adapter is compared with. Shares no code with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def gradient_of_swish(w1: Array, w2: Array, x: Array, y: NDArray[np.int64], penalty: float) -> tuple[Array, ...]:
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


def gradient_of_cnn(
    k1: Array, a1: Array, k2: Array, a2: Array, w3: Array, a3: Array, w4: Array, a4: Array,
    x: Array, y: NDArray[np.int64], penalty: float,
) -> tuple[Array, ...]:  # fmt: skip
    """Of the mean cross-entropy of two convolutions with ReLU and 2 x 2 maxima, 128 units with ReLU, and a penalty."""
    images = x.reshape(-1, 1, 28, 28)
    z1 = correlated(images, k1) + a1[:, None, None]
    h1, back1 = maxima(np.maximum(z1, 0))
    z2 = correlated(h1, k2) + a2[:, None, None]
    h2, back2 = maxima(np.maximum(z2, 0))
    f = h2.reshape(len(x), -1)
    z3 = f @ w3.T + a3
    h3 = np.maximum(z3, 0)
    scores = h3 @ w4.T + a4
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    d3 = (p @ w4) * (z3 > 0)
    d2 = back2((d3 @ w3).reshape(h2.shape)) * (z2 > 0)
    d1 = back1(correlated(d2, k2[:, :, ::-1, ::-1].swapaxes(0, 1))) * (z1 > 0)
    slopes = (
        of_kernel(images, d1), d1.sum(axis=(0, 2, 3)), of_kernel(h1, d2), d2.sum(axis=(0, 2, 3)),
        d3.T @ f, d3.sum(axis=0), p.T @ h3, p.sum(axis=0),
    )  # fmt: skip
    w = k1, a1, k2, a2, w3, a3, w4, a4
    return tuple(slope + 2 * penalty * part for slope, part in zip(slopes, w, strict=True))


def patches(images: Array) -> Array:
    """[s, c, height, width, 5, 5] around every place, with zeros outside."""
    padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
    return np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))


def correlated(images: Array, kernel: Array) -> Array:
    """[s, o, height, width] from images [s, c, ...] and a kernel [o, c, 5, 5]."""
    return np.tensordot(patches(images), kernel, ([1, 4, 5], [1, 2, 3])).transpose(0, 3, 1, 2)


def of_kernel(images: Array, slopes: Array) -> Array:
    """[o, c, 5, 5] the derivative by the kernel from that by what it gives."""
    return np.tensordot(slopes, patches(images), ([0, 2, 3], [0, 2, 3]))


def maxima(h: Array) -> tuple[Array, Callable[[Array], Array]]:
    """[s, c, height / 2, width / 2] and the way back."""
    s, c, height, width = h.shape
    cells = h.reshape(s, c, height // 2, 2, width // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(-1, 4)
    at = cells.argmax(axis=1)

    def back(slopes: Array) -> Array:
        spread = np.zeros_like(cells)
        spread[np.arange(len(at)), at] = slopes.ravel()
        return spread.reshape(s, c, height // 2, width // 2, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(h.shape)

    return cells.max(axis=1).reshape(s, c, height // 2, width // 2), back


def federated_averaging(
    clients: Sequence[tuple[Array, NDArray[np.int64]]],
    start: tuple[Array, ...],
    batch: int,
    step: float,
    rounds: int,
    penalty: float,
) -> Array:
    """The flat model after rounds of one local epoch of all clients, rows in their order, weighted by their samples."""
    gradient = gradient_of_swish if len(start) == 2 else gradient_of_cnn
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
        model = [sum(share * w[layer] for share, w in zip(shares, local, strict=True)) for layer in range(len(start))]
    return np.concatenate([part.ravel() for part in model])
