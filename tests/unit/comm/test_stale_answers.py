"""Last answers of absent clients, sums by rows, and what who returns is told: in every channel, on any ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from mpifed.comm.channel import Protection
from mpifed.comm.ranks import Aggregator
from ranks import Threads, on_ranks

from mpifed.comm.states import ClientStates
from mpifed.core.exchange import Exchange, Field, Placed, ToClients, ToServer, play
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.testing import Solo

CLIENTS, ROWS, COLUMNS = 7, 11, 6
# row groups overlap in part, as arbitrary maps allow; the last one is one client's alone
ROW_GROUPS = np.arange(4), np.array([4, 6, 8]), np.array([2, 3, 4, 5, 6, 7]), np.array([9, 10])
ROW_OF = np.array([0, 1, 2, 0, 1, 2, 3])
COLUMN_GROUPS = slice(0, 2), np.array([2, 3, 5]), slice(4, 5)
COLUMN_OF = np.array([0, 0, 0, 1, 1, 1, 2])
CELLS = Cells(Holdings(ROWS, ROW_OF, ROW_GROUPS), Holdings(COLUMNS, COLUMN_OF, COLUMN_GROUPS))
ROUNDS = 6
RNG = np.random.default_rng(5)
PRESENT = [RNG.random(CLIENTS) < 0.5 for _ in range(ROUNDS)]
PRESENT[0][:] = [1, 1, 0, 0, 1, 0, 0]  # some have not answered yet when others hear
PRESENT[3][:] = [0, 0, 0, 0, 0, 0, 1]  # the one whose rows nobody else holds


def rows_of(client: int) -> Any:
    return ROW_GROUPS[ROW_OF[client]]


def columns_of(client: int) -> Any:
    return np.arange(COLUMNS)[COLUMN_GROUPS[COLUMN_OF[client]]]


def value(client: int, index: int, size: int) -> Any:
    """What a client answers in a round."""
    return np.random.default_rng([client, index, size]).uniform(-3, 3, (size, 2))


class Shard(NamedTuple):
    client: int
    samples: int = 1
    joint: None = None


class Heard(NamedTuple):
    """What a client was last told: of its own rows, and when it returned."""

    sums: Any  # [n, ROWS, 2]
    back: Any  # [n, ROWS, 2]
    times: Any  # [n] how often it was told on its return


def own(total: Any, block: Block) -> Any:
    found = np.zeros((len(block.clients), ROWS, 2))
    for row, client in zip(found, block.clients.tolist(), strict=True):
        row[rows_of(client)] = total[rows_of(client)]
    return found


def by_rows(states: Any, question: Any, block: Block, now: Round) -> Any:
    at = [rows_of(client) for client in block.clients]
    values = [value(int(c), int(now.index), len(a)) for c, a in zip(block.clients, at, strict=True)]
    return states, Placed(values, at, ROWS)


def by_columns(states: Any, question: Any, block: Block, now: Round) -> Any:
    at = [columns_of(client) for client in block.clients]
    values = [value(int(c), int(now.index), len(a))[:, 0] for c, a in zip(block.clients, at, strict=True)]
    return states, Placed(values, at, COLUMNS)


def nothing(server: Any, now: Round) -> Any:
    return np.zeros(1)


def exchanges(private: bool = True) -> tuple[Exchange, ...]:
    rows, columns = Field((ROWS, 2), rows=0), Field((COLUMNS,), columns=0)
    put = lambda server, total, now: [*server, np.array(total)]  # noqa: E731
    return (
        ToClients(
            "back", rows, nothing, by_rows, lambda s, t, b, now: s._replace(back=own(t, b), times=s.times + 1),
            stale="rows", returning=True, silent=True,
        ),
        ToServer("back-columns", columns, nothing, by_columns, put, stale="columns", returning=True, private=private),
        ToClients("rows", rows, nothing, by_rows, lambda s, t, b, now: s._replace(sums=own(t, b)), stale="rows"),
        ToServer("columns", columns, nothing, by_columns, put, stale="columns", private=private),
        ToServer("now", columns, nothing, by_columns, put),
    )  # fmt: skip


class Ends(NamedTuple):
    server: Any  # sums that the server heard, one after the other
    clients: dict[int, Heard]
    up_bytes: int


def now_of(index: int) -> Round:
    before = PRESENT[index - 1] if index else PRESENT[0]
    return Round(index, 1, PRESENT[index], returning=PRESENT[index] & ~before)


def run(comm: Any, protection: Protection, stop: int = ROUNDS, private: bool = True) -> Ends:
    """All rounds; where `stop` is before the end, in two parts, the second on what is kept of the first."""
    hosts = max(1, comm.size - 1)
    mine = [c for c in range(CLIENTS) if c % hosts + (comm.size > 1) == comm.rank]
    blocks = [Block((Shard(client),), "float64") for client in mine]

    def anew() -> Aggregator:
        found = Aggregator(comm, blocks, CLIENTS, dtype="float64", cells=CELLS, protection=protection)
        found.make_ready(exchanges(private))
        found.agree_on_keys()
        return found

    ranks, server = anew(), [] if comm.rank == 0 else None
    zeros = np.zeros((1, ROWS, 2))
    clients = ClientStates(np.array(mine), lambda _: Heard(zeros.copy(), zeros.copy(), np.zeros(1)))
    up_bytes = 0
    for index in range(ROUNDS):
        if index == stop:
            kept = ranks.last_answers()
            up_bytes, ranks = ranks.up_bytes, anew()
            ranks.restore(kept)
        server, clients = play(exchanges(private), server, clients, now_of(index), ranks)
    return Ends(server, dict(zip(mine, clients, strict=True)), up_bytes + ranks.up_bytes)


def expected() -> tuple[list[Any], dict[int, Heard]]:
    """A loop over clients and rounds that keeps everybody's last answers."""
    server, last_rows, last_columns = [], {}, {}
    told = {client: [np.zeros((ROWS, 2)), np.zeros((ROWS, 2)), 0] for client in range(CLIENTS)}

    def total(last: dict[int, Any], of: Any, shape: Any) -> Any:
        found = np.zeros(shape)
        for client, values in last.items():
            found[of(client)] += values
        return found

    for index, present in enumerate(PRESENT):
        there = np.flatnonzero(present).tolist()
        back = [c for c in there if index and not PRESENT[index - 1][c]]
        if back:
            for client in back:
                mine = np.isin(np.arange(ROWS), rows_of(client))[:, None]
                told[client][1] = total(last_rows, rows_of, (ROWS, 2)) * mine
                told[client][2] += 1
            last_columns |= {c: value(c, index, len(columns_of(c)))[:, 0] for c in back}
            server.append(total(last_columns, columns_of, COLUMNS))
        last_rows |= {c: value(c, index, len(rows_of(c))) for c in there}
        for client in there:
            told[client][0] = total(last_rows, rows_of, (ROWS, 2)) * np.isin(np.arange(ROWS), rows_of(client))[:, None]
        fresh = {c: value(c, index, len(columns_of(c)))[:, 0] for c in there}
        last_columns |= fresh
        server += [total(last_columns, columns_of, COLUMNS), total(fresh, columns_of, COLUMNS)]
    return server, {client: Heard(*one) for client, one in told.items()}


