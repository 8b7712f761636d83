"""The row behind a gradient of one: found for every objective; not found, and not claimed, behind a sum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attacked import CASES, ONE_SCORE, digits, mean_gradient, model_of, objective_of
from lengths import covering

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.gradients import match
from mpifed.audit.inversion import rows_behind
from mpifed.maths.objectives import Parameters

X, Y = digits()
TELL = [case for case in CASES if case not in (*ONE_SCORE, "least-squares", "multilabel", "true-class-logistic")]


def behind(case: str, model: Parameters, some: slice, batch: int, nonnegative: bool = True) -> list[str]:
    """The verdicts about the rows that an attacker makes of the gradient of `some`."""
    problem: Any = SimpleNamespace(objective=objective_of(case))
    mean = MeanGradient(model, mean_gradient(case, model, X[some], Y[some]))
    return [verdict for _, _, verdict in match(rows_behind(problem, mean, batch, nonnegative), X[some])]


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_the_row_of_a_minibatch_of_one(case: str, away: float) -> None:
    """float32 as in a run; two-class models and regressions leave the length or the sign open."""
    for i in range(5):
        model = model_of(case, 64, seed=i, away=away)
        if case in ("hinge", "squared-hinge") and not mean_gradient(case, model, X[[i]], Y[[i]]).first.any():
            continue  # its margin is above 1: it tells nothing
        (verdict,) = behind(case, model, slice(i, i + 1), 1, nonnegative=False)
        assert verdict == "row" if case in TELL else verdict in ("row", "direction")


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_a_sum_over_ten_clients_gives_no_row(case: str, away: float) -> None:
    for i in range(2):
        verdicts = behind(case, model_of(case, 64, seed=i, away=away), slice(10 * i, 10 * i + 10), 1)
        assert {*verdicts} <= {"none", "close"}


@pytest.mark.parametrize(("case", "rows"), [("mlp", 2), ("mlp", 4), ("softmax", 2), ("one-vs-rest", 3)])
def test_few_rows(case: str, rows: int) -> None:
    assert behind(case, model_of(case, 64, away=0.1), slice(rows), rows) == ["row"] * rows
