"""Devices: which device a rank uses, and which data stay there.

Results are reproducible bit for bit on one kind of device because single precision is never rounded to TF32, cuBLAS
has a workspace of its own for each stream, kernels do not add atomically, and products have the shapes of the job's
blocks, never those of the clients that a rank hosts.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

from numpy.typing import DTypeLike

from mpifed.core.device import Device, beside_record, host_record
from mpifed.core.errors import UsageError
from mpifed.core.record import AnyRecord, Array
from mpifed.data.block import Block, ClientData
from mpifed.maths.resident import DeviceBlock, DeviceShard, RowBudget

SHARE = 0.8  # of a device's free memory is for rows and client states
_REMEDY = (
    "install the extra `gpu` of this package (pip install 'mpifed[gpu]') for your CUDA, request a GPU from the batch "
    'system, check that CUDA_VISIBLE_DEVICES does not hide it, or set [compute] device = "cpu"'
)


class Cuda(Device):
    """A CUDA device of this rank."""

    on_host = False

    # `xp` is CuPy, which has no types
    def __init__(self, xp: Any, number: int, memory_gib: float | None = None, ranks: int = 1) -> None:
        """`number` is the index among the visible devices; `ranks` is how many ranks share the device."""
        self.xp, self.number = xp, number
        runtime = xp.cuda.runtime
        xp.cuda.Device(number).use()
        properties = runtime.getDeviceProperties(number)
        self.name = str(properties["name"].decode())
        cuda = runtime.runtimeGetVersion()
        self.versions = {"cupy": str(xp.__version__), "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}
        free, _ = runtime.memGetInfo()
        budget = SHARE * free / ranks if memory_gib is None else memory_gib * 2**30
        self.room = RowBudget(int(budget))
        self._like = xp.empty(0)
        self._shards: dict[int, DeviceShard] = {}
        self._calls, self._scarce = 0, False

    def block(self, block: Block) -> Block:
        """The same clients, with rows on the device as far as memory allows; the caller must keep `block` alive."""
        if isinstance(block, DeviceBlock):
            return block
        known = vars(block).get(_THERE)
        if known is None or known[0] is not self:
            shards = tuple(self._shard(shard, block.dtype) for shard in block.shards)
            # lives as long as the block
            known = vars(block)[_THERE] = self, DeviceBlock(shards, block.dtype, xp_=self.xp)
        return known[1]

    def _shard(self, shard: ClientData, dtype: str) -> DeviceShard:
        device_shard = self._shards.get(shard.client)
        if device_shard is None:
            device_shard = self._shards[shard.client] = DeviceShard(shard, dtype, self.xp, self.room)
        device_shard.host = shard  # reopened, with the same content
        return device_shard

    def record(self, record: AnyRecord) -> AnyRecord:
        """`record` on the device, except for the fields that it keeps in memory."""
        return beside_record(self._like, record)

    def states(self, states: AnyRecord) -> AnyRecord:
        """Client states after an exchange: left where they are, or moved to memory when the device's is scarce."""
        if self._calls % _LOOK == 0:
            free, total = self.xp.cuda.runtime.memGetInfo()
            self._scarce = free + self.xp.get_default_memory_pool().free_bytes() < _LEAST * total
        self._calls += 1
        return host_record(states) if self._scarce else states

    def pinned(self, size: int, dtype: DTypeLike) -> Array:
        """[size] zeros in page-locked memory."""
        import cupyx

        zeros: Array = cupyx.zeros_pinned(size, dtype)
        return zeros


_THERE = "_on_device"  # attribute in which a block caches its counterpart on the device
_LOOK = 64  # calls between two measurements of the free memory
_LEAST = 0.08  # of a device's memory must be free, for temporary arrays


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
    try:
        import cupy

        count = int(cupy.cuda.runtime.getDeviceCount())
        trouble = "" if count else "no device is visible"
    except (ImportError, RuntimeError) as error:  # CuPy's own errors derive from the second
        count, trouble = 0, str(error)
    if not count:
        if wanted == "auto":
            return Device()
        raise UsageError(f'[compute] device = "gpu": {trouble}; {_REMEDY}')
    if os.environ.get("CUPY_TF32", "0") not in ("", "0"):
        raise UsageError(
            "CUPY_TF32 is set: products in single precision would be rounded to 10 bits, and results would "
            "differ from the CPU's in the third digit; unset it"
        )
    sharing = -(-node_size // count)
    return Cuda(cupy, node_rank % count, memory_gib, sharing)


def driver() -> bool:
    """Whether CUDA's driver is installed: a quick test, where importing CuPy takes a second."""
    try:
        ctypes.CDLL("libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll")
    except OSError:
        return False
    return True
