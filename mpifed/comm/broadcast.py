"""The server's broadcast of an exchange: its order and its question, in one message but for long fields."""

from __future__ import annotations

import time

import numpy as np

from mpifed.comm.transport import Bytes, Transport
from mpifed.core.record import Layout, Record

_HEADER = 8  # bytes before the question: the server's order


class Broadcast:
    """Layout and buffer of an exchange's broadcasts, which follow from the first question."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._buffer: Bytes = np.zeros(0, dtype=np.uint8)

    def send(self, transport: Transport, order: int, question: Record) -> tuple[int, Record, float]:
        """(rank 0's order, its question, seconds until both are there); views until the next broadcast. Collective."""
        serves = transport.rank == 0
        if self._layout is None:
            self._layout = transport.share(Layout(question) if serves else None)
            self._buffer = np.zeros(_HEADER + self._layout.nbytes, dtype=np.uint8)
        header, packed = self._buffer[:_HEADER].view(np.int64), self._buffer[_HEADER:]
        if serves:
            header[0] = order
            long = self._layout.pack(question, packed, to_send=True)
        else:
            long = self._layout.long(packed)
        start = time.perf_counter()
        for part in (self._buffer[: _HEADER + self._layout.short], *long):
            transport.broadcast(part)
        seconds = time.perf_counter() - start
        return int(header[0]), question if serves else self._layout.unpack(packed), seconds
