"""Who of a rank's clients is present, and which blocks are opened for them."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.core.block import Block
from mpifed.core.roster import Roster


class Empty:
    """A shard without rows; see `mpifed.core.block.ClientData`."""

    joint = None

    def __init__(self, client: int) -> None:
        self.client, self.samples, self.features, self.sparse = client, 0, 1, False


def blocks_of(groups: list[list[int]]) -> list[Block]:
    return [Block(tuple(Empty(client) for client in group)) for group in groups]  # type: ignore[misc]


def test_among_finds_the_blocks_of_those_who_are_present() -> None:
    """Against a look at every block."""
    for seed in range(150):
        rng = np.random.default_rng(seed)
        first = int(rng.integers(5))
        ends = first + np.cumsum([0, *rng.integers(1, 1 + rng.integers(1, 5), rng.integers(8))])
        groups = [list(range(a, b)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        chosen = rng.random(int(ends[-1]) + 3) < rng.choice([0, 0.3, 0.9, 1])
        roster = Roster.of(blocks_of(groups))
        expected = [(i, [j for j, client in enumerate(group) if chosen[client]]) for i, group in enumerate(groups)]
        assert [(i, who.tolist()) for i, who in roster.among(chosen)] == [pair for pair in expected if pair[1]], seed
        assert roster.here(chosen).tolist() == [bool(chosen[client]) for group in groups for client in group], seed
        together = roster.together(chosen)
        found = [] if together is None else together.clients.tolist()
        assert found == [client for group in groups for client in group if chosen[client]], seed


def test_only_the_blocks_of_those_present_are_opened() -> None:
    opened: list[int] = []

    def open_block(i: int) -> Block:
        opened.append(i)
        return blocks_of([[i]])[0]

    roster = Roster(np.arange(100_000), np.arange(100_001), open_block)
    chosen = np.zeros(100_000, dtype=bool)
    chosen[[5, 77_777]] = True
    assert [i for i, _ in roster.among(chosen)] == [5, 77_777]
    assert opened == []
    block = roster.together(chosen)
    assert block is not None
    assert block.clients.tolist() == opened == [5, 77_777]
    assert roster[-1].clients.tolist() == [99_999]
    with pytest.raises(IndexError, match="block 100000 of 100000"):
        roster[100_000]
