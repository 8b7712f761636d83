"""Tables of clients with different features of overlapping sets of samples, joined by identifiers.

Samples are matched, and numbered, by HMAC-SHA256 of their identifiers (RFC 2104), under a key that the clients share
and the server must not have. Identifiers and hashes are not stored. The server, like everyone with access to
`federation.h5`, learns which sample numbers each client holds, hence how many samples clients have in common, but not
their identifiers. A holder of the key can hash all possible telephone numbers, and so learns the order in which the
samples are numbered: identifiers that can be guessed are protected only from those without the key.

This is not private set intersection: the process that runs `read` sees all files. Libraries for that are for two
parties, and find their common samples; here any number of clients are joined, including samples that not all have.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.cells import cover
from mpifed.data.natural import WHOLE
from mpifed.data.partition import Groups, Partition, by_rectangles
from mpifed.data.sources.dataset import (
    CHUNK_VALUES,
    Dataset,
    Source,
    listed,
    numbers_rows,
    open_packed,
    shown,
    typed_labels,
)
from mpifed.data.sources.table import in_numpy, read_csv
from mpifed.data.sources.table import numbers as column_of_numbers

SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz")
LEAST_KEY_BYTES = 16


class ClientTable(NamedTuple):
    """The table of a client, with samples and features in ascending order of their numbers."""

    path: Path
    ids: list[str]  # [s]
    rows: NDArray[np.int64]  # [s] sample numbers
    columns: NDArray[np.int64]  # [p] feature numbers
    X: Array  # [s, p] float32
    labels: Array | None  # [s] float64


@dataclass(frozen=True)
class Tables(Source):
    """A folder of CSV files, one for each client, of samples and features that overlap.

    Clients are numbered in the order of the files' names. Each file has names in its first line; features that have the
    same name in several files are the same feature. Each file has a column of identifiers, and each sample its label
    in one file or more.
    """

    path: Path
    """The folder of the clients' CSV files."""
    id: str
    """Name of the column of identifiers."""
    label: str
    """Name of the label's column, in the files that have it."""
    key: Path | None = None
    """File with the clients' secret key, by which identifiers are hashed; by default a new one, which is forgotten."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""
    missing: str = "error"  # "zero" if a sample may lack a feature in all files

    def read(self, seed: int) -> Dataset:
        """Join the clients' tables.

        Raises DataError when a file is missing or damaged; an identifier is missing, or twice in a file; two files have
        the same feature of the same sample, or different labels; a sample has no label, or lacks a feature; UsageError
        when the key is too short.
        """
        paths = sorted(path for path in _files(self.path) if path.name.endswith(SUFFIXES))
        if not paths:
            raise DataError(f"{self.path}: no file {', '.join('*' + suffix for suffix in SUFFIXES)}, one per client")
        key = self._key()
        tables = [self._load(path) for path in paths]
        names = list(dict.fromkeys(name for _, features, _, _ in tables for name in features))
        hashes = [[hmac.digest(key, name.encode(), "sha256") for name in ids] for ids, _, _, _ in tables]
        number = {digest: at for at, digest in enumerate(sorted(set().union(*hashes)))}
        feature = {name: at for at, name in enumerate(names)}
        parts = [
            _in_order(
                path, ids, [number[digest] for digest in digests], [feature[name] for name in features], X, labels
            )
            for path, digests, (ids, features, X, labels) in zip(paths, hashes, tables, strict=True)
        ]
        labels = typed_labels(self.path, _labels(parts, len(number)), self.task)
        partition = self._partition(parts, len(number), names)
        return Dataset(
            len(names), np.float32, labels, lambda: _chunks(parts, len(number), len(names)),
            names=tuple(names), files=tuple(paths), partition=partition,
        )  # fmt: skip

    def _key(self) -> bytes:
        if self.key is None:
            return secrets.token_bytes(32)
        with open_packed(self.key) as file:
            key: bytes = file.read()
        if len(key) < LEAST_KEY_BYTES:
            raise UsageError(
                f"--key {self.key}: {len(key)} bytes; expected {LEAST_KEY_BYTES} or more random ones, "
                "for example of `openssl rand -out FILE 32`"
            )
        return key

    def _load(self, path: Path) -> tuple[list[str], list[str], Array, Array | None]:
        """(identifiers [s], names of the features [p], X [s, p] float32, labels [s] float64) of a client's file."""
        table = read_csv(path)
        names = table.column_names
        if self.id not in names:
            raise DataError(f"{path}: line 1 has no column {self.id!r}, the identifiers of --id")
        if numbers := [name for name in names if numbers_rows(name) and name not in (self.id, self.label)]:
            raise DataError(f"{path}: column {listed(map(shown, numbers))} numbers rows, and is no feature; remove it")
        features = [name for name in names if name not in (self.id, self.label)]
        if not features:
            raise DataError(f"{path}: no column besides {listed(names)}; every client needs a feature")
        ids = _identifiers(path, table[self.id].to_pylist())
        values = {name: column_of_numbers(str(path), name, table[name]) for name in names if name != self.id}
        for name, column in values.items():
            if column.null_count:
                row = column.to_pylist().index(None) + 1
                raise DataError(f"{path}: row {row}, column {name!r} is a missing value; every sample needs a number")
        X = np.stack([in_numpy(values[name]) for name in features], axis=1).astype(np.float32)
        return ids, features, X, in_numpy(values[self.label]) if self.label in names else None

    def _partition(self, parts: list[ClientTable], samples: int, names: list[str]) -> Partition:
        rows, columns = Groups(), Groups()
        holds = [(rows.place(part.rows), columns.place(part.columns)) for part in parts]
        partition = by_rectangles(rows, columns, holds)
        coverage = cover(partition, samples, len(names))
        if coverage.cell is None or (coverage.missing and self.missing == "zero"):
            return partition._replace(missing=coverage.missing)
        row, column = coverage.cell
        what = f"feature {names[column]!r} of sample {shown(_id_of(parts, row))}"
        if coverage.holders:
            files = " and ".join(str(parts[client].path) for client in coverage.holders)
            raise DataError(f"{self.path}: {what} is in {files}; remove it from all but one")
        remedy = f"add it, or --missing zero to let all {coverage.missing} such cells be zero"
        raise DataError(f"{self.path}: {what} is in no file; {remedy}")


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; expected a folder of CSV files, one per client") from error


