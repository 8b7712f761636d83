"""The states of a rank's clients: created when they first participate, on the disk beyond a limit.

The states of a block are a function of the job until it is first present: there is nothing to keep of the others.
Those that were least recently used leave memory first: into a file without a name, which vanishes with the process
however that ends; or they are only discarded, where a checkpoint has the same bits.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.exchange import States
from mpifed.core.record import Array, PackedRecord, Record, bare_leaves, leaves, map_leaves, on_host


class Saved(Protocol):
    """States in a checkpoint."""

    def read(self, i: int, like: Record) -> Record | None:
        """The state of block `i`, in the structure of `like`; None where there is none."""


class Scratch:
    """Records by number in a file without a name, in the system's folder for these ($TMPDIR)."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._slots: dict[int, tuple[int, PackedRecord]] = {}  # where each record lies
        self._layouts: dict[object, PackedRecord] = {}  # of records of the same shapes
        self._end = 0

    def __contains__(self, i: int) -> bool:
        return i in self._slots

    def write(self, i: int, record: Record) -> None:
        """Keep a record in place of the one of that number; DataError where there is no room."""
        record = map_leaves(on_host, record)
        key = tuple((name, np.shape(leaf), leaf.dtype) for name, leaf in leaves(record))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = PackedRecord(record)
        slot = self._slots.get(i)
        if slot is None or slot[1] is not layout:
            slot = self._slots[i] = self._end, layout
            self._end += layout.nbytes
        buffer: Array = np.empty(layout.nbytes, dtype=np.uint8)
        layout.pack(record, buffer)
        view, at = buffer.data, slot[0]
        try:
            if self._file is None:
                with tempfile.TemporaryFile(prefix="mpifed-states-") as file:
                    self._file = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._file)
            while view:
                done = os.pwrite(self._file, view, at)
                view, at = view[done:], at + done
        except OSError as error:
            raise DataError(
                f"{tempfile.gettempdir()}: clients' states beyond [data] state_gib cannot be written "
                f"({error.strerror}); name a folder with more room in the variable TMPDIR, or raise state_gib"
            ) from error

    def read(self, i: int) -> Record:
        """The record number `i`."""
        assert self._file is not None
        at, layout = self._slots[i]
        buffer: Array = np.empty(layout.nbytes, dtype=np.uint8)
        view = buffer.data
        while view:
            got = os.preadv(self._file, [view], at)
            if not got:
                raise DataError(f"{tempfile.gettempdir()}: the file of clients' states ends at byte {at}; run it again")
            view, at = view[got:], at + got
        return layout.unpack(buffer)

    def clear(self) -> None:
        """Removes all records and frees their space."""
        self._slots.clear()
        self._end = 0
        if self._file is not None:
            os.ftruncate(self._file, 0)


class ClientStates:
    """The states of this rank's blocks, by block number.

    Parameters
    ----------
    count : blocks
    begin : the state of a block before it has ever been renewed, each time anew
    room : bytes kept in memory; the rest is on the disk
    """

    def __init__(self, count: int, begin: Callable[[int], Record], room: float = np.inf) -> None:
        self._count, self._begin, self._room = count, begin, room
        self._here: OrderedDict[int, Record] = OrderedDict()  # least recently used first
        self._sizes: dict[int, int] = {}
        self.nbytes = 0  # in memory
        self.scratch = Scratch()
        self.changed: set[int] = set()  # blocks that are not as the last checkpoint has them
        self.saved: Saved | None = None  # what it has of the others

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(self._count))

    def __getitem__(self, i: int) -> Record:
        record = self._here.get(i)
        if record is not None:
            if self._room < np.inf:
                self._here.move_to_end(i)
            return record
        if not 0 <= i < self._count:
            raise IndexError(f"block {i} of {self._count}")
        record, stored = self._fetch(i)
        if stored:
            self._keep(i, record)
        return record

    def peek(self, i: int) -> Record:
        """The state of a block, without loading it into memory for good."""
        record = self._here.get(i)
        return self._fetch(i)[0] if record is None else record

    def __setitem__(self, i: int, record: Record) -> None:
        if i not in self.changed:
            if not any(True for _ in leaves(record)) and i not in self._here:
                return  # it keeps nothing
            self.changed.add(i)
        self._keep(i, record)

    def begun(self, i: int) -> Record:
        """The state of a block before round 0."""
        return self._begin(i)

    def touch(self, i: int) -> None:
        """Marks a block for the next checkpoint, though its state is unchanged."""
        self.changed.add(i)

    def settled(self) -> ClientStates:
        """These states themselves; see `Tentative.settled`."""
        return self

    def is_saved(self, saved: Saved | None) -> None:
        """Called when all of this is in a checkpoint."""
        self.saved = saved
        self.changed.clear()
        self.scratch.clear()

    def _fetch(self, i: int) -> tuple[Record, bool]:
        """(the state of a block that is not in memory, whether it was ever updated)."""
        if i in self.scratch:
            return self.scratch.read(i), True
        begun = self._begin(i)
        saved = None
        if self.saved is not None and any(True for _ in leaves(begun)):
            saved = self.saved.read(i, begun)
        return (begun, False) if saved is None else (saved, True)

    def _keep(self, i: int, record: Record) -> None:
        if self._room == np.inf:
            self._here[i] = record
            return
        self.nbytes -= self._sizes.pop(i, 0)
        self._here[i] = record
        self._here.move_to_end(i)
        self._sizes[i] = sum(leaf.nbytes for leaf in bare_leaves(record))
        self.nbytes += self._sizes[i]
        while self.nbytes > self._room and len(self._here) > 1:
            old, left = self._here.popitem(last=False)
            self.nbytes -= self._sizes.pop(old)
            if old in self.changed:
                self.scratch.write(old, left)


class Tentative:
    """States in a round that may turn out void: updates are held back until the next round begins."""

    def __init__(self, states: ClientStates, turn: object) -> None:
        self._states, self.turn = states, turn
        self._renewed: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Record:
        return self._renewed[i] if i in self._renewed else self._states[i]

    def __setitem__(self, i: int, record: Record) -> None:
        self._renewed[i] = record

    def touch(self, i: int) -> None:
        self._states.touch(i)

    def settled(self) -> ClientStates:
        """The states with the updates: the round was not void."""
        for i, record in self._renewed.items():
            self._states[i] = record
        self._renewed.clear()
        return self._states


def writable(states: States, turn: object | None) -> States:
    """States that an exchange may renew one by one: a copy of a list; else themselves, or in place of them such as can
    be given up, where the round may turn out void (then `turn` is whatever is the same object in all of its exchanges).
    """
    if isinstance(states, list):
        return list(states)
    if turn is None:
        return states.settled()
    if isinstance(states, Tentative) and states.turn is turn:
        return states
    return Tentative(states.settled(), turn)
