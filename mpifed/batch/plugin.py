"""Which language `srun` must speak to the ranks: what stands after `srun --mpi=` for the MPI library at hand."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from mpifed.batch.slurm import has
from mpifed.comm.transport import library
from mpifed.core.errors import MpifedError

# by a word in the library's own version, the first that fits: what it can speak, the best first
_SPEAKS = (
    ("CRAY MPICH", ("cray_shasta", "pmi2")),
    ("Open MPI", ("pmix",)),
    ("MVAPICH", ("pmi2",)),
    ("Intel", ("pmi2",)),
    ("MPICH", ("pmi2",)),
)


def plugin(name: str | None = None, environment: Mapping[str, str] = os.environ, listed: set[str] | None = None) -> str:
    """pmi2, pmix or cray_shasta: for the library of that name, by default the one that mpi4py finds here.

    Parameters
    ----------
    listed : what `plugins` has given, where srun was asked already; nothing where it did not answer

    Raises
    ------
    MpifedError
        when there is no library, or this Slurm speaks none of its languages, with what to do.
    """
    name = name or library()
    if name is None:
        raise MpifedError("no MPI library that mpi4py can load, so there is nothing srun could start several ranks of")
    speaks = next((words for kind, words in _SPEAKS if kind.lower() in name.lower()), None)
    if speaks is None:
        raise MpifedError(f"{name}: which word `srun --mpi=` needs is not known; say it: export MPIFED_MPI=...")
    there = plugins(environment) if listed is None else listed
    if not there:
        return speaks[0]
    found = next((word for word in speaks if word in there), None)
    if found is None:
        raise MpifedError(
            f"{name} needs srun --mpi={speaks[0]}, and this Slurm has {', '.join(sorted(there)) or 'none'}; use the "
            "library's own mpiexec (export MPIFED_LAUNCHER=mpiexec), or another library"
        )
    return found


def plugins(environment: Mapping[str, str] = os.environ) -> set[str] | None:
    """What `srun --mpi=list` names; None where there is no srun, or it does not answer."""
    srun = has("srun", environment)
    if srun is None:
        return None
    try:
        said = subprocess.run([srun, "--mpi=list"], env=dict(environment), capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    words: set[str] = set()
    for line in (said.stdout + said.stderr).splitlines():  # which of the two depends on the version
        if match := re.fullmatch(r"(?:srun: )?\s*([a-z][a-z0-9_]*)\s*", line):
            words.add(match[1])
        elif match := re.search(r"versions available: (.*)", line):
            words.update(match[1].replace(" ", "").split(","))
    return words or None
