"""Who is there in which half of which exchange, and rounds that are void because too many have left."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.core.exchange import Field, ToClients, ToServer, play
from mpifed.core.round import Leaving, Round

CLIENTS, EXCHANGES = 6, 3
WHO = np.array([True, True, False, True, True, True])


def a_round(halves: Any, most: int, who: Any = WHO) -> Round:
    """One with drop-outs."""
    return Round(4, 9, who, leaving=Leaving(who, np.asarray(halves), most))


def there(who: Any, halves: Any, half: int) -> list[bool]:
    """Client by client: whether it takes part in the round, and in this half of it."""
    return [bool(w) and int(h) > half for w, h in zip(who, halves, strict=True)]


def drawn(seed: int) -> tuple[Any, Any, int]:
    """(who, halves, most)"""
    rng = np.random.default_rng(seed)
    who = rng.random(CLIENTS) < 0.8
    return who, rng.integers(0, 2 * EXCHANGES + 1, CLIENTS), int(rng.integers(0, CLIENTS))


@pytest.mark.parametrize("seed", range(40))
def test_asked_answering_and_staying(seed: int) -> None:
    who, halves, most = drawn(seed)
    now = a_round(halves, most, who)
    for number in range(EXCHANGES):
        here = now.at(number)
        # half 2e is answering exchange e, half 2e + 1 hearing its sum; who takes part in h halves is there in 0 ... h-1
        assert here.asked.tolist() == [bool(w) and h >= 2 * number for w, h in zip(who, halves, strict=True)]
        assert here.present.tolist() == there(who, halves, 2 * number)
        assert here.staying.tolist() == there(who, halves, 2 * number + 1)
        if number:
            assert here.asked.tolist() == now.at(number - 1).staying.tolist()
        left = int(who.sum()) - sum(there(who, halves, 2 * number + 1))
        assert here.void == (left > most)
        assert here.fewest == int(who.sum()) - most
        if not here.void:
            assert int(here.present.sum()) >= here.fewest
        assert (here.index, here.seed, here.number) == (4, 9, number)


def test_a_void_round_stays_void() -> None:
    for seed in range(200):
        now = a_round(*drawn(seed)[1:], drawn(seed)[0])
        void = [now.at(number).void for number in range(EXCHANGES)]
        assert void == sorted(void)


def test_where_nobody_leaves_everybody_is_everywhere() -> None:
    now = Round(0, 1, WHO)
    for number in range(EXCHANGES):
        here = now.at(number)
        assert here is now
        assert here.asked is here.present is here.staying is WHO
        assert not here.void
        assert here.fewest == 5
    stays = a_round(np.full(CLIENTS, 2 * EXCHANGES), 0)
    for number in range(EXCHANGES):
        here = stays.at(number)
        assert here.asked.tolist() == here.present.tolist() == here.staying.tolist() == WHO.tolist()
        assert (here.void, here.fewest) == (False, 5)


def test_the_seed_the_index_and_the_exchange_do_not_change_random_numbers() -> None:
    """Clients draw what they would have drawn, whoever else leaves."""
    plain, leaving = Round(4, 9, WHO), a_round([6, 0, 6, 1, 6, 6], 2)
    who, sizes = np.arange(CLIENTS), np.full(CLIENTS, 10)
    for number in range(EXCHANGES):
        here = leaving.at(number)
        np.testing.assert_array_equal(here.draw("rows", who, sizes, 4), plain.draw("rows", who, sizes, 4))
        np.testing.assert_array_equal(here.normals("noise", who, (3,)), plain.normals("noise", who, (3,)))


# --- play --------------------------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What a summation was asked, in which exchange."""

    call: str
    exchange: str
    number: int


class Summation:
    """Client states are counted up by every answer and every sum that is heard; all sums are 1."""

    def __init__(self, serves: bool = True) -> None:
        self.serves, self.halted, self.log = serves, False, []

    def serve(self, exchange: Any, work: Any, *given: Any) -> Any:
        return work(*given) if self.serves else None

    def tell(self, exchange: Any, question: Any) -> Any:
        return question

    def tally(self, exchange: Any, clients: Any, question: Any, now: Round) -> Any:
        self.log.append(Seen("tally", exchange.name, now.number))
        return [one + 1 for one in clients], None if now.void else 1

    def hear(self, exchange: Any, clients: Any, total: Any, now: Round) -> Any:
        assert total == 1
        self.log.append(Seen("hear", exchange.name, now.number))
        return [one + 100 for one in clients]


def ask(server: Any, now: Round) -> Any:
    return server


def exchanges() -> list[Any]:
    absorb: Any = lambda server, total, now: server + total  # noqa: E731
    return [
        ToServer("first", Field(), ask, None, absorb),  # type: ignore[arg-type]
        ToClients("second", Field(), ask, None, None),  # type: ignore[arg-type]
        ToServer("third", Field(), ask, None, absorb),  # type: ignore[arg-type]
    ]


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("last", range(2 * EXCHANGES))
def test_a_void_round_gives_the_old_states(serves: bool, last: int) -> None:
    """Whoever is the one too many to leave, at any half of any exchange: nothing of the round is left."""
    halves = np.array([6, last, 6, 6, 6, 6])
    before, summation = ([5, 7], 3 if serves else None), Summation(serves)
    server, clients = play(exchanges(), before[1], before[0], a_round(halves, 0), summation)
    assert server is before[1]
    assert clients is before[0]
    assert clients == [5, 7]
    at = last // 2  # the exchange in which it leaves is the last to be played, and its sum is not heard
    played = [(name, number) for number, name in enumerate(("first", "second", "third"))][: at + 1]
    assert [(one.exchange, one.number) for one in summation.log if one.call == "tally"] == played
    assert [one.exchange for one in summation.log if one.call == "hear"] == (["second"] if at > 1 else [])


@pytest.mark.parametrize("serves", [True, False])
def test_a_round_in_which_few_leave_is_played_to_its_end(serves: bool) -> None:
    halves = np.array([6, 0, 6, 3, 6, 6])
    summation = Summation(serves)
    server, clients = play(exchanges(), 3 if serves else None, [5, 7], a_round(halves, 2), summation)
    assert server == (5 if serves else None)
    assert clients == [5 + 103, 7 + 103]
    assert [one.number for one in summation.log] == [0, 1, 1, 2]
