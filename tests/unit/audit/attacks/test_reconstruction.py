"""The row behind a gradient of one: found for every objective; not found, and not claimed, behind a sum."""

from __future__ import annotations

from attacked import CASES, ONE_SCORE, digits, mean_gradient, model_of, objective_of
from lengths import covering

from mpifed.audit.attacks.matching import match
from mpifed.audit.attacks.reconstruction import reconstruct

X, Y = digits()
TELL = [case for case in CASES if case not in (*ONE_SCORE, "least-squares", "multilabel", "true-class-logistic")]


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_the_row_of_a_minibatch_of_one(case: str, away: float) -> None:
    """float32 as in a run; two-class models and regressions leave the length or the sign open, and say so."""
    for i in range(5):
        model = model_of(case, 64, seed=i, away=away)
        seen = mean_gradient(case, model, X[[i]], Y[[i]])
        tried = reconstruct(objective_of(case), model, seen)
        if case in ("hinge", "squared-hinge") and not seen.first.any():  # its margin is above 1: it tells nothing
            assert not tried.claimed
            continue
        found = match(tried.row, X)
        assert found.at == i
        assert found.scaled_error < 1e-4
        assert found.verdict == ("row" if tried.scaled and tried.signed else "direction")
        if case in TELL:
            assert tried.scaled and tried.signed and tried.claimed
            assert found.relative_error < 1e-4
        if case == "least-squares":
            assert not tried.scaled and not tried.claimed


@covering({"case": CASES, "away": [0.0, 0.2]}, 1)
def test_a_sum_over_ten_clients_gives_no_row(case: str, away: float) -> None:
    for i in range(2):
        some = slice(10 * i, 10 * i + 10)
        model = model_of(case, 64, seed=i, away=away)
        tried = reconstruct(objective_of(case), model, mean_gradient(case, model, X[some], Y[some]), nonnegative=True)
        found = match(tried.row, X[some])
        assert not tried.claimed
        assert found.verdict in ("none", "close")
        assert found.scaled_error > 0.1
