"""What a round, and being ready for one, costs: bytes, keys and memory, of 100,000 clients of whom a few take part."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table
from masking import Case

from mpifed.comm.channels.base import Protection
from mpifed.comm.mpi import Solo
from mpifed.core.exchange import Field
from mpifed.core.holdings import Holdings
from mpifed.core.round import Round
from mpifed.data.partition import Partition
from mpifed.data.scaling import IDENTITY
from mpifed.data.store import make_federation
from mpifed.run.setup import prepare

CLIENTS, VALUES = 10**5, 5
FIRST, SECOND = ([5, 40_000, 99_999], [5, 17, 600, 50_000, 99_998])


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
        now = Round(index, 1, np.isin(np.arange(CLIENTS), who), drawn=np.array(who))
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


@pytest.mark.parametrize(("most", "each"), [(1, 30), (2, 40)])
def test_a_hosted_client_takes_few_bytes_beside_its_rows(most: int, each: int, tmp_path: Path) -> None:
    """Placed and ready for the first round, in blocks of one; with as many rows as the others, and with more."""
    counts = np.arange(CLIENTS) % most + 1
    rows = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
    who = Partition("rows", rows, [np.arange(1)], np.stack([np.arange(CLIENTS), np.zeros(CLIENTS, int)], axis=1))
    y, X = np.arange(counts.sum()) % 2, np.zeros((counts.sum(), 1), "u1")
    make_federation(who, y, X, IDENTITY, tmp_path, classes=2, seed=0, provenance={})
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
