"""The states of a rank's clients: created when they first participate, in files beyond a limit and for checkpoints.

The states of a block are a function of the job until it is first present: there is nothing to keep of the others.
Those that were least recently used leave memory first: into a file without a name, which vanishes with the process
however that ends; or they are only discarded, where a checkpoint has the same bits.

A file has the arrays of block after block, raw and in C order; then its index in JSON: the forms that occur, which are
names, dtypes and shapes of a block's arrays, and of each block its first client, where it begins, and the number of its
form; in the last 8 bytes, where the index begins. The file without a name has no index.
"""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.io_errors import named_in_errors, open_regular
from mpifed.core.record import (
    AnyRecord,
    Array,
    Integers,
    Record,
    bare_leaves,
    beside,
    leaves,
    map_leaves,
    on_host,
    writable,
)

Arrays: TypeAlias = Mapping[str, Array]  # of one block, by name
Form: TypeAlias = tuple[tuple[str, str, Any], ...]  # of a block: (name, dtype, shape; None of a NumPy scalar)
REMEDY = "resume with the job that wrote it, or start anew without --resume, into another folder"
STATE = "state"


def named(kind: str, record: Record) -> Arrays:
    """The leaves of a record, by their names in a file."""
    return {f"{kind}/{name}".rstrip("/"): on_host(leaf) for name, leaf in leaves(record)}


def fitted(kind: str, like: Record, arrays: Arrays, where: str) -> Record:
    """The record in the structure of `like` with these leaves, as `named` names them.

    Raises
    ------
    DataError
        when a leaf is missing, or of another shape or dtype; `where` names the file.
    """
    names = iter(named(kind, like))

    def checked(leaf: Array) -> Array:
        name, needed = next(names), np.asarray(leaf)
        if name not in arrays:
            raise DataError(f"{where}: no {name}, which this job needs; {REMEDY}")
        found = arrays[name]
        if (found.shape, found.dtype) != (needed.shape, needed.dtype):
            raise DataError(
                f"{where}: {name} has shape {found.shape} and dtype {found.dtype}, this job needs {needed.shape} and "
                f"{needed.dtype}; {REMEDY}"
            )
        return found

    return map_leaves(checked, like)


def put(record: AnyRecord, who: Array, values: AnyRecord, in_place: bool = False) -> AnyRecord:
    """`record` with its entries `who` along the leading axis, in ascending order, replaced by `values`.

    `in_place`: in the arrays of `record` wherever they can be written to.
    """

    def replaced(leaf: Array, new: Array) -> Array:
        leaf = leaf if in_place and writable(leaf) else leaf.copy()
        leaf[beside(leaf, who)] = beside(leaf, new)
        return leaf

    return map_leaves(replaced, record, values)


class StateFile:
    """Blocks in a file, which is opened anew each time; one without a name is given by its folder and descriptor."""

    def __init__(self, path: Path, descriptor: int | None = None) -> None:
        self.path, self._descriptor, self.nbytes = path, descriptor, 0
        self.blocks: dict[int, tuple[int, int, Form]] = {}  # by first client: begin, end, and form of each
        self._forms: dict[Form, Form] = {}  # of which many blocks have one

    @classmethod
    def written(cls, path: Path, blocks: Iterable[tuple[int, Arrays]]) -> StateFile:
        """A new file of these blocks, which is on the disk."""
        written = cls(path)
        with named_in_errors(path), written.open("wb") as file:
            for first, arrays in blocks:
                written.write(file, first, arrays)
            number = {form: k for k, form in enumerate(written._forms)}
            index = [(first, begin, number[form]) for first, (begin, _, form) in written.blocks.items()]
            file.write(json.dumps({"forms": list(number), "blocks": index}).encode())
            file.write(written.nbytes.to_bytes(8, "little"))
            file.flush()
            os.fsync(file.fileno())
        return written

    @classmethod
    def opened(cls, path: Path) -> StateFile:
        """A file that `written` has made; DataError where it is none."""
        opened = cls(path)
        try:
            with open_regular(path) as file:
                end = file.seek(-8, os.SEEK_END)
                opened.nbytes = file.seek(int.from_bytes(file.read(), "little"))
                index = json.loads(file.read(max(0, end - opened.nbytes)))
            forms = [tuple((str(name), dtype, shape) for name, dtype, shape in form) for form in index["forms"]]
            sizes = [sum(_nbytes(dtype, shape) for _, dtype, shape in form) for form in forms]
            for first, begin, number in index["blocks"]:
                if not 0 <= begin <= opened.nbytes - sizes[number]:
                    raise ValueError("a block outside")
                opened.blocks[first] = int(begin), int(begin) + sizes[number], forms[number]
        except Exception as error:  # a damaged index may be anything
            raise DataError(f"{path}: its index cannot be read ({type(error).__name__}); {REMEDY}") from error
        return opened

    def open(self, mode: str) -> BufferedIOBase:
        """The file, opened to be read or written."""
        source = self.path if self._descriptor is None else self._descriptor
        return cast("BufferedIOBase", open(source, mode, closefd=self._descriptor is None))

    def write(self, file: BufferedIOBase, first: int, arrays: Arrays) -> None:
        """Write a block into the opened file, in place of what is there of it if that has the same form."""
        form = tuple((n, a.dtype.str, None if isinstance(a, np.generic) else a.shape) for n, a in arrays.items())
        begin, _, before = self.blocks.get(first, (0, 0, None))
        if form != before:
            begin, self.nbytes = self.nbytes, self.nbytes + sum(array.nbytes for array in arrays.values())
            self.blocks[first] = begin, self.nbytes, self._forms.setdefault(form, form)
        if file.tell() != begin:
            file.seek(begin)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).data)

    def read(self, first: int, kind: str) -> dict[str, Array]:
        """The arrays of that kind of a block; DataError where the file ends before."""
        begin, end, form = self.blocks[first]
        try:
            with self.open("rb") as file:
                file.seek(begin)
                content = file.read(end - begin)
            if len(content) < end - begin:
                raise OSError(0, "it ends before")
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror}); {REMEDY}") from error
        found, at = dict[str, Array](), 0
        for name, dtype, shape in form:
            array: Array = np.ndarray(shape or (), dtype, content, at)
            at += array.nbytes
            if name.split("/")[0] == kind:
                found[name] = array[()] if shape is None else array.copy()
        return found


