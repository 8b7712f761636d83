"""The masked channel: the same numbers as in the clear, for those who may hear them, and nothing for anybody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from masking import Answer, Case, check_alike, errors_of, leaving, placed, play, values, vector
from mpifed.comm.channel import Protection
from ranks import totals

from mpifed.core.errors import BrokenProtocol, NumericalError, TooFewClients
from mpifed.core.exchange import Field, ToClients, ToServer
from mpifed.core.round import Round
from mpifed.testing import Solo

SPLITS = [[[0, 1, 2, 3, 4, 5]], [[], [0, 1, 2], [3, 4, 5]], [[2], [0, 5], [1], [3, 4]], [[], [0, 1, 2, 3, 4, 5]]]


@covering(
    {
        "dtype, bits": [("float32", 32), ("float64", 64)],
        "most": [0, 1, 2],
        "hosted": SPLITS,
        "kind": [ToServer, ToClients],
    }
)
def test_same_numbers(kind: Any, hosted: Any, most: int, dtype: str, bits: int) -> None:
    fields = Field((40,), 2.0**-10, 2.0**10)
    case = Case(hosted, values(6, 40).astype(dtype), fields, kind, Protection("masked", max_dropouts=most), dtype=dtype)
    found = check_alike(case, turns=2)
    assert found[0].reduced.dtype == f"int{bits}"


@pytest.mark.parametrize("kind", [ToServer, ToClients])
def test_two_limbs_and_several_fields(kind: Any) -> None:
    fields = Answer(Field((9,)), Field((), 1.0, 2.0**20), Field((2, 2), 2.0**-20, 2.0**40))
    rng = np.random.default_rng(0)
    answer = Answer(rng.uniform(-9, 9, (6, 9)), rng.integers(0, 99, 6), rng.uniform(-1, 1, (6, 2, 2)) * 1e12)
    check_alike(Case(SPLITS[2], answer, fields, kind))


@pytest.mark.parametrize("kind", [ToServer, ToClients])
@pytest.mark.parametrize("most", [0, 1])
def test_some_are_asked(kind: Any, most: int) -> None:
    asked = np.array([True, True, False, True, True, False])
    protection = Protection("masked", max_dropouts=most)
    check_alike(vector(kind=kind, protection=protection, now=Round(0, 1, asked)))
    check_alike(vector(kind=kind, protection=protection, now=Round(0, 1, asked), hosted=[[], [2, 5], [0, 1, 3, 4]]))


@pytest.mark.parametrize("kind", [ToServer, ToClients])
@pytest.mark.parametrize("most", [0, 1])
def test_placed_answers(kind: Any, most: int) -> None:
    check_alike(placed(kind, most=most), turns=2)


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ToServer, ToClients])
@pytest.mark.parametrize("most", [0, 2])
def test_too_few_answers(kind: Any, most: int) -> None:
    now = leaving(6, 2, [3]) if most else Round(0, 1, np.arange(6) != 3)
    protection = Protection("masked", min_clients=6, max_dropouts=most)
    for error in errors_of(vector(kind=kind, now=now, protection=protection)):
        assert isinstance(error, TooFewClients)
        assert "uploads of 5 client" in str(error)
    check_alike(vector(kind=kind, now=now, protection=protection._replace(min_clients=5)))
    check_alike(vector(kind=kind, now=now, protection=protection._replace(allow=("up",))))


def test_who_leaves_where_nobody_may() -> None:
    for error in errors_of(vector(now=leaving(6, 1, [2]))):
        assert isinstance(error, TooFewClients)
        assert "client 2 left before it uploaded" in str(error)
    check_alike(vector(now=leaving(6, 1, [], [2])))  # after that its masks are in the sum


def test_the_same_client_twice() -> None:
    case = vector(hosted=SPLITS[0])

    def again(channel: Any, plan: Any) -> None:
        with pytest.raises(BrokenProtocol, match="repeated nonce: client 2"):
            channel.add(plan, case.of(np.array([2])), np.array([2]), case.round)

    assert play(case, again)[0].opened


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("place", [0, 9, 13])
def test_integers_out_of_range(dtype: str, place: int) -> None:
    fields = Answer(Field((9,), 2.0**-6, 64.0), Field((), 1.0, 2.0**10), Field((2, 2), 2.0**-20, 2.0**40))
    fields = fields if dtype == "float64" else fields._replace(m=Field((8,), 2.0**-6, 64.0))
    case = Case([[0, 1]], None, fields, dtype=dtype)
    channel, plan = case.channel(Solo()), case.plan()
    channel.prepare([plan])
    largest = [4096] * 9 + [1024] + ([2**28] * 4 + [2**31] * 4 if dtype == "float64" else [4096] * 8)
    for sign in (1, -1):
        integers = sign * np.array(largest, plan.sum.message.dtype)
        channel.begin(plan, case.round)
        assert (channel.seal(plan, integers, 1, case.round) != integers).all()
        integers[place] += 2 * sign
        with pytest.raises(NumericalError, match=r"up\.[vm]|up\.count"):
            channel.seal(plan, integers, 0, case.round)
        channel.seal(plan, sign * np.array(largest, integers.dtype), 0, case.round)  # the other was never sealed


# --- one by one, bytes ---------------------------------------------------------------------------------


def test_bytes() -> None:
    """By hand: six clients, 50 values of 8 bytes; keys of 16, shares of 17, two of them sealed in 50."""
    server = play(vector())[0]
    assert totals(server.channel.traffic(server.plan, vector().round)) == (6 * 400, 0)
    assert (server.channel.keys.up_bytes, server.channel.keys.down_bytes) == (6 * 32 + 5 * 48, 36 * 32 + 5 * 48)
    case = vector(kind=ToClients, protection=Protection("masked", max_dropouts=2), now=leaving(6, 2, [1], [4]))
    server = play(case)[0]
    deposits = 6 * (2 * 32 + 5 * 16 + 16 + 5 * 50)
    assert totals(server.channel.traffic(server.plan, case.round)) == (
        5 * 400 + deposits + 4 * 5 * 17, 4 * 400 + 6 * 5 * 50 + 4 * 1
    )  # fmt: skip
    sealed = play(case)[1].channel._dropouts.turn_secrets.held
    assert {len(one) for shares in sealed.values() for one in shares} == {50}
