"""Who is there in which half of which exchange, and rounds that are void because too many have left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
        stay = sum(there(who, halves, 2 * number + 1))
        assert here.void == (int(who.sum()) - stay > most or not stay)
        assert here.fewest == max(int(who.sum()) - most, 1)
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
