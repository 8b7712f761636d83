"""What being ready for the first round takes of 100,000 clients on one rank."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table

from mpifed.comm.mpi import Solo
from mpifed.data.partition import Partition
from mpifed.data.scaling import IDENTITY
from mpifed.data.store import make_federation
from mpifed.run.setup import prepare

CLIENTS = 10**5


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