def _identifiers(path: Path, cells: list[str]) -> list[str]:
    """The identifiers [s] in a file, stripped of whitespace."""
    row_of: dict[str, int] = {}
    for row, cell in enumerate(cells, 1):
        name = re.sub(WHOLE, r"\1", cell.strip())
        if not name:
            raise DataError(f"{path}: row {row}: no identifier; every sample needs one")
        if name in row_of:
            raise DataError(
                f"{path}: row {row}: identifier {shown(name)}, as in row {row_of[name]}; "
                "a client has one line for each sample"
            )
        row_of[name] = row
    return list(row_of)


def _in_order(
    path: Path, ids: list[str], rows: list[int], columns: list[int], X: Array, labels: Array | None
) -> ClientTable:
    """A client's table, sorted by sample and feature number."""
    row_order, column_order = np.argsort(rows), np.argsort(columns)
    return ClientTable(
        path, [ids[i] for i in row_order], np.array(rows)[row_order], np.array(columns)[column_order],
        X[row_order][:, column_order], None if labels is None else labels[row_order],
    )  # fmt: skip


def _labels(parts: list[ClientTable], samples: int) -> Array:
    """[samples] float64 labels; DataError if files contradict each other, or a label is missing."""
    labels, given_by = np.full(samples, np.nan), np.full(samples, -1)
    for client, part in enumerate(parts):
        if part.labels is None:
            continue
        before = labels[part.rows]
        for i in np.flatnonzero((before != part.labels) & (given_by[part.rows] >= 0))[:1]:
            raise DataError(
                f"{part.path}: sample {shown(part.ids[i])} has the label {part.labels[i]:g}, but {before[i]:g} in "
                f"{parts[given_by[part.rows[i]]].path}; correct one of them"
            )
        labels[part.rows], given_by[part.rows] = part.labels, client
    for row in np.flatnonzero(given_by < 0)[:1]:
        files = " and ".join(str(part.path) for part in parts if row in part.rows)
        raise DataError(
            f"{files}: sample {shown(_id_of(parts, int(row)))} has no label in any file; add it, or remove the sample"
        )
    return labels


def _id_of(parts: list[ClientTable], row: int) -> str:
    """The identifier of the sample with number `row`."""
    return next(part.ids[int(np.searchsorted(part.rows, row))] for part in parts if row in part.rows)


def _chunks(parts: list[ClientTable], samples: int, features: int) -> Iterator[Array]:
    """All rows [b, p] in order, with zeros where no client has a value."""
    size = max(1, CHUNK_VALUES // features)
    for first in range(0, samples, size):
        X = np.zeros((min(size, samples - first), features), np.float32)
        for part in parts:
            start, stop = np.searchsorted(part.rows, [first, first + size])
            X[np.ix_(part.rows[start:stop] - first, part.columns)] = part.X[start:stop]
        yield X
