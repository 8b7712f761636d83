"""The files of a federation: `shard-00000.h5` ... with the clients' data, and `federation.h5` about them all.

A shard file holds one group `client-00000` for each of its clients: labels `y` [s], and either dense rows `X` [s, p]
as one contiguous uncompressed dataset, which can be read row by row without HDF5, or sparse rows as `data`,
`indices` and `indptr` (CSR). Values are raw: uint8 where the source is, else float32. Numbers are little-endian.

`federation.h5` holds what all have in common: groups of rows and columns and who holds which, the scaling of the
columns, test data, checksums, provenance. It is written last, so that unfinished data never looks complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import h5py
import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.shards import layout
from mpifed.shards.partition import Partition
from mpifed.shards.scaling import Scaling
from mpifed.shards.shard import DenseRows, Extent, Shard, SparseRows

NUMBERS = ("clients", "samples", "test_samples", "features", "classes", "seed", "pack")  # attributes of federation.h5


@dataclass(frozen=True)
class About:
    """What `federation.h5` says beside the map and the checksums."""

    classes: int  # 0 for regression
    scaling: Scaling
    seed: int
    provenance: dict[str, Any]
    test: tuple[Any, Array] | None = None  # raw rows [s, p], dense or CSR, and labels [s]
    names: tuple[str, ...] | None = None  # [p] of the features
    optimum: dict[str, Any] | None = None  # loss, and w [p] that has it


def write_federation(
    folder: Path, partition: Partition, y: Array, chunks: Iterable[Any], dtype: Any, pack: int, about: About
) -> None:
    """Write all files of a federation.

    Parameters
    ----------
    folder : an existing folder; the files of an earlier federation in it are removed
    partition : who holds what
    y : [s] class numbers or targets
    chunks : the raw rows [b, p] in order, read once, one chunk at a time; sparse rows come in a single chunk
    dtype : of dense rows as stored; None for sparse rows
    pack : clients a file
    about : the rest
    """
    layout.clear(folder)
    paths = [folder / layout.shard_name(number) for number in range(-(-partition.clients // pack))]
    nbytes = _write_shards(paths, partition, y, chunks, dtype, pack)
    with h5py.File(layout.aside(folder / layout.FEDERATION), "w") as file:
        file.attrs.update(
            schema=layout.SCHEMA, split=partition.split, clients=partition.clients, samples=len(y),
            features=1 + max(int(group[-1]) for group in partition.columns),
            classes=about.classes, seed=about.seed, pack=pack, sparse=dtype is None,
            test_samples=0 if about.test is None else len(about.test[1]),
        )  # fmt: skip
        file["provenance"] = json.dumps(about.provenance)
        file["files/checksum"] = [layout.sha256(path) for path in paths]
        file["files/nbytes"] = [path.stat().st_size for path in paths]
        file["shard_nbytes"] = nbytes
        file["holds"] = partition.holds
        for name, groups in (("rows", partition.rows), ("columns", partition.columns)):
            file[f"{name}/bounds"] = np.cumsum([0, *map(len, groups)])
            file.create_dataset(f"{name}/members", data=np.concatenate(groups), compression="gzip", shuffle=True)
        file["scaling/scale"], file["scaling/shift"] = about.scaling
        if about.test is not None:
            _write_rows(file.create_group("test"), *about.test)
        if about.names is not None:
            file["names"] = list(about.names)
        for name, value in (about.optimum or {}).items():
            file[f"optimum/{name}"] = value
    layout.aside(folder / layout.FEDERATION).rename(folder / layout.FEDERATION)


def _write_shards(
    paths: list[Path], partition: Partition, y: Array, chunks: Iterable[Any], dtype: Any, pack: int
) -> NDArray[np.int64]:
    """Write the shard files; returns [N] the bytes of each client's data."""
    nbytes = np.zeros(partition.clients, dtype=np.int64)
    files = [(path, range(n * pack, min((n + 1) * pack, partition.clients))) for n, path in enumerate(paths)]
    first = 0
    for X in chunks:
        for path, clients in files:
            with h5py.File(layout.aside(path), "a") as file:
                for client in clients:
                    rows, columns = partition.of(client)
                    group = file.require_group(layout.group_name(client))
                    start, stop = np.searchsorted(rows, [first, first + X.shape[0]])
                    part = X[layout.span(rows[start:stop] - first)][:, layout.span(columns)]
                    if dtype is None:
                        _write_rows(group, part, y[rows])
                    else:
                        _add_dense(group, start, part, y[rows], dtype)
                    nbytes[client] = sum(dataset.nbytes for dataset in group.values())
        first += X.shape[0]
    for path, _ in files:
        layout.aside(path).rename(path)
    return nbytes


def _add_dense(group: h5py.Group, start: int, rows: Array, y: Array, dtype: Any) -> None:
    """Write dense rows [b, p] from row `start` of a client, all of whose labels are y [s]."""
    if "X" not in group:
        group.create_dataset("X", shape=(len(y), rows.shape[1]), dtype=np.dtype(dtype).newbyteorder("<"))
        group["y"] = layout.compact_labels(y)
    group["X"][start : start + len(rows)] = rows


