"""What a discrete Gaussian number costs, beside a float32 normal of NumPy's default generator, in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from mpifed.core.round import Round
from mpifed.maths.privacy.discrete import levels_of
from mpifed.maths.privacy.mechanism import Noise

COUNT, PIECE = 2**20, 2**13
SIGMAS = (2.0**17, 2.0**20, 2.0**24)  # in steps of the grid: two levels, two, three


def noise_costs(times: int) -> dict[float, tuple[float, float, float]]:
    """(nanoseconds a number, those of a normal, median of their ratios) by standard deviation."""
    words = Round(0, 1, np.ones(1, dtype=bool), secure=True).words("noise", 0)
    rng, out = np.random.default_rng(), np.empty(PIECE, np.float32)
    found = {}
    for sigma in SIGMAS:
        levels_of(sigma)  # the tables are made once a job
        pairs = [
            (_timed(partial(_numbers, sigma, words)), _timed(partial(_normals, rng, out))) for _ in range(5 * times)
        ]
        own, normal = (median(part) for part in zip(*pairs, strict=True))
        found[sigma] = own, normal, median(a / b for a, b in pairs)
    return found


def _numbers(sigma: float, words: Callable[[int], np.ndarray]) -> None:
    noise = Noise(sigma, words, COUNT)
    for _ in range(COUNT // PIECE):
        noise.piece(PIECE)


def _normals(rng: np.random.Generator, out: np.ndarray) -> None:
    for _ in range(COUNT // PIECE):
        rng.standard_normal(out=out, dtype=np.float32)


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) / COUNT * 1e9
