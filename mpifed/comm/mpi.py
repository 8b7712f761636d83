"""The MPI library, the launcher's environment, and the ranks. mpi4py is imported here alone, initializing nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from mpifed.core.errors import MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explained, explaining

if TYPE_CHECKING:  # `import mpifed` is quick
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

Communicator: TypeAlias = "MPI.Comm"
Array: TypeAlias = "np.ndarray"
Bytes: TypeAlias = "NDArray[np.uint8]"  # [length]
T = TypeVar("T")

JOINED = "MPIFED_JOINED"  # a file that rank 0 creates when all ranks have joined, for the launcher of the run
LONG = 2**17  # bytes: shorter arrays take microseconds whatever adds them
PIECE = 2**30  # bytes per call: no count nears 2^31
PROCESS = "MPIFED_PROCESS"  # the process that is the rank, in its environment and in that of its children
_MPI_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
# of jsrun, Flux, Cray's PALS and ALPS, pbsdsh, srun
_RANKS = (
    *_MPI_RANKS, "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "PALS_RANKID", "ALPS_APP_PE", "PBS_VNODENUM", "SLURM_PROCID",
)  # fmt: skip
_FROM_1 = ("PALS_LOCAL_SIZE", "LSF_PM_TASKID")  # which are above the number of no rank
_STEP_SIZES = (
    "SLURM_STEP_NUM_TASKS", "PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE",
)  # fmt: skip


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


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """Number of ranks of this job step, from the launcher's environment variables; 1 without a launcher.

    Variables of an allocation (SLURM_NTASKS) are ignored: they are set in a batch script as well. A child process of a
    rank has the rank's variables, and is none. Where a launcher gives no size, it is the least that its ranks show.
    """
    return _launch(environment)[0]


def _launch(environment: Mapping[str, str]) -> tuple[int, str]:
    """(number of ranks, "NAME=value" of the variable that says so); (1, "") of a single process."""
    if environment.get(PROCESS, str(os.getpid())) != str(os.getpid()):
        return 1, ""
    given = {name: int(value) for name, value in environment.items() if value.isdecimal()}
    ranks = {name: given[name] for name in _STEP_SIZES if name in given}
    if not ranks:  # else those of daemons, which launchers of MPI start by pbsdsh or blaunch, would count
        ranks = {name: given[name] + (name in _RANKS) for name in (*_RANKS, *_FROM_1) if name in given}
    most = max(ranks, key=ranks.__getitem__, default="")
    return (ranks[most], f"{most}={environment[most]}") if ranks.get(most, 0) > 1 else (1, "")


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The rank of this process according to the launcher, for when MPI does not know it."""
    return next((int(environment[name]) for name in _RANKS if environment.get(name, "").isdigit()), 0)


def is_launched() -> bool:
    """Whether this process is one of several that a launcher of MPI has started, and not srun without one."""
    return launched_ranks() > 1 and any(name in os.environ for name in _MPI_RANKS)


def world(environment: Mapping[str, str] = os.environ) -> Communicator | None:
    """MPI_COMM_WORLD, initialized where it is not yet; None for a single process. Collective under MPI.

    Raises UsageError when a launcher started several processes that MPI does not join into a single MPI_COMM_WORLD.
    """
    ranks, variable = _launch(environment)
    if ranks == 1:
        return None
    launched = f"launched as {ranks} ranks ({variable})"
    try:
        MPI = load()
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"{launched}, but mpi4py or its MPI library cannot be loaded ({error}); "
            "install an MPI library that mpi4py finds, or the extra of this package: pip install 'mpifed[mpich]'"
        ) from error
    if MPI.Is_finalized():
        raise UsageError("MPI was finalized before this call; let it be finalized when Python ends")
    version, made = library(), MPI.Get_library_version()
    mismatch = "OMPI_COMM_WORLD_SIZE" in environment and not ("Open MPI" in made or "Spectrum" in made)
    if "PMIX_RANK" in environment and "PMI_RANK" not in environment:
        mismatch |= "MPICH configure" in made and "pmix" not in made
    if not mismatch and not MPI.Is_initialized():
        # MPICH yields the core while waiting only under THREAD_MULTIPLE: 30 times as fast if cores are shared
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if mismatch or MPI.COMM_WORLD.Get_size() == 1:  # in Init MPICH would abort
        raise UsageError(
            f"{launched}, but the launcher and the MPI library ({version}) do not belong together: every process would "
            "be an MPI_COMM_WORLD of size 1. Use the mpiexec that came with this library; under Slurm `srun "
            "--mpi=pmi2` for MPICH or `--mpi=pmix` for Open MPI; elsewhere build mpi4py against the system's library, "
            "`pip install --no-binary mpi4py mpi4py`, and start by its launcher; `mpifed doctor` shows both"
        )
    everybody: Communicator = MPI.COMM_WORLD
    return everybody


