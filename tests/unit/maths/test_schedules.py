"""Step sizes, and the conditions of the convergence theorems."""

from __future__ import annotations

from typing import Any

import pytest

from mpifed import CosineDecay, PowerDecay, StepDecay, StepSize
from mpifed.maths.schedules import unmet

ALL = [
    "rho -> 0", "sum rho = infinity", "sum rho^2 < infinity", "gamma -> 0", "sum gamma = infinity",
    "sum gamma^2 < infinity", "gamma / rho -> 0",
]  # fmt: skip


@pytest.mark.parametrize(("rate", "expected"), [
    (StepSize(0.5), [0.5] * 3),
    (StepSize(0.4, 1.0), [0.4, 0.2, 0.4 / 3]),
    (PowerDecay(0.6, exponent=1.0, offset=1.0, warmup=2), [0.15, 0.2, 0.15]),
    (StepDecay(0.8, 0.5, every=3), [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]),
    # PyTorch's CosineAnnealingLR after t - 1 steps, T_max = 4, eta_min = 0.1
    (CosineDecay(1.1, rounds=5, final=0.1), [1.1, 0.6 + 0.5**1.5, 0.6, 0.6 - 0.5**1.5, 0.1, 0.1]),
    (CosineDecay(1.0, rounds=1, final=0.25), [0.25] * 3),
    (CosineDecay(1.0, rounds=2, final=2.0), [1.0, 2.0, 2.0]),
])  # fmt: skip
def test_rates(rate: Any, expected: list[float]) -> None:
    assert [rate.at(t) for t in range(1, len(expected) + 1)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("alpha", "beta", "missing"),
    [
        (0.6, 0.8, []),
        (0.51, 1.0, []),
        (0.9, 1.0, []),
        (0.3, 0.35, [ALL[2], ALL[5]]),  # the paper's
        (0.5, 0.8, [ALL[2]]),  # sum 1/t
        (0.5, 0.5, [ALL[2], ALL[5], ALL[6]]),
        (0.8, 0.6, [ALL[6]]),
        (0.7, 0.7, [ALL[6]]),
        (0.6, 1.1, [ALL[4]]),
        (1.1, 1.2, [ALL[1], ALL[4]]),
        (0.0, 0.0, [ALL[0], ALL[2], ALL[3], ALL[5], ALL[6]]),
        (0.0, 0.7, [ALL[0], ALL[2]]),
    ],
)
def test_conditions(alpha: float, beta: float, missing: list[str]) -> None:
    assert unmet(StepSize(0.9, alpha), StepSize(0.4, beta)) == missing
