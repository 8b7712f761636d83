"""Messages between ranks: MPI, or one process alone. The only place where mpi4py is imported."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.allreduce import AUTO, Reductions, SharedArrays, pieces
from mpifed.comm.mpi import Communicator, is_mpich, load, world
from mpifed.comm.node_map import NodeMap
from mpifed.core.errors import MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explained, explaining

T = TypeVar("T")
Bytes: TypeAlias = NDArray[np.uint8]  # [length]

PER_NODE = "MPIFED_RANKS_PER_NODE"  # for tests: this many consecutive ranks count as a node
REDUCE = "MPIFED_REDUCE"  # the reduction algorithm of long arrays
JOINED = "MPIFED_JOINED"  # a file that rank 0 creates when all ranks have joined, for the launcher of the run
_leave = os._exit  # while a run goes on, `os._exit` is an error, see `mpifed.run.launch`


class Alone:
    """One process, no MPI; the methods say what they do where there are ranks. All but `abort` are collective."""

    rank, size = 0, 1
    node_rank = 0  # of this rank within its node
    node_size = 1  # ranks on this rank's node

    def barrier(self) -> None:
        """Wait until every rank is here."""

    def broadcast(self, array: np.ndarray) -> None:
        """Overwrite `array` on every rank by rank 0's."""

    def reduce(self, array: np.ndarray, total: np.ndarray | None) -> None:
        if total is not None:
            np.copyto(total, array)

    def reduce_all(self, array: np.ndarray, total: np.ndarray) -> None:
        np.copyto(total, array)

    def shared(self, length: int, dtype: np.dtype) -> SharedArrays | None:
        """An array [length] of each rank, to be summed without copies; None where that is of no use."""
        return None

    def join(self, array: np.ndarray, parts: Sequence[slice]) -> None:
        """Put each rank's part of `array`, `parts[rank]`, into the array of rank 0, in place."""

    def share(self, value: Any) -> Any:  # whatever can be pickled; None on other ranks
        """Any picklable value of rank 0, on every rank; for set-up and small values."""
        return value

    def gather(self, value: T) -> list[T] | None:
        """The values of all ranks, on rank 0; for set-up, the end of a run and small values."""
        return [value]

    def fold(self, message: Bytes, add: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        """All ranks' messages, of any lengths, combined by `add` along a tree, on rank 0: for sums that MPI lacks."""
        return message

    def spread(self, root: int, message: Bytes | None) -> Bytes:
        """The message of rank `root`, of any length, on every rank."""
        assert message is not None
        return message

    def agree(self, error: BaseException | None = None) -> None:
        """Raise on every rank if any rank has an error: that of the lowest such rank."""
        if error is not None:
            with explaining():
                raise error

    def abort(self, code: int) -> NoReturn:
        """Terminate all ranks at once with this exit code; not collective."""
        _leave(code)


class MPITransport:
    """The ranks of one MPI communicator.

    Ranks share a node where MPI says that they can share memory, or as `nodes` has it; `reduction` is the algorithm for
    sums of long arrays, see `mpifed.comm.allreduce`. The constructor is collective.
    """

    def __init__(self, comm: Communicator, nodes: NodeMap | None = None, reduction: str = AUTO) -> None:
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        node_map = nodes or _detect_nodes(comm)
        self.node_rank, self.node_size = node_map.rank_within(self.rank), node_map.size_of(self.rank)
        self._reductions = Reductions(comm, node_map, reduction)

    def barrier(self) -> None:
        self._comm.Barrier()

    def broadcast(self, array: np.ndarray) -> None:
        """As `Alone.broadcast`, in pieces of less than 2^31 bytes."""
        flat = array.reshape(-1).view(np.uint8)
        for piece in pieces(flat):
            self._comm.Bcast(flat[piece])

    def reduce(self, array: np.ndarray, total: np.ndarray | None) -> None:
        self._reductions.library.reduce(array, total)

    def reduce_all(self, array: np.ndarray, total: np.ndarray) -> None:
        self._reductions.library.reduce_all(array, total)

    def shared(self, length: int, dtype: np.dtype) -> SharedArrays | None:
        return self._reductions.shared(length, dtype)

    def join(self, array: np.ndarray, parts: Sequence[slice]) -> None:
        if self.rank:
            self._comm.Gatherv(array[parts[self.rank]], None)
        else:
            counts, starts = [part.stop - part.start for part in parts], [part.start for part in parts]
            self._comm.Gatherv(load().IN_PLACE, (array, (counts, starts)))

    def share(self, value: Any) -> Any:  # whatever can be pickled; None on other ranks
        return self._comm.bcast(value)

    def gather(self, value: T) -> list[T] | None:
        return self._comm.gather(value)

    def fold(self, message: Bytes, add: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        """As `Alone.fold`, along a binomial tree, in ceil(log2(size)) steps."""
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
        """As `Alone.spread`: first the length, then pieces."""
        length = np.array([0 if message is None else len(message)], dtype=np.int64)
        self._comm.Bcast(length, root=root)
        received = np.empty(int(length[0]), dtype=np.uint8) if message is None or self.rank != root else message
        for piece in pieces(received):
            self._comm.Bcast(received[piece], root=root)
        return received

    def agree(self, error: BaseException | None = None) -> None:
        """As `Alone.agree`; a single small reduction where there is no error."""
        failed = np.array([error is not None], dtype=np.int64)
        self._comm.Allreduce(failed.copy(), failed, op=load().SUM)
        if failed[0]:
            errors = self._comm.allgather(None if error is None else _Failure.of(error, self.rank, self.size))
            first = next(e for e in errors if e is not None)
            raise first.kind(first.message, agreed=True) from error

    def abort(self, code: int) -> NoReturn:
        """MPI_Abort: the launcher ends every rank. MPICH's own message would hide the error, and is suppressed."""
        if is_mpich():
            with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr closed, replaced, or on a full disk
                sys.stderr.flush()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        self._comm.Abort(code)
        _leave(code)


Transport: TypeAlias = Alone | MPITransport  # a group of ranks


def _detect_nodes(comm: Communicator) -> NodeMap:
    """Nodes by shared memory, as MPI reports it. Collective."""
    node = comm.Split_type(load().COMM_TYPE_SHARED, comm.Get_rank())
    node_map = NodeMap.of(comm.allgather(node.bcast(comm.Get_rank())))  # named by their lowest ranks
    node.Free()
    return node_map


class _Failure(NamedTuple):
    """An exception in a form that can be pickled."""

    kind: type[MpifedError]
    message: str

    @classmethod
    def of(cls, error: BaseException, rank: int, ranks: int) -> _Failure:
        known = error if isinstance(error, MpifedError) else explained(error)
        if known is not None:
            return cls(type(known), str(known))
        text = "".join(traceback.format_exception(error)).rstrip()
        return cls(UnexpectedError, f"on rank {rank} of {ranks}\n{text}")


def connect(environment: Mapping[str, str] = os.environ) -> Transport:
    """The transport of this process: MPI under a launcher, else a single process. Collective under MPI.

    Raises UsageError when a launcher started several processes that MPI does not join into a single MPI_COMM_WORLD.
    """
    if (comm := world(environment)) is None:
        _joined(environment)
        return Alone()
    per_node = environment.get(PER_NODE, "")
    if per_node and not (per_node.isdigit() and int(per_node)):
        raise UsageError(f"{PER_NODE}={per_node}: expected a number of ranks, or nothing")
    nodes = NodeMap.even(comm.Get_size(), int(per_node)) if per_node else None
    transport = MPITransport(comm, nodes, environment.get(REDUCE, AUTO))
    transport.barrier()  # where nodes are given, the constructor does not communicate
    if transport.rank == 0:
        _joined(environment)
    return transport


def _joined(environment: Mapping[str, str]) -> None:
    """Create the file named by MPIFED_JOINED, if it is set."""
    if name := environment.get(JOINED):
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()
        except OSError as error:
            raise UsageError(
                f"{JOINED}={name} cannot be created ({error}): name a file that can, or unset it"
            ) from error
