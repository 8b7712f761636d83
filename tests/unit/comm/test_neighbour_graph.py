"""Who shares masks with whom: against brute force on small graphs, and simulated on large ones."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from mpifed.comm.masking.neighbour_graph import enough, neighbours, order


def connected(graph: dict[int, Any], left: set[int]) -> bool:
    """Whether those who are left can all be reached from one of them: a search in breadth."""
    if not left:
        return True
    reached, front = set(), {min(left)}
    while front:
        reached |= front
        front = {int(j) for i in front for j in graph[i]} & left - reached
    return reached == left


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("k", [2, 4, 6, 100])
def test_neighbours(n: int, k: int) -> None:
    asked = np.sort(np.random.default_rng(n).permutation(3 * n)[:n])
    graph = neighbours(asked, k, order(5, 3 * n))
    assert sorted(graph) == asked.tolist()
    for client, near in graph.items():
        assert len(near) == min(k, n - 1)
        assert client not in near
        assert sorted(set(near.tolist())) == near.tolist()
        assert all(client in graph[int(other)] for other in near)
    assert connected(graph, set(graph))


@pytest.mark.parametrize(("n", "k"), [(7, 2), (8, 4), (9, 4), (10, 4), (10, 6)])
def test_the_ring_is_cut_only_by_two_runs(n: int, k: int) -> None:
    """What `enough` counts with, for every set that can be gone: two runs of k/2 places each, or it holds together."""
    graph, h = neighbours(np.arange(n), k, np.arange(n)), k // 2
    cut = 0
    for count in range(n):
        for gone in map(set, combinations(range(n), count)):
            starts = [i for i in range(n) if all((i + step) % n in gone for step in range(h))]
            apart = any((j - i) % n >= h and (i - j) % n >= h for i, j in combinations(starts, 2))
            left = set(range(n)) - gone
            assert connected(graph, left) or apart
            cut += not connected(graph, left)
    assert cut > 0  # some sets do cut it, so the line above says something


def test_enough() -> None:
    """Smallest, even, growing with what can go wrong; all of them among few."""
    assert [enough(n, 0) for n in (0, 1, 2, 3)] == [0, 0, 1, 2]
    for n in (50, 100, 1000, 10000):
        found = [enough(n, leaving) for leaving in (0, 1, 2, 5, 10)]
        assert found == sorted(found)
        assert all(k % 2 == 0 or k == n - 1 for k in found)
        assert all(k >= 2 * leaving + 1 for k, leaving in zip(found, (0, 1, 2, 5, 10), strict=True))
        assert enough(n, 2, 0.1) <= enough(n, 2, 1 / 3) <= enough(n, 2, 0.5)
        assert enough(n, 2, chance=2.0**-20) < enough(n, 2)
    assert enough(1000, 0) == 38
    assert enough(12, 5) == 11  # max_dropouts of almost half: all others
    assert enough(12, 6) == 11  # and more: which is refused elsewhere


def suffice(k: int, n: int, leaving: int, colluding: float, chance: float) -> bool:
    """The three conditions on k neighbours, by fractions of whole numbers."""
    if k < 2 * leaving + 1:
        return False
    corrupt = min(n, math.ceil(colluding * n))
    cut = Fraction(n * n * math.comb(min(n, corrupt + leaving), k), 2 * math.comb(n, k))
    ways = (math.comb(corrupt, i) * math.comb(n - 1 - corrupt, k - i) for i in range(k - leaving, min(corrupt, k) + 1))
    rebuilt = Fraction(n * sum(ways) if leaving else 0, math.comb(n - 1, k))
    return cut <= Fraction(chance) and rebuilt <= Fraction(chance)


@pytest.mark.parametrize("colluding", [0.1, 1 / 3, 0.5])
@pytest.mark.parametrize("chance", [2.0**-40, 2.0**-20, 0.02])
def test_enough_is_the_least_that_suffices(colluding: float, chance: float) -> None:
    for n in (*range(2, 40), 60, 99, 150):
        for leaving in (0, 1, 2, 3, 5, n // 4, n // 2):
            sufficient = (k for k in range(2, n - 1, 2) if suffice(k, n, leaving, colluding, chance))
            assert enough(n, leaving, colluding, chance) == next(sufficient, n - 1), (n, leaving)


@pytest.mark.parametrize(
    ("n", "leaving"), [(1000, 20), (10_000, 50), (10_000, 500), (100_000, 0), (100_000, 20), (100_000, 200)]
)
def test_enough_among_many(n: int, leaving: int) -> None:
    """Where the number of ways to choose them is larger than any float."""
    k = enough(n, leaving)
    assert suffice(k, n, leaving, 1 / 3, 2.0**-40) and not suffice(k - 2, n, leaving, 1 / 3, 2.0**-40)
