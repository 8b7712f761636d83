from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpifed.core.holdings import Holdings


def drawn(seed: int) -> tuple[Holdings, list[set[int]]]:
    """Groups of 12 places, some of them slices, some empty; and what each of 9 clients holds."""
    rng = np.random.default_rng(seed)
    members: list[Any] = []
    for number in range(4):
        start, stop = np.sort(rng.integers(0, 13, 2))
        scattered = np.sort(rng.choice(12, int(rng.integers(0, 6)), replace=False))
        members.append(slice(int(start), int(stop)) if number % 2 else scattered)
    groups = rng.permutation(np.concatenate([np.arange(4), rng.integers(0, 4, 5)]))
    return Holdings(12, groups, tuple(members)), [set(np.arange(12)[members[g]].tolist()) for g in groups]


@pytest.mark.parametrize("seed", range(20))
def test_who_holds_what(seed: int) -> None:
    """Against sets, client by client."""
    one, held = drawn(seed)
    present = np.random.default_rng(seed).random(9) < 0.5
    everybody, some = range(9), np.flatnonzero(present)
    assert [set(np.arange(12)[one.of(c)].tolist()) for c in everybody] == held
    assert one.widths.tolist() == [len(held[c]) for c in everybody]
    assert one.holders.tolist() == [sum(i in held[c] for c in everybody) for i in range(12)]
    assert one.held_by(present).tolist() == [sum(i in held[c] for c in some) for i in range(12)]
    assert one.first.tolist() == [min((c for c in everybody if i in held[c]), default=-1) for i in range(12)]


@pytest.mark.parametrize("seed", range(20))
def test_places_with_the_same_holders_are_together(seed: int) -> None:
    one, held = drawn(seed)
    seen: list[int] = []
    for who, at in one.shared:
        places = np.arange(12)[at].tolist()
        seen += places
        for i in places:
            assert who.tolist() == [i in held[c] for c in range(9)]
    kept = sorted(i for i in range(12) if one.holders[i])
    assert sorted(seen) == kept
    assert len(one.shared) == len({tuple(i in held[c] for c in range(9)) for i in kept})
