"""The files of a federation: `shard-00000.h5` ... with the clients' data, and `federation.h5` with what is common.

A shard file holds the data of its clients in sequence: labels `y` [s], and either dense rows `X` [s, p]
as one contiguous uncompressed dataset, which can be read row by row without HDF5, or sparse rows as `data`, `indices`
and `indptr` (CSR). `X` is one-dimensional where its clients hold different columns. `federation.h5` has the offsets of
the datasets, and the numbers of rows and columns of each client, so that shards are read without HDF5. Rows with
which their client tests lie in datasets of their own, whose names begin with `test_`.
Values are raw: uint8 if those of the source are, else float32. Numbers are little-endian.

`federation.h5` holds the groups of rows and columns and the clients that hold them, the scaling of the columns, test
data, checksums and provenance. It is written last, so that incomplete data never look complete. Two of its attributes
are SHA-256 checksums of its own content: `sha256` of everything else; `data_sha256` of everything but the provenance,
which is equal for data made twice in the same way. `federation.sha256` is the checksum of its bytes, which is compared
before HDF5 opens it. (Files of earlier versions lack these three.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from weakref import WeakValueDictionary

import h5py
import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.errors import DataError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array, vectors
from mpifed.core.tables import Table
from mpifed.core.text import command_line, leads_to
from mpifed.shards import layout
from mpifed.shards.extent import Extent, Files
from mpifed.shards.hdf5 import array_of, attribute_of, content_sha256, reading_hdf5, texts_of
from mpifed.shards.reading import (
    Places,
    TestRows,
    check_labels,
    check_members,
    check_rows,
    contents,
    identifiers,
    raw_rows,
)
from mpifed.shards.scaling import Scaling
from mpifed.shards.shard import DenseRows, Shard, SparseRows
from mpifed.shards.writing import About as About
from mpifed.shards.writing import write_federation as write_federation

_FEW_MEMBERS = 2**22  # up to so many row or column indices of all clients are read at once and cached


@dataclass(frozen=True)
class ShardFolder:
    """The content of a data folder; the same on every rank. Shards and test data are read on demand."""

    path: Path
    split: str  # "rows", "columns" or "grid"
    clients: int  # N
    samples: int  # distinct training rows
    test_samples: int
    features: int
    classes: int  # 0 for regression
    sparse: bool
    seed: int  # of the data, not of a run
    pack: int  # clients per file
    counts: NDArray[np.int64]  # [N] rows of each client
    widths: NDArray[np.int64]  # [N] columns of each client
    holds: NDArray[np.int64]  # [N, 2] group of rows and group of columns of each client
    scaling: Scaling  # of all columns
    nbytes: NDArray[np.int64]  # [N] of each client's data as stored
    checksums: tuple[str, ...]  # SHA-256 of each shard file
    provenance: Table
    statistics: Table  # of the training rows, as `mpifed.shards.statistics` has them; empty in older files
    targets: int  # real targets of a row, 1 for classes
    shape: tuple[int, ...] | None  # of a sample, such as (channels, height, width); None: [features]
    target_scale: float  # power of two near the size of real targets; 1 for classes
    tests: TestRows  # with which each client tests; they are not among `samples`, `counts` and `nbytes`
    places: Places  # of the datasets in the shard files
    bounds: dict[str, NDArray[np.int64]]  # bounds of the groups of "rows" and "columns" within the concatenated members
    _groups: WeakValueDictionary[tuple[str, int], NDArray[np.int64]] = field(
        init=False, default_factory=WeakValueDictionary, repr=False, compare=False
    )  # those in use
    _all: dict[str, NDArray[np.int64]] = field(init=False, default_factory=dict, repr=False, compare=False)  # if few
    _scalings: dict[int, Scaling] = field(init=False, default_factory=dict, repr=False, compare=False)  # of columns
    _files: Files = field(init=False, default_factory=Files, repr=False, compare=False)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 that identifies the data, in any folder: of all shards' checksums and everything but the provenance.

        It is computed where `federation.h5` is of an earlier version.
        """
        with _reading(self.path / layout.FEDERATION) as file:
            stored = attribute_of(file, layout.DATA_CHECKSUM) if layout.DATA_CHECKSUM in file.attrs else None
            if stored is not None and not (isinstance(stored, str) and re.fullmatch("[0-9a-f]{64}", stored)):
                raise ValueError(f"{layout.DATA_CHECKSUM} = {stored!r:.80}")
            return stored or content_sha256(file, without=[layout.PROVENANCE])

    def file_of(self, client: int) -> Path:
        return self.path / layout.shard_name(client // self.pack)

    def names(self) -> tuple[str, ...] | None:
        """[p] names of the features; None where the source has none."""
        with _reading(self.path / layout.FEDERATION) as file:
            return tuple(texts_of(file, "names")) if "names" in file else None

    def natural(self) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
        """(identifiers [I], the client of each) of natural clients, or None."""
        with _reading(self.path / layout.FEDERATION) as file:
            return identifiers(file, self.clients)

    def test(self, dtype: DTypeLike) -> tuple[Piece, Array] | None:
        """The scaled test rows X [s, p] of `dtype`, dense or CSR, and y [s]; None where there are none."""
        shard = self.test_shard()
        if shard is None:
            return None
        at = np.arange(shard.samples)
        if shard.sparse:
            return shard.take_sparse(at, dtype), shard.y
        X = np.empty((shard.samples, shard.features), dtype)
        shard.take(at, X)
        return X, shard.y

    def test_shard(self) -> Shard | None:
        """The test rows as a shard in memory, of client -1; None where there are none."""
        path = self.path / layout.FEDERATION
        with _reading(path) as file:
            if "test" not in file:
                return None
            stored = array_of(file, "test/y", "uif")
            if stored.shape != (self.test_samples * self.targets,):
                raise ValueError(f"test/y has shape {stored.shape}, for {self.test_samples} times {self.targets}")
            y = self._typed(f"{path}: test", stored)
            values = raw_rows(file["test"], (len(y), self.features), self.sparse, self._files)
        shape = {"rows": len(y), "columns": self.features}
        return Shard(
            -1, lambda axis: np.arange(shape[axis]), (len(y), self.features), y, values, self.scaling, lambda: None
        )

    def shard(self, client: int, in_memory: bool, tests: bool = False) -> Shard:
        """The data of a client.

        Parameters
        ----------
        client : from 0 to N - 1
        in_memory : read all values now; otherwise rows are read from the file on demand
        tests : the rows with which it tests, in place of those with which it trains; they have no global indices

        Raises
        ------
        DataError : when the file is missing or damaged, or its shape differs from that in `federation.h5`.
        """
        group = int(self.holds[client, 1])
        scaling = self._scalings.get(group)
        if scaling is None:
            scaling = self.scaling.part(self._members("columns", group)) if self.scaling.by_column else self.scaling
            self._scalings[group] = scaling
        try:
            y, values = self._side_by_side(client, in_memory, tests)
        except (ValueError, MemoryError) as error:
            raise DataError(f"{self.file_of(client)}: {error}; {layout.REMEDY}") from error

        def members(axis: str) -> NDArray[np.int64]:
            return self._members(axis, int(self.holds[client, ("rows", "columns").index(axis)]))

        return Shard(
            client, members, (len(y), int(self.widths[client])), y, values,
            scaling, partial(self.verify, client // self.pack),
        )  # fmt: skip

    @cached_property
    def _before(self) -> list[list[NDArray[np.int64]]]:
        """[[N + 1], [N + 1]], cumulative numbers of rows and of dense values of the clients; the same of test rows."""
        pairs = [(counts, counts * self.widths) for counts in (self.counts, self.tests.counts)]
        return [[np.concatenate([[0], np.cumsum(sizes)]) for sizes in pair] for pair in pairs]

    def _side_by_side(self, client: int, in_memory: bool, tests: bool) -> tuple[Array, DenseRows | SparseRows]:
        """(labels, values) of a client, from the offsets in `federation.h5`."""
        number, first = client // self.pack, client // self.pack * self.pack
        path, (rows, values) = self.file_of(client), self._before[tests]
        samples, prefix = int(rows[client + 1] - rows[client]), layout.TEST if tests else ""

        def extent(name: str, start: int, shape: tuple[int, ...]) -> Extent:
            return self.places.extent(path, number, prefix + name, start, shape, self._files)

        start, whose = int(rows[client] - rows[first]), f"client {client}{': test rows' if tests else ''}"
        y = self._typed(whose, extent("y", start * self.targets, (samples * self.targets,)).load())
        if not self.sparse:
            begin = int(values[client] - values[first])
            return y, DenseRows(extent("X", begin, (samples, int(self.widths[client]))), in_memory, whose)
        indptr = extent("indptr", start, (samples + 1,)).load().astype(np.int64, copy=False)
        check_rows(whose, indptr)
        begin, shape = int(indptr[0]), (int(indptr[-1] - indptr[0]),)
        data, indices = extent("data", begin, shape), extent("indices", begin, shape)
        return y, SparseRows(data, indices, indptr - begin, int(self.widths[client]), in_memory, whose)

    def members(self, axis: str) -> NDArray[np.int64]:
        """The members of all groups of "rows" or "columns", concatenated; `bounds` separates the groups."""
        with _reading(self.path / layout.FEDERATION) as file:
            members: NDArray[np.int64] = file[f"{axis}/members"][()].astype(np.int64, copy=False)
            check_members(members, self.bounds[axis], self.samples if axis == "rows" else self.features)
        return members

    def verify(self, number: int) -> None:
        """Compare a shard file with its checksum; DataError when they differ."""
        path, expected = self.path / layout.shard_name(number), self.checksums[number]
        digest = layout.sha256(path)
        if digest != expected:
            raise DataError(
                f"{path}: SHA-256 is {digest}, {layout.FEDERATION} says {expected}; the file was changed or damaged: "
                f"{layout.REMEDY}"
            )

    def verify_federation(self) -> None:
        """Compare `federation.h5` with its checksum, if it has one; DataError when they differ."""
        path = self.path / layout.FEDERATION
        layout.check_bytes(self.path, whole=True)
        with _reading(path) as file:
            expected = attribute_of(file, layout.CHECKSUM) if layout.CHECKSUM in file.attrs else None
            digest = None if expected is None else content_sha256(file, without=[layout.CHECKSUM])
        if digest is not None and (not isinstance(expected, str) or digest != expected):
            raise DataError(
                f"{path}: SHA-256 of its content is {digest}, its attribute says {expected!r:.80}; the file was "
                f"changed or damaged: {layout.REMEDY}"
            )

    def _members(self, name: str, number: int) -> NDArray[np.int64]:
        """The members of a group of "rows" or "columns": a single array for all clients that hold it."""
        members = self._groups.get((name, number))
        if members is None:
            start, stop = self.bounds[name][number : number + 2].tolist()
            if self.bounds[name][-1] <= _FEW_MEMBERS:
                if name not in self._all:
                    self._all[name] = self.members(name)
                members = self._all[name][start:stop]
            else:
                with _reading(self.path / layout.FEDERATION) as file:
                    members = file[f"{name}/members"][start:stop].astype(np.int64, copy=False)
                    check_members(members, np.array([0]), self.samples if name == "rows" else self.features)
            self._groups[name, number] = members
        return members

    def _typed(self, whose: str, y: Array) -> Array:
        """Labels y [s] as int64 classes or float64 targets; ValueError if they are invalid."""
        check_labels(whose, y, self.classes)
        y = y.astype(np.int64 if self.classes else np.float64)
        return y if self.targets == 1 else vectors(y.reshape(-1, self.targets))


def open_federation(path: Path | str, verify: bool = False) -> ShardFolder:
    """Open a data folder made by `mpifed data`: small parts are read, and the sizes of the shard files compared.

    Parameters
    ----------
    path : the folder
    verify : also compare all files with their checksums

    Raises
    ------
    DataError : When `federation.h5` is missing, damaged or of another schema, or a shard file is missing or changed.
    """
    path = Path(path)
    if (path / layout.FEDERATION).is_file():  # else `_reading` reports it
        layout.check_bytes(path, verify)
    with _reading(path / layout.FEDERATION) as file:
        schema = attribute_of(file, "schema")
        if not isinstance(schema, (int, np.integer)) or schema != layout.SCHEMA:
            raise DataError(
                f"{path / layout.FEDERATION}: schema version {schema!r:.80}, this mpifed reads version "
                f"{layout.SCHEMA}; {layout.REMEDY}"
            )
        federation = ShardFolder(path=path, **contents(file, path))
    if verify:
        federation.verify_federation()
        for number in range(len(federation.checksums)):
            federation.verify(number)
    return federation


@contextmanager
def _reading(path: Path) -> Iterator[h5py.File]:
    """The open file; errors of HDF5 become DataError."""
    if not path.is_file():
        out = command_line("--out", path.parent)
        raise DataError(f"{path}: no such file{leads_to(path)}; make the data with `mpifed data ... {out}`")
    with reading_hdf5(path, "damaged, or not written by `mpifed data`", layout.REMEDY) as file:
        yield file
