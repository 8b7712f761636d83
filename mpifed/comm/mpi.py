"""The MPI library, and the launcher's environment. mpi4py is imported here alone, without initializing MPI."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

Communicator: TypeAlias = "Comm"

PMI, PMIX = "MPICH or Intel MPI", "Open MPI"  # families whose launchers and libraries fit each other
_FAMILIES = {"Open MPI": PMIX, "OpenRTE": PMIX, "PRRTE": PMIX, "Intel": PMI, "HYDRA": PMI, "MPICH": PMI}
_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def load() -> ModuleType:
    """The module mpi4py.MPI: imported without initializing MPI, and finalizing it at exit."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    return MPI


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


def takes_device_arrays(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the MPI library, already initialized, reports to be CUDA-aware; False if it does not say.

    Open MPI and MPICH report it by MPIX_Query_cuda_support, Cray MPICH by MPICH_GPU_SUPPORT_ENABLED.
    """
    if environment.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return True
    try:
        query = ctypes.CDLL(load().__file__).MPIX_Query_cuda_support
    except (ImportError, RuntimeError, OSError, AttributeError):
        return False
    return bool(query())


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Number of ranks of this job step, from the launcher's environment variables; 1 without a launcher.

    Variables of an allocation (SLURM_NTASKS) are ignored: they are set in a batch script as well.
    """
    return max([1, *(int(environment[name]) for name in _STEP_SIZES if environment.get(name, "").isdigit())])


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The rank of this process according to the launcher, for when MPI does not know it."""
    return next((int(environment[name]) for name in _RANKS if environment.get(name, "").isdigit()), 0)
