"""The MPI library, and the launcher's environment. mpi4py is imported here alone, without initializing MPI."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from mpifed.core.errors import UsageError

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

Communicator: TypeAlias = "Comm"

PMI, PMIX = "MPICH or Intel MPI", "Open MPI"  # families whose launchers and libraries fit each other
_FAMILIES = {"Open MPI": PMIX, "OpenRTE": PMIX, "PRRTE": PMIX, "Intel": PMI, "HYDRA": PMI, "MPICH": PMI}
PROCESS = "MPIFED_PROCESS"  # the process that is the rank, in its environment and in that of its children
_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def load() -> ModuleType:
    """The module mpi4py.MPI: imported without initializing MPI; what `world` initializes, `finalize` ends."""
    if "mpi4py.MPI" not in sys.modules:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, False
    from mpi4py import MPI

    return MPI


def finalize() -> None:
    """MPI_Finalize, unless the user's own import of mpi4py came first: it would do that in forked processes, too."""
    import mpi4py

    if mpi4py.rc.finalize is False and not load().Is_finalized():
        load().Finalize()


def library() -> str | None:
    """Name and version of the MPI library; None when mpi4py or a library is missing. Does not initialize MPI."""
    try:
        version: str = load().Get_library_version()
    except (ImportError, RuntimeError):
        return None
    return " ".join(version.splitlines()[0].split(",")[0].split()).rstrip("\x00")


def is_mpich() -> bool:
    """Whether the library is MPICH, or says that it is made from it."""
    return "MPICH" in str(library())


def family_of(text: str) -> str | None:
    """The family of a library or launcher, by its version text; None if it is not known."""
    return next((family for word, family in _FAMILIES.items() if word in text), None)


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Number of ranks of this job step, from the launcher's environment variables; 1 without a launcher.

    Variables of an allocation (SLURM_NTASKS) are ignored: they are set in a batch script as well. A child process of a
    rank has the rank's variables, and is none.
    """
    if environment.get(PROCESS, str(os.getpid())) != str(os.getpid()):
        return 1
    return max([1, *(int(environment[name]) for name in _STEP_SIZES if environment.get(name, "").isdigit())])


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The rank of this process according to the launcher, for when MPI does not know it."""
    return next((int(environment[name]) for name in _RANKS if environment.get(name, "").isdigit()), 0)


def is_launched() -> bool:
    """Whether this process is one of several that a launcher of MPI has started, and not srun without one."""
    return launched_ranks() > 1 and any(name in os.environ for name in _RANKS if name != "SLURM_PROCID")


def world(environment: Mapping[str, str] = os.environ) -> Communicator | None:
    """MPI_COMM_WORLD, initialized where it is not yet; None for a single process. Collective under MPI.

    Raises UsageError when a launcher started several processes that MPI does not join into a single MPI_COMM_WORLD.
    """
    ranks = launched_ranks(environment)
    if ranks == 1:
        return None
    try:
        MPI = load()
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"launched as {ranks} ranks, but mpi4py or its MPI library cannot be loaded ({error}); "
            "install an MPI library that mpi4py finds, or the extra of this package: pip install 'mpifed[mpich]'"
        ) from error
    if MPI.Is_finalized():
        raise UsageError("MPI was finalized before this call; let it be finalized when Python ends")
    version = library()
    mismatch = "OMPI_COMM_WORLD_SIZE" in environment and "Open MPI" not in str(version)
    if not mismatch and not MPI.Is_initialized():
        # MPICH yields the core while waiting only under THREAD_MULTIPLE: 30 times as fast if cores are shared
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if mismatch or MPI.COMM_WORLD.Get_size() == 1:  # MPICH would abort in Init under Open MPI's launcher
        raise UsageError(
            f"launched as {ranks} ranks, but the launcher and the MPI library ({version}) do not belong together: "
            "every process would be an MPI_COMM_WORLD of size 1. Use the mpiexec that came with this library; under "
            "Slurm `srun --mpi=pmi2` for MPICH or `--mpi=pmix` for Open MPI; `mpifed doctor` shows both"
        )
    everybody: Communicator = MPI.COMM_WORLD
    return everybody
