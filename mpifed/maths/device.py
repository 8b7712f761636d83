"""Devices: which device a rank uses. Rows are in memory, and are copied to the device when they are read.

What computes with them is NumPy's code, by CuPy. Results are reproducible bit for bit on one kind of device because
single precision is never rounded to TF32, cuBLAS has a workspace of its own for each stream, and products have the
shapes of the job's blocks, whoever hosts the clients.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.core.record import AnyRecord, Array, ArrayModule
from mpifed.data.block import Block, ClientData, CsrRows, Piece

_REMEDY = (
    "install the extra `gpu` (pip install 'mpifed[gpu]'; for CUDA 12 `gpu12`), request a GPU from the batch "
    'system, check that CUDA_VISIBLE_DEVICES does not hide it, or set [compute] device = "cpu"'
)


class DeviceShard:
    """The rows of one client, copied to a device when they are read; a `mpifed.data.block.ClientData`."""

    sparse = False
    joint = None

    def __init__(self, host: ClientData, xp: ArrayModule) -> None:
        """`host` is the same shard in memory."""
        self.host, self._xp = host, xp
        self.client, self.samples, self.features = host.client, host.samples, host.features
        self.rows, self.columns = host.rows, host.columns  # in memory
        self.y = xp.asarray(host.y)

    def take(self, at: Array, out: Array) -> None:
        """Copy the rows `at` [b] into `out` [b, p]."""
        rows = np.empty(out.shape, out.dtype)
        self.host.take(at, rows)
        out[...] = self._xp.asarray(rows)

    def take_sparse(self, at: Array, dtype: DTypeLike) -> CsrRows:
        raise TypeError(f"the shard of client {self.client} is dense: read it with `take`")

    def pieces(self, dtype: DTypeLike) -> Iterator[tuple[slice, Piece]]:
        """(row indices, X [b, p]) for all rows in order, in the pieces of the shard in memory."""
        return ((at, self._xp.asarray(X)) for at, X in self.host.pieces(dtype))


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
    def __init__(self, xp: Any, number: int) -> None:
        """`number` is the index among the visible devices."""
        self.xp, runtime = xp, xp.cuda.runtime
        xp.cuda.Device(number).use()
        self.name = str(runtime.getDeviceProperties(number)["name"].decode())
        cuda = runtime.runtimeGetVersion()
        self.versions = {"cupy": str(xp.__version__), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}

    def block(self, block: Block) -> Block:
        """The same clients, whose rows are copied to the device when they are read."""
        return DeviceBlock(tuple(DeviceShard(shard, self.xp) for shard in block.shards), block.dtype)

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


def open_device(wanted: str, node_rank: int) -> Device:
    """The device of a rank: the CPU if `wanted` is "auto" and there is no GPU.

    Parameters
    ----------
    wanted : "auto" or "cuda"
    node_rank : this rank among those of its node; it uses the visible device of that number modulo how many there are

    Raises
    ------
    UsageError : when "cuda" is wanted and not available, or set up so that results would not be reproducible.
    """
    if wanted == "auto" and not driver():
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
        raise UsageError(f'[compute] device = "cuda": {trouble}; {_REMEDY}')
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        raise UsageError(
            "CUPY_TF32 is set: products in single precision would be rounded to 10 bits, and results would "
            "differ from the CPU's in the third digit; unset it"
        )
    return Cuda(cupy, node_rank % count)


def driver() -> bool:
    """Whether CUDA's driver is installed: a quick test, where importing CuPy takes a second."""
    try:
        ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll")
    except OSError:
        return False
    return True
