"""Coordinate ascent row by row: dense and sparse, in both precisions, against a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import mpifed.maths.coordinates
from mpifed.maths.coordinates import ascend
from mpifed.maths.duals import HingeDual, LeastSquaresDual, LogisticDual, SquaredHingeDual

DUALS = {"hinge": HingeDual(), "squared-hinge": SquaredHingeDual(), "logistic": LogisticDual()}
every_loss = pytest.mark.parametrize("dual", [*DUALS.values(), LeastSquaresDual()], ids=lambda one: type(one).__name__)


def case(dual: Any, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """X with a row of zeros, y, a feasible alpha and a w that is not that of alpha."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 12)) * (rng.random((40, 12)) < 0.4)
    X[7] = 0
    y = rng.integers(0, 2, 40) if not isinstance(dual, LeastSquaresDual) else rng.standard_normal(40)
    return X, y, dual.feasible(0.3 * rng.standard_normal(40), y), rng.standard_normal(12)


@every_loss
def test_row_after_row(dual: Any) -> None:
    X, y, alpha, w = case(dual)
    before, expected, moved = alpha.copy(), alpha.copy(), w.copy()
    for i, x in enumerate(X):
        step = dual.step(expected[i : i + 1], np.array([x @ moved]), y[i : i + 1], 0.3 * (x @ x))[0]
        expected[i] += step
        moved += 0.3 * step * x
    for data in (X, csr_matrix(X)):
        found, after = ascend(dual, data, y, alpha, w.copy(), 0.3)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(after, moved, rtol=1e-11, atol=1e-12)
    np.testing.assert_array_equal(alpha, before)


@every_loss
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_wide_sparse_rows_are_not_made_dense(dual: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, alpha, w = case(dual)
    data, alpha, w = csr_matrix(X.astype(dtype)), alpha.astype(dtype), w.astype(dtype)
    dense = ascend(dual, data, y, alpha, w.copy(), 0.3)
    monkeypatch.setattr(mpifed.maths.coordinates, "_WIDEST", 0)
    monkeypatch.setattr(csr_matrix, "toarray", None)
    sparse = ascend(dual, data, y, alpha, w.copy(), 0.3)
    tolerance = {"f4": 1e-5, "f8": 1e-12}[dtype]  # a hundred roundings
    for one, two in zip(sparse, dense, strict=True):
        assert one.dtype == two.dtype == dtype
        np.testing.assert_allclose(one, two, rtol=tolerance, atol=tolerance)
