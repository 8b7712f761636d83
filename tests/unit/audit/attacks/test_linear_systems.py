"""Systems of linear equations: exact with enough of them, and honest with fewer."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifed.audit.attacks.linear import (
    rows_from_duals,
    rows_from_products,
    rows_from_scores,
)

RNG = np.random.default_rng(4)
S, P = 12, 7
ROWS = RNG.standard_normal((S, P))
FACTOR = 0.03 * S


def duals(rounds: int, moving: int = S) -> tuple[Any, Any]:
    """alpha [T, s], of which the first `moving` move, and the w that they make: X' alpha = lambda N w."""
    alpha = np.zeros((rounds, S))
    alpha[:, :moving] = RNG.uniform(0, 1, (rounds, moving))
    return alpha, alpha @ ROWS / FACTOR


def test_duals_and_models_give_all_rows() -> None:
    found = rows_from_duals(*duals(S), FACTOR)
    np.testing.assert_allclose(found.rows, ROWS, atol=1e-9)
    assert found.determined.all()
    assert found.needed == S and (found.rank == S).all()
    assert found.residual < 1e-12


def test_too_few_rounds_of_duals_give_no_row() -> None:
    found = rows_from_duals(*duals(S - 1), FACTOR)
    assert not found.determined.any()
    assert (found.rank == S - 1).all()
    assert np.linalg.norm(found.rows - ROWS, axis=1).min() > 1e-3
    assert np.linalg.norm(found.rows) < np.linalg.norm(ROWS)  # of least norm


def test_products_give_all_rows() -> None:
    w = RNG.standard_normal((P, P))
    found = rows_from_products(w, w @ ROWS.T)
    np.testing.assert_allclose(found.rows, ROWS, atol=1e-9)
    assert found.determined.all() and found.needed == P and (found.rank == P).all()


def test_scores_of_several_rounds() -> None:
    """Three scores a round and seven columns: a row is needed in three rounds."""
    rows = np.array([[0, 1, 2, 3], [3, 0, 1, 5], [5, 0, 3, 7], [3, 8, 9, 5]])
    weights = RNG.standard_normal((4, P, 3))
    scores = np.stack([ROWS[some] @ w for some, w in zip(rows, weights, strict=True)])
    numbers, found = rows_from_scores(rows, scores, weights)
    assert numbers.tolist() == [0, 1, 2, 3, 5, 7, 8, 9]
    assert found.rank.tolist() == [7, 6, 3, 7, 7, 3, 3, 3]
    full = np.isin(numbers, [0, 3, 5])
    assert (found.determined.all(axis=1) == full).all() and found.needed == P
    np.testing.assert_allclose(found.rows[full], ROWS[numbers[full]], atol=1e-9)
    assert np.linalg.norm(found.rows[~full] - ROWS[numbers[~full]], axis=1).min() > 1e-3
