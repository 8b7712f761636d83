"""Segments: the files of a checkpoint that hold what clients keep, each the states of one rank that had changed.

A later segment takes precedence over earlier ones, so a checkpoint costs what has changed since the last one. In a
segment the blocks whose arrays have the same shapes form a part `0000`, `0001`, ...: the first client of each block in
`first` [k], and each array, with k in front, under `state/` or, of clients' last answers,
`last/<position in the block>/`. Arrays are contiguous, so that a block is read without HDF5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.io_errors import named_in_errors
from mpifed.core.record import Array, Record, leaves, map_leaves
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.hdf5 import Group, array_of, dataset_of, read_at, reading_hdf5, write_hdf5

Arrays: TypeAlias = dict[str, Array]  # of one block, by name
_BATCH_NBYTES = 2**26  # gathered before they are written
REMEDY = "resume with the job that wrote it, or start anew without --resume, into another folder"
LAST = "last"
STATE = "state"
SCALAR = "scalar"  # attribute of a leaf that was a scalar and not an array of zero axes


class SegmentPart(NamedTuple):
    """Blocks of one segment whose arrays have the same shapes."""

    segment: str  # the name of its file
    first: NDArray[np.int64]  # [k] first client of each block
    arrays: dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]  # offset in the file, shape, dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self.arrays.values())


def named(kind: str, record: Record) -> Table:
    """The leaves of a record, by their names in a file."""
    return {f"{kind}/{name}".rstrip("/"): leaf for name, leaf in leaves(record)}


def fitted(kind: str, like: Record, values: ReadOnlyTable, where: str) -> Record:
    """The record in the structure of `like` with these leaves, as `named` names them, in a file or in memory.

    Raises
    ------
    DataError
        when a leaf is missing, or of another shape or dtype; `where` names the file.
    """
    names = iter(named(kind, like))

    def restored(leaf: Array) -> Array:
        name = next(names)
        if name not in values:
            raise DataError(f"{where}: no {name}, which this job needs; {REMEDY}")
        in_file = hasattr(values, "attrs")
        value, needed = array_of(values, name) if in_file else values[name], np.asarray(leaf)
        if (value.shape, value.dtype) != (needed.shape, needed.dtype):
            raise DataError(
                f"{where}: {name} has shape {value.shape} and dtype {value.dtype}, this job needs {needed.shape} and "
                f"{needed.dtype}; {REMEDY}"
            )
        return value[()] if in_file and SCALAR in values[name].attrs else value

    return map_leaves(restored, like)


def sync(path: Path) -> None:
    """Flush a file to the disk."""
    with named_in_errors(path), open(path, "r+b") as file:
        os.fsync(file.fileno())


def write(path: Path, blocks: Iterable[tuple[int, Arrays]]) -> list[SegmentPart]:
    """Write blocks, given by their first clients, into a new file, and sync it."""
    parts: list[SegmentPart] = []
    with write_hdf5(path) as file:
        for batch in _batches(blocks):
            alike: dict[object, list[tuple[int, Arrays]]] = {}
            for first, arrays in batch:
                form = tuple((name, array.shape, array.dtype.str) for name, array in arrays.items())
                alike.setdefault(form, []).append((first, arrays))
            parts += [_write_part(file, path.name, len(parts) + n, members) for n, members in enumerate(alike.values())]
    sync(path)
    return parts


def _batches(blocks: Iterable[tuple[int, Arrays]]) -> Iterator[list[tuple[int, Arrays]]]:
    batch: list[tuple[int, Arrays]] = []
    room = _BATCH_NBYTES
    for block in blocks:
        batch.append(block)
        room -= sum(array.nbytes for array in block[1].values())
        if room <= 0:
            yield batch
            batch, room = [], _BATCH_NBYTES
    if batch:
        yield batch


def _write_part(file: Group, segment: str, number: int, blocks: list[tuple[int, Arrays]]) -> SegmentPart:
    group = file.create_group(f"{number:04d}")
    first = np.array([client for client, _ in blocks], dtype=np.int64)
    group["first"] = first
    places = {}
    for name, array in blocks[0][1].items():
        group[name] = np.stack([arrays[name] for _, arrays in blocks])
        places[name] = group[name].id.get_offset() or 0, array.shape, array.dtype
    return SegmentPart(segment, first, places)


def parts_of(path: Path) -> list[SegmentPart]:
    """The parts of a file that `write` wrote; DataError where it is not such a file."""
    with reading_hdf5(path, "not the states of clients", REMEDY) as file:
        return [_part(path.name, file[name]) for name in sorted(file)]


def _part(segment: str, group: Group) -> SegmentPart:
    names: list[str] = []
    group.visit(names.append)
    # of any kind of number
    first, places = array_of(group, "first"), dict[str, tuple[int, tuple[int, ...], np.dtype[Any]]]()
    for name in names:
        if name == "first" or not hasattr(group[name], "shape"):
            continue
        dataset = dataset_of(group, name)
        if dataset.shape[:1] != first.shape:
            raise ValueError(f"{name} of shape {dataset.shape}, of {len(first)} blocks")
        places[name] = dataset.id.get_offset() or 0, dataset.shape[1:], dataset.dtype
    if first.ndim != 1 or first.dtype.kind != "i" or not len(first) or first.min() < 0:
        raise ValueError(f"{len(first)} blocks")
    return SegmentPart(segment, first.astype(np.int64), places)


class Segments:
    """The segments of a checkpoint that one rank's blocks need: where each block was last written.

    Parameters
    ----------
    folder : where the files are
    first : [blocks] first client of each of the rank's blocks, ascending
    """

    def __init__(self, folder: Path, first: NDArray[np.int64]) -> None:
        self.folder, self._first = folder, first
        self.parts: list[SegmentPart] = []
        self._part = np.full(len(first), -1, dtype=np.int32)  # [blocks] number of the part it is in; -1: in none
        self._row = np.zeros(len(first), dtype=np.int64)  # [blocks] its row in that part

    def add(self, parts: Iterable[SegmentPart]) -> None:
        """Add newer parts, which take precedence over those added before."""
        for part in parts:
            at = np.searchsorted(self._first, part.first)
            at = np.minimum(at, max(len(self._first) - 1, 0))
            mine = np.flatnonzero(self._first[at] == part.first) if len(self._first) else np.zeros(0, np.int64)
            self._part[at[mine]], self._row[at[mine]] = len(self.parts), mine
            self.parts.append(part)

    def moved(self, folder: Path) -> None:
        """The files are in `folder` now; those that are no longer needed are not there."""
        self.folder = folder

    def of(self, i: int) -> Arrays | None:
        """The arrays of block `i` as last written; None where it never was."""
        number = int(self._part[i])
        if number < 0:
            return None
        part, row = self.parts[number], int(self._row[i])
        return {
            name: read_at(
                self.folder / part.segment, offset + row * math.prod(shape) * dtype.itemsize, shape, dtype, REMEDY
            )
            for name, (offset, shape, dtype) in part.arrays.items()
        }

    def has(self, i: int, what: str) -> bool:
        """Whether block `i` has arrays of that kind, `STATE` or `LAST`."""
        number = int(self._part[i])
        return number >= 0 and any(name.split("/")[0] == what for name in self.parts[number].arrays)

    def read(self, i: int, like: Record) -> Record | None:
        """The state of block `i`; see `mpifed.core.states.Saved`.

        Raises
        ------
        DataError
            when it is the state of another job.
        """
        if not self.has(i, STATE):
            return None
        arrays = self.of(i)
        assert arrays is not None
        path = self.folder / self.parts[int(self._part[i])].segment
        return fitted(STATE, like, arrays, f"{path}: client {self._first[i]}")

    def written(self) -> NDArray[np.int64]:
        """The blocks that have been written."""
        return np.flatnonzero(self._part >= 0)

    def sizes(self, without: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
        """(bytes still needed, bytes in all) of each segment, once the blocks `without` are written elsewhere."""
        number = self._part.copy()  # [blocks]
        number[without] = -1
        live = np.bincount(number[number >= 0], minlength=len(self.parts))
        sizes: dict[str, tuple[int, int]] = {}
        for part, count in zip(self.parts, live.tolist(), strict=True):
            needed, whole = sizes.get(part.segment, (0, 0))
            sizes[part.segment] = (
                needed + count * part.nbytes,
                whole + len(part.first) * part.nbytes,
            )
        return sizes

    def within(self, segments: Iterable[str]) -> NDArray[np.int64]:
        """The blocks that were last written into one of these."""
        chosen = set(segments)
        numbers = [number for number, part in enumerate(self.parts) if part.segment in chosen]
        return np.flatnonzero(np.isin(self._part, numbers))

    def drop(self, segments: Iterable[str]) -> None:
        """Forget segments that no block needs."""
        chosen = set(segments)
        remaining = [number for number, part in enumerate(self.parts) if part.segment not in chosen]
        renumbered = np.full(len(self.parts) + 1, -1, dtype=np.int32)  # the last entry is for blocks in no part
        renumbered[remaining] = np.arange(len(remaining))
        self._part = renumbered[self._part]
        self.parts = [self.parts[number] for number in remaining]
