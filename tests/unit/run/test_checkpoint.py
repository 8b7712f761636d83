"""Checkpoints: whole or not at all, two generations, states by ranges of clients."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.comm.states import ClientStates
from mpifed.core.errors import DataError
from mpifed.core.record import leaves, map_leaves
from mpifed.data.block import Block
from mpifed.run.checkpoint import Checkpoints, Progress
from mpifed.testing import Solo


class Inner(NamedTuple):
    m: Any
    nothing: Any


class Server(NamedTuple):
    w: Any
    steps: Any
    inner: Any


class Client(NamedTuple):
    v: Any  # [n, 3]
    count: Any  # [n]


def server(t: int) -> Server:
    return Server(np.arange(6, dtype="f4").reshape(2, 3) + t, np.int64(t), Inner(np.array([[1 / 3 + t]]), ()))


@pytest.fixture
def blocks(array_shard: Any) -> list[Block]:
    shards = [array_shard(c, np.zeros((1, 1)), [0]) for c in range(5)]
    return [Block(tuple(shards[:2])), Block(tuple(shards[2:4])), Block(tuple(shards[4:]))]


def clients(blocks: list[Block], t: int) -> list[Client]:
    return [Client(b.clients[:, None] + np.arange(3) / 7 + t, b.clients * 10 + t) for b in blocks]


def started(blocks: list[Block], states: list[Any]) -> ClientStates:
    """States that a run begins with."""
    return ClientStates(np.array([block.clients[0] for block in blocks]), lambda i: map_leaves(np.copy, states[i]))


def renewed(blocks: list[Block], states: list[Any]) -> ClientStates:
    """States that were renewed in a round."""
    found = started(blocks, states)
    for i, state in enumerate(states):
        found.put(i, state, False)
    return found


def save(folder: Path, t: int, blocks: list[Block], states: Any = None, kept: Any = None) -> Path:
    states = clients(blocks, t) if states is None else states
    to = Checkpoints(folder, Solo(), blocks)
    to.save(Progress(t, 0.5 * t, 10 * t, 20 * t), {"of": t}, server(t), renewed(blocks, states), kept or {})
    return folder / "checkpoint" / f"round-{t:08d}"


def load(folder: Path, blocks: list[Block], like: Any = None, states: Any = None) -> Any:
    here = started(blocks, clients(blocks, 0) if states is None else states)
    progress, job, found, kept = Checkpoints(folder, Solo(), blocks).load(server(0) if like is None else like, here)
    return progress, job, found, list(here), kept


def bits(record: Any) -> list[Any]:
    return [(name, np.asarray(a).dtype, np.shape(a), np.asarray(a).tobytes()) for name, a in leaves(record)]


def test_round_trip(tmp_path: Path, blocks: list[Block]) -> None:
    last = {"duals": {0: np.arange(3), 3: np.arange(5, dtype="i4")}, "primal": {0: np.arange(2) / 3}}
    save(tmp_path, 3, blocks, kept=last)
    progress, job, restored, states, kept = load(tmp_path, blocks)
    assert {name: list(sent) for name, sent in kept.items()} == {"duals": [0, 3], "primal": [0]}
    for name, sent in kept.items():
        for client, numbers in sent.items():
            assert (numbers.dtype, numbers.tolist()) == (last[name][client].dtype, last[name][client].tolist())
    assert progress == Progress(3, 1.5, 30, 60)
    assert job == {"of": 3}
    assert type(restored) is Server
    assert bits(restored) == bits(server(3))
    assert [bits(s) for s in states] == [bits(s) for s in clients(blocks, 3)]


def test_scalars_stay_scalars_and_arrays_arrays(tmp_path: Path, blocks: list[Block]) -> None:
    """NumPy's arithmetic of a scalar is not that of an array without axes: a power of it may round otherwise."""
    state = Server(np.float32(0.1), np.zeros((), np.int64), Inner(np.bool_(True), np.ones(1)))
    Checkpoints(tmp_path, Solo(), blocks).save(Progress(1), {}, state, renewed(blocks, clients(blocks, 1)), {})
    restored = load(tmp_path, blocks, like=map_leaves(np.asarray, state))[2]
    assert [type(leaf) for _, leaf in leaves(restored)] == [np.float32, np.ndarray, np.bool_, np.ndarray]
    assert bits(restored) == bits(state)


