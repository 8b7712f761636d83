"""Where ranks run: one a GPU, and in a container; with stand-ins for what is not here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Job

TELL = """#!/bin/bash
[ "$1" = doctor ] && { echo pmi2; exit; }
echo "rank ${PMI_RANK:-$SLURM_PROCID}: node $SLURM_NODEID, $SLURMD_NODENAME, device ${CUDA_VISIBLE_DEVICES:-none}," \\
    "shares ${SLURM_NTASKS_PER_NODE:--} ${SLURM_CPUS_PER_TASK:--} ${SLURM_GPUS_PER_TASK:--}," \\
    "threads $OMP_NUM_THREADS, locks $HDF5_USE_FILE_LOCKING: $*"
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


@pytest.mark.parametrize(
    ("option", "launcher", "shares"),
    [
        ("--gpus-per-task=1", "srun", "2 1 1"),
        ("--gpus-per-task=1", "mpiexec", "- - -"),  # which starts one process a node
        ("--gres=gpu:2", "", ""),
    ],
)
def test_one_rank_a_device(option: str, launcher: str, shares: str, start: Start, job: Make, stand_in: StandIn) -> None:
    """Whether Slurm shows every rank its own device, or all those of its node, which need not be the script's."""
    stand_in("mpifed", TELL)
    run = start(job(), options=(*TWO_BY_TWO, option), MPIFED_LAUNCHER=launcher)
    assert run.wait_end()["ExitCode"] == "0:0", str(run)
    told = sorted(line for line in run.text.splitlines() if line.startswith("rank"))
    assert len(told) == 4, str(run)
    for rank, line in enumerate(told):
        place = f"rank {rank}: node {rank // 2}, n{rank // 2 + 1}, device {rank % 2}, shares {shares}"
        assert line.startswith(place), str(run)
    assert "--set compute.device=cuda" in run.text


def test_more_ranks_than_devices(start: Start, job: Make, stand_in: StandIn) -> None:
    stand_in("mpifed", TELL)
    run = start(job(), options=(*TWO_BY_TWO, "--gres=gpu:1"))
    assert run.wait_end()["ExitCode"] == "2:0", str(run)
    assert "1 devices for this job and more ranks" in run.text and "--gpus-per-task=1" in run.text


def test_no_device_where_none_is_asked_for(start: Start, job: Make, stand_in: StandIn) -> None:
    """And one thread a rank, and no locks of HDF5, unless one says otherwise."""
    stand_in("mpifed", TELL)
    for env, locks in (({"HDF5_USE_FILE_LOCKING": "BEST_EFFORT"}, "BEST_EFFORT"), ({}, "FALSE")):
        run = start(job(), options=TWO_BY_TWO, **env)
        assert run.wait_end()["ExitCode"] == "0:0", str(run)
        assert "device none" in run.text and f"threads 1, locks {locks}: run" in run.text, str(run)
        assert "compute.device" not in run.text


def test_in_a_container(start: Start, job: Make, stand_in: StandIn, ends_as_expected: Callable[..., None]) -> None:
    """Every call of mpifed goes through apptainer (by MPICH's mpiexec: Slurm's pmi2 fails by chance)."""
    stand_in("apptainer", THROUGH)
    run = start(job(), options=TWO_BY_TWO, MPIFED_IMAGE="my mpifed.sif", MPIFED_LAUNCHER="mpiexec")
    ends_as_expected(run)
    assert run.text.count("apptainer exec my mpifed.sif mpifed run") == 4
    stand_in("mpifed", TELL)
    run = start(job(), options=(*TWO_BY_TWO, "--gpus-per-task=1"), MPIFED_IMAGE="mpifed.sif", MPIFED_MPI="pmi2")
    assert run.wait_end()["ExitCode"] == "0:0", str(run)
    assert run.text.count("apptainer exec --nv mpifed.sif mpifed run") == 4 and run.text.count("device 1") == 2
