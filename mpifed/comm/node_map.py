"""Which ranks share a node: they share memory, while messages between nodes go over the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class NodeMap(NamedTuple):
    """The node of every rank; alike on all ranks. Nodes are numbered in the order of their lowest ranks."""

    nodes: tuple[int, ...]  # [ranks]

    @classmethod
    def of(cls, names: Sequence[object]) -> NodeMap:
        """From one name per rank; two ranks share a node exactly if their names are equal."""
        numbers: dict[object, int] = {}
        return cls(tuple(numbers.setdefault(name, len(numbers)) for name in names))

    @classmethod
    def even(cls, ranks: int, per_node: int) -> NodeMap:
        """Nodes of `per_node` consecutive ranks each; the last may have fewer."""
        return cls(tuple(rank // per_node for rank in range(ranks)))

    @property
    def many(self) -> int:
        return max(self.nodes) + 1

    def rank_within(self, rank: int) -> int:
        """The number of a rank among those of its node; 0 is its leader."""
        return self.nodes[:rank].count(self.nodes[rank])

    def size_of(self, rank: int) -> int:
        """Number of ranks on the node of a rank."""
        return self.nodes.count(self.nodes[rank])
