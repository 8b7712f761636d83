"""Launching runs: by mpiexec, or by srun within an allocation."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpifed.core.errors import UsageError


def launcher(given: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The start of a command line that launches the rest on `{ranks}` ranks; UsageError if there is no launcher."""
    if given:
        return given if "{ranks}" in given else f"{given} -n {{ranks}}"
    allocated = environment.get("SLURM_JOB_ID") and environment.get("MPIFED_LAUNCHER", "srun") == "srun"
    if allocated and shutil.which("srun", path=environment.get("PATH")):
        from mpifed.batch.plugin import plugin

        return f"srun --mpi={environment.get('MPIFED_MPI') or plugin()} --kill-on-bad-exit=1 -n {{ranks}}"
    if environment.get("MPIEXEC"):
        return f"{environment['MPIEXEC']} -n {{ranks}}"
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec", path=environment.get("PATH"))
    if mpiexec is None:
        raise UsageError("no mpiexec on PATH; give the command that starts ranks: --launcher 'mpiexec -n {ranks}'")
    return f"{shlex.quote(mpiexec)} -n {{ranks}}"


def cores(environment: Mapping[str, str] = os.environ) -> int:
    """The number of cores for ranks: in an allocation its number of tasks, else the usable cores of this machine.

    Tasks are counted since srun starts no more ranks than that.
    """
    if environment.get("SLURM_JOB_ID"):
        tasks = environment.get("SLURM_NTASKS") or environment.get("SLURM_NPROCS")
        if tasks and tasks.isdigit():
            return int(tasks)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_oversubscription(ranks: Sequence[int], core_count: int, allowed: bool) -> None:
    """Raise UsageError if a point has more ranks than there are cores, unless that is allowed."""
    if max(ranks) > core_count and not allowed:
        fitting = ",".join(str(count) for count in ranks if count <= core_count) or "1"
        raise UsageError(
            f"--ranks {','.join(map(str, ranks))}: there are {core_count} cores, and ranks that share a core measure "
            f"the waiting for it; give --ranks {fitting}, use a larger allocation, or add --oversubscribe, which the "
            "report mentions"
        )


def start(launch: str, ranks: int, command: Sequence[str], log: Path) -> int:
    """Run a command of mpifed on `ranks` ranks with its output in `log`; its exit code."""
    here = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }  # fmt: skip
    environment.setdefault("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")  # Open MPI would refuse it
    line = [*shlex.split(launch.format(ranks=ranks)), sys.executable, "-m", "mpifed", *command]
    with log.open("w", encoding="utf-8") as file:
        print("$", shlex.join(line), file=file, flush=True)
        return subprocess.run(line, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False).returncode
