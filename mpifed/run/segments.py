"""Segments: the files of a checkpoint that hold what clients keep, each what one rank's clients had changed till then.

A later segment stands above earlier ones, so a checkpoint costs what has changed since the last one. In a segment the
blocks whose arrays have the same shapes lie in one part `0000`, `0001`, ...: the first client of each block in `first`
[k], and each array, with k in front, under `state/` or, of clients' last answers, `last/<position in the block>/`.
Arrays are contiguous, so that one block is read without HDF5.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.io_errors import named_in_errors
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.shards.hdf5 import array_of, dataset_of, reading_hdf5, write_hdf5
from mpifed.shards.shard import Extent, Files

Arrays: TypeAlias = dict[str, NDArray[Any]]  # of one block, by name
_BATCH_NBYTES = 2**26  # gathered before they are written
REMEDY = "resume with the job that wrote it, or start anew without --resume, into another folder"
LAST = "last"
STATE = "state"
SCALAR = "scalar"  # attribute of a leaf that was no array of zero axes


class Part(NamedTuple):
    """Blocks of one segment whose arrays have the same shapes."""

    segment: str  # the name of its file
    first: NDArray[np.int64]  # [k] first client of each block
    arrays: dict[str, tuple[int, tuple[int, ...], Any]]  # offset in the file, shape and dtype of each block's array

    @property
    def nbytes(self) -> int:
        """Of one block."""
        return sum(math.prod(shape) * dtype.itemsize for _, shape, dtype in self.arrays.values())


def named(kind: str, record: Record) -> dict[str, Any]:
    """The leaves of a record by their names in a file."""
    return {f"{kind}/{name}".rstrip("/"): leaf for name, leaf in leaves(record)}


def fitted(kind: str, like: Record, found: Mapping[str, Any], where: str) -> Record:
    """The record in the structure of `like` whose leaves were `found`, as `named` has them, in a file or in memory.

    Raises
    ------
    DataError
        when one is not there, or of another shape or dtype; `where` says in which file.
    """
    names = iter(named(kind, like))

    def restored(leaf: Any) -> Any:
        name = next(names)
        if name not in found:
            raise DataError(f"{where}: no {name}, which this job needs; {REMEDY}")
        in_file = hasattr(found, "attrs")
        there, needed = array_of(found, name) if in_file else found[name], np.asarray(leaf)
        if (there.shape, there.dtype) != (needed.shape, needed.dtype):
            raise DataError(
                f"{where}: {name} has shape {there.shape} and dtype {there.dtype}, this job needs {needed.shape} and "
                f"{needed.dtype}; {REMEDY}"
            )
        return there[()] if in_file and SCALAR in found[name].attrs else there

    return map_leaves(restored, like)


def sync(path: Path) -> None:
    """The file is on the disk."""
    with named_in_errors(path), open(path, "r+b") as file:
        os.fsync(file.fileno())


def write(path: Path, blocks: Iterable[tuple[int, Arrays]]) -> list[Part]:
    """Write blocks, given by their first clients, into a new file, and sync it."""
    parts: list[Part] = []
    with write_hdf5(path) as file:
        for batch in _batches(blocks):
            alike: dict[Any, list[tuple[int, Arrays]]] = {}
            for first, arrays in batch:
                form = tuple((name, array.shape, array.dtype.str) for name, array in arrays.items())
                alike.setdefault(form, []).append((first, arrays))
            parts += [_write_part(file, path.name, len(parts) + n, some) for n, some in enumerate(alike.values())]
    sync(path)
    return parts


def _batches(blocks: Iterable[tuple[int, Arrays]]) -> Iterator[list[tuple[int, Arrays]]]:
    batch: list[tuple[int, Arrays]] = []
    room = _BATCH_NBYTES
    for one in blocks:
        batch.append(one)
        room -= sum(array.nbytes for array in one[1].values())
        if room <= 0:
            yield batch
            batch, room = [], _BATCH_NBYTES
    if batch:
        yield batch


def _write_part(file: Any, segment: str, number: int, blocks: list[tuple[int, Arrays]]) -> Part:
    group = file.create_group(f"{number:04d}")
    first = np.array([one for one, _ in blocks], dtype=np.int64)
    group["first"] = first
    places = {}
    for name, array in blocks[0][1].items():
        group[name] = np.stack([arrays[name] for _, arrays in blocks])
        places[name] = group[name].id.get_offset() or 0, array.shape, array.dtype
    return Part(segment, first, places)


def parts_of(path: Path) -> list[Part]:
    """The parts of a file that `write` has made; DataError where it is none."""
    with reading_hdf5(path, "not the states of clients", REMEDY) as file:
        return [_part(path.name, file[name]) for name in sorted(file)]


def _part(segment: str, group: Any) -> Part:
    names: list[str] = []
    group.visit(names.append)
    first, places = array_of(group, "first", "i"), dict[str, tuple[int, tuple[int, ...], Any]]()
    for name in names:
        if name == "first" or not hasattr(group[name], "shape"):
            continue
        found = dataset_of(group, name)
        if found.chunks or found.shape[:1] != first.shape or (found.size and found.id.get_offset() is None):
            raise ValueError(f"{name} of shape {found.shape}, of {len(first)} blocks")
        places[name] = found.id.get_offset() or 0, found.shape[1:], found.dtype
    if first.ndim != 1 or not len(first) or first.min() < 0:
        raise ValueError(f"{len(first)} blocks")
    return Part(segment, first.astype(np.int64), places)


class Segments:
    """The segments of a checkpoint that one rank's blocks need: where each block was last written.

    Parameters
    ----------
    folder : where the files are
    first : [blocks] first client of each of the rank's blocks, ascending
    """

    def __init__(self, folder: Path, first: NDArray[np.int64]) -> None:
        self.folder, self._first = folder, first
        self._files = Files()
        self.parts: list[Part] = []
        self._part = np.full(len(first), -1, dtype=np.int32)  # [blocks] number of the part it is in; -1: in none
        self._row = np.zeros(len(first), dtype=np.int64)  # [blocks] its place there

    def add(self, parts: Iterable[Part]) -> None:
        """Have later parts stand above those that are here."""
        for part in parts:
            at = np.searchsorted(self._first, part.first)
            at = np.minimum(at, max(len(self._first) - 1, 0))
            mine = np.flatnonzero(self._first[at] == part.first) if len(self._first) else np.zeros(0, np.int64)
            self._part[at[mine]], self._row[at[mine]] = len(self.parts), mine
            self.parts.append(part)

    def moved(self, folder: Path) -> None:
        """The files have other names now, in `folder`; those that are no more needed are not there."""
        self.folder, self._files = folder, Files()

    def of(self, i: int) -> Arrays | None:
        """What block `i` had when it was last written; None where it never was."""
        number = int(self._part[i])
        if number < 0:
            return None
        part, row = self.parts[number], int(self._row[i])
        return {
            name: Extent(self.folder / part.segment, offset, (len(part.first), *shape), dtype, self._files).part(
                row, row + 1
            )[0]
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
            when it is that of another job.
        """
        if not self.has(i, STATE):
            return None
        found = self.of(i)
        assert found is not None
        path = self.folder / self.parts[int(self._part[i])].segment
        return fitted(STATE, like, found, f"{path}: client {self._first[i]}")

    def written(self) -> NDArray[np.int64]:
        """The blocks that are here."""
        return np.flatnonzero(self._part >= 0)

    def sizes(self, without: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
        """(bytes that are needed, bytes in all) of each segment, once the blocks `without` are written elsewhere."""
        part = self._part.copy()
        part[without] = -1
        live = np.bincount(part[part >= 0], minlength=len(self.parts))
        found: dict[str, tuple[int, int]] = {}
        for one, count in zip(self.parts, live.tolist(), strict=True):
            needed, whole = found.get(one.segment, (0, 0))
            found[one.segment] = needed + count * one.nbytes, whole + len(one.first) * one.nbytes
        return found

    def within(self, segments: Iterable[str]) -> NDArray[np.int64]:
        """The blocks that were last written into one of these."""
        chosen = set(segments)
        numbers = [number for number, part in enumerate(self.parts) if part.segment in chosen]
        return np.flatnonzero(np.isin(self._part, numbers))

    def drop(self, segments: Iterable[str]) -> None:
        """Forget segments that no block needs."""
        chosen = set(segments)
        kept = [number for number, part in enumerate(self.parts) if part.segment not in chosen]
        renumbered = np.full(len(self.parts) + 1, -1, dtype=np.int32)  # the last is that of no part
        renumbered[kept] = np.arange(len(kept))
        self._part = renumbered[self._part]
        self.parts = [self.parts[number] for number in kept]