DAMAGES: dict[str, Any] = {
    "flip": lambda path: path.write_bytes(path.read_bytes()[:40] + b"\0!" + path.read_bytes()[42:]),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-10]),
    "remove": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["server.states", "clients-00000002-00000.states", "manifest.json"])
def test_the_newest_whole_one_counts(tmp_path: Path, blocks: list[Block], damage: str, name: str) -> None:
    save(tmp_path, 1, blocks)
    DAMAGES[damage](save(tmp_path, 2, blocks) / name)
    progress, job, restored, states, _ = load(tmp_path, blocks)
    assert (progress.round, job, bits(restored)) == (1, {"of": 1}, bits(server(1)))
    assert [bits(s) for s in states] == [bits(s) for s in clients(blocks, 1)]


def test_two_generations_are_kept_and_nothing_half_written(tmp_path: Path, blocks: list[Block]) -> None:
    whole = [save(tmp_path, t, blocks) for t in (1, 2, 10)][-1]
    shutil.copytree(whole, half := whole.with_name("round-00000011.new"))
    (half / "manifest.json").unlink()
    assert load(tmp_path, blocks)[0].round == 10
    save(tmp_path, 12, blocks)
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["round-00000010", "round-00000012"]


@pytest.mark.parametrize(
    "change", [lambda a: np.append(a, a, axis=-1), lambda a: a.astype("f2")], ids=["shape", "dtype"]
)
def test_states_of_another_form(tmp_path: Path, blocks: list[Block], change: Any) -> None:
    save(tmp_path, 1, blocks)
    other = server(0)._replace(w=change(server(0).w))
    with pytest.raises(DataError, match=r"server/w has shape .* and dtype float32, this job needs"):
        load(tmp_path, blocks, other)
    states = [state._replace(v=change(state.v)) for state in clients(blocks, 0)]
    with pytest.raises(DataError, match=r"v has shape .* and dtype float64, this job needs"):
        load(tmp_path, blocks, states=states)


def test_client_states_that_are_not_there(tmp_path: Path, blocks: list[Block]) -> None:
    """Nobody was ever present: all are as at the start."""
    save(tmp_path, 1, blocks, states=[(), (), ()])
    assert not list((tmp_path / "checkpoint" / "round-00000001").glob("clients-*"))
    assert [bits(s) for s in load(tmp_path, blocks)[3]] == [bits(s) for s in clients(blocks, 0)]
    assert load(tmp_path, blocks, states=[(), (), ()])[3] == [(), (), ()]


def test_folders_without_hard_links(tmp_path: Path, blocks: list[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refused)
    states, checkpoints = renewed(blocks, clients(blocks, 1)), Checkpoints(tmp_path, Solo(), blocks)
    checkpoints.save(Progress(1), {}, server(1), states, {})
    states.put(0, clients(blocks, 2)[0], False)
    checkpoints.save(Progress(2), {}, server(2), states, {})
    there = load(tmp_path, blocks)[3]
    assert [bits(s) for s in there] == [bits(s) for s in [clients(blocks, 2)[0], *clients(blocks, 1)[1:]]]


def test_segments_stay_few_and_small(tmp_path: Path, array_shard: Any) -> None:
    """Random ones of 40 clients change, for 60 rounds: the files never hold twice what is needed."""
    blocks = [Block((array_shard(c, np.zeros((1, 1)), [0]),)) for c in range(40)]
    begin = [np.full((1, 50), float(c)) for c in range(40)]
    states, checkpoints, rng = started(blocks, begin), Checkpoints(tmp_path, Solo(), blocks), np.random.default_rng(0)
    expected, touched = [np.copy(one) for one in begin], set()
    for t in range(1, 61):
        for i in rng.choice(40, 3, replace=False).tolist():
            expected[i] = np.full((1, 50), 100.0 * t + i)
            states.put(i, expected[i], False)
            touched.add(i)
        checkpoints.save(Progress(t), {}, (), states, {})
        if t % 15 == 0:
            files = list((tmp_path / "checkpoint" / f"round-{t:08d}").glob("clients-*"))
            assert len(files) <= 9
            assert sum(path.stat().st_size for path in files) < 2 * 400 * len(touched) + 8192 * len(files)
            found = started(blocks, begin)
            Checkpoints(tmp_path, Solo(), blocks).load((), found)
            np.testing.assert_array_equal(np.concatenate(list(found)), np.concatenate(expected))
