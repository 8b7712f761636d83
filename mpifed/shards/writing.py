"""Writing a federation: shard files, then `federation.h5`, in the format that `mpifed.shards.store` describes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.io_errors import named_in_errors
from mpifed.core.protocols import Piece
from mpifed.core.record import Array, of_vectors
from mpifed.core.tables import Table
from mpifed.shards import layout
from mpifed.shards.hdf5 import Group, content_sha256, put_texts, reserve, write_hdf5
from mpifed.shards.partition import Partition, training_rows
from mpifed.shards.scaling import Scaling


@dataclass(frozen=True)
class About:
    """The content of `federation.h5` besides the partition and the checksums."""

    classes: int  # 0 for regression
    scaling: Scaling
    seed: int
    provenance: Table
    test: tuple[Piece, Array] | None = None  # raw rows [s, p], dense or CSR, and labels [s]
    names: tuple[str, ...] | None = None  # [p] of the features
    shape: tuple[int, ...] | None = None  # of a sample
    target_scale: float = 1.0  # see `mpifed.shards.statistics.target_scale`
    ids: tuple[tuple[str, ...], Array] | None = None  # identifiers [I] of natural clients, and the client of each


def write_federation(
    folder: Path,
    partition: Partition,
    y: Array,
    chunks: Iterable[Piece],
    dtype: DTypeLike | None,
    pack: int,
    about: About,
    client_tests: NDArray[np.bool_] | None = None,
) -> None:
    """Write all files of a federation.

    Parameters
    ----------
    folder : an existing folder; the files of an earlier federation in it are removed
    partition : of rows and columns among clients
    y : [s] classes or targets
    chunks : the raw rows [b, p] in order, read once, one chunk at a time; sparse rows come in a single chunk
    dtype : of dense rows as stored; None for sparse rows
    pack : clients per file
    about : further content of `federation.h5`
    client_tests : [s] True for rows with which the client that holds them tests: they are stored beside its training
        rows, and do not count as samples; the data are split by rows, and each client has a row to train on
    """
    layout.clear(folder)
    try:
        _write_files(folder, partition, y, chunks, dtype, pack, about, client_tests)
    except BaseException:  # free the space of a full disk
        layout.clear(folder)
        raise


def _write_files(
    folder: Path,
    partition: Partition,
    y: Array,
    chunks: Iterable[Piece],
    dtype: DTypeLike | None,
    pack: int,
    about: About,
    client_tests: NDArray[np.bool_] | None,
) -> None:
    paths = [folder / layout.shard_name(number) for number in range(-(-partition.clients // pack))]
    packed = _packed(paths, partition, y, dtype, pack, client_tests)
    first = 0
    for X in chunks:
        for shard_file in chain(*packed.values()):
            shard_file.add(X, first)
        first += X.shape[0]
    if client_tests is not None:
        partition = training_rows(partition, ~client_tests, 1 + max(int(group[-1]) for group in partition.columns))
        y = y[~client_tests]
    for path in paths:
        layout.aside(path).rename(path)
    with write_hdf5(layout.aside(folder / layout.FEDERATION)) as file:
        file.attrs.update(
            schema=layout.SCHEMA, split=partition.split, clients=partition.clients, samples=len(y),
            features=1 + max(int(group[-1]) for group in partition.columns),
            classes=about.classes, seed=about.seed, pack=pack, sparse=dtype is None,
            test_samples=0 if about.test is None else len(about.test[1]),
        )  # fmt: skip
        if y.dtype.names:
            file.attrs["targets"] = of_vectors(y).shape[-1]
        if about.target_scale != 1:
            file.attrs["target_scale"] = about.target_scale
        if about.shape is not None:
            file.attrs["shape"] = about.shape
        file[layout.PROVENANCE] = json.dumps(about.provenance)
        file["files/checksum"] = [layout.sha256(path) for path in paths]
        file["files/nbytes"] = [path.stat().st_size for path in paths]
        for files in packed.values():
            for name in files[0].offsets:
                file[f"files/{name}/offset"] = [shard_file.offsets[name] for shard_file in files]
                file[f"files/{name}/dtype"] = [shard_file.dtypes[name] for shard_file in files]
        file["shard_nbytes"] = np.concatenate([shard_file.nbytes for shard_file in packed[""]])
        if client_tests is not None:
            tests = packed[layout.TEST]
            file["client_tests/counts"] = np.concatenate([shard_file.counts for shard_file in tests])
            file["client_tests/nbytes"] = np.concatenate([shard_file.nbytes for shard_file in tests])
        file["holds"] = partition.holds
        for name, groups in (("rows", partition.rows), ("columns", partition.columns)):
            file[f"{name}/bounds"] = np.cumsum([0, *map(len, groups)])
            file.create_dataset(f"{name}/members", data=np.concatenate(groups), compression="gzip", shuffle=True)
        file["scaling/scale"], file["scaling/shift"] = about.scaling
        if about.test is not None:
            _write_rows(file.create_group("test"), *about.test)
        if about.names is not None:
            file["names"] = list(about.names)
        if about.ids is not None:
            put_texts(file, "clients/ids", about.ids[0])
            file.create_dataset("clients/of", data=about.ids[1], compression="gzip", shuffle=True)
        file.attrs[layout.DATA_CHECKSUM] = content_sha256(file, without=[layout.PROVENANCE])
        file.attrs[layout.CHECKSUM] = content_sha256(file)
    (folder / layout.BYTES).write_text(layout.sha256(layout.aside(folder / layout.FEDERATION)) + "\n", "ascii")
    layout.aside(folder / layout.FEDERATION).rename(folder / layout.FEDERATION)


def _packed(
    paths: Sequence[Path],
    partition: Partition,
    y: Array,
    dtype: DTypeLike | None,
    pack: int,
    client_tests: NDArray[np.bool_] | None,
) -> dict[str, list[_Packed]]:
    """The shard files, by the prefix of their datasets: of the training rows, and of the clients' test rows."""

    def files(prefix: str, rows: list[NDArray[np.int64]]) -> list[_Packed]:
        part, numbers = partition._replace(rows=rows), range(partition.clients)
        return [_Packed(path, prefix, part, numbers[n * pack :][:pack], y, dtype) for n, path in enumerate(paths)]

    if client_tests is None:
        return {"": files("", partition.rows)}
    training = files("", [group[~client_tests[group]] for group in partition.rows])
    return {"": training, layout.TEST: files(layout.TEST, [group[client_tests[group]] for group in partition.rows])}


