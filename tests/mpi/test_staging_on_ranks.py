"""Shards on the nodes' own disks: each node's leader copies what its ranks host, and the bits stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs_in_python import checked, job_table

from mpifed.comm.node_map import NodeMap
from mpifed.comm.placement import place
from mpifed.comm.transport import MPITransport
from mpifed.core.errors import DataError, MpifedError
from mpifed.core.record import leaves
from mpifed.files.model_file import model_sha256
from mpifed.run.api import run
from mpifed.shards.store import open_federation
from mpifed.testing import Alone, Job

pytestmark = pytest.mark.mpi(min_size=2)


def job(folder: Path, **data: object) -> Job:
    return checked(job_table(rounds=2, data={"path": str(folder), **data}, record={"evaluate_every": 1}))


def world() -> MPITransport:
    """All ranks, two on each node."""
    from mpi4py import MPI

    return MPITransport(MPI.COMM_WORLD, NodeMap.even(MPI.COMM_WORLD.size, 2))


def test_each_node_holds_what_its_ranks_host(
    skewed: Path, shared_tmp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(job(skewed), Alone(), tmp_path / "alone")
    transport = world()
    disks = [shared_tmp_path / f"node-{node}" for node in sorted(set(transport.nodes))]
    if transport.rank == 0:
        for disk in disks:
            disk.mkdir()
    transport.barrier()
    monkeypatch.setenv("NODE_DISK", str(disks[transport.nodes[transport.rank]]))
    result = run(job(skewed, stage="$NODE_DISK"), transport, shared_tmp_path / "run")
    if result is not None and expected is not None:
        assert model_sha256(dict(leaves(result.model))) == model_sha256(dict(leaves(expected.model)))
    data = open_federation(skewed)
    placement = place(data.counts, 1, transport.size, False)
    for node, disk in enumerate(disks):
        ranks = [rank for rank, at in enumerate(transport.nodes) if at == node]
        files = {data.file_of(client).name for rank in ranks for clients in placement.of(rank) for client in clients}
        (copy,) = disk.iterdir()
        assert {path.name for path in copy.glob("[!.]*")} == {"federation.h5", *files}


def test_one_node_without_its_folder_ends_all(
    skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = world()
    if transport.rank < transport.size - 1:
        monkeypatch.setenv("NODE_DISK", str(shared_tmp_path))
    with pytest.raises(MpifedError, match="a variable in it is not set on ") as caught:
        run(job(skewed, stage="$NODE_DISK"), transport, shared_tmp_path / "run")
    assert caught.value.agreed and caught.value.exit_code == 2


def test_ranks_of_one_node_that_name_two_folders(
    skewed: Path, shared_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = world()
    own = shared_tmp_path / f"of-{transport.node_rank}-{transport.nodes[transport.rank]}"
    own.mkdir()
    monkeypatch.setenv("NODE_DISK", str(own))
    with pytest.raises(DataError, match=r"must name the same folder|cannot be copied"):
        run(job(skewed, stage="$NODE_DISK"), transport, shared_tmp_path / "run")
