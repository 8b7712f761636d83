"""Whole runs in one process a rank, on worlds of 1 to 4 ranks: the same bits, the same errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from rank_runs import run
from sub_worlds import worlds

from mpifed.core.errors import DataError, NotCertified, UsageError
from mpifed.core.record import leaves
from mpifed.files.clients import read_clients
from mpifed.files.history import read_history
from mpifed.files.model_file import model_sha256, read_model
from mpifed.run import api
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


def sha256(result: Any) -> str:
    return model_sha256(dict(leaves(result.model)))


@pytest.mark.parametrize("dedicated", [False, True])
def test_same_bits(skewed: Path, shared_tmp_path: Path, dedicated: bool, tmp_path: Path) -> None:
    expected = run(job(skewed), Solo(), tmp_path / "alone")  # every rank by itself
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        result = run(job(skewed, server={"dedicated": dedicated}), comm, out)
        assert (result is None) == (comm.rank != 0)
        if result is not None:
            assert sha256(result) == sha256(expected)
            assert {**result.columns, **MEASURED} == {**expected.columns, **MEASURED}


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

    expected = run(task(), Solo(), tmp_path / "alone")
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        result = run(task(server={"dedicated": dedicated}), comm, out)
        assert (result is None) == (comm.rank != 0)
        if result is not None:
            assert sha256(result) == sha256(expected)
            same = [{**one.columns, **MEASURED} for one in (result, expected)]
            assert same[0] == same[1]
            assert same[0]["kkt_residual"] > 0


def test_not_certified_is_everybodys_end(skewed: Path, shared_tmp_path: Path) -> None:
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        with pytest.raises(NotCertified, match="kkt_residual <= 1e-09") as caught:
            api.run(job(skewed, stop={"reached": ["kkt_residual<=1e-9"]}), comm, out)
        assert caught.value.agreed
        easy = api.run(job(skewed, stop={"reached": ["kkt_residual<=1e3"]}, rounds=9), comm, out, resume=True)
        assert (easy is None) == (comm.rank != 0)
        if easy is not None:
            assert easy.rounds == 5  # it was there already


def test_resume_on_other_worlds(skewed: Path, shared_tmp_path: Path, tmp_path: Path) -> None:
    expected = run(job(skewed), Solo(), tmp_path / "alone")
    out = shared_tmp_path / "run"
    for comm in worlds():  # one round further on each, and one for all that are left on the last
        target = job(skewed, rounds=min(comm.size, 5))
        run(target, comm, out, resume=comm.size > 1)
    for comm in worlds():
        if run(job(skewed), comm, out, resume=True) is not None:
            assert model_sha256(read_model(out / "model.safetensors")) == sha256(expected)


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


def test_errors_of_the_set_up_are_everybodys(skewed: Path, shared_tmp_path: Path) -> None:
    for comm in worlds():
        out = shared_tmp_path / f"on-{comm.size}"
        too_many = job(skewed, participation={"clients_per_round": 99})
        with pytest.raises(UsageError, match="clients_per_round = 99"):
            run(too_many, comm, out)
        with pytest.raises(DataError, match="no such"):
            run(job(shared_tmp_path / "nothing"), comm, out)
        with pytest.raises(UsageError, match="no such field"):
            run(job(skewed, aggregation={"bounds": {"changes.nothing": 1.0}}), comm, out)


def test_data_that_rank_0_alone_sees(skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for comm in worlds():
        monkeypatch.chdir(skewed if comm.rank == 0 else shared_tmp_path)
        if comm.size > 1:
            with pytest.raises(DataError, match=r"rank 1 sees other data than rank 0: .*a folder that all nodes see"):
                run(job(Path()), comm, shared_tmp_path / f"on-{comm.size}")


# --- the ranks, with exchanges of the test's own ------------------------------------------------------------