class _Packed:
    """A shard file, with the data of its clients in sequence: training rows or, in datasets of a prefix, test rows."""

    def __init__(
        self, path: Path, prefix: str, partition: Partition, clients: range, y: Array, dtype: DTypeLike | None
    ) -> None:
        """Write the labels, and reserve the space of dense rows, which `add` fills chunk by chunk."""
        self.path, self.prefix = layout.aside(path), prefix
        self.dtype = None if dtype is None else np.dtype(dtype).newbyteorder("<")
        holds = partition.holds[clients.start : clients.stop]
        self.held = [(partition.rows[rows], partition.columns[columns]) for rows, columns in holds.tolist()]
        self.counts = np.array([len(rows) for rows, _ in self.held])
        self.widths = np.array([len(columns) for _, columns in self.held])
        self.alike = bool((holds[:, 1] == holds[0, 1]).all())  # whether all clients hold the same columns
        self.size = int(self.counts @ self.widths)
        order = np.concatenate([rows for rows, _ in self.held])  # [rows of the file] global row indices
        if self.alike:
            self.places = np.argsort(order, kind="stable")  # positions in the file, in the order of the samples
            self.samples = order[self.places]
        self.offsets: dict[str, int] = {}  # bytes from the start of the file, by dataset
        self.dtypes: dict[str, str] = {}
        labels = layout.compact_labels(y[order])
        self.nbytes = self.counts * (labels.nbytes // max(len(order), 1))  # [clients]
        with write_hdf5(self.path, "r+" if prefix else "w") as file:
            self._put(file, "y", labels)
            if self.dtype is not None:
                shape = (len(order), int(self.widths[0])) if self.alike else (self.size,)
                self._reserve(file, "X", shape, self.dtype)
                self.nbytes += self.counts * self.widths * self.dtype.itemsize

    def _reserve(self, file: Group, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> str:
        """Create a dataset, and store its offset and dtype; returns its name in the file."""
        name = f"{self.prefix}{name}"
        self.offsets[name], self.dtypes[name] = reserve(file, name, shape, dtype), np.dtype(dtype).str
        return name

    def _put(self, file: Group, name: str, values: Array) -> None:
        file[self._reserve(file, name, values.shape, values.dtype)][...] = values

    def add(self, X: Piece, first: int) -> None:
        """Write the clients' parts of the rows X [b, p]; `first` is the index of X[0]."""
        if self.dtype is None:
            self._add_sparse(X)
        elif self.size and not (self.alike and self._holds_none(first, X.shape[0])):
            # a full disk raises OSError here, and would end the process below
            with named_in_errors(self.path), self.path.open("r+b") as file:
                offset, nbytes = self.offsets[f"{self.prefix}X"], self.size * self.dtype.itemsize
                os.posix_fallocate(file.fileno(), offset, nbytes)
            values = np.memmap(self.path, self.dtype, "r+", offset, (self.size,))
            (self._add_whole_rows if self.alike else self._add_rectangles)(X, first, values)

    def _holds_none(self, first: int, count: int) -> bool:
        """Whether no row from `first` on, of `count`, is in this file: it need not be opened then."""
        at = int(np.searchsorted(self.samples, first))
        return at == len(self.samples) or int(self.samples[at]) >= first + count

    def _add_whole_rows(self, X: Array, first: int, values: Array) -> None:
        start, stop = np.searchsorted(self.samples, [first, first + X.shape[0]])
        rows, columns = X[layout.span(self.samples[start:stop] - first)], self.held[0][1]
        values.reshape(-1, len(columns))[self.places[start:stop]] = rows[:, layout.span(columns)]

    def _add_rectangles(self, X: Array, first: int, values: Array) -> None:
        done = 0
        for rows, columns in self.held:
            block = values[done : done + len(rows) * len(columns)].reshape(len(rows), len(columns))
            start, stop = np.searchsorted(rows, [first, first + X.shape[0]])
            block[start:stop] = X[layout.span(rows[start:stop] - first)][:, layout.span(columns)]
            done += block.size

    def _add_sparse(self, X: Piece) -> None:
        """Write all rows as a CSR matrix, whose column indices are relative to each client's columns."""
        parts = [X[layout.span(rows)][:, layout.span(columns)] for rows, columns in self.held]
        for part in parts:
            part.sort_indices()
        index = _index_type(int(self.widths.max()))
        lengths = np.concatenate([np.diff(part.indptr) for part in parts])
        with write_hdf5(self.path, "r+") as file:
            self._put(file, "data", np.concatenate([part.data for part in parts]).astype("<f4"))
            self._put(file, "indices", np.concatenate([part.indices for part in parts]).astype(index))
            self._put(file, "indptr", np.concatenate([[0], np.cumsum(lengths)]).astype("<i8"))
        self.nbytes += np.array([part.nnz for part in parts]) * (4 + np.dtype(index).itemsize) + 8 * (self.counts + 1)


def _write_rows(group: Group, X: Piece, y: Array) -> None:
    """Write complete rows X [s, p], dense or CSR, and their labels, into a group of a file."""
    group["y"] = layout.compact_labels(y)
    if isinstance(X, np.ndarray):
        group.create_dataset("X", data=X, dtype=X.dtype.newbyteorder("<"))
        return
    X.sort_indices()
    group["data"], group["indices"] = X.data.astype("<f4"), X.indices.astype(_index_type(X.shape[1]))
    group["indptr"] = X.indptr.astype("<i8")


def _index_type(columns: int) -> str:
    return "<i4" if columns <= np.iinfo(np.int32).max else "<i8"
