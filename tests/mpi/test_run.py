"""Whole runs in one process a rank, on worlds of 1 to 4 ranks: the same bits, the same errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from jobs_in_python import checked
from rank_runs import run
from test_transport import worlds

from mpifed.comm.aggregator import Aggregator
from mpifed.comm.placement import place
from mpifed.comm.transport import Transport
from mpifed.core.block import Block
from mpifed.core.errors import DataError, MpifedError, NotCertified, NumericalError, UsageError
from mpifed.core.exchange import Field, Placed, ToClients, ToServer
from mpifed.core.holdings import Cells, Holdings
from mpifed.core.record import leaves
from mpifed.core.round import Round
from mpifed.core.states import ClientStates
from mpifed.files.clients import read_clients
from mpifed.files.model_file import model_sha256
from mpifed.run import api
from mpifed.run.checkpoint import Checkpoints, Progress
from mpifed.testing import Alone, Job

pytestmark = pytest.mark.mpi(min_size=2)


def job(folder: Path, **changes: Any) -> Job:
    table = {
        "name": "mpi",
        "rounds": 5,
        "data": {"path": str(folder), "block": 2},
        "model": {"name": "mlp", "bias": False, "hidden": 5, "l2": 1e-3},
        "algorithm": {"name": "fedavg", "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.3}},
        "record": {"evaluate_every": 2, "checkpoint_every": 2},
        "participation": {"clients_per_round": 6},
    }
    return checked(table | changes)


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


@pytest.mark.parametrize("dedicated", [False, True])
def test_same_bits_on_the_clients_own_test_rows(
    tested: Path, shared_tmp_path: Path, dedicated: bool, tmp_path: Path
) -> None:
    """Of 3 blocks on 4 ranks, one of which hosts nobody."""
    changes = {
        "rounds": 2, "data": {"path": str(tested), "block": 3}, "model": {"name": "least-squares"},
        "participation": {}, "server": {"dedicated": dedicated},
        "algorithm": {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.1}},
    }  # fmt: skip
    expected = run(job(tested, **changes), Alone(), tmp_path / "alone")  # every rank by itself
    assert expected is not None and len(read_clients(tmp_path / "alone")["client"]) > 3
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        result = run(job(tested, **changes), transport, out)
        if result is not None:
            measured = [name for name in expected.columns if name.startswith("client_test_")]
            assert len(measured) == 6
            assert [result.columns[name] for name in measured] == [expected.columns[name] for name in measured]
            assert (out / "clients.csv").read_text() == (tmp_path / "alone" / "clients.csv").read_text()


CONSTRAINED = {
    "algorithm": {"name": "ssca", "batch_size": 4, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "slack_cost": 20.0},
    "constraint": [{"name": "loss", "classes": [0, 1, 2], "limit": 1.5}, {"name": "norm", "limit": 9.0}],
}


def vertical(folder: Path, **changes: Any) -> Job:
    algorithm = CONSTRAINED["algorithm"] | {"name": "ssca", "label_holder": 3}
    return job(folder, **({**CONSTRAINED, "algorithm": algorithm, "participation": {}} | changes))


@pytest.mark.parametrize("dedicated", [False, True])
@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_same_bits_with_constraints(
    kind: str, dedicated: bool, skewed: Path, scattered: Path, shared_tmp_path: Path, tmp_path: Path
) -> None:
    def task(**changes: Any) -> Job:
        return vertical(scattered, **changes) if kind == "columns" else job(skewed, **CONSTRAINED, **changes)

    expected = run(task(), Alone(), tmp_path / "alone")
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        result = run(task(server={"dedicated": dedicated}), transport, out)
        assert (result is None) == (transport.rank != 0)
        if result is not None:
            assert sha256(result) == sha256(expected)
            same = [{**one.columns, "elapsed_s": 0} for one in (result, expected)]
            assert same[0] == same[1]
            assert same[0]["kkt_residual"] > 0


def test_not_certified_is_everybodys_end(skewed: Path, shared_tmp_path: Path) -> None:
    for transport in worlds():
        out = shared_tmp_path / f"on-{transport.size}"
        with pytest.raises(NotCertified, match="kkt_residual = 1e-09") as caught:
            api.run(job(skewed, stop={"kkt_residual": 1e-9}), transport, out)
        assert caught.value.agreed
        easy = api.run(job(skewed, stop={"kkt_residual": 1e3}, rounds=9), transport, out, resume=True)
        assert (easy is None) == (transport.rank != 0)
        if easy is not None:
            assert easy.rounds == 5  # it was there already


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
            run(job(skewed, aggregation={"bounds": {"changes.nothing": 1.0}}), transport, out)


# --- the aggregator, with exchanges of the test's own ------------------------------------------------------------


class Toy:
    """Clients' values are 1/3, 2/3, ... and each answers with its own, plus what it was asked for."""

    def __init__(self, transport: Transport, array_shard: Any, clients: int = 5, dedicated: bool = False) -> None:
        placement = place(np.ones(clients), 2, transport.size, dedicated)
        shards = [[array_shard(c, np.zeros((1, 1)), [0]) for c in block] for block in placement.of(transport.rank)]
        self.blocks = [Block(tuple(block), "float64") for block in shards]
        self.aggregator = Aggregator(transport, self.blocks, clients, dtype="float64")
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
            question = toy.aggregator.tell(to_server, np.array([asked, 0, 0]) if transport.rank == 0 else None)
            assert question.tolist() == [asked, 0, 0]
            before = [state.copy() for state in toy.states]  # those of a round are renewed where they lie
            states, total = toy.aggregator.tally(to_server, before, question[0], now)
            assert (total is None) == (transport.rank != 0)
            if total is not None:
                np.testing.assert_array_equal(total, toy.expected(present, asked))
            states, total = toy.aggregator.tally(to_clients, states, question[0], now)
            np.testing.assert_array_equal(total, toy.expected(present, asked))
            states = toy.aggregator.hear(to_clients, states, total, now)
            for block, after in zip(toy.blocks, states, strict=True):
                for client, state in zip(block.clients, after, strict=True):
                    there = 2.0 * client + toy.expected(present, asked) if present[client] else np.zeros(3)
                    np.testing.assert_array_equal(state, there)


