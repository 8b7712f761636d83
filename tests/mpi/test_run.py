"""Whole runs in one process a rank, on worlds of 1 to 4 ranks: the same bits, the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_transport import worlds

from mpifed.comm.federation import Federation
from mpifed.comm.placement import place
from mpifed.comm.transport import Alone, Transport
from mpifed.core.block import Block
from mpifed.core.errors import DataError, MpifedError, NumericalError, UsageError
from mpifed.core.exchange import Field, ToClients, ToServer
from mpifed.core.record import leaves
from mpifed.core.round import Round
from mpifed.run import checkpoint
from mpifed.run.checkpoint import Progress
from mpifed.run.config import Job
from mpifed.run.history import model_sha256
from mpifed.run.loop import run

pytestmark = pytest.mark.mpi(min_size=2)


def job(folder: Path, **changes: Any) -> Job:
    table = {
        "name": "mpi",
        "rounds": 5,
        "data": {"path": str(folder), "block": 2},
        "objective": {"name": "network", "hidden": 5, "penalty": 1e-3},
        "algorithm": {"name": "fedavg", "batch": 4, "step": [0.3], "local_steps": 2},
        "record": {"every": 2, "checkpoint_every": 2},
        "participation": {"clients_per_round": 6},
    }
    return Job.check(table | changes)


def sha256(result: Any) -> str:
    return model_sha256(dict(leaves(result.model)))


@pytest.mark.parametrize("dedicated", [False, True])
def test_same_bits(skewed: Path, shared_tmp_path: Path, dedicated: bool, tmp_path: Path) -> None:
    expected = run(job(skewed), Alone(), tmp_path / "alone")  # every rank by itself
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        result = run(job(skewed, server={"dedicated": dedicated}), transport, out)
        assert (result is None) == (transport.rank != 0)
        if result is not None:
            assert sha256(result) == sha256(expected)
            del result.columns["elapsed_s"], expected.columns["elapsed_s"]
            assert result.columns == expected.columns
            expected.columns["elapsed_s"] = 0.0


def test_float_sums_are_close(skewed: Path, shared_tmp_path: Path, tmp_path: Path) -> None:
    expected = run(job(skewed, compute={"dtype": "float64"}), Alone(), tmp_path / "alone")
    for transport in worlds():
        floats = job(skewed, sum={"numbers": "float"}, compute={"dtype": "float64"})
        result = run(floats, transport, shared_tmp_path / f"on-{transport.size}")
        if result is not None:
            np.testing.assert_allclose(result.model.first, expected.model.first, rtol=0, atol=1e-10)


def test_resume_on_other_worlds(skewed: Path, shared_tmp_path: Path, tmp_path: Path) -> None:
    expected = run(job(skewed), Alone(), tmp_path / "alone")
    out = shared_tmp_path / "run"
    for transport in worlds():  # one round further on each, and one for all that are left on the last
        target = job(skewed, rounds=min(transport.size, 5))
        run(target, transport, out, resume=transport.size > 1)
    for transport in worlds():
        result = run(job(skewed), transport, out, resume=True)
        if result is not None:
            assert sha256(result) == sha256(expected)


def test_errors_of_the_set_up_are_everybodys(skewed: Path, shared_tmp_path: Path) -> None:
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        too_many = job(skewed, participation={"clients_per_round": 99})
        with pytest.raises(UsageError, match="clients_per_round = 99"):
            run(too_many, transport, out)
        with pytest.raises(DataError, match="no such"):
            run(job(shared_tmp_path / "nothing"), transport, out)
        with pytest.raises(UsageError, match="no such field"):
            run(job(skewed, sum={"bounds": {"changes.nothing": 1.0}}), transport, out)
        with pytest.raises(UsageError, match="to resume"):
            run(job(skewed), transport, shared_tmp_path / f"new-{transport.size}", resume=True)


# --- the federation, with exchanges of the test's own ------------------------------------------------------------


class Toy:
    """Clients' values are 1/3, 2/3, ... and each answers with its own, plus what it was asked for."""

    def __init__(self, transport: Transport, array_shard: Any, clients: int = 5, dedicated: bool = False) -> None:
        placement = place(np.ones(clients), 2, transport.size, dedicated)
        shards = [[array_shard(c, np.zeros((1, 1)), [0]) for c in block] for block in placement.of(transport.rank)]
        self.blocks = [Block(tuple(block), "float64") for block in shards]
        self.federation = Federation(transport, self.blocks, clients, dtype="float64")
        self.states = [np.zeros((len(block.clients), 3)) for block in self.blocks]

    @staticmethod
    def answer(states: Any, question: Any, block: Block, now: Round) -> Any:
        values = (block.clients[:, None] + 1) / 3 + question + np.arange(3)
        return states + block.clients[:, None], values

    @staticmethod
    def expected(present: Any, asked: float) -> Any:
        return sum(np.round(((c + 1) / 3 + asked + np.arange(3)) * 2.0**40) for c in np.flatnonzero(present)) / 2**40


