"""How tests start ranks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpifed

ROOT = Path(mpifed.__file__).resolve().parents[1]
OWN = Path(__file__).parent / "laws"  # holds `own_algorithms`, which jobs name
_STEP_VARIABLES = (
    "PMI_", "PMIX_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "PRTE_LAUNCHED", "HYDI_", "HYDRA_", "SLURM_STEP_",
    "JSM_NAMESPACE_", "FLUX_", "PALS_", "ALPS_APP_", "PBS_VNODENUM", "LSF_PM_", "MPIFED_PROCESS",
)  # fmt: skip


def mpiexec() -> str:
    """The launcher: $MPIEXEC, the one of this environment, or the first in the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = os.environ.get("MPIEXEC") or (str(beside) if beside.exists() else shutil.which("mpiexec"))
    if not found:
        import pytest  # here: ranks that stand do without, and start in three quarters of the time

        pytest.fail("no mpiexec here: install the extra `mpich` or `openmpi`, or leave these out by -m 'not launch'")
    return found


def environment(changes: dict[str, str]) -> dict[str, str]:
    """This process's environment without what a launcher of its own has put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_STEP_VARIABLES)}
    kept["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), str(OWN), str(ROOT / "tests"), *filter(None, [kept.get("PYTHONPATH")])]
    )
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # else every rank compiles the package anew
    kept["OMP_NUM_THREADS"] = "1"
    kept["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"  # Open MPI 5: more ranks than cores
    kept["OMPI_MCA_rmaps_base_oversubscribe"] = "true"  # Open MPI 4
    kept["MPIR_CVAR_ENABLE_HEAVY_YIELD"] = "1"  # MPICH: ranks that wait leave the cores to those that compute
    kept["OMPI_MCA_mpi_yield_when_idle"] = "1"  # Open MPI: the same
    if os.geteuid() == 0:
        kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return kept | changes


def family(process: int) -> Iterator[int]:
    """A process and all that it has started."""
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from family(int(child))


def end_all(process: subprocess.Popen[Any]) -> None:
    """SIGKILL for the launcher and every rank at once."""
    members = list(family(process.pid))
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, signal.SIGKILL)
    process.wait()
    while any(alive(member) for member in members):
        time.sleep(0.002)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
