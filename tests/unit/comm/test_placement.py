"""Blocks on ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpifed.comm.placement import place

work_of_clients = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@settings(max_examples=60)
@given(work_of_clients, st.integers(1, 9), st.integers(1, 12), st.booleans())
@example([1] * 5 + [1000], 1, 5, False)
@example([1000] + [1] * 5, 1, 6, True)
@example([1, 1000, 1, 1], 1, 3, False)
def test_every_block_has_one_rank_and_every_rank_its_share(
    work: list[int], block: int, ranks: int, dedicated: bool
) -> None:
    found = place(work, block, ranks, dedicated)
    hosted = [found.of(rank) for rank in range(ranks)]
    # every client once, in blocks that do not depend on the ranks, contiguous on each rank and in order over them
    assert [b for rank in hosted for b in rank] == list(found.blocks)
    assert [client for b in found.blocks for client in b] == list(range(len(work)))
    assert found.blocks == place(work, block, 1, False).blocks
    assert {len(b) for b in found.blocks[:-1]} <= {block}
    assert (np.diff(found.ranks) >= 0).all()
    hosts = hosted[1:] if dedicated and ranks > 1 else hosted
    if dedicated and ranks > 1:
        assert hosted[0] == []
    if len(found.blocks) >= len(hosts):
        assert all(hosts)
    else:
        assert max(map(len, hosts)) == 1
