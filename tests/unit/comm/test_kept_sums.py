"""Sums in which absent clients go on counting: against a loop, in every channel, and what their carrier can learn."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import masking
import numpy as np
from lengths import covering
from masking import CHANCE, Shard, check_alike, chi_square, leaving, on_ranks, vector

from mpifed.comm.channels.base import Protection
from mpifed.comm.rounds import Ranks, play
from mpifed.comm.states import ClientStates
from mpifed.comm.sums import Arithmetic
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Holdings, Placed
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.testing import Solo

CLIENTS, SIZE, ROUNDS = 7, 9000, 6
# groups overlap in part, as arbitrary maps allow; the last one is one client's alone
HELD = Holdings(SIZE, np.array([0, 1, 2, 0, 1, 2, 3]),
                (slice(0, 4000), np.arange(3000, 8000, 2), slice(2000, 5000), slice(8000, 9000)))  # fmt: skip
# of what is for the server, whose sum would be that client's value
SHARED = Holdings(SIZE, HELD.groups, [*(HELD.members.of(group) for group in range(3)), np.zeros(0, np.int64)])
HOLDS = np.array([np.isin(np.arange(SIZE), np.r_[HELD.of(client)]) for client in range(CLIENTS)])
PRESENT = np.random.default_rng(5).random((ROUNDS, CLIENTS)) < 0.6
PRESENT[0] = [1, 1, 0, 0, 1, 0, 0]  # some have not answered yet when others hear
PRESENT[3] = [0, 0, 0, 0, 0, 0, 1]  # the one whose places nobody else holds


class Heard(NamedTuple):
    """What a client was last told: of its own places in each round, and when it returned."""

    sums: Any  # [n, SIZE]
    back: Any  # [n, SIZE]


def value(client: int, index: int) -> Any:
    """What a client answers in a round."""
    return np.random.default_rng([client, index]).integers(-999, 999, SIZE) / 8 * HOLDS[client]


def answer(states: Any, question: Any, block: Block, now: Round, held: Holdings = HELD) -> Any:
    clients = block.clients.tolist()
    at = [held.of(client) for client in clients]
    return states, Placed([value(c, int(now.index))[p] for c, p in zip(clients, at, strict=True)], at, SIZE)


def exchanges() -> tuple[Exchange, ...]:
    ask = lambda server, now: np.zeros(1)  # noqa: E731
    for_clients, field = Field((SIZE,), held=HELD, to_holders=True), Field((SIZE,), held=SHARED)
    again = lambda s, total, block, now: s._replace(back=total * HOLDS[block.clients])  # noqa: E731
    hear = lambda s, total, block, now: s._replace(sums=total * HOLDS[block.clients])  # noqa: E731
    absorb = lambda server, total, now: [*server, np.array(total)]  # noqa: E731
    return (
        Exchange("back", for_clients, ask, None, hear=again, who=lambda now: now.back, keeps="rows"),
        Exchange("rows", for_clients, ask, answer, hear=hear, keeps="rows"),
        Exchange("total", field, ask, partial(answer, held=SHARED), absorb, keeps="total"),
    )


def run(comm: Any, channel: str, stop: int = ROUNDS, least: int = 1) -> Any:
    """All rounds; from `stop` on with nothing but what is kept of those before.

    Gives sums that the server heard, what clients did, and what the server keeps of the clients' sum after each round,
    and of its own, in integers.
    """
    hosts = max(1, comm.size - 1)
    mine = [c for c in range(CLIENTS) if c % hosts + (comm.size > 1) == comm.rank]
    blocks: Any = [Block((Shard(client),), "float64") for client in mine]

    def anew() -> Ranks:
        ranks = Ranks(comm, blocks, CLIENTS, Arithmetic("float64"), Protection(channel, least))
        ranks.make_ready(exchanges())
        ranks.agree_on_keys()
        return ranks

    ranks, server, carried, opened = anew(), [] if comm.rank == 0 else None, [], []
    clients: Any = ClientStates(np.array(mine), lambda _: Heard(np.zeros((1, SIZE)), np.zeros((1, SIZE))))
    for index, present in enumerate(PRESENT):
        if index == stop:
            kept, ranks = ranks.last_answers(), anew()
            ranks.restore(kept)
        now = Round(index, 1, present, rejoining=present & ~PRESENT[index - 1] & (index > 0))
        server, clients = play(exchanges(), server, clients, now, ranks)
        carried.append(ranks.plan(exchanges()[1]).kept.total)  # type: ignore[union-attr]
        opened.append(ranks.plan(exchanges()[2]).reduced[:-1].copy())
    return server, dict(zip(mine, clients, strict=True)), carried, opened


def check(found: list[Any], least: int = 1) -> None:
    """A loop over clients and rounds that keeps everybody's last answers."""
    last, own, server = np.zeros((CLIENTS, SIZE)), np.zeros((CLIENTS, SIZE)), []
    told = np.zeros((CLIENTS, 2, SIZE))
    for index, present in enumerate(PRESENT):
        for client in np.flatnonzero(present & ~PRESENT[index - 1]).tolist() if index else ():
            told[client, 1] = last.sum(axis=0) * HOLDS[client]
        last[present] = [value(client, index) for client in np.flatnonzero(present)]
        for client in np.flatnonzero(present).tolist():
            told[client, 0] = last.sum(axis=0) * HOLDS[client]
        fresh = present[:, None] & (SHARED.held_by(present) >= least)
        own[fresh] = last[fresh]
        server.append(np.where(SHARED.holders, own.sum(axis=0), 0))
    np.testing.assert_array_equal(found[0][0], server)
    for client, heard in (one for _, clients, *_ in found for one in clients.items()):
        np.testing.assert_array_equal(np.concatenate(heard), told[client], err_msg=str(client))


