"""The files of a federation: `shard-00000.h5` ... with the clients' data, and `federation.h5` about them all.

A shard file holds what its clients have, one client after the other: labels `y` [s], and either dense rows `X` [s, p]
as one contiguous uncompressed dataset, which can be read row by row without HDF5, or sparse rows as `data`, `indices`
and `indptr` (CSR). `X` has one axis where its clients hold other columns. `federation.h5` says where the datasets lie,
and how many rows and columns each client has: so a shard is opened without HDF5. (Files of schema 1 have a group
`client-00000` for each client, and say so themselves.)
Values are raw: uint8 where the source is, else float32. Numbers are little-endian.

`federation.h5` holds what all have in common: groups of rows and columns and who holds which, the scaling of the
columns, test data, checksums, provenance. It is written last, so that unfinished data never looks complete. Two of its
attributes are SHA-256 of its own content: `sha256` of all else; `data_sha256` of all but the provenance, which is the
same for data made twice in the same way. (Files of earlier versions have none of both.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import h5py
import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.shards import layout
from mpifed.shards.hdf5 import content_sha256, open_hdf5
from mpifed.shards.scaling import Scaling
from mpifed.shards.shard import DenseRows, Extent, Files, Shard, SparseRows
from mpifed.shards.writing import About as About
from mpifed.shards.writing import write_federation as write_federation

NUMBERS = ("clients", "samples", "test_samples", "features", "classes", "seed", "pack")  # attributes of federation.h5
_FEW_MEMBERS = 2**22  # up to so many row numbers, or column numbers, of all clients are read at once, and kept


class Places(NamedTuple):
    """Where the datasets of shard files lie; of each by its name."""

    offsets: dict[str, NDArray[np.int64]]  # [files] bytes from the start of the file
    dtypes: dict[str, list[str]]  # [files]

    @classmethod
    def read(cls, group: h5py.Group) -> Places:
        """As a group of `federation.h5` has them."""
        names = [name for name in ("y", "X", "data", "indices", "indptr") if name in group]
        return cls(
            {name: group[f"{name}/offset"][()] for name in names},
            {name: group[f"{name}/dtype"].asstr()[()].tolist() for name in names},
        )

    def extent(
        self, path: Path, number: int, name: str, start: int, shape: tuple[int, ...], files: Files
    ) -> Extent:
        """So many items of a dataset of file `number`, from its value number `start` on."""
        dtype = np.dtype(self.dtypes[name][number])
        return Extent(path, int(self.offsets[name][number]) + start * dtype.itemsize, shape, dtype, files)


@dataclass(frozen=True)
class Federation:
    """What is in a data folder; the same on every rank. Shards and test data are read when asked for."""

    path: Path
    split: str  # "rows", "columns" or "grid"
    clients: int  # N
    samples: int  # distinct training rows
    test_samples: int
    features: int
    classes: int  # 0 for regression
    sparse: bool
    seed: int  # of the data, not of a run
    pack: int  # clients a file
    counts: NDArray[np.int64]  # [N] rows of each client
    widths: NDArray[np.int64]  # [N] columns of each client
    holds: NDArray[np.int64]  # [N, 2] group of rows and group of columns of each client
    scaling: Scaling  # of all columns
    nbytes: NDArray[np.int64]  # [N] of each client's data as stored
    checksums: tuple[str, ...]  # SHA-256 of each shard file
    provenance: dict[str, Any]
    optimum: dict[str, Any] | None  # loss and w [p] of the least-squares optimum, where it is known
    places: Places | None  # where everything lies in the shard files; None: they say so themselves
    bounds: dict[str, NDArray[np.int64]]  # of the groups of "rows" and "columns" among all their members
    _groups: WeakValueDictionary[tuple[str, int], NDArray[np.int64]] = field(
        init=False, default_factory=WeakValueDictionary, repr=False, compare=False
    )  # those in use
    _scalings: dict[int, Scaling] = field(init=False, default_factory=dict, repr=False, compare=False)  # of columns
    _files: Files = field(init=False, default_factory=Files, repr=False, compare=False)

    @cached_property
    def sha256(self) -> str:
        """What tells these data from others, wherever they lie: of the checksums of all shards and all else but the
        provenance. Computed where `federation.h5` is of an earlier version.
        """
        with _reading(self.path / layout.FEDERATION) as file:
            told: str | None = file.attrs.get(layout.DATA_CHECKSUM)
            return told or content_sha256(file, without=[layout.PROVENANCE])

    def file_of(self, client: int) -> Path:
        """The file that holds a client's shard."""
        return self.path / layout.shard_name(client // self.pack)

    def shard_nbytes(self, client: int) -> int:
        """Bytes of one client's data as stored."""
        return int(self.nbytes[client])

    def names(self) -> tuple[str, ...] | None:
        """[p] names of the features, where the source has them."""
        with _reading(self.path / layout.FEDERATION) as file:
            return tuple(file["names"].asstr()[()]) if "names" in file else None

    def test(self, dtype: Any) -> tuple[Any, Array] | None:
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
            y = self._typed(file["test/y"][()])
            values = self._values(path, file["test"], self.features, in_memory=True)
        sizes = {"rows": len(y), "columns": self.features}
        return Shard(
            -1, lambda axis: np.arange(sizes[axis]), (len(y), self.features), y, values, self.scaling, lambda: None
        )

    def shard(self, client: int, in_memory: bool) -> Shard:
        """The data of one client.

        Parameters
        ----------
        client : from 0 to N - 1
        in_memory : read all values now; otherwise rows are read from the file as they are asked for

        Raises
        ------
        DataError
            When the file is missing, damaged, or has another number of rows or columns than `federation.h5` says.
        """
        group = int(self.holds[client, 1])
        scaling = self._scalings.get(group)
        if scaling is None:
            scaling = self.scaling.part(self._members("columns", group)) if self.scaling.by_column else self.scaling
            self._scalings[group] = scaling
        y, values = self._side_by_side(client, in_memory) if self.places else self._in_group(client, in_memory)
        return Shard(
            client, partial(self._held, client), (int(self.counts[client]), int(self.widths[client])), y, values,
            scaling, partial(self.verify, client // self.pack),
        )  # fmt: skip

    def _held(self, client: int, axis: str) -> NDArray[np.int64]:
        """The numbers of a client's "rows" or "columns"."""
        return self._members(axis, int(self.holds[client, 1 if axis == "columns" else 0]))

    @cached_property
    def _before(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """([N + 1] rows, [N + 1] dense values) of all clients before each."""
        return tuple(np.concatenate([[0], np.cumsum(one)]) for one in (self.counts, self.counts * self.widths))  # type: ignore[return-value]

    def _side_by_side(self, client: int, in_memory: bool) -> tuple[Array, DenseRows | SparseRows]:
        """(labels, values) of a client, found by what `federation.h5` says."""
        assert self.places is not None
        number, first = client // self.pack, client // self.pack * self.pack
        path, (rows, values), samples = self.file_of(client), self._before, int(self.counts[client])

        def extent(name: str, start: int, shape: tuple[int, ...]) -> Extent:
            return self.places.extent(path, number, name, start, shape, self._files)  # type: ignore[union-attr]

        start = int(rows[client] - rows[first])
        y = self._typed(extent("y", start, (samples,)).load())
        if not self.sparse:
            begin = int(values[client] - values[first])
            return y, DenseRows(extent("X", begin, (samples, int(self.widths[client]))), in_memory)
        indptr = extent("indptr", start, (samples + 1,)).load().astype(np.int64, copy=False)
        begin, shape = int(indptr[0]), (int(indptr[-1] - indptr[0]),)
        data, indices = extent("data", begin, shape), extent("indices", begin, shape)
        return y, SparseRows(data, indices, indptr - begin, int(self.widths[client]), in_memory)

    def _in_group(self, client: int, in_memory: bool) -> tuple[Array, DenseRows | SparseRows]:
        """The same from a file of schema 1."""
        path, shape = self.file_of(client), (int(self.counts[client]), int(self.widths[client]))
        with _reading(path) as file:
            group = file[layout.group_name(client)]
            y = self._typed(group["y"][()])
            found = (len(group["indptr"]) - 1, shape[1]) if self.sparse else group["X"].shape
            if found != shape or len(y) != shape[0]:
                raise DataError(
                    f"{path}: client {client} has values {found} and {len(y)} labels, but should have {shape} and "
                    f"{shape[0]}; {layout.REMEDY}"
                )
            return y, self._values(path, group, shape[1], in_memory)

    def members(self, axis: str) -> NDArray[np.int64]:
        """The members of all groups of "rows" or "columns", which `holds` numbers; `bounds` says whose they are."""
        with _reading(self.path / layout.FEDERATION) as file:
            members: NDArray[np.int64] = file[f"{axis}/members"][()]
        return members

    def verify(self, number: int) -> None:
        """Compare one shard file with its checksum.

        Raises
        ------
        DataError
            When they differ.
        """
        path, expected = self.path / layout.shard_name(number), self.checksums[number]
        found = layout.sha256(path)
        if found != expected:
            raise DataError(
                f"{path}: SHA-256 is {found}, {layout.FEDERATION} says {expected}; the file was changed or damaged: "
                f"{layout.REMEDY}"
            )

    def verify_federation(self) -> None:
        """Compare `federation.h5` with its checksum, where it has one: one of an earlier version passes.

        Raises
        ------
        DataError
            When they differ.
        """
        path = self.path / layout.FEDERATION
        with _reading(path) as file:
            expected = file.attrs.get(layout.CHECKSUM)
            found = expected and content_sha256(file, without=[layout.CHECKSUM])
        if found != expected:
            raise DataError(
                f"{path}: SHA-256 of its content is {found}, its attribute says {expected}; the file was changed or "
                f"damaged: {layout.REMEDY}"
            )

    def _members(self, name: str, number: int) -> NDArray[np.int64]:
        """The numbers of a group of "rows" or "columns": one array for all clients who hold it."""
        members = self._groups.get((name, number))
        if members is None:
            start, stop = self.bounds[name][number : number + 2].tolist()
            if self.bounds[name][-1] <= _FEW_MEMBERS:
                members = (self._all_rows if name == "rows" else self._all_columns)[start:stop]
            else:
                with _reading(self.path / layout.FEDERATION) as file:
                    members = file[f"{name}/members"][start:stop]
            self._groups[name, number] = members
        return members

    @cached_property
    def _all_rows(self) -> NDArray[np.int64]:
        return self.members("rows")

    @cached_property
    def _all_columns(self) -> NDArray[np.int64]:
        return self.members("columns")

    def _values(self, path: Path, group: h5py.Group, features: int, in_memory: bool) -> DenseRows | SparseRows:
        """The raw rows in a client's group."""
        if self.sparse:
            data, indices = self._extent(path, group["data"]), self._extent(path, group["indices"])
            return SparseRows(data, indices, group["indptr"][()], features, in_memory)
        return DenseRows(self._extent(path, group["X"]), in_memory)

    def _extent(self, path: Path, dataset: h5py.Dataset) -> Extent:
        """Where a contiguous dataset lies in its file."""
        return Extent(path, dataset.id.get_offset() or 0, dataset.shape, dataset.dtype, self._files)

    def _typed(self, y: Array) -> Array:
        """Labels y [s]: int64 class numbers or float64 targets."""
        return y.astype(np.int64 if self.classes else np.float64)


def open_federation(path: Path | str, verify: bool = False) -> Federation:
    """Open a data folder that `mpifed data` made.

    Only small parts of `federation.h5` are read, and the sizes of the shard files compared with it.

    Parameters
    ----------
    path : the folder
    verify : compare all files with their checksums too

    Raises
    ------
    DataError
        When `federation.h5` is missing, damaged or of another schema, or a shard file is missing or changed.
    """
    path = Path(path)
    with _reading(path / layout.FEDERATION) as file:
        schema = file.attrs.get("schema")
        if schema not in (1, layout.SCHEMA):
            raise DataError(
                f"{path / layout.FEDERATION}: schema version {schema}, this mpifed reads version 1 to {layout.SCHEMA}; "
                f"{layout.REMEDY}"
            )
        holds = file["holds"][()]
        bounds = {axis: file[f"{axis}/bounds"][()] for axis in ("rows", "columns")}
        optimum = {name: value[()] for name, value in file.get("optimum", {}).items()}
        sizes = file["files/nbytes"][()]
        federation = Federation(
            path=path,
            split=str(file.attrs["split"]),
            sparse=bool(file.attrs["sparse"]),
            counts=np.diff(bounds["rows"])[holds[:, 0]],
            widths=np.diff(bounds["columns"])[holds[:, 1]],
            bounds=bounds,
            places=None if schema == 1 else Places.read(file["files"]),
            holds=holds,
            scaling=Scaling(*(np.asarray(file[f"scaling/{name}"][()]) for name in Scaling._fields)),
            nbytes=file["shard_nbytes"][()],
            checksums=tuple(file["files/checksum"].asstr()[()]),
            provenance=json.loads(file[layout.PROVENANCE].asstr()[()]),
            optimum=optimum or None,
            **{name: int(file.attrs[name]) for name in NUMBERS},
        )
    if len(federation.counts) != federation.clients or len(sizes) != -(-federation.clients // federation.pack):
        raise DataError(
            f"{path / layout.FEDERATION}: says {federation.clients} clients, {federation.pack} a file, but lists "
            f"{len(federation.counts)} clients and {len(sizes)} files; {layout.REMEDY}"
        )
    layout.check_sizes(path, sizes, federation.clients, federation.pack)
    if verify:
        federation.verify_federation()
        for number in range(len(sizes)):
            federation.verify(number)
    return federation


@contextmanager
def _reading(path: Path) -> Iterator[h5py.File]:
    """The open file; what HDF5 finds wrong with it becomes a DataError."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; make the data with `mpifed data ... --out {path.parent}`")
    try:
        with open_hdf5(path) as file:
            yield file
    except (OSError, KeyError) as error:
        raise DataError(f"{path}: damaged, or not written by `mpifed data` ({error}); {layout.REMEDY}") from error