@pytest.mark.parametrize("dedicated", [False, True])
def test_tally_and_hear(array_shard: Any, dedicated: bool) -> None:
    present = np.array([True, False, True, True, False])
    for transport in worlds():
        toy = Toy(transport, array_shard, dedicated=dedicated)
        now = Round(0, 1, present)
        to_server = ToServer("up", Field((3,)), None, toy.answer, None)
        to_clients = ToClients("down", Field((3,)), None, toy.answer, lambda c, total, b, n: c + total)
        for asked in (0.25, -2.0):  # twice, so that buffers are used again
            question = toy.federation.tell(to_server, np.array([asked, 0, 0]) if transport.rank == 0 else None)
            assert question.tolist() == [asked, 0, 0]
            states, total = toy.federation.tally(to_server, toy.states, question[0], now)
            assert (total is None) == (transport.rank != 0)
            if total is not None:
                np.testing.assert_array_equal(total, toy.expected(present, asked))
            states, total = toy.federation.tally(to_clients, states, question[0], now)
            np.testing.assert_array_equal(total, toy.expected(present, asked))
            states = toy.federation.hear(to_clients, states, total, now)
            for block, after in zip(toy.blocks, states, strict=True):
                for client, state in zip(block.clients, after, strict=True):
                    there = 2.0 * client + toy.expected(present, asked) if present[client] else np.zeros(3)
                    np.testing.assert_array_equal(state, there)
            assert all((state == 0).all() for state in toy.states)  # the old states stand


def test_a_request_to_end_reaches_the_server_from_any_rank(array_shard: Any) -> None:
    for transport in worlds():
        for asking in range(transport.size):
            toy = Toy(transport, array_shard)
            toy.federation.request.asked = transport.rank == asking
            up = ToServer("up", Field((3,)), None, toy.answer, None)
            toy.federation.tally(up, toy.states, 0.0, Round(0, 1, np.ones(5, dtype=bool)))
            if transport.rank == 0:
                assert toy.federation.requested
            toy.federation.request.asked = False
            toy.federation.tally(up, toy.states, 0.0, Round(1, 1, np.ones(5, dtype=bool)))
            if transport.rank == 0:
                assert not toy.federation.requested


def test_the_order_to_end_reaches_every_rank(array_shard: Any) -> None:
    for transport in worlds():
        toy = Toy(transport, array_shard)
        up = ToServer("up", Field((3,)), None, toy.answer, None)
        toy.federation.tell(up, np.zeros(3) if transport.rank == 0 else None)
        assert not toy.federation.halted
        if transport.rank == 0:
            toy.federation.order = 75
        toy.federation.tell(up, np.zeros(3) if transport.rank == 0 else None)
        assert toy.federation.halted
        assert toy.federation.order == 75


def test_checkpoints_move_between_worlds(array_shard: Any, shared_tmp_path: Path) -> None:
    """Written by every size of world, read by every other."""
    for writer in worlds():
        toy = Toy(writer, array_shard)
        server = np.arange(4.0) if writer.rank == 0 else None
        states = [block.clients[:, None] * 10.0 + np.arange(3) for block in toy.blocks]
        folder = shared_tmp_path / f"on-{writer.size}"
        checkpoint.save(folder, writer, Progress(7, 1.5, 20, 30), {"a": 1}, server, toy.blocks, states)
        names = [p.name for p in (folder / "checkpoint").iterdir()]
        assert names == ["round-00000007"]
    for reader in worlds():
        for written in range(1, worlds_there() + 1):
            toy = Toy(reader, array_shard, dedicated=True)
            like = np.zeros(4) if reader.rank == 0 else None
            progress, table, server, states = checkpoint.load(
                shared_tmp_path / f"on-{written}", reader, like, toy.blocks, toy.states
            )
            assert progress == Progress(7, 1.5, 20, 30)
            assert table == {"a": 1}
            assert server is None if reader.rank else server.tolist() == [0, 1, 2, 3]
            for block, state in zip(toy.blocks, states, strict=True):
                np.testing.assert_array_equal(state, block.clients[:, None] * 10.0 + np.arange(3))


def test_a_checkpoint_that_one_rank_cannot_read_is_an_error_on_all(array_shard: Any, shared_tmp_path: Path) -> None:
    for transport in worlds():
        toy = Toy(transport, array_shard)
        folder = shared_tmp_path / f"on-{transport.size}"
        server = np.arange(4.0) if transport.rank == 0 else None
        checkpoint.save(folder, transport, Progress(1), {}, server, toy.blocks, toy.states)
        other = [np.zeros((len(b.clients), 2 if 4 in b.clients else 3)) for b in toy.blocks]  # client 4 only
        with pytest.raises(DataError, match="shape"):
            checkpoint.load(folder, transport, server, toy.blocks, other)


def test_a_value_out_of_bounds_is_found_on_the_rank_that_hosts_its_client(array_shard: Any) -> None:
    for transport in worlds():
        toy = Toy(transport, array_shard)

        def answer(states: Any, question: Any, block: Block, now: Round) -> Any:
            return states, np.where(block.clients[:, None] == 3, np.nan, 1.0) * np.ones(3)

        error: MpifedError | None = None
        try:
            exchange = ToServer("up", Field((3,)), None, answer, None)
            alone = Federation(Alone(), toy.blocks, 5, dtype="float64")
            alone.tally(exchange, toy.states, 0.0, Round(0, 1, np.ones(5, dtype=bool)))
        except NumericalError as found:
            error = found
        assert (error is not None) == any(3 in block.clients for block in toy.blocks)
        with pytest.raises(NumericalError, match="up: client 3 has 3 values that are not finite"):
            transport.agree(error)


def worlds_there() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.size)