def _write_rows(group: h5py.Group, X: Any, y: Array) -> None:
    """Write complete rows X [s, p], dense or CSR, and their labels."""
    if isinstance(X, np.ndarray):
        _add_dense(group, 0, X, y, X.dtype)
        return
    X.sort_indices()
    index = "<i4" if X.shape[1] <= np.iinfo(np.int32).max else "<i8"
    group["data"], group["indices"] = X.data.astype("<f4"), X.indices.astype(index)
    group["indptr"], group["y"] = X.indptr.astype("<i8"), layout.compact_labels(y)


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
    _groups: WeakValueDictionary[tuple[str, int], NDArray[np.int64]] = field(
        init=False, default_factory=WeakValueDictionary, repr=False, compare=False
    )  # those in use

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
            group, columns = file["test"], np.arange(self.features)
            y = self._labels(group)
            values = self._values(path, group, self.features, in_memory=True)
            return Shard(-1, np.arange(len(y)), columns, y, values, self.scaling, lambda: None)

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
        rows, columns = map(self._members, ("rows", "columns"), self.holds[client].tolist())
        path, shape = self.file_of(client), (len(rows), len(columns))
        with _reading(path) as file:
            group = file[layout.group_name(client)]
            y = self._labels(group)
            found = (len(group["indptr"]) - 1, len(columns)) if self.sparse else group["X"].shape
            if found != shape or len(y) != len(rows):
                raise DataError(
                    f"{path}: client {client} has values {found} and {len(y)} labels, but should have {shape} and "
                    f"{shape[0]}; {layout.REMEDY}"
                )
            values = self._values(path, group, len(columns), in_memory)
        return Shard(
            client, rows, columns, y, values, self.scaling.part(columns), lambda: self.verify(client // self.pack)
        )

    def groups(self, axis: str) -> list[NDArray[np.int64]]:
        """The members of each group of "rows" or "columns", which `holds` numbers."""
        with _reading(self.path / layout.FEDERATION) as file:
            return np.split(file[f"{axis}/members"][()], file[f"{axis}/bounds"][1:-1])

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

    def _members(self, name: str, number: int) -> NDArray[np.int64]:
        """The numbers of a group of "rows" or "columns": one array for all clients who hold it."""
        members = self._groups.get((name, number))
        if members is None:
            with _reading(self.path / layout.FEDERATION) as file:
                start, stop = file[f"{name}/bounds"][number : number + 2]
                members = file[f"{name}/members"][start:stop]
            self._groups[name, number] = members
        return members

    def _values(self, path: Path, group: h5py.Group, features: int, in_memory: bool) -> DenseRows | SparseRows:
        """The raw rows in a client's group."""
        if self.sparse:
            data, indices = _extent(path, group["data"]), _extent(path, group["indices"])
            return SparseRows(data, indices, group["indptr"][()], features, in_memory)
        return DenseRows(_extent(path, group["X"]), in_memory)

    def _labels(self, group: h5py.Group) -> Array:
        """y [s]: int64 class numbers or float64 targets."""
        return group["y"].astype(np.int64 if self.classes else np.float64)[()]


def open_federation(path: Path | str, verify: bool = False) -> Federation:
    """Open a data folder that `mpifed data` made.

    Only small parts of `federation.h5` are read, and the sizes of the shard files compared with it.

    Parameters
    ----------
    path : the folder
    verify : compare all shard files with their checksums too

    Raises
    ------
    DataError
        When `federation.h5` is missing, damaged or of another schema, or a shard file is missing or changed.
    """
    path = Path(path)
    with _reading(path / layout.FEDERATION) as file:
        schema = file.attrs.get("schema")
        if schema != layout.SCHEMA:
            raise DataError(
                f"{path / layout.FEDERATION}: schema version {schema}, this mpifed reads version {layout.SCHEMA}; "
                f"{layout.REMEDY}"
            )
        holds = file["holds"][()]
        optimum = {name: value[()] for name, value in file.get("optimum", {}).items()}
        sizes = file["files/nbytes"][()]
        federation = Federation(
            path=path,
            split=str(file.attrs["split"]),
            sparse=bool(file.attrs["sparse"]),
            counts=np.diff(file["rows/bounds"])[holds[:, 0]],
            widths=np.diff(file["columns/bounds"])[holds[:, 1]],
            holds=holds,
            scaling=Scaling(*(np.asarray(file[f"scaling/{name}"][()]) for name in Scaling._fields)),
            nbytes=file["shard_nbytes"][()],
            checksums=tuple(file["files/checksum"].asstr()[()]),
            provenance=json.loads(file["provenance"].asstr()[()]),
            optimum=optimum or None,
            **{name: int(file.attrs[name]) for name in NUMBERS},
        )
    if len(federation.counts) != federation.clients or len(sizes) != -(-federation.clients // federation.pack):
        raise DataError(
            f"{path / layout.FEDERATION}: says {federation.clients} clients, {federation.pack} a file, but lists "
            f"{len(federation.counts)} clients and {len(sizes)} files; {layout.REMEDY}"
        )
    layout.check_sizes(path, sizes, federation.clients, federation.pack)
    for number in range(len(sizes) if verify else 0):
        federation.verify(number)
    return federation


@contextmanager
def _reading(path: Path) -> Iterator[h5py.File]:
    """The open file; what HDF5 finds wrong with it becomes a DataError."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; make the data with `mpifed data ... --out {path.parent}`")
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, KeyError) as error:
        raise DataError(f"{path}: damaged, or not written by `mpifed data` ({error}); {layout.REMEDY}") from error


def _extent(path: Path, dataset: h5py.Dataset) -> Extent:
    """Where a contiguous dataset lies in its file."""
    return Extent(path, dataset.id.get_offset() or 0, dataset.shape, dataset.dtype)
