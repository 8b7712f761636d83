"""Masked sums: the same numbers as in the clear for those who may hear them, and uniform numbers for anybody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from masking import CHANCE, Answer, Case, check_alike, chi_square, errors_of, leaving, placed, play, vector

from mpifed.comm.channels.base import Protection
from mpifed.core.errors import BrokenProtocol, TooFewClients
from mpifed.core.exchange import Field
from mpifed.core.round import Round
from mpifed.testing import Solo

SPLITS = [[[0, 1, 2, 3, 4, 5]], [[], [0, 1, 2], [3, 4, 5]], [[2], [0, 5], [1], [3, 4]], [[], [0, 1, 2, 3, 4, 5]]]
BOTH = pytest.mark.parametrize("to_clients", [False, True])
SOME = pytest.mark.parametrize("most", [0, 1])


@covering({"most": [0, 1, 2], "hosted": SPLITS, "to_clients": [False, True]})
def test_same_numbers(to_clients: bool, hosted: Any, most: int) -> None:
    protection = Protection("masked", max_dropouts=most)
    check_alike(vector(size=40, hosted=hosted, to_clients=to_clients, protection=protection), turns=2)


@BOTH
def test_two_limbs_several_fields_and_some_who_are_asked(to_clients: bool) -> None:
    fields = Answer(Field((9,)), Field((), 1.0, 2.0**20), Field((2, 2), 2.0**-20, 2.0**40))
    rng = np.random.default_rng(0)
    answer = Answer(rng.uniform(-9, 9, (6, 9)), rng.integers(0, 99, 6), rng.uniform(-1, 1, (6, 2, 2)) * 1e12)
    asked = Round(0, 1, np.array([True, True, False, True, True, False]))
    for hosted in (SPLITS[2], [[], [2, 5], [0, 1, 3, 4]]):
        for now in (None, asked):
            check_alike(Case(hosted, answer, fields, to_clients, now=now))


@BOTH
@SOME
def test_placed_answers(to_clients: bool, most: int) -> None:
    check_alike(placed(to_clients, most), turns=2)


# --- what is refused --------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("most", [0, 2])
def test_too_few_answers(to_clients: bool, most: int) -> None:
    now = leaving(6, 2, [3]) if most else Round(0, 1, np.arange(6) != 3)
    protection = Protection("masked", min_clients=6, max_dropouts=most)
    for error in errors_of(vector(to_clients=to_clients, now=now, protection=protection)):
        assert isinstance(error, TooFewClients) and "(5 in round" in str(error)
    for allowed in (protection._replace(min_clients=5), protection._replace(allow=("up",))):
        check_alike(vector(to_clients=to_clients, now=now, protection=allowed))


def test_who_leaves_where_nobody_may() -> None:
    for error in errors_of(vector(now=leaving(6, 1, [2]))):
        assert isinstance(error, TooFewClients) and "client 2 left before it uploaded" in str(error)
    check_alike(vector(now=leaving(6, 1, [], [2])))  # after that its masks are in the sum


def test_the_same_client_twice() -> None:
    case = vector(hosted=SPLITS[0])

    def again(channel: Any, plan: Any) -> None:
        with pytest.raises(BrokenProtocol, match="repeated nonce: client 2"):
            channel.add(plan, case.of(np.array([2])), np.array([2]), case.round)

    assert play(case, again)[0].opened


# --- what each party sees ---------------------------------------------------------------------------------------------


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
@SOME
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
    case = case._replace(answer=np.zeros((6, 8000)), now=leaving(6, most, [2], [4]) if most else None)
    server, one, _ = play(case)
    assert not server.opened and chi_square(server.reduced[:-1]) < CHANCE
    assert not one.reduced[:-1].any()


def test_what_a_single_client_fills_is_masked_for_clients_and_open_for_the_server() -> None:
    """The server hears these values anyway."""
    case = placed(False)._replace(hosted=[list(range(5))])
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
    case = vector(to_clients=True, protection=Protection("masked", max_dropouts=2), now=leaving(6, 2, [1], [4]))
    server = play(case)[0]
    deposits = 6 * (2 * 32 + 5 * 16 + 16 + 5 * 50)
    assert totals(server, case.round) == (5 * 400 + deposits + 4 * 5 * 17, 4 * 400 + 6 * 5 * 50 + 4 * 1)
