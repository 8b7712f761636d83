"""Client states in memory and on the disk, against a plain list."""

from __future__ import annotations

import errno
import os
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.core.errors import DataError
from mpifed.core.record import Record
from mpifed.core.states import ClientStates, Tentative, writable

BLOCKS = 6


class State(NamedTuple):
    """40 and more bytes."""

    v: Any  # [n, 4]
    count: Any  # [n]


def begun(i: int) -> State:
    n = 1 + i % 2
    return State(np.full((n, 4), float(i)), np.zeros(n, dtype=np.int64))


def bits(record: Record) -> list[Any]:
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in record]


class Saved:
    """A checkpoint in memory; see `mpifed.core.states.Saved`."""

    def __init__(self, states: list[Any], which: set[int]) -> None:
        self.states, self.which, self.read_of = states, which, list[int]()

    def read(self, i: int, like: Record) -> Record | None:
        self.read_of.append(i)
        return State(*map(np.copy, self.states[i])) if i in self.which else None


@pytest.mark.parametrize("room", [0.0, 100.0, 200.0, np.inf])
def test_like_a_list_whatever_the_room(room: float) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        kinds = ["set", "in place", "get", "peek", "save"]
        actions = [(kinds[rng.integers(5)], int(rng.integers(BLOCKS))) for _ in range(40)]
        states, expected = ClientStates(BLOCKS, begun, room), [begun(i) for i in range(BLOCKS)]
        ever, since = set[int](), set[int]()
        for turn, (action, i) in enumerate(actions, 1):
            if action == "set":
                expected[i] = State(expected[i].v + turn, expected[i].count + 1)
                states[i] = State(*map(np.copy, expected[i]))
            elif action == "in place":  # as a federation renews some clients of a block
                record = states[i]
                record.v[0] = expected[i].v[0] = turn
                states[i] = record
            elif action == "save":
                states.is_saved(Saved([State(*map(np.copy, one)) for one in expected], set(ever)))
                since.clear()
            else:
                assert bits(states[i] if action == "get" else states.peek(i)) == bits(expected[i]), seed
            if action in ("set", "in place"):
                ever.add(i)
                since.add(i)
            assert states.changed == since, seed
            assert room == np.inf or states.nbytes <= max(room, 80), seed  # at least one block
        assert [bits(one) for one in states] == [bits(one) for one in expected], seed
        assert len(states) == BLOCKS, seed


def test_what_a_checkpoint_has_is_dropped_and_read_again() -> None:
    states = ClientStates(BLOCKS, begun, 0.0)
    saved = Saved([begun(i) for i in range(BLOCKS)], set(range(BLOCKS)))
    states.is_saved(saved)
    for i in range(3):
        assert bits(states[i]) == bits(begun(i))
    assert not any(i in states.scratch for i in range(BLOCKS))
    states[0] = begun(0)
    assert states[1] is not None
    assert 0 in states.scratch
    saved.read_of.clear()
    assert bits(states[0]) == bits(begun(0))
    assert saved.read_of == []  # what has changed since is not read from there


def test_a_void_round_leaves_all_as_it_was() -> None:
    states, turn, next_turn = ClientStates(BLOCKS, begun), object(), object()
    first = writable(states, turn)
    assert isinstance(first, Tentative)
    first[2] = State(np.ones((1, 4)), np.ones(1))
    assert writable(first, turn) is first  # the next exchange of the round
    assert bits(first[2]) != bits(states[2])
    void = writable(states, next_turn)  # the round is played again, upon what was before
    assert bits(void[2]) == bits(begun(2))
    void[3] = State(np.ones((2, 4)), np.ones(2))
    played = writable(void, turn)  # and this time another round is played upon it
    assert played is not void
    assert bits(states[3]) == bits(State(np.ones((2, 4)), np.ones(2)))
    assert bits(states[2]) == bits(begun(2))
    assert played.settled() is states
    assert list(map(bits, played)) == list(map(bits, states))


def test_a_full_disk_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    states = ClientStates(BLOCKS, begun, 0.0)
    states[0] = begun(0)
    with pytest.raises(DataError, match=r"state_gib cannot be written \(No space left.*TMPDIR"):
        states[1] = begun(1)
