"""Products of rows and weights, in a new array and in one that is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mpifed.maths.arrays import product
from mpifed.maths.objectives import Softmax

N, S, P, H = 3, 5, 4, 2


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("each", [False, True], ids=["shared weights", "each its own"])
def test_products_go_where_they_are_wanted(sparse: bool, each: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-9, 9, (N, S, P)).astype(float)  # whole numbers: no order of addition rounds
    weights = rng.integers(-9, 9, (N, P, H) if each else (P, H)).astype(float)
    X: Any = tuple(csr_matrix(x) for x in rows) if sparse else rows
    expected = [
        [[sum(rows[i, j, k] * (weights[i] if each else weights)[k, h] for k in range(P)) for h in range(H)]
         for j in range(S)]
        for i in range(N)
    ]  # fmt: skip
    out = np.full((N, S, H), np.nan)
    assert product(X, weights, out) is out
    assert out.tolist() == product(X, weights).tolist() == expected


class Doubled(Softmax):
    """An own class, whose scores are written as tutorials show."""

    def scores(self, first: Any, X: Any) -> Any:
        return 2 * super().scores(first, X)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("kind", [Softmax, Doubled])
def test_scores_go_where_they_are_wanted(kind: type[Softmax], sparse: bool) -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.standard_normal((1, S, P)), rng.standard_normal((P, H))
    X: Any = (csr_matrix(rows[0]),) if sparse else rows
    out = np.full((1, S, H), np.nan)
    kind().put_scores(weights, X, out)
    np.testing.assert_array_equal(out, kind().scores(weights, X))
    np.testing.assert_allclose(out, rows @ weights * (2 if kind is Doubled else 1), rtol=1e-12)
