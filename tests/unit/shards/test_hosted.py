"""Shards that are opened when somebody is present."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lengths import covering
from scipy import sparse

from mpifed.shards import hosted
from mpifed.shards.hosted import hosted_blocks
from mpifed.shards.partition import by_columns, by_rows
from mpifed.shards.scaling import Scaling
from mpifed.shards.store import ShardFolder

S, P = 60, 5
X = np.random.default_rng(1).integers(0, 256, (S, P), dtype=np.uint8)
Y = np.arange(S) % 3
Make = Callable[..., ShardFolder]


def rows(block: Any) -> list[np.ndarray]:
    found = []
    for shard in block.shards:
        out = np.empty((shard.samples, P))
        shard.take(np.arange(shard.samples), out)
        found.append(out)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """(client, whether in memory) of every shard that is opened."""
    found: list[tuple[int, bool]] = []
    shard = ShardFolder.shard

    def watched(self: ShardFolder, client: int, in_memory: bool) -> Any:
        found.append((client, in_memory))
        return shard(self, client, in_memory)

    monkeypatch.setattr(ShardFolder, "shard", watched)
    return found


def test_blocks_are_opened_once_and_when_asked_for(make: Make, opened: list[tuple[int, bool]]) -> None:
    data = make(X, Y, by_rows(Y, P, 10), pack=4)
    roster = hosted_blocks(data, range(2, 9), np.array([0, 3, 6, 7]), "float64", 2**20, ahead=False)
    assert (len(roster), roster.clients.tolist(), opened) == (3, list(range(2, 9)), [])
    block = roster[1]
    assert block is roster[1] is roster.visit(1, keep=False)
    assert opened == [(5, True), (6, True), (7, True)]
    for shard, found in zip(block.shards, rows(block), strict=True):
        assert np.array_equal(found, X[shard.rows])


def test_beyond_the_room_values_are_read_from_the_files(
    make: Make, opened: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(X, Y, by_rows(Y, P, 10), pack=4)
    room = 3.5 * (int(data.nbytes[0]) + hosted.SHARD_NBYTES + 8 * 6)
    roster = hosted_blocks(data, range(10), np.arange(11), "float64", room, ahead=False)
    everybody = [roster[i] for i in (9, 1, 2, 3, 4, 9, 3)]
    assert opened == [(9, True), (1, True), (2, True), (3, False), (4, False)]  # the first to come stay
    assert [np.array_equal(rows(b)[0], X[b.shards[0].rows]) for b in everybody] == [True] * 7
    monkeypatch.setattr(hosted, "STREAMED_NBYTES", 1)  # of others not even the labels, but for the last one
    opened.clear()
    assert [roster[i].clients[0] for i in (5, 6, 6, 5)] == [5, 6, 6, 5]
    assert opened == [(5, False), (6, False), (5, False)]


@covering(
    {
        "values": [X, sparse.csr_matrix(X * (X < 60), dtype=np.float32)],
        "room": [2**20, 5 * (6 * (P + 8) + hosted.SHARD_NBYTES), 0],  # for all, for five, for none
        "dtype": ["float32", "float64"],
    }
)
def test_rows_of_many_clients_at_once(make: Make, values: Any, room: float, dtype: str) -> None:
    """Whether they lie side by side in memory or not, of some or of all clients, of one block or of several."""
    labels = Y * 1.5
    data = make(values, labels, by_rows(Y, P, 10), pack=4)
    roster = hosted_blocks(data, range(1, 10), np.array([0, 4, 5, 9]), dtype, room, ahead=True)
    dense, rng = np.asarray(values.todense() if sparse.issparse(values) else values), np.random.default_rng(3)
    for block in roster:
        at = rng.integers(0, 6, (len(block.shards), 8))
        found = block.take(at)
        rows_of_x = np.stack([one.toarray() for one in found.X]) if isinstance(found.X, tuple) else found.X
        assert rows_of_x.dtype == dtype
        for shard, own, x, y in zip(block.shards, at, rows_of_x, found.y, strict=True):
            np.testing.assert_array_equal(x, dense[shard.rows[own]])
            np.testing.assert_array_equal(y, labels[shard.rows[own]])
            np.testing.assert_array_equal(shard.y, labels[shard.rows])
        assert block.take(at[:, :0]).y.shape == (len(at), 0)
        for wrong in (6, -1):
            at[-1, 3] = wrong
            with pytest.raises(IndexError, match=r"rows .* of clients with"):
                block.take(at)


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("kind", ["u1", "f4"])
def test_columns_of_a_block_are_read_as_those_of_each_client(make: Make, kind: str, by_column: bool) -> None:
    """In one call; of fewer clients, each by itself."""
    steps = np.linspace(0.5, 2, P) if by_column else np.array(0.25)
    data = make(X.astype(kind), Y, by_columns(S, P, 3), scaling=Scaling(steps, np.array(1.0)))
    blocks = hosted_blocks(data, range(3), np.array([0, 3]), "float32", 2**20, ahead=True)
    block, at = blocks[0], np.array([5, 59, 0, 5])
    expected = X[at].astype("f4") * steps.astype("f4") + np.float32(1)
    joint = block.shards[0].joint_columns
    assert joint is not None and joint.clients == 3 and all(shard.joint is None for shard in block.shards)
    for part in (block, block.only(np.array([0, 2])), block.only(np.array([1]))):
        for shard, rows_of_client in zip(part.shards, part.take_alike(at), strict=True):
            np.testing.assert_array_equal(rows_of_client[0], expected[:, shard.columns])
            assert rows_of_client.flags.c_contiguous
            (piece,) = shard.pieces("float32")
            np.testing.assert_array_equal(piece[1][at], expected[:, shard.columns])
