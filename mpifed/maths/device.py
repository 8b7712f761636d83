"""Devices: which device a rank uses, and which rows stay there.

A block's rows are copied once, in the order in which blocks are first used, until the budget is exhausted; the rows of
other blocks are copied whenever they are read. What computes with them is NumPy's code, by CuPy. Results are
reproducible bit for bit on one kind of device because single precision is never rounded to TF32, cuBLAS has a workspace
of its own for each stream, and products have the shapes of the job's blocks, whoever hosts the clients and wherever
their rows are.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.device import Device, host_record
from mpifed.core.errors import UsageError
from mpifed.core.record import AnyRecord, Array, ArrayModule, beside
from mpifed.data.block import Block, ClientData, CsrRows, Piece

_SHARE = 0.8  # of a device's free memory is for rows
_LEAST = 0.08  # of a device's memory must be free, for temporary arrays
_ALIGNMENT = 256  # bytes; that of every allocation, by which cuBLAS chooses kernels
_STEP = 64  # so many rows of single precision are a multiple of it
_REMEDY = (
    "install the extra `gpu` of this package (pip install 'mpifed[gpu]') for your CUDA, request a GPU from the batch "
    'system, check that CUDA_VISIBLE_DEVICES does not hide it, or set [compute] device = "cpu"'
)


class DeviceRows(NamedTuple):
    """Rows of clients on a device, one client after the other: a `mpifed.data.block.Joint`."""

    X: Array  # [s, p]
    y: Array  # [s]
    side_by_side: int = 0

    def take(self, at: Array, outs: Sequence[Array]) -> None:
        """Put the rows `at` [b], counted over all the clients, into the one [b, p] of `outs`."""
        self.X.take(beside(self.X, at), axis=0, out=outs[0])


class Resident(NamedTuple):
    """Where the rows of one client are on a device."""

    joint: DeviceRows
    start: int  # its first row there
    cuts: Sequence[slice]  # its own rows, as its shard's `pieces` cuts them


class DeviceShard:
    """The rows of one client on a device, or copied there when they are read; a `mpifed.data.block.ClientData`."""

    sparse = False

    def __init__(self, host: ClientData, there: Resident | None, xp: ArrayModule) -> None:
        """`host` is the same shard in memory, `there` its rows on the device, if they are."""
        self.host, self._there, self._xp = host, there, xp
        self.client, self.samples, self.features = host.client, host.samples, host.features
        self.rows, self.columns = host.rows, host.columns  # in memory
        self.joint = None if there is None else (there.joint, there.start)
        self.y = xp.asarray(host.y) if there is None else there.joint.y[there.start : there.start + host.samples]

    def take(self, at: Array, out: Array) -> None:
        """Copy the rows `at` [b] into `out` [b, p]."""
        if self._there is not None:
            self._there.joint.X.take(self._xp.asarray(at + self._there.start), axis=0, out=out)
            return
        rows = np.empty(out.shape, out.dtype)
        self.host.take(at, rows)
        out[...] = self._xp.asarray(rows)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> CsrRows:
        raise TypeError(f"the shard of client {self.client} is dense: read it with `take`")

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        """(row indices, X [b, p]) for all rows in order, in the pieces of the shard in memory."""
        if self._there is None:
            yield from ((at, self._xp.asarray(X)) for at, X in self.host.pieces(dtype))
            return
        (X, *_), start, cuts = self._there
        for at in cuts:
            piece = X[start + at.start : start + at.stop]
            aligned = (start + at.start) * X[:1].nbytes % _ALIGNMENT == 0
            yield at, piece if aligned else piece.copy()


@dataclass(frozen=True)
class DeviceBlock(Block):
    """A block whose shards are `DeviceShard`."""

    shards: tuple[DeviceShard, ...]

    @property
    def host(self) -> Block:
        """The same clients' rows in memory."""
        return Block(tuple(shard.host for shard in self.shards), self.dtype, self.drawn)


