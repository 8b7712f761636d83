"""Masked sums: the same numbers as in the clear for those who may hear them, and uniform numbers for anybody else."""

from __future__ import annotations

import math
import os
import tracemalloc
from contextlib import suppress
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from lengths import covering
from masking import CHANCE, Answer, Case, check_alike, chi_square, leaving, placed, play, vector

from mpifed.comm.channels.base import Protection
from mpifed.comm.channels.dropouts import PRIME, rebuild, split, threshold
from mpifed.comm.channels.graph import enough, neighbours, order
from mpifed.core.errors import BrokenProtocol, TooFewClients
from mpifed.core.exchange import Field
from mpifed.core.holdings import Holdings
from mpifed.core.round import Round
from mpifed.testing import Solo

SPLITS = [[[0, 1, 2, 3, 4, 5]], [[], [0, 1, 2], [3, 4, 5]], [[2], [0, 5], [1], [3, 4]], [[], [0, 1, 2, 3, 4, 5]]]
BOTH = pytest.mark.parametrize("to_clients", [False, True])
TWO = Protection("masked", max_dropouts=2)
# who has left before answering, and after that
LEAVING: list[Any] = [leaving(2, *gone) for gone in (([],), ([0],), ([], [5]), ([0, 5],), ([], [1, 2]), ([3], [4]))]


def two_limbs(hosted: Any, **more: Any) -> Case:
    fields = Answer(Field((9,)), Field((), 1.0, 2.0**20), Field((2, 2), 2.0**-20, 2.0**40))
    rng = np.random.default_rng(0)
    answer = Answer(rng.uniform(-9, 9, (6, 9)), rng.integers(0, 99, 6), rng.uniform(-1, 1, (6, 2, 2)) * 1e12)
    return Case(hosted, answer, fields, **more)


@covering({
    "protection": [Protection("masked"), Protection("masked", max_dropouts=1), Protection("encrypted")],
    "hosted": SPLITS, "to_clients": [False, True], "now": [None, Round(0, 1, np.arange(6) % 3 < 2), *LEAVING],
})  # fmt: skip
def test_who_may_hear_has_the_sum_of_the_plain_channel(
    protection: Protection, hosted: Any, to_clients: bool, now: Round | None
) -> None:
    """The numbers are those of `tests/laws/test_bits.py` too; what is not asked for is heard by nobody."""
    if now is not None and now.leaving and protection.channel == "masked":
        protection = TWO
    for case in (vector(size=40, hosted=hosted), two_limbs(hosted)):
        found = check_alike(case._replace(to_clients=to_clients, protection=protection, now=now), turns=2)
        assert protection != TWO or not any(heard.channel._dropouts.seeds for heard in found)
    if now is None:
        check_alike(placed(to_clients, protection), turns=2)


def masks(case: Case, turns: int) -> Any:
    """[turns, clients, m] what each client, all of one rank, has added to its integers."""
    channel = case.channel(Solo())
    plan = case.plan(channel)
    channel.prepare([plan])
    found, everybody = [], np.arange(case.clients)
    for _ in range(turns):
        channel.begin(plan, case.round)
        integers = [plan.integers(case.of(everybody), i, i).copy() for i in everybody]
        found.append([channel.seal(plan, own, i, case.round) - own for i, own in enumerate(integers)])
    return np.array(found)


@BOTH
@pytest.mark.parametrize("most", [0, 1])
def test_masks_look_uniform(most: int, to_clients: bool) -> None:
    protection = Protection("masked", max_dropouts=most)
    case = Case([[0, 1, 2, 3]], np.zeros((4, 8000)), Field((8000,)), to_clients, protection)
    found = masks(case, 2).reshape(8, -1)
    for i, one in enumerate(found):  # and no two of them have anything to do with each other
        assert max(map(chi_square, [one, *(one - other for other in found[:i]), *(one + found[:i])])) < CHANCE
    assert chi_square(np.zeros(8000, found.dtype)) > 100  # what is not masked does not pass


@covering({"to_clients": [False, True], "most": [0, 2]})
def test_no_number_of_a_mask_comes_again(to_clients: bool, most: int) -> None:
    """In no turn, client, position or run, and not with the other sign: of 64 bits none does by chance.

    Masks of pairs cancel in the sum of all; what is left are self-masks, or streams that the server cannot make.
    """
    case = vector(hosted=SPLITS[0], to_clients=to_clients, protection=Protection("masked", max_dropouts=most))
    runs = np.array([masks(case, 9) for _ in range(2)])
    left = runs.sum(axis=2)
    assert (left.all() if to_clients or most else not left.any()) and runs.all()
    for numbers in (runs, left[left != 0]):
        assert len(np.unique(np.abs(numbers))) == numbers.size


@pytest.mark.parametrize("most", [0, 2])
def test_a_server_without_clients_hears_nothing_of_what_clients_are_told(most: int) -> None:
    """Neither before nor after it has taken out what it may."""
    case = vector(size=8000, to_clients=True, protection=Protection("masked", max_dropouts=most))
    case = case._replace(answer=np.zeros((6, 8000)), now=leaving(most, [2], [4]) if most else None)
    server, one, _ = play(case)
    assert not server.opened and chi_square(server.reduced[:-1]) < CHANCE
    assert not one.reduced[:-1].any()


