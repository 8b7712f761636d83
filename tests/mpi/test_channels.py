"""Every channel's sums, on worlds of 1 to 4 ranks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from sparse_masks import sparsest
from sub_worlds import worlds

from mpifed.comm.channels.masked import Masked
from mpifed.comm.sums import Message, Sum
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Field
from mpifed.run.api import run
from mpifed.testing import Job, Solo

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("everywhere", [True, False])
def test_exact_sums_that_move_into_shared_memory(everywhere: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first turn on, with the last number, which is added before they move; each total stays what it was."""
    monkeypatch.setenv("MPIFED_REDUCE", "nodes")  # under Open MPI, and on more ranks than cores, too
    shape = (1 << 15, 2)  # long enough to stand there
    for comm in chain(worlds(), [Solo()]):
        earlier = []
        message = Message(Exchange("up", Field(shape), None, None, None), 4)  # type: ignore[arg-type]
        adder = Sum(message)
        before = adder.numbers
        for turn in range(10):
            adder.begin(True)
            adder.add(np.full((1, *shape), 1 + comm.rank + turn, "f4"), np.array([comm.rank]))
            adder.numbers[-1] = 1
            reduced = adder.reduce(comm, everywhere)
            assert (adder.numbers is not before) == (comm.size > 1)
            assert (reduced is not None) == (everywhere or comm.rank == 0)
            if reduced is not None:
                assert reduced[-1] == comm.size
                earlier.append((message.decode(reduced), sum(1 + rank + turn for rank in range(comm.size))))
        for total, expected in earlier:
            np.testing.assert_array_equal(total, expected)


# --- sums --------------------------------------------------------------------------------------------------------

LAWS = str(Path(__file__).parents[1] / "laws")  # holds `channel_algorithms`
CHANNELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"aggregation": {"security": "masked"}},
    "masked, sparse": {"aggregation": {"security": "masked"}},
    "encrypted": {"aggregation": {"security": "encrypted"}},
}


@pytest.fixture(autouse=True)
def sparse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with fewer than all pairs, where the name of the test says so."""
    if "sparse" in request.node.name:
        monkeypatch.setattr(Masked, "neighbours", sparsest)


def gossip(folder: Path, **changes: Any) -> Job:
    """Sums for clients and for the server; rounds of which some are void, and clients who leave at every half."""
    base: dict[str, Any] = {
        "name": "mpi", "rounds": 8, "seed": 157, "data": {"path": str(folder), "block": 2},
        "model": {"name": "softmax", "bias": False}, "algorithm": {"name": "channel_algorithms:Gossip"},
        "participation": {"clients_per_round": 9, "dropout_rate": 0.2, "max_dropouts": 2},
        "record": {"evaluate_every": 4, "checkpoint_every": 0},
    }  # fmt: skip
    return checked(base | changes)


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("channel", CHANNELS)
def test_sums_are_as_by_hand(
    channel: str, dedicated: bool, skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ranks that host clients, and on those that host none."""
    monkeypatch.syspath_prepend(LAWS)
    from channel_algorithms import by_hand, saved

    job = gossip(skewed, server={"dedicated": dedicated}, **CHANNELS[channel])
    expected = by_hand(job, 11)
    assert expected.ended is None and sum(expected.attempts) > job.rounds and all(expected.happened.values())
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        result = run(job, comm, out)
        assert (result is None) == (comm.rank != 0)
        if result is None:
            continue
        assert result.model.value.tolist() == expected.model.value.tolist()
        assert result.model.answered == expected.model.answered
        found = saved(out)
        for name, leaf in expected.clients._asdict().items():
            np.testing.assert_array_equal(found.clients[name], leaf, err_msg=name)
        if channel == "plain":
            assert (found.progress.up_bytes, found.progress.down_bytes) == (expected.up_bytes, expected.down_bytes)
        else:
            assert found.progress.up_bytes > expected.up_bytes


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("opened", [False, True])
def test_all_ranks_end_when_too_many_leave(
    channel: str, opened: bool, skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every attempt at a round; or after one of its sums was opened, which no attempt may follow."""
    monkeypatch.syspath_prepend(LAWS)
    from channel_algorithms import by_hand, saved

    leaving = {"clients_per_round": 9, "dropout_rate": 0.9, "max_dropouts": 2, "attempts": 3}
    job = gossip(skewed, **CHANNELS[channel], **({"seed": 19} if opened else {"participation": leaving}))
    expected = by_hand(job, 11)
    assert (expected.ended, expected.void) == ((2, False) if opened else (0, True))
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        with pytest.raises(TooFewClients, match=rf"round {expected.ended}: .*max_dropouts = 2") as caught:
            run(job, comm, out)
        assert caught.value.agreed
        if comm.rank == 0 and opened:
            assert saved(out).server["model.value"].tolist() == expected.model.value.tolist()
        assert comm.gather("still together") in (None, ["still together"] * comm.size)
