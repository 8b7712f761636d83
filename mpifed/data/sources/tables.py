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
from typing import Literal, NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.cells import check_cells
from mpifed.data.partition import by_rectangles
from mpifed.data.recipe import check_feature, identities, numbers
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import listed, numbers_rows, open_packed
from mpifed.data.table import read_csv

SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz")
LEAST_KEY_BYTES = 16


class ClientTable(NamedTuple):
    """The table of a client, in the order of its file."""

    ids: list[str]  # [s]
    features: list[str]  # [p]
    X: Array  # [s, p] float64
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
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""
    missing: str = "error"  # "zero" if a sample may lack a feature in all files

    def read(self, seed: int) -> Samples:
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
        names = list(dict.fromkeys(name for table in tables for name in table.features))
        feature = {name: at for at, name in enumerate(names)}
        digests = {name: hmac.digest(key, name.encode(), "sha256") for table in tables for name in table.ids}
        ids = sorted(digests, key=digests.__getitem__)
        number = {name: at for at, name in enumerate(ids)}
        held = [
            (np.array([number[name] for name in table.ids]), np.array([feature[name] for name in table.features]))
            for table in tables
        ]
        X, labels = np.zeros((len(ids), len(names)), np.float32), np.full(len(ids), np.nan)
        for path, table, (rows, columns) in zip(paths, tables, held, strict=True):
            X[np.ix_(rows, columns)] = table.X
            for i in np.flatnonzero(np.abs(labels[rows] - table.labels) > 0)[:1]:
                raise DataError(
                    f"{path}: sample {table.ids[i]!r:.80} has the label {table.labels[i]:g}, but {labels[rows[i]]:g} "
                    "in another file; correct one of them"
                )
            labels[rows] = np.where(np.isnan(table.labels), labels[rows], table.labels)
        for row in np.flatnonzero(np.isnan(labels))[:1]:
            whose = " and ".join(str(path) for path, (rows, _) in zip(paths, held, strict=True) if row in rows)
            raise DataError(f"{whose}: sample {ids[row]!r:.80} has no label in any file; add it, or remove the sample")
        partition = check_cells(
            by_rectangles((np.sort(rows), np.sort(columns)) for rows, columns in held),
            len(ids), len(names), self.missing,
            lambda row, column: f"{self.path}: feature {names[column]!r} of sample {ids[row]!r:.80}",
            lambda client: paths[client].name,
        )  # fmt: skip
        return Samples(X, labels, names=tuple(names), files=tuple(paths), partition=partition, task=self.task)

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
        features = [name for name in table.column_names if name not in (self.id, self.label)]
        if self.id not in table.column_names:
            raise DataError(f"{path}: no column {self.id!r}, the identifiers of --id; of {listed(table.column_names)}")
        if not features:
            raise DataError(f"{path}: no column besides {listed(table.column_names)}; every client has a feature")
        if strange := list(filter(numbers_rows, features)):
            raise DataError(f"{path}: column {listed(map(repr, strange))} numbers rows; rename it, or remove it")
        ids = identities(what, self.id, table[self.id]).tolist()
        for name, count in Counter(ids).items():
            if not name:
                raise DataError(f"{path}: {count} rows have no identifier; every sample needs one")
            if count > 1:
                raise DataError(f"{path}: {count} rows have the identifier {name!r:.80}; keep one")
        X = np.stack([numbers(what, name, table[name]) for name in features], axis=1)
        for name, values in zip(features, X.T, strict=True):
            check_feature(what, name, values, stated=True)
        for row, column in np.argwhere(np.isnan(X))[:1].tolist():
            raise DataError(f"{path}: row {row + 1}, column {features[column]!r} is a missing value; remove the row")
        labels = np.full(len(ids), np.nan)
        if self.label in table.column_names:
            labels = numbers(what, self.label, table[self.label])
        return ClientTable(ids, features, X, labels)


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; expected a folder of CSV files, one per client") from error
