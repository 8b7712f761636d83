"""The row behind a gradient of one: found for every objective; not found, and not claimed, behind a sum."""

from __future__ import annotations

import numpy as np
import pytest
from attacked import CASES, ONE_SCORE, digits, mean_gradient, model_of, objective_of
from lengths import covering

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.attack import match
from mpifed.audit.inversion import rows_behind

X, Y = digits()
TELL = [case for case in CASES if case not in (*ONE_SCORE, "least-squares", "multilabel", "true-class-logistic")]


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_the_row_of_a_minibatch_of_one(case: str, away: float) -> None:
    """float32 as in a run; two-class models and regressions leave the length or the sign open, and say so."""
    for i in range(5):
        model = model_of(case, 64, seed=i, away=away)
        seen = mean_gradient(case, model, X[[i]], Y[[i]])
        tried = rows_behind(objective_of(case), MeanGradient(model, seen), 1)
        if case in ("hinge", "squared-hinge") and not seen.first.any():  # its margin is above 1: it tells nothing
            assert not len(tried.rows)
            continue
        ((_, at, error, verdict),) = match(tried.rows, X)
        assert at == i and verdict in ("row", "direction")
        assert not tried.sure or verdict == "row"
        if case in TELL:
            assert tried.sure and error < 1e-4
        if case == "least-squares":
            assert not tried.sure


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_a_sum_over_ten_clients_gives_no_row(case: str, away: float) -> None:
    for i in range(2):
        some = slice(10 * i, 10 * i + 10)
        model = model_of(case, 64, seed=i, away=away)
        gradient = mean_gradient(case, model, X[some], Y[some])
        tried = rows_behind(objective_of(case), MeanGradient(model, gradient), 1, nonnegative=True)
        assert not tried.sure
        assert all(one.verdict in ("none", "close") for one in match(tried.rows, X[some]))


@pytest.mark.parametrize(("case", "rows"), [("mlp", 4), ("softmax", 2)])
def test_few_rows(case: str, rows: int) -> None:
    model = model_of(case, 64, away=0.1)
    tried = rows_behind(
        objective_of(case), MeanGradient(model, mean_gradient(case, model, X[:rows], Y[:rows])), rows, True
    )
    assert tried.sure
    assert [one.verdict for one in match(tried.rows, X[:rows])] == ["row"] * rows


def test_numbers_that_were_not_sent_are_filled_in() -> None:
    """As of TAMUNA: of a matrix of rank one a third."""
    model = model_of("softmax", 64, away=0.2)
    gradient, known = mean_gradient("softmax", model, X[:1], Y[:1]), np.arange(640).reshape(64, 10) % 3 > 0
    part = MeanGradient(model, gradient._replace(first=gradient.first * known), known=known)
    assert [one.verdict for one in match(rows_behind(objective_of("softmax"), part, 1, True).rows, X[:1])] == ["row"]
