"""Clients who leave within an exchange, and graphs that bear it: the sum of the others, or no sum at all."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from lengths import covering
from masking import check_alike, errors_of, leaving, play, vector

from mpifed.comm.channels.base import Protection
from mpifed.comm.channels.dropouts import PRIME, rebuild, split, threshold
from mpifed.comm.channels.graph import enough, neighbours, order
from mpifed.core.errors import BrokenProtocol, TooFewClients
from mpifed.core.round import Round

TWO = Protection("masked", max_dropouts=2)


@covering({
    "to_clients": [False, True],
    "before, after": [([], []), ([0], []), ([], [5]), ([0, 5], []), ([], [1, 2]), ([3], [4]), ([1, 2], [])],
    "hosted": [[[0, 1, 2, 3, 4, 5]], [[], [0, 1, 2], [3, 4, 5]], [[5], [1, 0], [4, 2, 3]]],
})  # fmt: skip
def test_without_those_who_leave(to_clients: bool, before: list[int], after: list[int], hosted: Any) -> None:
    now = leaving(6, 2, before, after)
    found = check_alike(vector(to_clients=to_clients, hosted=hosted, protection=TWO, now=now), turns=2)
    assert not any(heard.channel._dropouts.seeds for heard in found)


def test_the_answer_of_one_who_left_before_it_was_in_stays_hidden() -> None:
    """Its pair masks are opened, its own mask is not: nobody hands over that share as well."""
    case = vector(hosted=[list(range(6))], protection=TWO, now=leaving(6, 2, [4]))
    secrets = play(case)[0].channel._dropouts
    for holder, giver, uploaded in ((0, 4, False), (5, 3, True)):
        assert secrets.reveal(holder, giver, uploaded) == secrets.reveal(holder, giver, uploaded)
        with pytest.raises(BrokenProtocol, match=f"client {holder} is asked for its shares of both .* client {giver}"):
            secrets.reveal(holder, giver, not uploaded)
    secrets.deposits[2] = secrets.deposits[1]  # whose shares are for others to open
    with pytest.raises(BrokenProtocol, match="does not open"):
        secrets.reveal(0, 2, True)


def test_more_have_left_than_may_or_too_few_are_asked() -> None:
    """Of five neighbours it takes three: every rank refuses the sum when there are two, and hands over nothing."""
    handed = []

    def watch(channel: Any, plan: Any) -> None:
        channel._dropouts._reveal_all = lambda *_: handed.append(1)

    for error in errors_of(vector(protection=TWO, now=leaving(6, 4, [0, 1], [2, 3])), watch):
        assert isinstance(error, TooFewClients) and "more than [participation] max_dropouts = 2 have left" in str(error)
    assert not handed
    with pytest.raises(TooFewClients, match=r"dropouts = 2: a client has 4 others .* needs 5"):
        play(vector(hosted=[list(range(6))], protection=TWO, now=Round(4, 1, np.arange(6) < 5)))
    for neighbours_, most in ((3, 1), (5, 2), (6, 2), (101, 50), (1, 0)):
        assert neighbours_ / 2 < threshold(neighbours_, most) == neighbours_ - most


# --- shares, graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holders", "least"), [(3, 2), (9, 5), (40, 27)])
def test_any_shares_that_are_enough_and_no_fewer(holders: int, least: int) -> None:
    """With one too few, every value of another share gives another secret, or none that could be one."""
    rng = np.random.default_rng(holders)
    for secret in (os.urandom(16), bytes(16), b"\xff" * 16):
        shares = dict(enumerate(split(secret, holders, least), 1))
        assert {len(share) for share in shares.values()} == {17}
        some = {int(n): shares[int(n)] for n in rng.permutation(holders)[:least] + 1}
        assert rebuild(some, least) == secret
        (last, share), *others = some.items()
        for y in range(50):
            with suppress(BrokenProtocol):
                other = (int.from_bytes(share, "little") + y + 1) % PRIME
                assert rebuild({**dict(others), last: other.to_bytes(17, "little")}, least) != secret
        with pytest.raises(TooFewClients, match=f"^{least - 1} shares of a secret that takes {least}"):
            rebuild(dict(others), least)


def connected(graph: dict[int, Any], left: set[int]) -> bool:
    """Whether those who are left can all be reached from one of them: a search in breadth."""
    reached, front = set(), set(sorted(left)[:1])
    while front:
        reached |= front
        front = {int(j) for i in front for j in graph[i]} & left - reached
    return reached == left


def test_neighbours() -> None:
    """As many as there should be, each other's, and cut only by two runs of k/2 places, as `enough` counts."""
    for n, k in ((1, 2), (3, 100), (13, 4), (13, 6)):
        asked = np.sort(np.random.default_rng(n).permutation(3 * n)[:n])
        graph = neighbours(asked, k, order(5, 3 * n))
        assert sorted(graph) == asked.tolist() and connected(graph, set(graph))
        for client, near in graph.items():
            assert len(near) == min(k, n - 1) and sorted({*near.tolist()} - {client}) == near.tolist()
            assert all(client in graph[int(other)] for other in near)
    for n, k in ((7, 2), (9, 4), (10, 6)):
        graph, cuts = neighbours(np.arange(n), k, np.arange(n)), 0
        for gone in (set(some) for count in range(n) for some in combinations(range(n), count)):
            starts = [i for i in range(n) if all((i + step) % n in gone for step in range(k // 2))]
            apart = any(min((j - i) % n, (i - j) % n) >= k // 2 for i, j in combinations(starts, 2))
            cuts += not connected(graph, set(range(n)) - gone)
            assert apart or connected(graph, set(range(n)) - gone)
        assert cuts


def suffice(k: int, n: int, leaving: int, colluding: float, chance: float) -> bool:
    """The three conditions on k neighbours, by fractions of whole numbers."""
    if k <= 2 * leaving:
        return False
    corrupt = min(n, math.ceil(colluding * n))
    cut = Fraction(n * n * math.comb(min(n, corrupt + leaving), k), 2 * math.comb(n, k))
    ways = (math.comb(corrupt, i) * math.comb(n - 1 - corrupt, k - i) for i in range(k - leaving, min(corrupt, k) + 1))
    rebuilt = Fraction(n * sum(ways) if leaving else 0, math.comb(n - 1, k))
    return cut <= Fraction(chance) and rebuilt <= Fraction(chance)


def test_enough_is_the_least_that_suffices() -> None:
    """Among many, too, where the number of ways to choose them is larger than any float."""
    cases = [(n, left) for n in (*range(24), 60, 150) for left in (0, 1, 2, 5, n // 4, n // 2)]
    for (n, left), (colluding, chance) in product(cases, ((1 / 3, 2.0**-40), (0.1, 2.0**-20), (0.5, 0.02))):
        sufficient = (k for k in range(2, n - 1, 2) if suffice(k, n, left, colluding, chance))
        assert enough(n, left, colluding, chance) == next(sufficient, max(n - 1, 0)), (n, left)
    for n, left in ((1000, 0), (1000, 20), (10_000, 50), (100_000, 20), (100_000, 200)):
        k = enough(n, left)
        assert suffice(k, n, left, 1 / 3, 2.0**-40) and not suffice(k - 2, n, left, 1 / 3, 2.0**-40)