def _nbytes(dtype: str, shape: Any) -> int:  # of whatever a file says
    """The bytes of an array of numbers; ValueError or TypeError where there is none."""
    if np.dtype(dtype).kind not in "biuf":
        raise ValueError(dtype)
    return np.broadcast_to(np.zeros((), dtype), shape or ()).nbytes


class ClientStates:
    """The states of this rank's blocks, by block number.

    Parameters
    ----------
    first : [blocks] first client of each, ascending
    begin : the state of a block before it has ever been renewed, each time anew
    room : bytes kept in memory; the rest is on the disk
    """

    def __init__(self, first: Integers, begin: Callable[[int], Record], room: float = np.inf) -> None:
        self.first, self.begin, self._room = first, begin, room
        self._here: OrderedDict[int, tuple[Record, int]] = OrderedDict()  # and its bytes; least recently used first
        self.nbytes = 0  # in memory
        self._before: dict[int, Record] = {}  # the states that a round, which may be void, has renewed
        self.changed: set[int] = set()  # blocks that are not as the last checkpoint has them
        self.files: dict[int, StateFile] = {}  # where a block was last written
        self._beyond: StateFile | None = None  # the one without a name

    def __iter__(self) -> Iterator[Record]:
        return map(self.peek, range(len(self.first)))

    def take(self, i: int) -> Record:
        """The state of a block."""
        if i in self._here:
            self._here.move_to_end(i)
        elif i in self.files:
            self._keep(i, self.peek(i))
        return self.peek(i)

    def peek(self, i: int) -> Record:
        """The state of a block, without loading it into memory for good; DataError when it is that of another job."""
        if i in self._here:
            return self._here[i][0]
        begun, file, first = self.begin(i), self.files.get(i), int(self.first[i])
        if file is None:
            return begun
        return fitted(STATE, begun, file.read(first, STATE), f"{file.path}: client {first}")

    def put(self, i: int, record: Record, may_go_back: bool) -> None:
        """Renew the state of a block; with `may_go_back`, the one before the round stays for `back`."""
        if i not in self._here and not bare_leaves(record):
            return  # it has never kept anything
        if may_go_back and i not in self._before:
            self._before[i] = self.peek(i)
        self.changed.add(i)
        self._keep(i, record)

    def commit(self) -> None:
        """The round counts."""
        self._before.clear()

    def back(self) -> None:
        """The round is void: all states are as before it."""
        for i, record in self._before.items():
            self._keep(i, record)
        self._before.clear()

    def are_saved(self, files: Mapping[int, StateFile]) -> None:
        """The blocks that had changed are in these files of a checkpoint now."""
        self.files |= files
        self._beyond = None
        self.changed.clear()

    def _keep(self, i: int, record: Record) -> None:
        size = sum(leaf.nbytes for leaf in bare_leaves(record))
        self.nbytes += size - self._here.pop(i, ((), 0))[1]
        self._here[i] = record, size
        while self.nbytes > self._room and len(self._here) > 1:
            old, (left, size) = self._here.popitem(last=False)
            self.nbytes -= size
            if old in self.changed:
                self._write(old, named(STATE, left))

    def _write(self, i: int, arrays: Arrays) -> None:
        """Write a block into the file without a name; DataError where there is no room for it."""
        try:
            if self._beyond is None:
                with tempfile.TemporaryFile(prefix="mpifed-states-") as opened:
                    descriptor = os.dup(opened.fileno())
                self._beyond = StateFile(Path(tempfile.gettempdir()), descriptor)
                weakref.finalize(self._beyond, os.close, descriptor)
            with self._beyond.open("wb") as file:
                self._beyond.write(file, int(self.first[i]), arrays)
        except OSError as error:
            raise DataError(
                f"{tempfile.gettempdir()}: clients' states beyond [data] state_gib cannot be written "
                f"({error.strerror}); name a folder with more room in the variable TMPDIR, or raise state_gib"
            ) from error
        self.files[i] = self._beyond
