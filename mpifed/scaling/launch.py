"""Starting runs on so many ranks: by mpiexec, or by srun within an allocation."""

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
    """The command line that starts `{ranks}` ranks of what follows.

    Raises
    ------
    UsageError
        where there is none.
    """
    if given:
        return given if "{ranks}" in given else f"{given} -n {{ranks}}"
    allocated = environment.get("SLURM_JOB_ID") and environment.get("MPIFED_LAUNCHER", "srun") == "srun"
    if allocated and shutil.which("srun", path=environment.get("PATH")):
        from mpifed.batch.plugin import plugin

        return f"srun --mpi={environment.get('MPIFED_MPI') or plugin()} --kill-on-bad-exit=1 -n {{ranks}}"
    if environment.get("MPIEXEC"):
        return f"{environment['MPIEXEC']} -n {{ranks}}"
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec", path=environment.get("PATH"))
    if found is None:
        raise UsageError("no mpiexec on PATH; name what starts ranks: --launcher 'mpiexec -n {ranks}'")
    return f"{shlex.quote(found)} -n {{ranks}}"


def cores(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks have a core of their own: in an allocation those that it has asked for, else this machine's.

    The tasks of an allocation count, since srun starts no more of them.
    """
    if environment.get("SLURM_JOB_ID"):
        tasks = environment.get("SLURM_NTASKS") or environment.get("SLURM_NPROCS")
        if tasks and tasks.isdigit():
            return int(tasks)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def refuse_oversubscription(ranks: Sequence[int], room: int, allowed: bool) -> None:
    """UsageError where some point has more ranks than there are cores, unless that is allowed."""
    if max(ranks) > room and not allowed:
        fitting = ",".join(str(count) for count in ranks if count <= room) or "1"
        raise UsageError(
            f"--ranks {','.join(map(str, ranks))}: there are {room} cores for them, and ranks that share one measure "
            f"the waiting for it; ask for --ranks {fitting}, for a larger allocation, or add --oversubscribe, and the "
            "report says so"
        )


def start(launch: str, ranks: int, command: Sequence[str], log: Path) -> int:
    """Run a command of mpifed on so many ranks; its exit code. What it says goes to `log`."""
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
