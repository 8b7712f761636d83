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

import csv
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.cells import check_cells
from mpifed.data.natural import WHOLE
from mpifed.data.partition import by_rectangles
from mpifed.data.samples import Samples, Source
from mpifed.data.sources.dataset import listed, numbers_rows, open_packed, shown, typed_labels

SUFFIXES = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz")
LEAST_KEY_BYTES = 16


class ClientTable(NamedTuple):
    """The table of a client, in the order of its file."""

    path: Path
    ids: list[str]  # [s]
    features: list[str]  # [p]
    X: Array  # [s, p] float32
    labels: Array | None  # [s] float64


Held: TypeAlias = list[tuple[NDArray[np.int64], NDArray[np.int64]]]  # by client, numbers of its samples and features


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
        hashes = [[hmac.digest(key, name.encode(), "sha256") for name in table.ids] for table in tables]
        number = {digest: at for at, digest in enumerate(sorted(set().union(*hashes)))}
        feature = {name: at for at, name in enumerate(names)}
        held = [
            (np.array([number[digest] for digest in digests]), np.array([feature[name] for name in table.features]))
            for table, digests in zip(tables, hashes, strict=True)
        ]
        ids = {row: name for table, (rows, _) in zip(tables, held, strict=True)
               for row, name in zip(rows.tolist(), table.ids, strict=True)}  # fmt: skip
        labels = typed_labels(self.path, _labels(tables, held, ids), self.task)
        partition = check_cells(
            by_rectangles((np.sort(rows), np.sort(columns)) for rows, columns in held),
            len(ids), len(names), self.missing,
            lambda row, column: f"{self.path}: feature {names[column]!r} of sample {shown(ids[row])}",
            lambda client: tables[client].path.name,
        )  # fmt: skip
        X = np.zeros((len(ids), len(names)), np.float32)
        for table, cells in zip(tables, held, strict=True):
            X[np.ix_(*cells)] = table.X
        return Samples(X, labels, names=tuple(names), files=tuple(paths), partition=partition)

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
        """A client's file, read once."""
        with open_packed(path, "rt") as file:
            lines = csv.reader(file)
            try:
                names = [cell.strip() for cell in next(lines, [])]
                rows = [(f"line {lines.line_num}", cells) for cells in lines if cells]
            except csv.Error as error:
                raise DataError(f"{path}: line {lines.line_num}: {error}; expected cells between commas") from error
        if self.id not in names:
            raise DataError(f"{path}: line 1 has no column {self.id!r}, the identifiers of --id")
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{path}: line 1 names {names.count(twice[0])} columns {shown(twice[0])}; rename them")
        at = names.index(self.id)
        known = [*names[:at], *names[at + 1 :]]
        features = [name for name in known if name != self.label]
        if not features or not rows:
            raise DataError(f"{path}: no {'rows' if features else f'column besides {listed(names)}'}; every client has")
        if strange := [name for name in features if numbers_rows(name) or any(letter < " " for letter in name)]:
            raise DataError(
                f"{path}: column {listed(map(shown, strange))} numbers rows or has a control character; rename it"
            )
        place_of: dict[str, str] = {}
        for place, cells in rows:
            if len(cells) != len(names):
                raise DataError(f"{path}: {place}: {len(cells)} columns, the first line has {len(names)}; correct it")
            name = re.sub(WHOLE, r"\1", cells.pop(at).strip())
            if not name:
                raise DataError(f"{path}: {place}: no identifier; every sample needs one")
            if name in place_of:
                raise DataError(f"{path}: {place}: identifier {shown(name)}, as in {place_of[name]}; keep one")
            place_of[name] = place
        values = np.array([list(map(_number, cells)) for _, cells in rows])
        for row, column in np.argwhere(~(np.abs(values) <= np.finfo(np.float32).max))[:1].tolist():
            (place, cells), name = rows[row], known[column]
            where = f"{path}: {place}, column {names.index(name) + 1} ({name})"
            raise DataError(f"{where}: {shown(cells[column])}; expected a finite number; correct or remove the line")
        labels = values[:, known.index(self.label)] if self.label in known else None
        X = values[:, [known.index(name) for name in features]].astype(np.float32)
        return ClientTable(path, list(place_of), features, X, labels)


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; expected a folder of CSV files, one per client") from error


def _number(cell: str) -> float:
    """The number in a cell; NaN where there is none."""
    try:
        return np.nan if "_" in cell else float(cell)
    except ValueError:
        return np.nan


def _labels(tables: list[ClientTable], held: Held, ids: dict[int, str]) -> Array:
    """[s] float64 labels of all samples; DataError if files contradict each other, or a label is missing."""
    labels, given_by = np.full(len(ids), np.nan), np.full(len(ids), -1)
    for client, (table, (rows, _)) in enumerate(zip(tables, held, strict=True)):
        if table.labels is None:
            continue
        before = labels[rows]
        for i in np.flatnonzero((before != table.labels) & (given_by[rows] >= 0))[:1]:
            raise DataError(
                f"{table.path}: sample {shown(table.ids[i])} has the label {table.labels[i]:g}, but {before[i]:g} in "
                f"{tables[given_by[rows[i]]].path}; correct one of them"
            )
        labels[rows], given_by[rows] = table.labels, client
    for row in np.flatnonzero(given_by < 0)[:1].tolist():
        files = " and ".join(str(table.path) for table, (rows, _) in zip(tables, held, strict=True) if row in rows)
        raise DataError(f"{files}: sample {shown(ids[row])} has no label in any file; add it, or remove the sample")
    return labels
