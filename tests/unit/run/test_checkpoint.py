"""Checkpoints: scalars and arrays as they were, two generations, few files; tests/kill has their moments."""

from __future__ import annotations

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


class Server(NamedTuple):
    w: Any
    steps: Any
    nothing: Any = ()


# NumPy's arithmetic of a scalar is not that of an array without axes: a power of it may round otherwise
SERVERS = [Server(np.ones((2, 3), "f4"), np.int64(3)), Server(np.float32(0.1), np.zeros((), np.int64), np.bool_(True))]


@pytest.fixture
def blocks(array_shard: Any) -> list[Block]:
    return [Block((array_shard(c, np.zeros((1, 1)), [0]),)) for c in range(40)]


def started(blocks: list[Block], states: list[Any]) -> ClientStates:
    """States that a run begins with."""
    return ClientStates(np.array([block.clients[0] for block in blocks]), lambda i: map_leaves(np.copy, states[i]))


def load(folder: Path, blocks: list[Block], like: Any, first: Any = np.zeros((1, 3))) -> Any:  # noqa: B008
    states, told = started(blocks, [first] * len(blocks)), list[Any]()
    found = Checkpoints(folder, Solo(), blocks).load(like, states, lambda *run: told.extend(run))
    assert told[0] == found[0]
    return told[1], *found, list(states)


@pytest.mark.parametrize("server", SERVERS)
def test_round_trip_and_states_of_another_form(server: Server, tmp_path: Path, blocks: list[Block]) -> None:
    kept = {"duals": {0: np.arange(3), 2: np.arange(5, dtype="i4")}, "primal": {0: np.arange(2) / 3}}
    states = started(blocks, [()] * len(blocks))
    for i in range(0, len(blocks), 2):
        states.put(i, np.full((1, 3), i + 3 / 7), False)
    Checkpoints(tmp_path, Solo(), blocks).save(Progress(3, 1.5, 30), {"of": 3}, server, states, kept)
    about, progress, restored, found, values = load(tmp_path, blocks, map_leaves(np.asarray, server))
    assert (progress, about) == (Progress(3, 1.5, 30), {"of": 3})
    one, other = ([(name, type(a), a.dtype, a.tobytes()) for name, a in leaves(each)] for each in (restored, server))
    assert one == other
    np.testing.assert_array_equal(np.concatenate(values)[:, 0], [i + 3 / 7 if i % 2 == 0 else 0 for i in range(40)])
    np.testing.assert_equal(found, kept)
    assert found["duals"][2].dtype == np.int32
    for change in (lambda a: np.append(a, a, axis=-1), lambda a: a.astype("f2")):
        with pytest.raises(DataError, match=r"server/w has shape .* and dtype float32, this job needs"):
            load(tmp_path, blocks, server._replace(w=change(np.atleast_1d(server.w))))
        with pytest.raises(DataError, match=r"has shape .* and dtype float64, this job needs"):
            load(tmp_path, blocks, server, change(np.zeros((1, 3))))


@pytest.mark.parametrize("links", [True, False])
def test_segments_stay_few_and_small(
    links: bool, tmp_path: Path, blocks: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random ones of 40 clients change, for 60 rounds: the files never hold twice what is needed."""

    def refused(*_: Any) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr("os.link", refused)
    begin = [np.full((1, 50), float(c)) for c in range(40)]
    states, checkpoints, rng = started(blocks, begin), Checkpoints(tmp_path, Solo(), blocks), np.random.default_rng(0)
    expected, touched = [np.copy(one) for one in begin], set()
    for t in range(1, 61 if links else 16):
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
            Checkpoints(tmp_path, Solo(), blocks).load((), found, lambda *_: None)
            np.testing.assert_array_equal(np.concatenate(list(found)), np.concatenate(expected))
