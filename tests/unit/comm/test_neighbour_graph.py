"""Who shares masks with whom: against brute force on small graphs, and simulated on large ones."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.comm.accumulate import make_sum
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.masking.neighbour_graph import Common, MaskGraph, enough, neighbours, order
from mpifed.core.exchange import Field, ToServer
from mpifed.core.holdings import Cells, Holdings


def ring(n: int, k: int, seed: int = 0) -> dict[int, Any]:
    return neighbours(np.arange(n), k, order(seed, n))


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


def test_the_order_is_public_and_drawn_by_the_seed() -> None:
    first = order(1, 50)
    assert sorted(first.tolist()) == list(range(50))
    order.cache_clear()
    np.testing.assert_array_equal(order(1, 50), first)
    assert (order(2, 50) != first).any()
    assert {tuple(near) for near in ring(50, 4, 1).values()} != {tuple(near) for near in ring(50, 4, 2).values()}


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


def test_few_enough_colluders_never_cut_it() -> None:
    """Ten clients and a third of them: no set of four of them can cut a ring of six neighbours."""
    k = enough(10, 0)
    assert k == 6
    graph = ring(10, k)
    assert all(connected(graph, set(range(10)) - set(gone)) for gone in combinations(range(10), 4))
    graph = ring(10, 4)
    assert not all(connected(graph, set(range(10)) - set(gone)) for gone in combinations(range(10), 4))


@pytest.mark.parametrize(("n", "k"), [(20, 4), (30, 4), (40, 6), (60, 8)])
def test_chance_of_falling_apart(n: int, k: int) -> None:
    """Simulated, it is below the bound that `enough` goes by."""
    rng, gone, times = np.random.default_rng(n), n // 3, 2000
    graph, everybody = neighbours(np.arange(n), k, np.arange(n)), set(range(n))
    apart = np.mean([not connected(graph, everybody - set(rng.permutation(n)[:gone].tolist())) for _ in range(times)])
    bound = n * n / 2 * float(np.prod((gone - np.arange(k)) / (n - np.arange(k))))
    assert 0 < apart <= bound < 10  # no empty claim, and none that says nothing
    assert enough(n, 0, gone / n, 1.01 * bound) <= k < enough(n, 0, gone / n, 0.99 * bound)


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


def test_those_who_collude_are_below_the_threshold() -> None:
    """With shares at k neighbours, k - leaving of which rebuild a secret; simulated with a coarse chance."""
    n, leaving, chance = 60, 4, 0.02
    k = enough(n, leaving, 1 / 3, chance)
    rng, graph = np.random.default_rng(0), ring(n, k)
    broken = 0
    for _ in range(500):
        bad = rng.permutation(n)[: n // 3]
        broken += any(np.isin(near, bad).sum() >= k - leaving for near in graph.values())
    assert broken / 500 <= chance + 3 * np.sqrt(chance / 500)


class Answer(NamedTuple):
    shared: Any
    placed: Any
    single: Any
    count: Any


FIELDS = Answer(Field((4,)), Field((6, 2), columns=0), Field((3,), sender=1), Field())
COLUMNS = Cells.of_columns(Holdings(6, np.array([0, 1, 2, 0]), (slice(0, 3), slice(2, 5), np.array([0, 5]))))


def graph(fields: Any = FIELDS, columns: Cells = COLUMNS, k: int = 100) -> MaskGraph:
    exchange: Any = ToServer("up", fields, None, None, None)  # type: ignore[arg-type]
    plan = ExchangePlan(exchange, lambda: make_sum(exchange, 4, exact=True, dtype="float64"), columns)
    return MaskGraph(Common(plan), np.arange(4), k, order(0, 4))


def places(parts: list[Any]) -> list[int]:
    whole = np.arange(100)
    return [int(i) for part in parts for i in whole[part]]


def test_what_two_clients_fill() -> None:
    """The message: 4 shared, 6 x 2 placed, 3 of client 1, a count."""
    found = graph()
    common = found.common
    assert places(common.everybody) == [0, 1, 2, 3, 19]
    assert places(common.own(0)) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 19]
    assert places(common.own(1)) == [0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 16, 17, 18, 19]
    assert places(common.own(2)) == [0, 1, 2, 3, 4, 5, 14, 15, 19]
    columns = {(0, 1): [8, 9], (0, 2): [4, 5], (0, 3): [4, 5, 6, 7, 8, 9], (1, 2): [], (1, 3): [8, 9], (2, 3): [4, 5]}
    for (i, j), at in columns.items():
        assert places(common.parts(i, j, False)) == at == places(common.parts(j, i, False))
        assert places(common.parts(i, j, True)) == [0, 1, 2, 3, 19, *at]
    assert [common.holders(i, np.arange(4)).tolist() for i in range(4)] == [[1, 2, 3], [0, 3], [0, 3], [0, 1, 2]]


def test_partners() -> None:
    """Neighbours for what all fill, everybody with the same columns for those; the lower one adds."""
    found = graph(k=2)
    for client in range(4):
        partners = found.partners(client)
        near, holders = found.near[client].tolist(), found.common.holders(client, found.asked).tolist()
        assert [one.client for one in partners] == sorted({*near, *holders})
        for other, sign, parts in partners:
            assert sign == (1 if client < other else -1)
            assert (places(parts)[:5] == [0, 1, 2, 3, 19]) == (other in near)
            there = next(one for one in found.partners(other) if one.client == client)
            assert (places(there.parts), there.sign) == (places(parts), -sign)


def test_columns_that_nobody_shares() -> None:
    """Nothing is masked by pairs."""
    alone = Cells.of_columns(Holdings(6, np.arange(4), (slice(0, 1), slice(1, 3), slice(3, 4), np.array([4, 5]))))
    found = graph(Field((6,), columns=0), alone)
    assert [found.partners(client) for client in range(4)] == [[]] * 4
    assert [places(found.common.own(client)) for client in range(4)] == [[0], [1, 2], [3], [4, 5]]


def test_columns_that_all_hold() -> None:
    """They are like any other field, and follow the graph."""
    fields, everybody = Answer(Field((4,)), Field((6, 2), columns=0), Field((3,)), Field()), Holdings.all(4, 6)
    found = graph(fields, Cells.of_columns(everybody), k=2)
    assert places(found.common.everybody) == list(range(20))
    assert found.common.own(2) is found.common.everybody
    assert [len(found.partners(client)) for client in range(4)] == [2] * 4
