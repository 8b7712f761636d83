"""How many ranks a launcher has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launching import environment

from mpifed.comm.mpi import connect, launched_ranks
from mpifed.core.errors import UsageError
from mpifed.testing import Solo

ALLOCATION = {"SLURM_NTASKS": "8"}  # set in a batch script as well
STARTED = ("PMI", "PMIX", "OMPI_COMM_WORLD", "MV2_COMM_WORLD", "JSM_NAMESPACE")
# what is set in a process that is alone: a batch script, an interactive step, a task with one process
ALONE: tuple[dict[str, str], ...] = (
    {}, ALLOCATION, ALLOCATION | {"SLURM_PROCID": "0"}, {"PMI_SIZE": ""}, {"PMI_SIZE": "many"},
    ALLOCATION | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
    {"PBS_NODENUM": "0", "PBS_VNODENUM": "0", "PBS_TASKNUM": "1", "PBS_NP": "8"}, {"LSB_DJOB_NUMPROC": "8"},
    {"PALS_RANKID": "0", "PALS_LOCAL_SIZE": "1"}, {"FLUX_JOB_SIZE": "1", "FLUX_TASK_RANK": "0"},
    {"OMPI_COMM_WORLD_SIZE": "1", "PBS_VNODENUM": "3", "LSF_PM_TASKID": "4"},  # mpiexec -n 1 on another node
)  # fmt: skip
# (variables of one of four processes, the one that says so), by the launcher
ONE_OF_FOUR = {
    "srun": ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS=4"),
    "PMI": ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "PMI_SIZE=4"),
    "PMIx": ({"PMIX_RANK": "3"}, "PMIX_RANK=3"),
    "Open MPI": ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE=4"),
    "MVAPICH2": ({"MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_RANK": "0"}, "MV2_COMM_WORLD_SIZE=4"),
    "jsrun": ({"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "0"}, "JSM_NAMESPACE_SIZE=4"),
    "Flux": ({"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "0"}, "FLUX_JOB_SIZE=4"),
    "PALS": ({"PALS_RANKID": "0", "PALS_LOCAL_SIZE": "4"}, "PALS_LOCAL_SIZE=4"),
    "PALS, a rank a node": ({"PALS_RANKID": "3", "PALS_LOCAL_SIZE": "1"}, "PALS_RANKID=3"),
    "ALPS": ({"ALPS_APP_PE": "3"}, "ALPS_APP_PE=3"),
    "pbsdsh": ({"PBS_VNODENUM": "3"}, "PBS_VNODENUM=3"),
    "blaunch": ({"LSF_PM_TASKID": "4"}, "LSF_PM_TASKID=4"),
}


def test_launched_ranks() -> None:
    for alone in ALONE:
        assert launched_ranks(alone) == 1
    for name in STARTED:  # mpiexec within one step
        assert launched_ranks({"SLURM_STEP_NUM_TASKS": "1", f"{name}_SIZE": "4"}) == 4
    assert isinstance(connect(ALLOCATION), Solo)


@pytest.mark.parametrize("launcher", ONE_OF_FOUR)
def test_one_of_four_processes_is_no_world_of_its_own(launcher: str) -> None:
    """In each of them `mpifed run` ends before it writes anything, and says by which variable it is one of several."""
    variables, said = ONE_OF_FOUR[launcher]
    assert launched_ranks(variables) == 4
    command = [sys.executable, "-m", "mpifed", "run", "job.toml"]
    ended = subprocess.run(command, env=environment(variables), capture_output=True, text=True, timeout=60)
    assert ended.returncode == UsageError.exit_code
    (line,) = ended.stderr.splitlines()
    assert f"launched as 4 ranks ({said})" in line and "srun --mpi=pmi2" in line


def test_who_has_launched_the_ranks_learns_that_they_have_joined(tmp_path: Path) -> None:
    joined = tmp_path / "new" / "run.joined-7"
    connect({"MPIFED_JOINED": str(joined)})
    assert joined.exists()
    with pytest.raises(UsageError, match="MPIFED_JOINED="):
        connect({"MPIFED_JOINED": str(joined / "below")})
