"""Blocks of clients, and the weights of a problem."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifed.core.block import Batch, Block
from mpifed.core.exchange import Problem


def test_weights_are_relative_to_the_mean_client() -> None:
    counts = np.array([1, 2, 3])
    problem = Problem(objective=None, split="rows", counts=counts, samples=6, features=1, outputs=1)
    assert problem.clients == 3
    weights = problem.weights[np.array([2, 0])]
    np.testing.assert_allclose(weights, [1.5, 0.5])


@pytest.fixture
def block(array_shard: Any) -> Block:
    sizes = {3: 4, 4: 2, 7: 4}
    shards = [array_shard(c, np.arange(2.0 * s).reshape(s, 2) + 100 * c, np.arange(s)) for c, s in sizes.items()]
    return Block(tuple(shards), "float64")


def test_a_block(block: Block) -> None:
    assert block.clients.tolist() == [3, 4, 7]
    assert block.counts.tolist() == [4, 2, 4]
    assert not block.sparse
    batch = block.take(np.array([[0, 3], [1, 0], [2, 2]]))
    assert batch.X.dtype == np.float64
    assert batch.X.tolist() == [[[300, 301], [306, 307]], [[402, 403], [400, 401]], [[704, 705], [704, 705]]]
    assert batch.y.tolist() == [[0, 3], [1, 0], [2, 2]]
    together = batch.together()
    assert together.X.shape == (1, 6, 2)
    assert together.y.tolist() == [[0, 3, 1, 0, 2, 2]]


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_everything_is_every_row_once_client_by_client(block: Block, size: int) -> None:
    seen: dict[int, list[float]] = {}
    for i, batch in block.everything(size):
        assert batch.X.shape[:2] == batch.y.shape
        assert 1 <= batch.y.shape[1] <= size
        seen.setdefault(i, []).extend(batch.X[0, :, 0].tolist())
    assert seen == {i: [100 * c + 2 * row for row in range(s)] for i, (c, s) in enumerate(((3, 4), (4, 2), (7, 4)))}


def test_sparse_batches(array_shard: Any) -> None:
    from scipy.sparse import csr_matrix

    dense = [np.array([[1.0, 0, 2], [0, 0, 3]]), np.array([[0, 5.0, 0], [0, 0, 0]])]
    block = Block(tuple(array_shard(c, csr_matrix(X), [0, 1]) for c, X in enumerate(dense)), "float64")
    assert block.sparse
    batch = block.take(np.array([[1, 0], [0, 0]]))
    assert isinstance(batch, Batch)
    assert [x.toarray().tolist() for x in batch.X] == [[[0, 0, 3], [1, 0, 2]], [[0, 5, 0], [0, 5, 0]]]
    (one,) = batch.together().X
    assert one.toarray().tolist() == [[0, 0, 3], [1, 0, 2], [0, 5, 0], [0, 5, 0]]
