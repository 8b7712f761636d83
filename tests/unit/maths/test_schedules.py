"""Step sizes, and the conditions of the convergence theorems."""

from __future__ import annotations

import pytest

from mpifed import SGD, CosineDecay, StepDecay, StepSize
from mpifed.maths.schedules import unmet

ALL = [
    "rho -> 0", "sum rho = infinity", "sum rho^2 < infinity", "gamma -> 0", "sum gamma = infinity",
    "sum gamma^2 < infinity", "gamma / rho -> 0",
]  # fmt: skip


@pytest.mark.parametrize(
    ("scale", "decay", "t", "expected"), [(0.5, 0.0, 9, 0.5), (0.4, 0.5, 4, 0.2), (1.0, 1.0, 8, 0.125)]
)
def test_step_sizes(scale: float, decay: float, t: int, expected: float) -> None:
    assert StepSize(scale, decay).at(t) == pytest.approx(expected)


def test_a_learning_rate_falls_in_steps() -> None:
    rate = StepDecay(0.8, 0.5, every=3)
    assert [SGD(rate).at(t) for t in range(1, 8)] == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2]


def test_a_learning_rate_falls_along_half_a_cosine() -> None:
    """That of PyTorch's CosineAnnealingLR after t - 1 steps, T_max = 4, eta_min = 0.1."""
    rate = CosineDecay(1.1, rounds=5, final=0.1)
    expected = [1.1, 0.1 + (1 + 0.5**0.5) / 2, 0.6, 0.1 + (1 - 0.5**0.5) / 2, 0.1]
    assert [SGD(rate).at(t) for t in (1, 2, 3, 4, 5)] == pytest.approx(expected)


@pytest.mark.parametrize("rounds", [1, 2, 3, 10])
@pytest.mark.parametrize("final", [0.0, 0.25, 2.0])
def test_a_cosine_ends_at_its_final_value(rounds: int, final: float) -> None:
    rates = [CosineDecay(1.0, rounds=rounds, final=final).at(t) for t in range(1, rounds + 3)]
    assert rates[0] == (1.0 if rounds > 1 else final)
    assert rates[rounds - 1 :] == [final] * 3
    assert rates == sorted(rates, reverse=final < 1)


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