WIDTHS = [2, 3, 1, 2, 1]
PLACES = [slice(0, 2), np.array([2, 5, 8]), np.array([3]), slice(6, 8), np.array([4])]
COLUMNS = Cells.of_columns(Holdings(9, np.arange(5), tuple(PLACES)))


class Mixed(NamedTuple):
    """An answer of single clients' values and of everybody's."""

    placed: Any  # [9], by columns
    of_one: Any  # [] of client 2
    of_all: Any  # [2]


@pytest.mark.parametrize("dedicated", [False, True])
def test_values_of_single_clients(array_shard: Any, dedicated: bool) -> None:
    fields = Mixed(Field((9,), columns=0), Field((), sender=2), Field((2,)))
    asked: list[int] = []

    def answer(states: Any, question: Any, block: Block, now: Round) -> Any:
        asked.append(len(block.clients))
        placed = Placed([np.full(WIDTHS[c], c + 0.5) for c in block.clients], [PLACES[c] for c in block.clients], 9)
        return states + 1, Mixed(placed, block.clients * 10.0, np.ones((len(block.clients), 2)))

    expected = np.zeros(9)
    for client, at in enumerate(PLACES):
        expected[at] = client + 0.5
    for transport in worlds():
        toy = Toy(transport, array_shard, dedicated=dedicated)
        aggregator = Aggregator(transport, toy.blocks, 5, dtype="float64", cells=COLUMNS)
        for one_by_one in (False, True):
            asked.clear()
            up = ToServer(f"up-{one_by_one}", fields, None, answer, None, one_by_one=one_by_one)
            states, total = aggregator.tally(up, toy.states, 0.0, Round(0, 1, np.ones(5, dtype=bool)))
            assert asked == [1] * sum(map(len, toy.states)) if one_by_one else asked == list(map(len, toy.states))
            assert all((state == 1).all() for state in states)
            if transport.rank == 0:
                assert total.placed.tolist() == expected.tolist()
                assert float(total.of_one) == 20.0
                assert total.of_all.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("hearer", [None, 0, 3])
def test_who_hears(array_shard: Any, hearer: int | None, alike: bool) -> None:
    """One client, or all who are present; what is the same at all is found once on each rank."""
    for transport in worlds():
        toy, found = Toy(transport, array_shard), []

        def absorb(states: Any, total: Any, block: Block, now: Round, toy: Toy = toy, found: list[int] = found) -> Any:
            found.append(len(block.clients))
            return np.repeat(total[None], len(states), axis=0)

        down = ToClients("down", Field((3,)), None, toy.answer, absorb, hearer=hearer, alike=alike)
        present = np.array([True, True, False, True, True])
        now = Round(0, 1, present)
        states, total = toy.aggregator.tally(down, toy.states, 0.0, now)
        heard = toy.aggregator.hear(down, states, total, now)
        clients = [int(client) for block in toy.blocks for client in block.clients]
        hears = [present[client] and hearer in (None, client) for client in clients]
        for client, state, before, there in zip(
            clients, np.concatenate([*heard, np.zeros((0, 3))]), np.concatenate([*states, np.zeros((0, 3))]), hears,
            strict=True,
        ):  # fmt: skip
            np.testing.assert_array_equal(state, total if there else before, err_msg=str(client))
        assert sum(found) == (min(1, sum(hears)) if alike else sum(hears))


def test_a_request_to_end_reaches_the_server_from_any_rank(array_shard: Any) -> None:
    for transport in worlds():
        for asking in range(transport.size):
            toy = Toy(transport, array_shard)
            toy.aggregator.request.asked = transport.rank == asking
            up = ToServer("up", Field((3,)), None, toy.answer, None)
            toy.aggregator.tally(up, toy.states, 0.0, Round(0, 1, np.ones(5, dtype=bool)))
            if transport.rank == 0:
                assert toy.aggregator.requested
            toy.aggregator.request.asked = False
            toy.aggregator.tally(up, toy.states, 0.0, Round(1, 1, np.ones(5, dtype=bool)))
            if transport.rank == 0:
                assert not toy.aggregator.requested