def check(found: list[Ends], reference: Ends | None = None) -> None:
    server, clients = expected()
    heard = {client: one for rank in found for client, one in rank.clients.items()}
    assert len(found[0].server) == len(server) > 2 * ROUNDS
    np.testing.assert_allclose(found[0].server, server, rtol=0, atol=1e-10)
    for client, one in heard.items():
        np.testing.assert_allclose(one.sums[0], clients[client].sums, rtol=0, atol=1e-10, err_msg=str(client))
        np.testing.assert_allclose(one.back[0], clients[client].back, rtol=0, atol=1e-10, err_msg=str(client))
        assert one.times[0] == clients[client].times
    if reference is not None:
        np.testing.assert_array_equal(found[0].server, reference.server)
        for client, one in heard.items():
            np.testing.assert_array_equal(one.sums, reference.clients[client].sums)
            np.testing.assert_array_equal(one.back, reference.clients[client].back)


CHANNELS = {name: Protection(name, min_clients=1) for name in ("plain", "masked", "encrypted")}


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("channel", CHANNELS)
def test_absent_clients_count_with_their_last_answers(channel: str, ranks: int) -> None:
    reference = run(Solo(), CHANNELS["plain"])
    check([reference])
    found = on_ranks(ranks, lambda comm: run(comm, CHANNELS[channel]))
    check(found, reference)


@pytest.mark.parametrize("channel", CHANNELS)
def test_on_from_what_is_kept(channel: str) -> None:
    """With new keys, on three ranks."""
    reference = run(Solo(), CHANNELS["plain"])
    for stop in (1, 3):
        check(on_ranks(3, lambda comm, at=stop: run(comm, CHANNELS[channel], stop=at)), reference)


def test_masked_messages_show_nothing_of_rows() -> None:
    """No integer that rank 0 is given of a sum that clients hear is one of the plain run."""

    def heard(comm: Threads) -> list[bytes]:
        run(comm, CHANNELS["masked"])
        return comm.heard

    found = on_ranks(3, heard)[0]
    plain = on_ranks(3, lambda comm: (run(comm, CHANNELS["plain"]), comm.heard)[1])[0]
    size = 8 * (2 * ROWS + 1)
    numbers = [
        np.concatenate([np.frombuffer(one, np.int64)[: 2 * ROWS] for one in messages if len(one) == size])
        for messages in (found, plain)
    ]
    assert len(numbers[0]) > len(numbers[1]) > 100  # the sums sealed anew besides
    shown = set(numbers[1].tolist()) - {0}
    there = numbers[0][numbers[0] != 0]
    assert not shown & set(there.tolist())
    assert (np.abs(there) > 2.0**55).mean() > 0.9  # anywhere among 64 bits
