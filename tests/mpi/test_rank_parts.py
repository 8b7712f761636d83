"""Fields whose numbers each come from the clients of one rank: rank 0 gathers what it would else sum."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpifed.comm.accumulate import ExactSum, make_sum
from mpifed.comm.rank_parts import rank_parts
from numpy.typing import NDArray
from sub_worlds import worlds

from mpifed.comm.transport import MPITransport
from mpifed.core.exchange import Field, Placed, ToServer
from mpifed.core.holdings import Cells, Holdings

pytestmark = pytest.mark.mpi(min_size=2)
COLUMNS, HIDDEN, CLIENTS = 2200, 16, 5
BOUNDS = [0, 300, 301, 1200, 1900, COLUMNS]
NEIGHBOURS = [np.arange(*ends) for ends in pairwise(BOUNDS)]


class Upload(NamedTuple):
    """A short field before and after a long one."""

    loss: Any
    gradient: Any
    head: Any


def holdings(parts: list[NDArray[np.int64]]) -> Cells:
    columns = tuple(slice(int(p[0]), int(p[-1]) + 1) if (np.diff(p) == 1).all() else p for p in parts)
    return Cells.of_columns(Holdings(COLUMNS, np.arange(CLIENTS), columns))


def exchange(functions: int, bound: float) -> Any:
    def nothing(*given: object) -> tuple[()]:
        return ()

    fields = Upload(
        Field(), Field((functions, COLUMNS, HIDDEN), bound=bound, columns=1), Field((functions, HIDDEN), sender=3)
    )
    return ToServer("gradients", fields, nothing, nothing, nothing)


def answers(functions: int, parts: list[NDArray[np.int64]], hosted: NDArray[np.int64]) -> Upload:
    values = []
    for client in hosted.tolist():
        rng = np.random.default_rng(client)
        values.append(rng.standard_normal((functions, len(parts[client]), HIDDEN)).astype("f4"))
    placed = Placed(values, [parts[client] for client in hosted], COLUMNS, axis=1)
    heads = np.ones((len(hosted), functions, HIDDEN), "f4") * hosted[:, None, None].astype("f4")
    return Upload(hosted.astype(np.float64), placed, heads)


def hosts(size: int) -> list[list[int]]:
    """Which clients each rank hosts."""
    return [part.tolist() for part in np.array_split(np.arange(CLIENTS), size)]


def summed(transport: MPITransport, adder: ExactSum, answer: Upload, hosted: NDArray[np.int64]) -> Upload | None:
    adder.begin(bool(len(hosted)))
    if len(hosted):
        adder.add(answer, hosted)
    message = adder.reduce(transport, False)
    return None if message is None else adder.total(message)  # type: ignore[return-value]


@pytest.mark.parametrize(("functions", "bound"), [(1, 2.0**10), (2, 2.0**10), (2, 2.0**40)])  # the last in two limbs
@pytest.mark.parametrize("empty", [None, 0, -1])
def test_what_is_gathered_is_the_sum(functions: int, bound: float, empty: int | None) -> None:
    for transport in worlds(2):
        who = hosts(transport.size if empty is None else transport.size - 1)
        if empty is not None:
            who.insert(0 if empty == 0 else len(who), [])
        hosted, cells = np.array(who[transport.rank], dtype=np.int64), holdings(NEIGHBOURS)
        plain, gathered = (make_sum(exchange(functions, bound), CLIENTS, dtype="float32") for _ in "12")
        gathered.by_rank = rank_parts(gathered.places, gathered.message.itemsize, cells, hosted, transport)
        assert list(gathered.by_rank) == ["gradients.gradient"]
        for _ in range(2):  # the second round in arrays that are used
            answer = answers(functions, NEIGHBOURS, hosted)
            expected, found = (summed(transport, adder, answer, hosted) for adder in (plain, gathered))
            assert (found is None) == (transport.rank > 0)
            if found is not None and expected is not None:
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(one, other)
                assert np.abs(found.gradient).max() > 1


IN_TURN = [np.arange(client, COLUMNS, CLIENTS) for client in range(CLIENTS)]
SHARED = [np.arange(*ends) for ends in ((0, 600), (500, 900), (900, 1000), (950, 1900), (1900, COLUMNS))]


@pytest.mark.parametrize(
    ("parts", "apart"),
    [(IN_TURN, set()), ([np.arange(COLUMNS)] * CLIENTS, set()), (SHARED, {3})],  # on 3 ranks, who shares is together
)
def test_what_several_ranks_fill_is_summed(parts: list[NDArray[np.int64]], apart: set[int]) -> None:
    for transport in worlds(2):
        hosted = np.array(hosts(transport.size)[transport.rank], dtype=np.int64)
        places = make_sum(exchange(1, 2.0**10), CLIENTS, dtype="float32").places
        assert bool(rank_parts(places, 8, holdings(parts), hosted, transport)) == (transport.size in apart)
