"""Messages of any length put together and spread, and every channel's sums, on worlds of 1 to 4 ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from sparse_masks import sparsest
from test_transport import around_a_piece, worlds

from mpifed.comm.channels.masked import Masked
from mpifed.comm.sums import Message, Sum
from mpifed.comm.transport import Bytes
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Field
from mpifed.run.api import run
from mpifed.testing import Alone, Job

pytestmark = pytest.mark.mpi(min_size=2)


def bytes_of(rank: int, length: int) -> Bytes:
    """What a rank contributes; no two ranks' bytes are alike."""
    return ((np.arange(length) * 7 + 61 * rank) % 251).astype(np.uint8)


LENGTHS: dict[str, Callable[[int], int]] = {
    "alike": lambda rank: 5,
    "growing": lambda rank: 1 + 3 * rank,
    "shrinking": lambda rank: max(0, 9 - 4 * rank),
    "none": lambda rank: 0,
    "every other": lambda rank: 7 * (rank % 2),
    "the root alone": lambda rank: 11 if rank == 0 else 0,
    "long": lambda rank: 100_000 + rank,
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_fold_puts_together_in_order_of_ranks(lengths: Callable[[int], int]) -> None:
    """Concatenation shows the order, and that nothing is left out or taken twice."""
    for transport in worlds():
        mine = bytes_of(transport.rank, lengths(transport.rank))
        found = transport.fold(mine, lambda one, other: np.concatenate([one, other]))
        expected = np.concatenate([bytes_of(rank, lengths(rank)) for rank in range(transport.size)])
        if transport.rank == 0:
            assert found is not None
            assert found.dtype == np.uint8
            np.testing.assert_array_equal(found, expected)
        else:
            assert found is None
        np.testing.assert_array_equal(mine, bytes_of(transport.rank, lengths(transport.rank)))


@pytest.mark.parametrize("everywhere", [True, False])
def test_exact_sums_that_move_into_shared_memory(everywhere: bool) -> None:
    """From the first turn on, with the last number, which is added before they move; each total stays what it was."""
    shape = (1 << 15, 2)  # long enough to stand there
    for transport in chain(worlds(), [Alone()]):
        earlier = []
        message = Message(Exchange("up", Field(shape), None, None, None), 4)  # type: ignore[arg-type]
        adder = Sum(message)
        before = adder.numbers
        for turn in range(10):
            adder.begin(True)
            adder.add(np.full((1, *shape), 1 + transport.rank + turn, "f4"), np.array([transport.rank]))
            adder.close()[-1] = 1
            reduced = adder.reduce(transport, everywhere)
            assert (adder.numbers is not before) == (1 < transport.size <= (os.cpu_count() or 1))
            assert (reduced is not None) == (everywhere or transport.rank == 0)
            if reduced is not None:
                assert reduced[-1] == transport.size
                earlier.append((message.decode(reduced), sum(1 + rank + turn for rank in range(transport.size))))
        for total, expected in earlier:
            np.testing.assert_array_equal(total, expected)


def test_fold_of_messages_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for length in around_a_piece("uint8", monkeypatch):
        for transport in worlds():
            found = transport.fold(bytes_of(transport.rank, length), lambda one, other: np.concatenate([one, other]))
            if found is not None:
                expected = [bytes_of(rank, length) for rank in range(transport.size)]
                np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize("length", [0, 1, 1000])
def test_spread_from_any_rank(length: int) -> None:
    for transport in worlds():
        for root in range(transport.size):
            mine = bytes_of(root, length) if transport.rank == root else None
            np.testing.assert_array_equal(transport.spread(root, mine), bytes_of(root, length))


def test_spread_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for length in around_a_piece("uint8", monkeypatch):
        for transport in worlds():
            root = transport.size - 1
            mine = bytes_of(root, length) if transport.rank == root else None
            np.testing.assert_array_equal(transport.spread(root, mine), bytes_of(root, length))


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
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        result = run(job, transport, out)
        assert (result is None) == (transport.rank != 0)
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
def test_all_ranks_end_when_every_attempt_is_void(
    channel: str, skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(LAWS)
    part = {"clients_per_round": 9, "dropout_rate": 0.9, "max_dropouts": 2, "attempts": 3}
    job = gossip(skewed, participation=part, **CHANNELS[channel])
    for transport in worlds():
        with pytest.raises(TooFewClients, match=r"round 0: .*max_dropouts = 2") as caught:
            run(job, transport, shared_tmp_path / f"on-{transport.size}")
        assert caught.value.agreed
        assert transport.gather("still together") in (None, ["still together"] * transport.size)


@pytest.mark.parametrize("channel", CHANNELS)
def test_all_ranks_end_when_too_many_leave_after_a_sum_was_opened(
    channel: str, skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(LAWS)
    from channel_algorithms import by_hand, saved

    job = gossip(skewed, seed=19, **CHANNELS[channel])
    expected = by_hand(job, 11)
    assert expected.ended == 2
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        with pytest.raises(TooFewClients, match=r"round 2: .*max_dropouts = 2") as caught:
            run(job, transport, out)
        assert caught.value.agreed
        if transport.rank == 0:
            assert saved(out).server["model.value"].tolist() == expected.model.value.tolist()
        assert transport.gather("still together") in (None, ["still together"] * transport.size)
