"""Messages of several ciphertexts: numbered blocks of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channels.bfv import Bfv
from mpifed.comm.mpi import Bytes
from mpifed.core.errors import BrokenProtocol


def bundle(blocks: Mapping[int, bytes]) -> Bytes:
    """Numbered blocks of bytes as a single message."""
    names = [word for number, block in blocks.items() for word in (number, len(block))]
    header = np.array([len(blocks), *names], dtype="<i8").tobytes()
    return writable(b"".join([header, *blocks.values()]))


def writable(data: bytes) -> Bytes:
    """A writable copy, as MPI requires."""
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def unbundle(message: Bytes) -> dict[int, bytes]:
    """The numbered blocks of a message of `bundle`; BrokenProtocol when it is truncated, or no such message."""
    data = memoryview(np.ascontiguousarray(message))  # type: ignore[arg-type]
    count = int(np.frombuffer(data[:8], dtype="<i8")[0]) if len(data) >= 8 else -1
    start = 8 + 16 * count
    if not 8 <= start <= len(data):
        raise BrokenProtocol(f"a message of {len(data)} bytes holds no ciphertexts; it was altered")
    header = np.frombuffer(data[8:start], dtype="<i8").reshape(count, 2)
    lengths = header[:, 1]
    if len(np.unique(header[:, 0])) < count or (lengths < 0).any() or start + int(lengths.sum()) != len(data):
        raise BrokenProtocol(f"a message of {len(data)} bytes does not hold the {count} ciphertexts it names: altered")
    blocks = {}
    for number, length in header.tolist():
        blocks[number] = bytes(data[start : start + length])
        start += length
    return blocks


def words(scheme: Bfv, message: Bytes) -> Iterator[tuple[NDArray[np.uint64], int]]:
    """(integers, modulus) of the ciphertexts of an upload, or of a rank's message; for the audit."""
    for block in unbundle(message).values():
        yield from scheme.words(block)
