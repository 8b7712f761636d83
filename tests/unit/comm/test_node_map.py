"""Maps of nodes, and parts of arrays."""

from __future__ import annotations

from mpifed.comm.allreduce import parts
from mpifed.comm.node_map import NodeMap


def test_nodes_are_numbered_by_their_lowest_ranks() -> None:
    found = NodeMap.of(["b", "b", "a", "b", "a", "c"])
    assert found.nodes == (0, 0, 1, 0, 1, 2)
    assert found.many == 3
    assert [found.rank_within(rank) for rank in range(6)] == [0, 1, 0, 2, 1, 0]
    assert [found.size_of(rank) for rank in range(6)] == [3, 3, 2, 3, 2, 1]
    assert NodeMap.even(5, 2).nodes == (0, 0, 1, 1, 2)


def test_parts_are_even_and_whole() -> None:
    assert [(one.start, one.stop) for one in parts(7, 3)] == [(0, 3), (3, 5), (5, 7)]
    assert [(one.start, one.stop) for one in parts(1, 3)] == [(0, 1), (1, 1), (1, 1)]