@covering({"channel": ["plain", "masked", "encrypted"], "least": [1, 2], "ranks": [1, 3], "stop": [3, ROUNDS]})
def test_absent_clients_go_on_counting(channel: str, least: int, ranks: int, stop: int) -> None:
    """And on from what is kept, with new keys."""
    check(on_ranks(ranks, lambda comm: run(comm, channel, stop, least)), least)


def test_a_carrier_learns_nothing_from_two_sums_for_clients() -> None:
    """Each place stands under another stream after every round in which one of its holders was present."""
    carried = on_ranks(3, lambda comm: run(comm, "masked"))[0][2]
    plain = run(Solo(), "plain")[2]
    moved = [HELD.held_by(present) > 0 for present in PRESENT]
    for i, one in enumerate(carried):
        for j in range(i):
            there = np.any(moved[j + 1 : i + 1], axis=0) & (np.sum(moved[: j + 1], axis=0) > 0)
            assert there.sum() > 900 and chi_square((one - carried[j])[there]) < CHANCE
            still = ~np.any(moved[j + 1 : i + 1], axis=0)
            np.testing.assert_array_equal(one[still], carried[j][still])  # nothing has changed, and so it is the same
            assert chi_square((plain[i] - plain[j])[there]) > 100  # without streams it would show
        assert chi_square(one[np.sum(moved[: i + 1], axis=0) > 0]) < CHANCE


def test_the_server_learns_nothing_from_two_of_its_sums_of_what_too_few_fill() -> None:
    """Where one client alone is present and fills a place, the two differ by nothing."""
    opened = on_ranks(3, lambda comm: run(comm, "masked", least=2))[0][3]
    bare = run(Solo(), "plain")[3]
    for i in range(1, ROUNDS):
        alone = SHARED.held_by(PRESENT[i]) == 1
        np.testing.assert_array_equal(opened[i][alone], opened[i - 1][alone])
        assert not alone.any() or (bare[i] != bare[i - 1])[alone].mean() > 0.9
    assert sum((SHARED.held_by(present) == 1).any() for present in PRESENT[1:]) > 1


def test_nothing_is_opened_of_too_few_or_if_the_one_who_moves_the_stream_leaves() -> None:
    """Client 0 does; whoever else leaves is missed by nobody."""
    masking.play(vector(to_clients=True, now=Round(3, 1, np.arange(6) == 4), keeps=True), said=r"\(1 in round")
    case = vector(to_clients=True, keeps=True, protection=Protection("masked", max_dropouts=2))
    check_alike(case._replace(now=leaving(2, [1, 3])))
    for heard in masking.play(case._replace(now=leaving(2, [0])), said="client 0 left before it uploaded"):
        assert heard.plan.kept is not None and not np.any(heard.plan.kept.total) and not heard.plan.kept.moved
