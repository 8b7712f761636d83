"""The reference optimum of a support vector machine, against a general solver of its dual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from mpifed.core.errors import NumericalError

ROOT = Path(__file__).resolve().parents[2]
PENALTY = 5e-3


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)


def data(seed: int = 0) -> tuple[Any, Any]:
    """Two overlapping classes, and a row of zeros."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((150, 8)) * (rng.random((150, 8)) < 0.6)
    y = (X @ rng.standard_normal(8) + 0.8 * rng.standard_normal(150) > 0).astype(np.int64)
    X[3] = 0
    return X, y


def by_box(X: Any, y: Any) -> float:
    """max over b in [0, 1] of mean b - ||(X t)'b||^2 / (2 lambda N^2), by L-BFGS-B."""
    A, n, lam = (2 * y - 1)[:, None] * X, len(y), 2 * PENALTY

    def minus(b: Any) -> tuple[float, Any]:
        w = A.T @ b / (lam * n)
        return lam / 2 * w @ w - b.mean(), (A @ w - 1) / n

    found = minimize(
        minus, np.full(n, 0.5), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * n,
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 20000},
    )  # fmt: skip
    return -float(found.fun)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float32", "bool"])
def test_both_points_are_optimal(kind: str) -> None:
    from jobs.hyfdca.optimum import optimum

    X, y = data()
    if kind == "float32":
        X = X.astype("f4")
    given = csr_matrix(X) if kind == "sparse" else X
    found = optimum(given, y.astype(bool) if kind == "bool" else y, PENALTY, 1e-11)
    t, lam, n = 2 * y - 1, 2 * PENALTY, len(y)
    X = X.astype("f8")
    primal = lam / 2 * found.w @ found.w + np.maximum(0, 1 - t * (X @ found.w)).mean()
    pulled = X.T @ found.alpha / (lam * n)
    assert found.objective == pytest.approx(primal, rel=1e-13)
    assert found.dual == pytest.approx((t * found.alpha).mean() - lam / 2 * pulled @ pulled, rel=1e-12)
    assert ((t * found.alpha >= 0) & (t * found.alpha <= 1)).all()
    assert found.relative_gap <= 1e-11
    assert found.objective == pytest.approx(by_box(X, y), rel=1e-8)
    assert t[3] * found.alpha[3] == 1


def test_a_gap_out_of_reach_is_an_error() -> None:
    from jobs.hyfdca.optimum import optimum

    with pytest.raises(NumericalError, match="relative duality gap is"):
        optimum(*data(), PENALTY, -1.0, rounds=5)