def test_what_a_single_client_fills_is_masked_for_clients_and_open_for_the_server() -> None:
    """The server hears these values anyway."""
    case = placed(False, Protection("masked"))._replace(hosted=[list(range(5))])
    (opened,), (hidden,) = masks(case, 1), masks(case._replace(to_clients=True), 1)
    filled = np.zeros((5, 22), dtype=bool)
    shared = filled.copy()
    for i, (own, others) in enumerate([([0, 1, 2], [0, 1, 2]), ([2, 3, 4], [2, 3]), ([0, 3], [0, 3]), ([0, 1, 2],) * 2,
                                       ([5], [])]):  # fmt: skip
        filled[i, :9] = shared[i, :9] = True
        filled[i, 10:].reshape(6, 2)[own] = shared[i, 10:].reshape(6, 2)[others] = True
    filled[1, 9] = True
    shared[1, 10:].reshape(6, 2)[3] = shared[2, 10:].reshape(6, 2)[3] = True
    np.testing.assert_array_equal(opened != 0, shared)
    np.testing.assert_array_equal(hidden != 0, filled)


def test_bytes() -> None:
    """By hand: six clients, 50 values of 8 bytes; keys of 32 and 16, shares of 17, two of them sealed in 50."""

    def totals(server: Any, now: Round) -> tuple[int, ...]:
        return tuple(int(part.sum()) for part in server.channel.traffic(server.plan, now))

    server = play(vector())[0]
    keys = server.channel.keys.costs
    assert totals(server, vector().round) == (6 * 400, 0)
    assert (keys["up_bytes"], keys["down_bytes"]) == (6 * 32 + 5 * 48, 6 * 5 * 32 + 5 * 48)
    drawn = Round(0, 1, np.array([True, True, False, True, True, False]))
    assert totals(server, drawn) == (4 * 400, 4 * 3 * 32)
    case = vector(to_clients=True, protection=Protection("masked", max_dropouts=2), now=leaving(2, [1], [4]))
    server = play(case)[0]
    deposits = 6 * (2 * 32 + 5 * 16 + 16 + 5 * 50)
    assert totals(server, case.round) == (5 * 400 + deposits + 4 * 5 * 17, 4 * 400 + 6 * 5 * 50 + 4 * 1)


def test_who_leaves_where_nobody_may() -> None:
    play(vector(now=leaving(1, [2])), said="client 2 left before it uploaded")
    check_alike(vector(now=leaving(1, [], [2])))  # after that its masks are in the sum


def test_the_answer_of_one_who_left_before_it_was_in_stays_hidden() -> None:
    """Its pair masks are opened, its own mask is not: nobody hands over that share as well."""
    case = vector(hosted=[list(range(6))], protection=TWO, now=leaving(2, [4]))
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

    case = vector(protection=TWO, now=leaving(4, [0, 1], [2, 3]))
    play(case, watch, said=r"more than \[participation\] max_dropouts = 2 have left")
    assert not handed
    with pytest.raises(TooFewClients, match=r"dropouts = 2: a client has 4 others .* needs 5"):
        play(vector(hosted=[list(range(6))], protection=TWO, now=Round(4, 1, np.arange(6) < 5)))
    for neighbours_, most in ((3, 1), (5, 2), (6, 2), (101, 50), (1, 0)):
        assert neighbours_ / 2 < threshold(neighbours_, most) == neighbours_ - most


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


CLIENTS, VALUES = 10**5, 5
FIRST, SECOND = ([5, 40_000, 99_999], [5, 17, 600, 50_000, 99_998])


@pytest.mark.parametrize("to_clients", [False, True])
@pytest.mark.parametrize("name", ["plain", "masked"])
def test_a_round_makes_no_array_over_all_clients(name: str, to_clients: bool) -> None:
    """Nor a key for who has not taken part; client 0 makes that of the group."""
    case = Case([range(CLIENTS)], None, Field((VALUES,), 2.0**-10), to_clients, Protection(name))  # type: ignore[list-item]
    channel, owners = case.channel(Solo()), list[int]()
    channel.tap = lambda client, what, payload: owners.append(client)
    plan = case.plan(channel)
    channel.prepare([plan])
    question, columns = np.zeros(3), Holdings.all(CLIENTS, 1)
    for index, who in enumerate((FIRST, SECOND)):
        now = Round(index, 1, np.isin(np.arange(CLIENTS), who), drawn=np.array(who))
        tracemalloc.start()
        channel.begin(plan, now)
        answers = np.arange(len(who) * VALUES, dtype=float).reshape(len(who), VALUES)
        channel.add(plan, answers, np.array(who), now)
        assert channel.collect(plan, now)
        spent = channel.spent(plan, question, columns, now)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_array_equal(plan.message.decode(plan.reduced), answers.sum(axis=0))
        assert (spent.up_bytes, spent.up_most) == (8 * VALUES * len(who), 8 * VALUES)
        of_keys = 32 * (len(who) - 1) if name == "masked" else 0
        assert spent.down_most == 8 * 3 + of_keys + 8 * VALUES * to_clients
        assert spent.down_bytes == len(who) * spent.down_most
    assert peak < CLIENTS  # bytes; the first round also fills what all rounds share
    assert sorted(owners) == ([] if name == "plain" else [0, *sorted({*FIRST, *SECOND})])
