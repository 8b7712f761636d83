"""What each party of a masked exchange sees: numbers that look uniform, and the sum if it may hear it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from masking import CHANCE, Case, chi_square, leaving, placed, play
from mpifed.comm.channel import Protection
from mpifed.comm.masking.channel import Masked

from mpifed.core.exchange import Field, ToClients, ToServer
from mpifed.testing import Solo


def uploads(case: Case, turns: int = 1) -> tuple[Masked, list[dict[int, Any]]]:
    """All clients of one rank: their channel, and what leaves each of them in each turn, sealed."""
    channel, plan = case.channel(Solo()), case.plan()
    channel.prepare([plan])
    assert isinstance(channel, Masked)
    found = []
    for _ in range(turns):
        channel.begin(plan, case.round)
        everybody = np.arange(case.clients)
        integers = [plan.integers(case.of(everybody), i, i).copy() for i in everybody]
        found.append({i: channel.seal(plan, integers[i], i, case.round) for i in everybody.tolist()})
    return channel, found


@covering({"dtype": ["float32", "float64"], "kind": [ToServer, ToClients], "most": [0, 1]})
def test_uploads_look_uniform(most: int, kind: Any, dtype: str) -> None:
    case = Case([list(range(4))], np.zeros((4, 8000), dtype), Field((8000,), 2.0**-10, 2.0**10), kind, dtype=dtype)
    _, (first, second) = uploads(case._replace(protection=Protection("masked", max_dropouts=most)), turns=2)
    everything = [*first.values(), *second.values()]
    assert max(map(chi_square, everything)) < CHANCE
    for i, one in enumerate(everything):  # and no two of them have anything to do with each other
        for other in everything[:i]:
            assert chi_square(one - other) < CHANCE
            assert chi_square(one + other) < CHANCE
    assert chi_square(np.zeros(8000, first[0].dtype)) > 100  # what is not masked does not pass


@pytest.mark.parametrize("most", [0, 2])
def test_a_server_without_clients_hears_nothing_of_what_clients_are_told(most: int) -> None:
    """Neither before nor after it has taken out what it may."""
    case = Case(
        [[], [0, 1, 2], [3, 4, 5]], np.zeros((6, 8000)), Field((8000,)), ToClients,
        Protection("masked", max_dropouts=most), now=leaving(6, most, [2], [4]) if most else None,
    )  # fmt: skip
    server, one, _ = play(case)
    assert not server.opened
    assert chi_square(server.reduced[:-1]) < CHANCE
    assert not one.reduced[:-1].any()


def test_what_a_single_client_fills_is_masked_for_clients_and_open_for_the_server() -> None:
    """The server hears these values anyway."""
    case = placed(ToServer)
    _, (sealed,) = uploads(case._replace(hosted=[list(range(5))]))
    plan = case.plan()
    sender, placed_at = plan.sum.places[1], plan.positions(plan.sum.places[2], 4)
    integers = {i: plan.integers(case.of(np.arange(5)), i, i).copy() for i in range(5)}
    assert sealed[1][sender.start] == integers[1][sender.start]
    np.testing.assert_array_equal(sealed[4][placed_at], integers[4][placed_at])
    for i, here in ((0, [0, 1, 2]), (1, [2]), (2, [0, 3]), (3, [0, 1, 2])):  # columns that somebody else has too
        at = np.arange(10, 22).reshape(6, 2)[here].ravel()
        assert (sealed[i][at] != integers[i][at]).all()
    _, (hidden,) = uploads(case._replace(hosted=[list(range(5))], kind=ToClients))
    assert hidden[1][sender.start] != integers[1][sender.start]
    assert (hidden[4][placed_at] != integers[4][placed_at]).all()
    assert not hidden[4][plan.positions(plan.sum.places[2], 0)].any()  # nothing where it has nothing
