"""Rows that clients with columns of their own take alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mpifed.data.block import Block

SAMPLES, WIDTHS = 64, (3, 1, 4)
FEW, MANY = np.array([63, 0]), np.array([5, 63, 0])  # rows: 2 of 64 are few


@pytest.fixture(params=["dense", "sparse"])
def columns(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """The columns of each client."""
    rng = np.random.default_rng(1)
    dense = [rng.standard_normal((SAMPLES, width)).astype(np.float32) for width in WIDTHS]
    yield dense if request.param == "dense" else [csr_matrix(X) for X in dense]


def rows_of(X: Any) -> np.ndarray:
    """[b, p] what `take_alike` gives of a client."""
    rows: np.ndarray = X[0].toarray() if isinstance(X, tuple) else X[0]
    return rows


def block_of(columns: list[Any], array_shard: type[Any]) -> Block:
    return Block(tuple(array_shard(i, X, np.zeros(SAMPLES)) for i, X in enumerate(columns)))


def test_every_client_takes_the_same_rows_and_few_are_kept(columns: list[Any], array_shard: type[Any]) -> None:
    block = block_of(columns, array_shard)
    for rows in (FEW, MANY):
        taken = block.take_alike(rows)
        for X, own in zip(taken, columns, strict=True):
            np.testing.assert_array_equal(rows_of(X), rows_of((own[rows],)) if isinstance(X, tuple) else own[rows])
        again = block.take_alike(rows.copy())
        assert all((X is Y) == (rows is FEW) for X, Y in zip(taken, again, strict=True))
    rows = FEW.copy()
    before = [rows_of(X).copy() for X in block.take_alike(rows)]
    rows[:] = rows[::-1].copy()  # as the buffer of a broadcast changes
    for X, Y in zip(before, block.take_alike(rows), strict=True):
        np.testing.assert_array_equal(rows_of(Y), X[::-1])
    for row in (-1, SAMPLES):
        with pytest.raises(IndexError, match=f"rows {row} to {row} of clients with"):
            block.take_alike(np.array([row]))
