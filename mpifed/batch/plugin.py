"""The value of `srun --mpi=` (the process-management interface) that the installed MPI library needs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from mpifed.batch.slurm import has, misconfigured
from mpifed.comm.mpi import library
from mpifed.core.errors import MpifedError

# by a word in the library's version string, of which the first match counts: supported plugins, the best first
_PLUGINS = (
    ("CRAY MPICH", ("cray_shasta", "pmi2")),
    ("Open MPI", ("pmix",)),
    ("MVAPICH", ("pmi2",)),
    ("Intel", ("pmi2",)),
    ("MPICH", ("pmi2",)),
)


def plugin(name: str | None = None, environment: Mapping[str, str] = os.environ, listed: set[str] | None = None) -> str:
    """pmi2, pmix or cray_shasta, for the MPI library of that name; by default the one that mpi4py loads.

    `listed`: the result of `plugins`, if it was called already; empty if srun did not respond. Raises MpifedError if
    there is no library, or this Slurm has none of its plugins, with what to do.
    """
    name = name or library()
    if name is None:
        raise MpifedError("mpi4py can load no MPI library, so srun cannot start several ranks; install one")
    supported = next((words for kind, words in _PLUGINS if kind.lower() in name.lower()), ())
    if not supported:
        raise MpifedError(
            f"{name}: the value of `srun --mpi=` that it needs is not known; set it: export MPIFED_MPI=..."
        )
    offered = (plugins(environment) if listed is None else listed) or supported
    chosen = next((word for word in supported if word in offered), None)
    if chosen is None:
        raise MpifedError(
            f"{name} needs srun --mpi={supported[0]}, and this Slurm has {', '.join(sorted(offered)) or 'none'}; use "
            "the library's own mpiexec (export MPIFED_LAUNCHER=mpiexec), or another library"
        )
    return chosen


def plugins(environment: Mapping[str, str] = os.environ, limit_s: float = 30.0) -> set[str] | None:
    """Which of the plugins `srun --mpi=list` names; None if there is no srun, or no answer in time."""
    srun = has("srun", environment)
    if srun is None or misconfigured(environment):
        return None
    try:
        listing = subprocess.run(
            [srun, "--mpi=list"], env=dict(environment), capture_output=True, text=True, timeout=limit_s
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = listing.stdout + listing.stderr  # the stream depends on the version
    listed = {*re.findall(r"\b(?:cray_shasta|pmi2|pmix|none)\b", said)}
    return listed - {"none"} if listed else None
