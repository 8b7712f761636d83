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
import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.cells import check_cells
from mpifed.data.partition import by_rectangles
from mpifed.data.recipe import Cells, check_feature
from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import files_in, listed, numbers_rows, open_packed
from mpifed.data.table import read_csv

LEAST_KEY_BYTES = 16


class ClientTable(NamedTuple):
    """The table of a client, in the order of its file."""

    ids: list[str]  # [s]
    features: dict[str, Array]  # by name [s] float64
    labels: Array  # [s] float64, NaN where the file has none


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
    task: Task = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""
    missing: str = "error"  # "zero" if a sample may lack a feature in all files

    def read(self, seed: int) -> Samples:
        """Join the clients' tables.

        Raises DataError when a file is missing or damaged; an identifier is missing, or twice in a file; two files have
        the same feature of the same sample, or different labels; a sample has no label, or lacks a feature; UsageError
        when the key is too short.
        """
        paths = files_in(self.path, ".csv", ".csv.gz", ".csv.bz2", ".csv.xz")
        key, tables = self._key(), list(map(self._load, paths))
        names = list(dict.fromkeys(name for table in tables for name in table.features))
        digests = {name: hmac.digest(key, name.encode(), "sha256") for table in tables for name in table.ids}
        ids = sorted(digests, key=digests.__getitem__)
        row, column = ({name: at for at, name in enumerate(each)} for each in (ids, names))
        X, y, held = np.zeros((len(ids), len(names)), np.float32), np.full(len(ids), np.nan), []
        for path, table in zip(paths, tables, strict=True):
            rows = np.array([row[name] for name in table.ids])
            for name, values in table.features.items():
                X[rows, column[name]] = values
            for at in np.flatnonzero(np.abs(y[rows] - table.labels) > 0)[:1]:
                raise DataError(
                    f"{path}: sample {table.ids[at]!r:.80} has the label {table.labels[at]:g}, but {y[rows[at]]:g} in "
                    "another file; correct one of them"
                )
            y[rows] = np.where(np.isnan(table.labels), y[rows], table.labels)
            held.append((np.sort(rows), np.sort([column[name] for name in table.features])))
        for at in np.flatnonzero(np.isnan(y))[:1]:
            whose = " and ".join(str(path) for path, table in zip(paths, tables, strict=True) if ids[at] in table.ids)
            raise DataError(f"{whose}: sample {ids[at]!r:.80} has no label in any file; add it, or remove the sample")
        partition = check_cells(
            by_rectangles(held), len(ids), len(names), self.missing,
            lambda row, column: f"{self.path}: feature {names[column]!r} of sample {ids[row]!r:.80}",
            lambda client: paths[client].name,
        )  # fmt: skip
        return Samples(X, y, names=tuple(names), files=tuple(paths), partition=partition, task=self.task)

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

    def _load(self, path: Path) -> ClientTable:
        """A client's file."""
        table, what = read_csv(path, lambda _: {self.id}), str(path)
        names = table.column_names
        if self.id not in names:
            raise DataError(f"{path}: no column {self.id!r}, the identifiers of --id; of {listed(names)}")
        ids = Cells(what, self.id, table[self.id]).identities().tolist()
        for name, count in Counter(ids).items():
            if count > 1 or not name:
                raise DataError(f"{path}: {count} rows have the identifier {name!r:.80}; every sample needs its own")
        columns = {name: Cells(what, name, table[name]).raw() for name in names if name != self.id}
        labels = columns.pop(self.label, np.full(len(ids), np.nan))
        if not columns:
            raise DataError(f"{path}: no column besides {listed(names)}; every client has a feature")
        for name, values in columns.items():
            if numbers_rows(name):
                raise DataError(f"{path}: column {name!r} numbers rows; rename it, or remove it")
            for row in np.flatnonzero(np.isnan(values))[:1]:
                raise DataError(f"{path}: row {row + 1}, column {name!r} is a missing value; remove the row")
            check_feature(what, name, values, stated=True)
        return ClientTable(ids, columns, labels)
