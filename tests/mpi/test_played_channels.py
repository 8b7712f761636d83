"""Sums that move into shared memory, and ends where too many leave, on worlds of 1 to 4 ranks."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from jobs_in_python import checked, job_table
from sparse_masks import sparsest
from sub_worlds import worlds

from mpifed.comm.channels.masked import Masked
from mpifed.comm.sums import Message, Sum
from mpifed.core.errors import TooFewClients
from mpifed.core.exchange import Exchange, Field
from mpifed.run.api import run
from mpifed.testing import Solo

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


# --- ends --------------------------------------------------------------------------------------------------------

LAWS = str(Path(__file__).parents[1] / "laws")  # holds `channel_algorithms`


@pytest.mark.parametrize("channel", ["plain", "masked", "masked, sparse", "encrypted"])
@pytest.mark.parametrize("opened", [False, True])
def test_all_ranks_end_when_too_many_leave(
    channel: str, opened: bool, skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every attempt at a round; or after one of its sums was opened, which no attempt may follow."""
    monkeypatch.syspath_prepend(LAWS)
    from channel_algorithms import by_hand, saved

    if "sparse" in channel:  # a graph with fewer than all pairs
        monkeypatch.setattr(Masked, "neighbours", sparsest)
    rate = {"dropout_rate": 0.2} if opened else {"dropout_rate": 0.9, "attempts": 3}
    job = checked(job_table(
        skewed, rounds=8, seed=19 if opened else 157, algorithm={"name": "channel_algorithms:Gossip"},
        participation={"clients_per_round": 9, "max_dropouts": 2, **rate},
        aggregation={"security": channel.partition(",")[0]}, record={"evaluate_every": 4, "checkpoint_every": 0},
    ))  # fmt: skip
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
