"""What a round, and being ready for one, costs: bytes, keys and memory, of 100,000 clients of whom a few take part."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table
from masking import Case

from mpifed.comm.channels.base import Protection
from mpifed.comm.mpi import Solo
from mpifed.core.exchange import Field, answering, hearing
from mpifed.core.holdings import Holdings
from mpifed.core.round import Leaving, Round
from mpifed.data.block import Block
from mpifed.data.partition import Partition
from mpifed.data.roster import Roster
from mpifed.data.scaling import IDENTITY
from mpifed.data.shards import hosted_blocks
from mpifed.data.store import Federation, make_federation
from mpifed.run.setup import prepare

CLIENTS, VALUES = 10**5, 5
FIRST, SECOND = ([5, 40_000, 99_999], [5, 17, 600, 50_000, 99_998])


def drawn(who: list[int], index: int) -> Round:
    present = np.zeros(CLIENTS, dtype=bool)
    present[who] = True
    return Round(index, 1, present, drawn=np.array(who))


@pytest.mark.parametrize("to_clients", [False, True])
@pytest.mark.parametrize("name", ["plain", "masked"])
def test_a_round_makes_no_array_over_all_clients(name: str, to_clients: bool) -> None:
    """Nor a key for who has not taken part; client 0 makes that of the group."""
    case = Case([range(CLIENTS)], None, Field((VALUES,), 2.0**-10), to_clients, Protection(name))  # type: ignore[list-item]
    channel, owners = case.channel(Solo()), list[int]()
    channel.tap = lambda client, what, payload: owners.append(client)
    plan = case.plan(channel)
    channel.prepare([plan])
    question, columns = np.zeros(3), Holdings.all(CLIENTS, 1)
    for index, who in enumerate((FIRST, SECOND)):
        now = drawn(who, index)
        tracemalloc.start()
        channel.begin(plan, now)
        answers = np.arange(len(who) * VALUES, dtype=float).reshape(len(who), VALUES)
        channel.add(plan, answers, np.array(who), now)
        assert channel.collect(plan, now)
        spent = channel.spent(plan, question, columns, now)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_array_equal(plan.message.decode(plan.reduced), answers.sum(axis=0))
        assert (spent.up_bytes, spent.up_most) == (8 * VALUES * len(who), 8 * VALUES)
        of_keys = 32 * (len(who) - 1) if name == "masked" else 0
        assert spent.down_most == 8 * 3 + of_keys + 8 * VALUES * to_clients
        assert spent.down_bytes == len(who) * spent.down_most
    assert peak < CLIENTS  # bytes; the first round also fills what all rounds share
    assert sorted(owners) == ([] if name == "plain" else [0, *sorted({*FIRST, *SECOND})])


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("hosted", [range(100), range(40, 90), [3, 7, 40, 41, 99], range(0)])
def test_hosted_clients_that_take_part(block: int, hosted: Any) -> None:
    """Their blocks and positions in them; `ids` and flags are the same people, whoever leaves and hears."""
    clients = np.array(hosted, dtype=np.int64)
    bounds = np.append(np.arange(0, len(clients), block), len(clients))
    opened: list[Block] = []
    roster = Roster(clients, bounds, opened.__getitem__)
    rng = np.random.default_rng(block)
    for share in (0.0, 0.1, 0.5, 1.0):
        now = Round(0, 1, rng.random(100) < share)
        pairs = [(i, roster.clients[roster.bounds[i] + at].tolist()) for i, at in roster.among(now.ids)]
        assert [*chain(*(who for _, who in pairs))] == [client for client in hosted if now.present[client]]
        assert len({i for i, _ in pairs}) == len(pairs) and all(who for _, who in pairs)
        left = now._replace(leaving=Leaving(now.present, rng.integers(3, size=100), 100)).at(0)
        exchange = Case([[0]], None, Field(()), True).plan(None).exchange  # type: ignore[arg-type]
        assert answering(exchange, left).tolist() == np.flatnonzero(left.present).tolist()
        assert hearing(exchange, left).tolist() == np.flatnonzero(left.staying).tolist()
        assert left.asked_ids.tolist() == np.flatnonzero(left.asked).tolist()


def of_rows(counts: Any, folder: Path | None = None) -> Federation:
    """Clients with so many rows of one feature."""
    bounds = np.cumsum([0, *counts])
    rows = [np.arange(start, stop) for start, stop in pairwise(bounds)]
    holds = np.stack([np.arange(len(rows)), np.zeros(len(rows), dtype=int)], axis=1)
    y, X = np.arange(bounds[-1]) % 2, np.arange(bounds[-1])[:, None].astype("u1")
    who = Partition("rows", rows, [np.arange(1)], holds)
    return make_federation(who, y, X, IDENTITY, folder, classes=2, seed=0, provenance={})


@pytest.mark.parametrize(("most", "each"), [(1, 30), (2, 40)])
def test_a_hosted_client_takes_few_bytes_beside_its_rows(most: int, each: int, tmp_path: Path) -> None:
    """Placed and ready for the first round, in blocks of one; with as many rows as the others, and with more."""
    counts = np.arange(CLIENTS) % most + 1
    of_rows(counts, tmp_path)
    table = job_table(
        tmp_path, data={"path": str(tmp_path), "block": 1}, participation={"clients_per_round": 5},
        algorithm=fedavg(1, local_steps=1),
    )  # fmt: skip
    job = checked(table)
    prepare(job, Solo())  # what it imports is no client's
    tracemalloc.start()
    ready = prepare(job, Solo())
    assert ready.algorithm.problem.weights[1] == counts[1] / counts.mean()
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    of_a_row = 1 + 8  # its value and its label
    assert taken - of_a_row * counts.sum() < each * CLIENTS
    assert len(ready.ranks.blocks) == CLIENTS


def test_blocks_that_are_not_used_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the last ones; the others are opened again, with the same rows."""
    monkeypatch.setattr("mpifed.data.shards.MOST_OPEN", 4)
    roster = hosted_blocks(of_rows([1] * 20), range(20), np.arange(21), "float32", np.inf)
    opened = [weakref.ref(roster[i]) for i in range(20)]
    gc.collect()
    assert [i for i, block in enumerate(opened) if block() is not None] == [16, 17, 18, 19]
    assert roster[19] is opened[19]()
    assert [int(block.shards[0].values[0, 0]) for block in roster] == [*range(20)]
