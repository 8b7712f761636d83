"""Products of rows and weights, in a new array and in one that is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mpifed.maths.arrays import product

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
