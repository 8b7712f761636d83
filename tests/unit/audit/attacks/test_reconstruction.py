"""The row behind a gradient of one: found for every objective; not found, and not claimed, behind a sum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attacked import CASES, digits, mean_gradient, model_of, objective_of
from lengths import covering

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.gradients import match, rows_behind
from mpifed.maths.objectives import Parameters

X, Y = digits()


def behind(case: str, model: Parameters, some: Any, batch: int) -> tuple[int, int]:
    """How many rows an attacker recovers of the gradient of `some`, and how many more are recognizable."""
    problem: Any = SimpleNamespace(objective=objective_of(case), features=64)
    mean = MeanGradient(model, mean_gradient(case, model, X[some], Y[some]))
    return match(rows_behind(problem, mean, batch, True), X[some])


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_the_row_of_a_minibatch_of_one(case: str, away: float) -> None:
    """float32 as in a run."""
    for i in range(5):
        model = model_of(case, 64, seed=i, away=away)
        tells = np.any(mean_gradient(case, model, X[[i]], Y[[i]]).first)  # a hinge's margin may be above 1
        assert behind(case, model, [i], 1) == (int(tells), 0)


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_a_sum_over_ten_clients_gives_no_row(case: str, away: float) -> None:
    for i in range(2):
        assert behind(case, model_of(case, 64, seed=i, away=away), slice(10 * i, 10 * i + 10), 1)[0] == 0


@pytest.mark.parametrize(("case", "rows", "least"), [("mlp", 2, 2), ("mlp", 3, 2.5), ("softmax", 2, 2), ("mlp", 4, 1)])
def test_few_rows(case: str, rows: int, least: float) -> None:
    """Of images, where each row has a pixel that the others lack."""
    recovered = [
        behind(case, model_of(case, 64, seed, 0.1), slice(10 * seed, 10 * seed + rows), rows)[0] for seed in range(6)
    ]
    assert np.mean(recovered) >= least, recovered
