"""Top-k of `[compression]` beside one `np.partition` of the same array, by which it must find a threshold at least."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from mpifed.maths.compression import largest
from mpifed.run.environment import keep_freed_memory

MOST = 1.3  # times as long
SIZES = (7_850, 101_770, 1_000_000)  # of models; of each number a hundredth is kept


def slow_topk() -> list[str]:
    """A line for each size where it takes too long, by the least CPU time of each, in turns; the ratios are printed."""
    keep_freed_memory()
    lines = []
    for size in SIZES:
        u, k = np.random.default_rng(1).standard_normal(size, dtype="f4"), size // 100
        turns: tuple[Callable[[], object], ...] = (lambda: largest(u, k), lambda: np.partition(u, size - k))  # noqa: B023
        least = [float("inf")] * 2
        for _ in range(max(20, 10**7 // size)):
            for i, turn in enumerate(turns):
                start = time.process_time_ns()
                turn()
                least[i] = min(least[i], time.process_time_ns() - start)
        line = f"top-k of {size:,} numbers: {least[0] / least[1]:.2f} times np.partition; at most {MOST}"
        print(line)
        if least[0] > MOST * least[1]:
            lines.append(line)
    return lines
