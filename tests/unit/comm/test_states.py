"""Client states in memory and in files, against a plain list; files that are damaged or forged."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from limits import soft_limit

from mpifed.comm.states import STATE, ClientStates, StateFile, fitted, named
from mpifed.core.errors import DataError
from mpifed.core.record import Record

FIRST = np.arange(6) * 2 + 5  # of each block, the first client


class State(NamedTuple):
    """40 and more bytes."""

    v: Any  # [n, 4]
    count: Any  # [n]


def begun(i: int) -> State:
    n = 1 + i % 2
    return State(np.full((n, 4), float(i)), np.zeros(n, dtype=np.int64))


def bits(record: Record) -> list[Any]:
    return [(leaf.dtype, leaf.shape, leaf.tobytes()) for leaf in record]


def save(states: ClientStates, path: Path) -> None:
    """What has changed, into a file, as a checkpoint does."""
    changed = sorted(states.changed)
    written = StateFile.written(path, [(int(FIRST[i]), named(STATE, states.peek(i))) for i in changed])
    states.are_saved(dict.fromkeys(changed, StateFile.opened(path) if len(changed) % 2 else written))


@pytest.mark.parametrize("room", [0.0, 100.0, 200.0, np.inf])
def test_like_a_list_whatever_the_room(room: float, tmp_path: Path) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        kinds = ["put", "in place", "take", "peek", "save", "void"]
        actions = [(kinds[rng.integers(6)], int(rng.integers(len(FIRST)))) for _ in range(50)]
        states, expected = ClientStates(FIRST, begun, room), [begun(i) for i in range(len(FIRST))]
        for turn, (action, i) in enumerate(actions, 1):
            if action == "put":
                expected[i] = State(expected[i].v + turn, expected[i].count + 1)
                states.put(i, State(*map(np.copy, expected[i])), False)
            elif action == "in place":  # as a federation renews some clients of a block
                record = states.take(i)
                record.v[0] = expected[i].v[0] = turn
                states.put(i, record, False)
            elif action == "save":
                save(states, tmp_path / f"{seed}-{turn}")
                assert not states.changed
            elif action == "void":  # a round of two exchanges, in which others leave memory
                for j in [i, *rng.permutation(len(FIRST)).tolist(), i]:
                    states.put(j, State(states.take(j).v - 1, states.take(j).count), True)
                states.back()
            else:
                assert bits(states.take(i) if action == "take" else states.peek(i)) == bits(expected[i]), seed
            states.commit()
            assert states.nbytes <= max(room, 80), seed  # at least one block
        assert [bits(one) for one in states] == [bits(one) for one in expected], seed


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    states = ClientStates(FIRST, lambda _: (), 0.0)
    said = rf"^{tmp_path}: clients' states beyond \[data\] state_gib cannot be written \(File too large\); name a"
    with soft_limit(resource.RLIMIT_FSIZE, 10**5), pytest.raises(DataError, match=said):
        for i in range(len(FIRST)):
            states.put(i, np.full((1, 5000), float(i)), False)
    assert not list(tmp_path.iterdir())


def forged(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """A file with another index."""

    def act(content: bytes) -> bytes:
        begin = int.from_bytes(content[-8:], "little")
        index = json.loads(content[begin:-8])
        change(index)
        return content[:begin] + json.dumps(index).encode() + content[-8:]

    return act


def leaf(at: int, value: object) -> Callable[[bytes], bytes]:
    return forged(lambda index: index["forms"][0][0].__setitem__(at, value))


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda content: b"", "index cannot be read (OSError)"),
    "cut off": (lambda content: content[:-10], "index cannot be read"),
    "an index beyond the end": (lambda content: content[:-8] + b"\xff" * 8, "index cannot be read"),
    "too deep": (lambda content: b"[" * 10**5 + bytes(8), "index cannot be read (RecursionError)"),
    "no blocks": (forged(lambda index: index.pop("blocks")), "index cannot be read (KeyError)"),
    "objects of Python": (leaf(1, "|O"), "index cannot be read (ValueError)"),
    "huge": (leaf(2, [2**40, 2**40]), "index cannot be read (ValueError)"),
    "larger than the file": (leaf(2, [999, 4]), "index cannot be read (ValueError)"),
    "beyond the file": (forged(lambda index: index["blocks"][0].__setitem__(1, 10**9)), "index cannot be read"),
    "no form": (forged(lambda index: index["blocks"][0].__setitem__(2, 9)), "index cannot be read (IndexError)"),
    "another shape": (leaf(2, [2, 2]), "client 5: state/v has shape (2, 2) and dtype float64, this job needs (1, 4)"),
    "another name": (leaf(0, "state/u"), "client 5: no state/v, which this job needs"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_a_file_that_does_not_fit(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.states"
    StateFile.written(path, [(5, named(STATE, begun(0)))])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        fitted(STATE, begun(0), StateFile.opened(path).read(5, STATE), f"{path}: client 5")
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)
    assert "resume with the job that wrote it, or start anew" in str(caught.value)


def test_a_file_that_is_cut_off_or_gone_later(tmp_path: Path) -> None:
    path = tmp_path / "a.states"
    file = StateFile.written(path, [(5, named(STATE, begun(0)))])
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DataError, match="cannot be read"):
        file.read(5, STATE)
    path.unlink()
    with pytest.raises(DataError, match=r"cannot be read \(No such file"):
        file.read(5, STATE)
