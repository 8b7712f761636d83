"""Whole runs in one process a rank, on worlds of 1 to 4 ranks: the same measures, the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from sub_worlds import worlds

from mpifed.core.errors import DataError
from mpifed.files.clients import read_clients
from mpifed.files.history import read_history
from mpifed.run.api import run
from mpifed.testing import Job, Solo

pytestmark = pytest.mark.mpi(min_size=2)
MEASURED = {"elapsed_s": 0.0, "rss_bytes": 0}  # columns of the machine, that nobody promises


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


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_same_measures_of_test_rows(task: str, make_data: Any, shared_tmp_path: Path, tmp_path: Path) -> None:
    """Test rows in several pieces, which ranks share, and own test rows of clients: the same columns, bit for bit."""
    words = f"synthetic --split rows --clients 5 --samples 9000 --features 3 --task {task} --noise 0.5 --skew 0.7"
    words += " --classes 3" * (task == "classification") + " --test-fraction 0.8 --client-test-fraction 0.3"
    folder = make_data(shared_tmp_path / "data", *words.split())
    model = {"name": "softmax" if task == "classification" else "least-squares"}
    record = {"evaluate_every": 1}
    measured = job(folder, rounds=2, model=model, participation={}, record=record)
    run(measured, Solo(), tmp_path / "alone")
    expected, clients = read_history(tmp_path / "alone"), read_clients(tmp_path / "alone")
    assert {
        "test_loss",
        "client_test_loss_mean",
        "test_accuracy" if task == "classification" else "test_r2",
    } <= expected.keys()
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        if run(measured, comm, out) is not None:
            found = read_history(out)
            both = ({**found, **MEASURED}, read_clients(out)), ({**expected, **MEASURED}, clients)
            np.testing.assert_equal(*both)  # where both are nan, too


def test_each_rank_verifies_what_it_reads(skewed: Path, shared_tmp_path: Path) -> None:
    """Files are damaged that one rank reads alone: all end with one message, which names these files and that rank."""
    optimizer = {"learning_rate": 0.3}
    method = {"name": "scaffold", "batch_size": 4, "local_steps": 2, "client_optimizer": optimizer}
    for comm in worlds():
        out, damaged = shared_tmp_path / f"on-{comm.size}", comm.size - 1
        stateful = job(skewed, algorithm=method, rounds=2, record={"checkpoint_every": 1, "evaluate_every": 0})
        run(stateful, comm, out)
        if comm.rank == 0:
            for folder in (out / "checkpoint").iterdir():
                segment = max(folder.glob("clients-*"))
                segment.write_bytes(segment.read_bytes()[:-1] + b"?")
        comm.Barrier()
        where = f"not as the checksum says{f', on rank {damaged}' if damaged else ''}"
        said = rf"nothing to resume \(round-00000002: clients-.*{where}; round-00000001: clients-[^;]*{where}\)"
        with pytest.raises(DataError, match=said) as caught:
            run(job(skewed, algorithm=method, rounds=3), comm, out, resume=True)
        assert caught.value.agreed


def test_data_that_rank_0_alone_sees(skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for comm in worlds():
        monkeypatch.chdir(skewed if comm.rank == 0 else shared_tmp_path)
        if comm.size > 1:
            with pytest.raises(DataError, match=r"rank 1 sees other data than rank 0: .*a folder that all nodes see"):
                run(job(Path()), comm, shared_tmp_path / f"on-{comm.size}")