class Solo:
    """One process, no MPI; the methods say what they do where there are ranks. All but `abort` are collective."""

    rank, size = 0, 1
    node_rank = 0  # of this rank within its node
    node_size = 1  # ranks on this rank's node
    nodes = 1

    def Barrier(self) -> None:
        """Wait until every rank is here."""

    def bcast(self, value: Any, root: int = 0) -> Any:  # whatever can be pickled; None on other ranks
        """Any picklable value of rank `root`, on every rank."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """The values of all ranks, on rank 0."""
        return [value]

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank."""
        return [value]

    def reduce(self, value: T, op: Callable[[T, T], T]) -> T | None:
        """All ranks' values, put together by `op` along a tree, in order, on rank 0: for sums that MPI lacks."""
        return value

    def Bcast(self, array: Array) -> None:
        """Overwrite `array` on every rank by rank 0's."""

    def Reduce(self, array: Array) -> None:
        """Sum `array` over ranks, in place, on rank 0; on others it may be overwritten."""

    def Allreduce(self, array: Array) -> None:
        """Sum `array` over ranks, in place, on every rank."""

    def raise_on_all_ranks(self, error: BaseException | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank."""
        if error is not None:
            with explaining():
                raise error

    def abort(self, code: int) -> NoReturn:
        """Terminate all ranks at once with this exit code; not collective."""
        os._exit(code)


class Intracomm:
    """The ranks of one communicator of mpi4py, with the methods of `Solo`. The constructor is collective.

    Ranks share a node where MPI says that they can share memory; in tests `per_node` consecutive ones do.
    """

    def __init__(self, comm: Communicator, per_node: int = 0) -> None:
        self.mpi, self.rank, self.size = comm, comm.rank, comm.size
        from mpi4py.util import pkl5

        self.bcast = pkl5.Intracomm(comm).bcast  # long arrays from where they lie
        self.Barrier, self.reduce, self.gather, self.allgather = comm.Barrier, comm.reduce, comm.gather, comm.allgather
        if per_node:
            self.node = comm.Split(self.rank // per_node, self.rank)
        else:
            self.node = comm.Split_type(load().COMM_TYPE_SHARED, self.rank)
        self.node_rank, self.node_size = self.node.rank, self.node.size
        self.nodes = comm.allreduce(int(self.node_rank == 0))
        self.leaders = comm.Split(min(self.node_rank, 1), self.rank)  # the first ranks of the nodes; else not used

    def Bcast(self, array: Array) -> None:
        flat = array.reshape(-1).view("u1")
        for piece in pieces(flat):
            self.mpi.Bcast(flat[piece])

    def Reduce(self, array: Array) -> None:
        add_over(self.mpi, array, everywhere=False)

    def Allreduce(self, array: Array) -> None:
        add_over(self.mpi, array, everywhere=True)

    def raise_on_all_ranks(self, error: BaseException | None = None) -> None:
        for failure in self.allgather(None if error is None else self._as_sent(error)):
            if failure is not None:
                kind, message = failure
                raise kind(message, agreed=True) from error

    def _as_sent(self, error: BaseException) -> tuple[type[MpifedError], str]:
        known = error if isinstance(error, MpifedError) else explained(error)
        if known is not None:
            return type(known), str(known)
        text = "".join(traceback.format_exception(error)).rstrip()
        return UnexpectedError, f"on rank {self.rank} of {self.size}\n{text}"

    def abort(self, code: int) -> NoReturn:
        """MPI_Abort: the launcher ends every rank. MPICH's own message would hide the error, and is suppressed."""
        if is_mpich():
            with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr closed, replaced, or on a full disk
                sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self.mpi.Abort(code)
        os._exit(code)


Comm: TypeAlias = Solo | Intracomm  # a group of ranks


@contextlib.contextmanager
def agreed(comm: Comm) -> Iterator[None]:
    """A block of work without collective calls: if it fails on any rank, all raise the same error. Collective."""
    error: Exception | SystemExit | None = None
    try:
        yield
    except (Exception, SystemExit) as failed:  # whatever it is, all ranks must raise it
        error = failed
    comm.raise_on_all_ranks(error)


def add_over(comm: Communicator, array: Array, everywhere: bool) -> None:
    """As `Solo.Reduce`, or `Solo.Allreduce`, by the library's own calls, piece after piece."""
    everywhere |= array.nbytes >= LONG and is_mpich()  # a third of the time of MPI_Reduce in MPICH 5.0
    for piece in pieces(array):
        if everywhere:
            comm.Allreduce(load().IN_PLACE, array[piece])
        else:
            comm.Reduce(array[piece] if comm.rank else load().IN_PLACE, array[piece])


def pieces(array: Array) -> list[slice]:
    """Slices of an array of at most as much as a single MPI call takes."""
    step = PIECE // array.itemsize
    return [slice(start, start + step) for start in range(0, array.size, step)]


@cache  # a library has a limited number of communicators
def _everybody() -> Intracomm:
    return Intracomm(load().COMM_WORLD)


def connect(environment: Mapping[str, str] = os.environ) -> Comm:
    """The ranks of this launch: those of MPI under a launcher, else a single process. Collective under MPI.

    Raises UsageError when a launcher started several processes that MPI does not join into a single MPI_COMM_WORLD.
    """
    ranks: Comm = Solo()
    if world(environment) is not None:
        ranks = _everybody()
        ranks.Barrier()
    if ranks.rank == 0 and (name := environment.get(JOINED)):
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()
        except OSError as error:
            raise UsageError(f"{JOINED}={name} cannot be created ({error}): name another file, or unset it") from error
    return ranks