def test_the_order_to_end_reaches_every_rank(array_shard: Any) -> None:
    for transport in worlds():
        toy = Toy(transport, array_shard)
        up = ToServer("up", Field((3,)), None, toy.answer, None)
        toy.aggregator.tell(up, np.zeros(3) if transport.rank == 0 else None)
        assert not toy.aggregator.halted
        if transport.rank == 0:
            toy.aggregator.order = 75
        toy.aggregator.tell(up, np.zeros(3) if transport.rank == 0 else None)
        assert toy.aggregator.halted
        assert toy.aggregator.order == 75


def begun(states: list[Any]) -> ClientStates:
    return ClientStates(len(states), lambda i: np.zeros_like(states[i]))


def renewed(states: list[Any]) -> ClientStates:
    found = begun(states)
    for i, state in enumerate(states):
        found[i] = state
    return found


def test_checkpoints_move_between_worlds(array_shard: Any, shared_tmp_path: Path) -> None:
    """Written by every size of world, read by every other, which writes on."""
    for writer in worlds():
        toy = Toy(writer, array_shard)
        server = np.arange(4.0) if writer.rank == 0 else None
        states = renewed([-block.clients[:, None] * 10.0 + np.arange(3) for block in toy.blocks])
        folder = shared_tmp_path / f"on-{writer.size}"
        checkpoints = Checkpoints(folder, writer, toy.blocks)
        checkpoints.save(Progress(6), {"a": 1}, server, states, {})
        for i, block in enumerate(toy.blocks):  # the second one has what has changed since, on most ranks
            if i or writer.rank != 1:
                states[i] = block.clients[:, None] * 10.0 + np.arange(3)
        checkpoints.save(Progress(7, 1.5, 20, 30), {"a": 1}, server, states, {})
        names = sorted(p.name for p in (folder / "checkpoint").iterdir())
        assert names == ["round-00000006", "round-00000007"]
    for reader in worlds():
        for written in range(1, worlds_there() + 1):
            toy = Toy(reader, array_shard, dedicated=True)
            like = np.zeros(4) if reader.rank == 0 else None
            here = f"on-{written}", f"{reader.size}-from-{written}"
            if reader.rank == 0:
                shutil.copytree(shared_tmp_path / here[0], shared_tmp_path / here[1])
            reader.share(None)
            for again in range(2):
                checkpoints, states = Checkpoints(shared_tmp_path / here[1], reader, toy.blocks), begun(toy.states)
                progress, table, server, _ = checkpoints.load(like, states)
                assert progress == (Progress(8) if again else Progress(7, 1.5, 20, 30))
                assert table == {"a": 1}
                assert server is None if reader.rank else server.tolist() == [0, 1, 2, 3]
                for block, state in zip(toy.blocks, states, strict=True):
                    np.testing.assert_array_equal(np.abs(state - np.arange(3)), block.clients[:, None] * np.full(3, 10))
                checkpoints.save(Progress(8), table, server, states, {})


def test_a_checkpoint_that_one_rank_cannot_read_is_an_error_on_all(array_shard: Any, shared_tmp_path: Path) -> None:
    for transport in worlds():
        toy = Toy(transport, array_shard)
        folder = shared_tmp_path / f"on-{transport.size}"
        server = np.arange(4.0) if transport.rank == 0 else None
        Checkpoints(folder, transport, toy.blocks).save(Progress(1), {}, server, renewed(toy.states), {})
        width = 2 if any(4 in b.clients for b in toy.blocks) else 3  # where client 4 is only
        other = begun([np.zeros((len(b.clients), width)) for b in toy.blocks])
        with pytest.raises(DataError, match="shape"):
            Checkpoints(folder, transport, toy.blocks).load(server, other)


def test_a_value_out_of_bounds_is_found_on_the_rank_that_hosts_its_client(array_shard: Any) -> None:
    for transport in worlds():
        toy = Toy(transport, array_shard)

        def answer(states: Any, question: Any, block: Block, now: Round) -> Any:
            return states, np.where(block.clients[:, None] == 3, np.nan, 1.0) * np.ones(3)

        error: MpifedError | None = None
        try:
            exchange = ToServer("up", Field((3,)), None, answer, None)
            alone = Aggregator(Alone(), toy.blocks, 5, dtype="float64")
            alone.tally(exchange, toy.states, 0.0, Round(0, 1, np.ones(5, dtype=bool)))
        except NumericalError as found:
            error = found
        assert (error is not None) == any(3 in block.clients for block in toy.blocks)
        with pytest.raises(NumericalError, match="up: client 3 has 3 values that are not finite"):
            transport.agree(error)


def worlds_there() -> int:
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.size)
