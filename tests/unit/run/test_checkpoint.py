"""Checkpoints: whole or not at all, two generations, states by ranges of clients."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpifed.comm.transport import Alone
from mpifed.core.block import Block
from mpifed.core.errors import DataError
from mpifed.core.record import leaves, map_leaves
from mpifed.run import checkpoint
from mpifed.run.checkpoint import Progress


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


def save(folder: Path, t: int, blocks: list[Block], states: Any = None, kept: Any = None) -> Path:
    states = clients(blocks, t) if states is None else states
    checkpoint.save(folder, Alone(), Progress(t, 0.5 * t, 10 * t, 20 * t), {"of": t}, server(t), blocks, states, kept)
    return folder / "checkpoint" / f"round-{t:08d}"


def load(folder: Path, blocks: list[Block]) -> Any:
    return checkpoint.load(folder, Alone(), server(0), blocks, clients(blocks, 0))


def bits(record: Any) -> list[Any]:
    return [(name, np.asarray(a).dtype, np.shape(a), np.asarray(a).tobytes()) for name, a in leaves(record)]


def test_round_trip(tmp_path: Path, blocks: list[Block]) -> None:
    last = {0: {"duals": np.arange(3), "primal": np.arange(2) / 3}, 3: {"duals": np.arange(5, dtype="i4")}}
    save(tmp_path, 3, blocks, kept=last)
    progress, job, restored, states, kept = load(tmp_path, blocks)
    assert {client: list(one) for client, one in kept.items()} == {0: ["duals", "primal"], 3: ["duals"]}
    for client, one in kept.items():
        for name, numbers in one.items():
            assert (numbers.dtype, numbers.tolist()) == (last[client][name].dtype, last[client][name].tolist())
    assert progress == Progress(3, 1.5, 30, 60)
    assert job == {"of": 3}
    assert type(restored) is Server
    assert bits(restored) == bits(server(3))
    assert [bits(s) for s in states] == [bits(s) for s in clients(blocks, 3)]


def test_two_generations_are_kept(tmp_path: Path, blocks: list[Block]) -> None:
    for t in (1, 2, 10, 11):
        save(tmp_path, t, blocks)
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["round-00000010", "round-00000011"]
    assert load(tmp_path, blocks)[0].round == 11


def test_the_same_round_again(tmp_path: Path, blocks: list[Block]) -> None:
    save(tmp_path, 4, blocks)
    save(tmp_path, 4, blocks)
    assert load(tmp_path, blocks)[0].round == 4


def damages() -> list[Any]:
    def flip(folder: Path, name: str) -> None:
        stored = bytearray((folder / name).read_bytes())
        stored[len(stored) // 2] ^= 4
        (folder / name).write_bytes(stored)

    def cut(folder: Path, name: str) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[:-10])

    def remove(folder: Path, name: str) -> None:
        (folder / name).unlink()

    names = ["server.h5", "clients-00000000-00000004.h5", "manifest.json"]
    return [
        pytest.param(damage, name, id=f"{damage.__name__}-{name}")
        for damage in (flip, cut, remove)
        for name in names
        if (damage, name) != (flip, "manifest.json")
    ]


@pytest.mark.parametrize(("damage", "name"), damages())
def test_the_newest_whole_one_counts(tmp_path: Path, blocks: list[Block], damage: Any, name: str) -> None:
    save(tmp_path, 1, blocks)
    damage(save(tmp_path, 2, blocks), name)
    progress, job, restored, states, _ = load(tmp_path, blocks)
    assert (progress.round, job) == (1, {"of": 1})
    assert bits(restored) == bits(server(1))
    assert [bits(s) for s in states] == [bits(s) for s in clients(blocks, 1)]


@pytest.mark.parametrize(("damage", "name"), damages())
def test_none_is_whole(tmp_path: Path, blocks: list[Block], damage: Any, name: str) -> None:
    for t in (1, 2):
        damage(save(tmp_path, t, blocks), name)
    with pytest.raises(DataError) as caught:
        load(tmp_path, blocks)
    said = str(caught.value)
    assert "nothing to resume" in said
    assert "round-00000002: " in said
    assert "round-00000001: " in said


def test_there_is_none(tmp_path: Path, blocks: list[Block]) -> None:
    with pytest.raises(DataError, match="no checkpoint was written"):
        load(tmp_path, blocks)


def test_another_schema(tmp_path: Path, blocks: list[Block]) -> None:
    folder = save(tmp_path, 1, blocks)
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"schema": 2', '"schema": 99'))
    with pytest.raises(DataError, match="schema 99, this version reads 2"):
        load(tmp_path, blocks)


def test_what_an_interrupted_writer_left_is_ignored_and_removed(tmp_path: Path, blocks: list[Block]) -> None:
    whole = save(tmp_path, 1, blocks)
    shutil.copytree(whole, whole.with_name("round-00000002.new"))
    (whole.with_name("round-00000002.new") / "manifest.json").unlink()
    assert load(tmp_path, blocks)[0].round == 1
    save(tmp_path, 3, blocks)
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["round-00000001", "round-00000003"]


@pytest.mark.parametrize(
    "change", [lambda a: np.append(a, a, axis=-1), lambda a: a.astype("f2")], ids=["shape", "dtype"]
)
def test_states_of_another_form(tmp_path: Path, blocks: list[Block], change: Any) -> None:
    save(tmp_path, 1, blocks)
    other = server(0)._replace(w=change(server(0).w))
    with pytest.raises(DataError, match=r"server/w has shape .* and dtype float32, this job needs"):
        checkpoint.load(tmp_path, Alone(), other, blocks, clients(blocks, 0))
    states = [state._replace(v=change(state.v)) for state in clients(blocks, 0)]
    with pytest.raises(DataError, match=r"v has shape .* and dtype float64, this job needs"):
        checkpoint.load(tmp_path, Alone(), server(0), blocks, states)


class More(NamedTuple):
    w: Any
    steps: Any
    inner: Any
    added: Any


def test_states_with_a_new_field(tmp_path: Path, blocks: list[Block]) -> None:
    """As of a later version of the algorithm."""
    save(tmp_path, 1, blocks)
    with pytest.raises(DataError):
        checkpoint.load(tmp_path, Alone(), More(*server(0), np.zeros(2)), blocks, clients(blocks, 0))


def test_client_states_that_are_not_there(tmp_path: Path, blocks: list[Block]) -> None:
    save(tmp_path, 1, blocks, states=[(), (), ()])
    assert not list((tmp_path / "checkpoint" / "round-00000001").glob("clients-*"))
    with pytest.raises(DataError, match="no file holds the state of client 0"):
        load(tmp_path, blocks)
    _, _, _, states, _ = checkpoint.load(tmp_path, Alone(), server(0), blocks, [(), (), ()])
    assert states == [(), (), ()]


def test_client_states_are_grouped_by_ranges_and_not_by_ranks(
    tmp_path: Path, blocks: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_RANGE", 2)
    folder = save(tmp_path, 1, blocks)
    names = sorted(p.name for p in folder.glob("clients-*"))
    assert names == [f"clients-{a:08d}-{b:08d}.h5" for a, b in ((0, 1), (2, 3), (4, 4))]
    monkeypatch.undo()
    _, _, _, states, _ = load(tmp_path, blocks[1:])  # a rank that hosts the last ones
    assert [bits(s) for s in states] == [bits(s) for s in clients(blocks[1:], 1)]


def test_saving_changes_nothing(tmp_path: Path, blocks: list[Block]) -> None:
    states = clients(blocks, 1)
    before = [bits(map_leaves(np.copy, s)) for s in states]
    save(tmp_path, 1, blocks, states)
    assert [bits(s) for s in states] == before


def test_a_folder_that_cannot_be_written(tmp_path: Path, blocks: list[Block]) -> None:
    (tmp_path / "checkpoint").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="checkpoint"):
        save(tmp_path, 1, blocks)
