"""Where ranks run: one a GPU, and in a container; with stand-ins for what is not here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Job

TELL = """#!/bin/bash
[ "$1" = doctor ] && { echo pmi2; exit; }
echo "rank ${PMI_RANK:-$SLURM_PROCID} on $SLURMD_NODENAME: device ${CUDA_VISIBLE_DEVICES:-none}," \\
    "threads $OMP_NUM_THREADS, locks $HDF5_USE_FILE_LOCKING: $*"
"""
OF_NODES = """#!/bin/bash
[ "$1" = doctor ] && { echo pmi2; exit; }
echo "rank ${PMI_RANK:-$SLURM_PROCID}: node $SLURM_NODEID, $SLURMD_NODENAME, device ${CUDA_VISIBLE_DEVICES:-none}," \\
    "shares ${SLURM_NTASKS_PER_NODE:--} ${SLURM_CPUS_PER_TASK:--} ${SLURM_GPUS_PER_TASK:--}"
"""
THROUGH = """#!/bin/bash
echo "apptainer $*"
while [ "$1" != mpifed ]; do shift; done
exec "$@"
"""
TWO_BY_TWO = ("--nodes=2", "--ntasks-per-node=2")

Start = Callable[..., Job]
Make = Callable[..., Path]
StandIn = Callable[[str, str], None]


@pytest.mark.parametrize("option", ["--gpus-per-task=1", "--gres=gpu:2"])
def test_one_rank_a_device(option: str, start: Start, job: Make, stand_in: StandIn) -> None:
    """Whether Slurm shows every rank its own device, or all ranks those of the node."""
    stand_in("mpifed", TELL)
    run = start(job(), options=(*TWO_BY_TWO, option))
    assert run.wait_end()["ExitCode"] == "0:0", str(run)
    told = sorted(line.split(",")[0] for line in run.text.splitlines() if line.startswith("rank"))
    assert told == [f"rank {2 * node + i} on n{node + 1}: device {i}" for node in range(2) for i in range(2)], str(run)
    assert "--set compute.device=cuda" in run.text


@pytest.mark.parametrize(("launcher", "shares"), [("srun", "2 1 1"), ("mpiexec", "- - -")])
def test_what_a_rank_is_told(launcher: str, shares: str, start: Start, job: Make, stand_in: StandIn) -> None:
    """Its own node, not that of the batch script; and by mpiexec, which starts one process a node, no task's share."""
    stand_in("mpifed", OF_NODES)
    run = start(job(), options=(*TWO_BY_TWO, "--gpus-per-task=1"), MPIFED_LAUNCHER=launcher)
    assert run.wait_end()["ExitCode"] == "0:0", str(run)
    told = sorted(line for line in run.text.splitlines() if line.startswith("rank"))
    assert told == [
        f"rank {rank}: node {rank // 2}, n{rank // 2 + 1}, device {rank % 2}, shares {shares}" for rank in range(4)
    ], str(run)


def test_more_ranks_than_devices(start: Start, job: Make, stand_in: StandIn) -> None:
    stand_in("mpifed", TELL)
    run = start(job(), options=(*TWO_BY_TWO, "--gres=gpu:1"))
    assert run.wait_end()["ExitCode"] == "2:0", str(run)
    assert "1 devices for this job and more ranks" in run.text and "--gpus-per-task=1" in run.text


def test_no_device_where_none_is_asked_for(start: Start, job: Make, stand_in: StandIn) -> None:
    """And one thread a rank, and no locks of HDF5, unless one says otherwise."""
    stand_in("mpifed", TELL)
    run = start(job(), options=TWO_BY_TWO, HDF5_USE_FILE_LOCKING="BEST_EFFORT")
    assert run.wait_end()["ExitCode"] == "0:0", str(run)
    assert "device none, threads 1, locks BEST_EFFORT: run" in run.text and "compute.device" not in run.text
    assert "locks FALSE" in _text(start(job(), options=TWO_BY_TWO))


def _text(run: Job) -> str:
    run.wait_end()
    return run.text


def test_in_a_container(start: Start, job: Make, stand_in: StandIn, ends_as_expected: Callable[..., None]) -> None:
    """Every call of mpifed goes through apptainer (by MPICH's mpiexec: Slurm's pmi2 fails by chance)."""
    stand_in("apptainer", THROUGH)
    run = start(job(), options=TWO_BY_TWO, MPIFED_IMAGE="my mpifed.sif", MPIFED_LAUNCHER="mpiexec")
    ends_as_expected(run)
    assert run.text.count("apptainer exec my mpifed.sif mpifed run") == 4


def test_in_a_container_with_devices(start: Start, job: Make, stand_in: StandIn) -> None:
    stand_in("apptainer", THROUGH)
    stand_in("mpifed", TELL)
    run = start(job(), options=(*TWO_BY_TWO, "--gpus-per-task=1"), MPIFED_IMAGE="mpifed.sif", MPIFED_MPI="pmi2")
    assert run.wait_end()["ExitCode"] == "0:0", str(run)
    assert run.text.count("apptainer exec --nv mpifed.sif mpifed run") == 4 and run.text.count("device 1") == 2
