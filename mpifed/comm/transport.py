"""Messages between ranks: MPI, or one process alone. The only place where mpi4py is imported."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.nodes import NodeMap
from mpifed.comm.reductions import Constants, Direct, Way, pieces
from mpifed.comm.tuning import AUTO, DIRECT, EVERYWHERE, Tuned
from mpifed.core.errors import MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explained, explaining

Bytes: TypeAlias = NDArray[np.uint8]  # [length]

PER_NODE = "MPIFED_RANKS_PER_NODE"  # for trying out what depends on nodes: so many consecutive ranks count as one
REDUCE = "MPIFED_REDUCE"  # the way in which long arrays are added up
JOINED = "MPIFED_JOINED"  # a file that rank 0 makes when all ranks have joined, for who has launched them
_leave = os._exit  # while a run goes on, `os._exit` is an error, see `mpifed.run.launch`
_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "PMIX_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


class Transport(Protocol):
    """A group of ranks. All methods but `abort` are collective."""

    rank: int
    size: int
    nodes: list[int]  # [size] the node of every rank; the lowest rank of a node leads it
    node_rank: int  # of this rank within its node
    node_size: int  # ranks on this rank's node

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def broadcast(self, array: NDArray[Any]) -> None:
        """Overwrite `array` on every rank by that of rank 0."""

    def reduce(self, array: NDArray[Any], total: NDArray[Any] | None) -> None:
        """Put the sum over all ranks of `array` into `total` on rank 0 (None elsewhere).

        Where every rank gives `array` for it, that is used up on all of them, and less is copied.
        """

    def reduce_all(self, array: NDArray[Any], total: NDArray[Any]) -> None:
        """Put the sum over all ranks of `array` into `total`, which may be the same array, on every rank."""

    def ways(self) -> dict[str, Any]:
        """In which way long arrays of each length have been added up, as far as several were tried; not collective."""

    def share(self, value: Any) -> Any:
        """Any picklable value of rank 0, on every rank; for set-up, and for what is small."""

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all ranks, on rank 0; for set-up and the end, and for what is small."""

    def fold(self, message: Bytes, add: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        """On rank 0 all ranks' messages, of any lengths, put together two by two up a tree: for what MPI cannot add."""

    def spread(self, root: int, message: Bytes | None) -> Bytes:
        """The message of rank `root`, of any length, on every rank."""

    def agree(self, error: BaseException | None = None) -> None:
        """Raise on every rank if any rank has an error: the first one in order of ranks."""

    def abort(self, code: int) -> NoReturn:
        """End all ranks at once with this exit code; not collective."""


class Alone:
    """One process, no MPI."""

    rank, size = 0, 1
    node_rank, node_size = 0, 1

    def __init__(self) -> None:
        self.nodes = [0]

    def barrier(self) -> None:
        """Nothing to wait for."""

    def broadcast(self, array: NDArray[Any]) -> None:
        """Nothing to do."""

    def reduce(self, array: NDArray[Any], total: NDArray[Any] | None) -> None:
        """A copy."""
        if total is not None:
            np.copyto(total, array)

    def reduce_all(self, array: NDArray[Any], total: NDArray[Any]) -> None:
        """A copy."""
        np.copyto(total, array)

    def ways(self) -> dict[str, Any]:
        """Nothing is tried."""
        return {}

    def share(self, value: Any) -> Any:
        """The value."""
        return value

    def gather(self, value: Any) -> list[Any] | None:
        """The value alone."""
        return [value]

    def fold(self, message: Bytes, add: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        """The message."""
        return message

    def spread(self, root: int, message: Bytes | None) -> Bytes:
        """The message."""
        assert message is not None
        return message

    def agree(self, error: BaseException | None = None) -> None:
        """Raise the error."""
        if error is not None:
            with explaining():
                raise error

    def abort(self, code: int) -> NoReturn:
        """Leave the process."""
        _leave(code)


class MPITransport:
    """The ranks of one MPI communicator (an mpi4py `Comm`).

    Ranks share a node where MPI says that they can share memory, or as `nodes` has it; long arrays are added up in the
    `way` of `mpifed.comm.tuning`. Making one is collective.
    """

    def __init__(self, comm: Any, nodes: NodeMap | None = None, way: str = AUTO) -> None:
        from mpi4py import MPI

        self._comm, self._sum = comm, MPI.SUM
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        found = nodes or _found_nodes(MPI, comm)
        self.nodes = list(found.nodes)
        self.node_rank, self.node_size = found.rank_within(self.rank), found.size_of(self.rank)
        of_floats = EVERYWHERE if "MPICH" in str(library()) else DIRECT
        constants = Constants.of(MPI)
        self.way = Tuned(comm, constants, found, way, of_floats)
        self.direct: Way = Direct(comm, constants)  # also takes arrays on a device, if the library does

    def barrier(self) -> None:
        """MPI_Barrier."""
        self._comm.Barrier()

    def broadcast(self, array: NDArray[Any]) -> None:
        """In pieces of less than 2^31 bytes."""
        flat = array.reshape(-1).view(np.uint8)
        for piece in pieces(flat):
            self._comm.Bcast(flat[piece])

    def reduce(self, array: NDArray[Any], total: NDArray[Any] | None) -> None:
        """In the way that is fastest here."""
        self.way.reduce(array, total)

    def reduce_all(self, array: NDArray[Any], total: NDArray[Any]) -> None:
        """In the way that is fastest here."""
        self.way.reduce_all(array, total)

    def ways(self) -> dict[str, Any]:
        """Seconds of each, and which one stayed."""
        return self.way.chosen()

    def share(self, value: Any) -> Any:
        """By pickle."""
        return self._comm.bcast(value)

    def gather(self, value: Any) -> list[Any] | None:
        """By pickle."""
        gathered: list[Any] | None = self._comm.gather(value)
        return gathered

    def fold(self, message: Bytes, add: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        """A binomial tree: as many steps as the number of ranks has binary digits."""
        step = 1
        while step < self.size:
            if self.rank % (2 * step):
                self._send(message, self.rank - step)
                return None
            if self.rank + step < self.size:
                message = add(message, self._receive(self.rank + step))
            step *= 2
        return message

    def _send(self, message: Bytes, to: int) -> None:
        self._comm.Send(np.array([len(message)], dtype=np.int64), dest=to)
        for piece in pieces(message):
            self._comm.Send(message[piece], dest=to)

    def _receive(self, source: int) -> Bytes:
        length = np.empty(1, dtype=np.int64)
        self._comm.Recv(length, source=source)
        message = np.empty(int(length[0]), dtype=np.uint8)
        for piece in pieces(message):
            self._comm.Recv(message[piece], source=source)
        return message

    def spread(self, root: int, message: Bytes | None) -> Bytes:
        """Its length first, then in pieces."""
        length = np.array([0 if message is None else len(message)], dtype=np.int64)
        self._comm.Bcast(length, root=root)
        found = np.empty(int(length[0]), dtype=np.uint8) if message is None or self.rank != root else message
        for piece in pieces(found):
            self._comm.Bcast(found[piece], root=root)
        return found

    def agree(self, error: BaseException | None = None) -> None:
        """One small reduction when all is well."""
        failed = np.array([error is not None], dtype=np.int64)
        self._comm.Allreduce(failed.copy(), failed, op=self._sum)
        if failed[0]:
            errors = self._comm.allgather(None if error is None else _Failure.of(error, self.rank, self.size))
            first = next(e for e in errors if e is not None)
            raise first.kind(first.message, agreed=True) from error

    def abort(self, code: int) -> NoReturn:
        """MPI_Abort: the launcher ends every rank. What MPICH would say about it hides what has happened."""
        if "MPICH" in str(library()):
            with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, replaced, or on a full disk
                sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self._comm.Abort(code)
        _leave(code)


def _found_nodes(MPI: Any, comm: Any) -> NodeMap:
    """Collective."""
    near = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.Get_rank())
    found = NodeMap.of(comm.allgather(near.bcast(comm.Get_rank())))  # by the lowest rank of each
    near.Free()
    return found


class _Failure(NamedTuple):
    """An exception in a form that travels."""

    kind: type[MpifedError]
    message: str

    @classmethod
    def of(cls, error: BaseException, rank: int, ranks: int) -> _Failure:
        known = error if isinstance(error, MpifedError) else explained(error)
        if known is not None:
            return cls(type(known), str(known))
        text = "".join(traceback.format_exception(error)).rstrip()
        return cls(UnexpectedError, f"on rank {rank} of {ranks}\n{text}")


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks this job step was launched with, as the launcher says; 1 without a launcher.

    An allocation's own variables (SLURM_NTASKS) do not count: they are set in a batch script as well.
    """
    return max([1, *(int(environment[name]) for name in _STEP_SIZES if environment.get(name, "").isdigit())])


def connect(environment: Mapping[str, str] = os.environ) -> Transport:
    """The transport of this process: MPI under a launcher, else one process alone. Collective under MPI.

    Raises
    ------
    UsageError
        when a launcher started several processes that MPI does not join into one world.
    """
    ranks = launched_ranks(environment)
    if ranks == 1:
        _joined(environment)
        return Alone()
    try:
        MPI = _load()
    except (ImportError, RuntimeError) as error:
        raise UsageError(
            f"launched as {ranks} ranks, but mpi4py or its MPI library cannot be loaded ({error}); "
            "install an MPI library that mpi4py finds, or the extra of this package: pip install 'mpifed[mpich]'"
        ) from error
    version = library()
    stranger = "OMPI_COMM_WORLD_SIZE" in environment and "Open MPI" not in str(version)
    if not stranger and not MPI.Is_initialized():
        # MPICH yields the core while it waits only if threads are allowed: with more ranks than cores, 30 times as fast
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    if stranger or MPI.COMM_WORLD.Get_size() == 1:  # MPICH would abort in Init under Open MPI's launcher
        raise UsageError(
            f"launched as {ranks} ranks, but the launcher and the MPI library ({version}) do not belong together: "
            "every process would be a world of its own. Use the mpiexec that came with this library; under Slurm "
            "`srun --mpi=pmi2` for MPICH or `--mpi=pmix` for Open MPI; `mpifed doctor` tells more"
        )
    per_node = environment.get(PER_NODE, "")
    if per_node and not (per_node.isdigit() and int(per_node)):
        raise UsageError(f"{PER_NODE}={per_node}: expected a number of ranks, or nothing")
    nodes = NodeMap.even(ranks, int(per_node)) if per_node else None
    transport = MPITransport(MPI.COMM_WORLD, nodes, environment.get(REDUCE, AUTO))
    transport.barrier()  # where nodes are given, making it has waited for nobody
    if transport.rank == 0:
        _joined(environment)
    return transport


def _joined(environment: Mapping[str, str]) -> None:
    """Make the file of MPIFED_JOINED, if it is set."""
    if name := environment.get(JOINED):
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()
        except OSError as error:
            raise UsageError(f"{JOINED}={name} cannot be made ({error}): name a file that can, or unset it") from error


def takes_device_arrays(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the MPI library, which runs already, says that it takes arrays on a CUDA device; by default it does not.

    Open MPI and MPICH are asked by MPIX_Query_cuda_support; Cray's says so by MPICH_GPU_SUPPORT_ENABLED.
    """
    if environment.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return True
    try:
        query = ctypes.CDLL(_load().__file__).MPIX_Query_cuda_support
    except (ImportError, RuntimeError, OSError, AttributeError):
        return False
    return bool(query())


def library() -> str | None:
    """Name and version of the MPI library; None when mpi4py or a library is missing. Does not initialize MPI."""
    try:
        version: str = _load().Get_library_version()
    except (ImportError, RuntimeError):
        return None
    return " ".join(version.splitlines()[0].split(",")[0].split()).rstrip("\x00")


def _load() -> Any:
    """mpi4py's MPI, not yet initialized unless somebody else has done so, and finalized at the end."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    return MPI
