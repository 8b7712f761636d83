"""Rows that clients with columns of their own take alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mpifed.data.block import Block

SAMPLES, WIDTHS = 64, (3, 1, 4)


@pytest.fixture(params=["dense", "sparse"])
def columns(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """The columns of each client."""
    rng = np.random.default_rng(1)
    dense = [rng.standard_normal((SAMPLES, width)).astype(np.float32) for width in WIDTHS]
    yield dense if request.param == "dense" else [csr_matrix(X) for X in dense]


def test_every_client_takes_the_same_rows(columns: list[Any], array_shard: type[Any]) -> None:
    block = Block(tuple(array_shard(i, X, np.zeros(SAMPLES)) for i, X in enumerate(columns)))
    rows = np.array([5, 63, 0])
    for X, own in zip(block.take_alike(rows), columns, strict=True):
        taken = X[0].toarray() if isinstance(X, tuple) else X[0]
        np.testing.assert_array_equal(taken, own[rows].toarray() if isinstance(X, tuple) else own[rows])
    for row in (-1, SAMPLES):
        with pytest.raises(IndexError, match=f"rows {row} to {row} of clients with"):
            block.take_alike(np.array([row]))