class Cuda(Device):
    """A CUDA device of this rank."""

    on_host = False

    # `xp` is CuPy, which has no types
    def __init__(self, xp: Any, number: int, memory_gib: float | None = None, ranks: int = 1) -> None:
        """`number` is the index among the visible devices; `ranks` is how many ranks share the device."""
        self.xp, runtime = xp, xp.cuda.runtime
        xp.cuda.Device(number).use()
        self.name = str(runtime.getDeviceProperties(number)["name"].decode())
        cuda = runtime.runtimeGetVersion()
        self.versions = {"cupy": str(xp.__version__), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}
        free, _ = runtime.memGetInfo()
        self.room = int(_SHARE * free / ranks if memory_gib is None else memory_gib * 2**30)  # bytes left for rows
        self._there: dict[int, Resident | None] = {}  # by client; None: in memory

    def block(self, block: Block) -> Block:
        """The same clients, with their rows on the device as far as there is room."""
        if any(shard.client not in self._there for shard in block.shards):
            alike = len({shard.features for shard in block.shards}) == 1
            for group in [block.shards] if alike else [(shard,) for shard in block.shards]:
                self._there |= self._copied(group, block.dtype)
        shards = tuple(DeviceShard(shard, self._there[shard.client], self.xp) for shard in block.shards)
        return DeviceBlock(shards, block.dtype)

    def _copied(self, shards: Sequence[ClientData], dtype: str) -> dict[int, Resident | None]:
        """The rows of clients with equally many columns, one after the other on the device if there is room."""
        *starts, size = np.cumsum([0, *(-(-shard.samples // _STEP) * _STEP for shard in shards)]).tolist()
        shape, clients = (size, shards[0].features), [shard.client for shard in shards]
        nbytes = size * shards[0].features * np.dtype(dtype).itemsize
        if nbytes > self.room:
            return dict.fromkeys(clients)
        self.room -= nbytes
        joint = DeviceRows(self.xp.empty(shape, dtype), self.xp.empty(size, shards[0].y.dtype))
        cuts: list[list[slice]] = []
        for start, shard in zip(starts, shards, strict=True):
            joint.y[start : start + shard.samples] = self.xp.asarray(shard.y)
            cuts.append([])
            for at, X in shard.pieces(dtype):
                joint.X[start + at.start : start + at.stop] = self.xp.asarray(X)
                cuts[-1].append(at)
        return {client: Resident(joint, *own) for client, *own in zip(clients, starts, cuts, strict=True)}

    def record(self, record: AnyRecord) -> AnyRecord:
        """`record` on the device, except for single numbers and the fields that it keeps in memory."""
        if not isinstance(record, tuple):
            return cast("AnyRecord", self.xp.asarray(record)) if getattr(record, "ndim", 0) else record
        in_memory = getattr(type(record), "in_memory", ())
        values = [
            value if name in in_memory else self.record(value)
            for name, value in zip(getattr(record, "_fields", ()), record, strict=True)
        ]
        return cast("Callable[..., AnyRecord]", type(record))(*values) if record else record  # as in `map_leaves`

    def states(self, states: AnyRecord) -> AnyRecord:
        """Client states after an exchange: left where they are, or moved to memory when the device's is scarce."""
        free, total = self.xp.cuda.runtime.memGetInfo()
        scarce = free + self.xp.get_default_memory_pool().free_bytes() < _LEAST * total
        return host_record(states) if scarce else states


def open_device(wanted: str, node_rank: int, node_size: int, memory_gib: float | None = None) -> Device:
    """The device of a rank: the CPU if `wanted` is "cpu", or if it is "auto" and there is no GPU.

    Parameters
    ----------
    wanted : "auto", "cpu" or "gpu"
    node_rank, node_size : this rank among those of its node; it uses the visible device `node_rank` modulo their number
    memory_gib : of the device for rows; None: 80 % of the free memory, divided by the ranks that share the device

    Raises
    ------
    UsageError : when "gpu" is wanted and not available, or set up so that results would not be reproducible.
    """
    if wanted == "cpu" or (wanted == "auto" and not driver()):
        return Device()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is loaded
    count, trouble = 0, "no device is visible"
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
    except (ImportError, RuntimeError) as error:  # CuPy's own errors derive from the second
        trouble = str(error)
    if not count and wanted == "auto":
        return Device()
    if not count:
        raise UsageError(f'[compute] device = "gpu": {trouble}; {_REMEDY}')
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        raise UsageError(
            "CUPY_TF32 is set: products in single precision would be rounded to 10 bits, and results would "
            "differ from the CPU's in the third digit; unset it"
        )
    return Cuda(cupy, node_rank % count, memory_gib, -(-node_size // count))


def driver() -> bool:
    """Whether CUDA's driver is installed: a quick test, where importing CuPy takes a second."""
    try:
        ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll")
    except OSError:
        return False
    return True
