"""All training rows, read from the files alone: nothing of mpifed is imported here.

`mpifed.data.store` describes the files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from scipy.sparse import csr_matrix

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Floats = np.ndarray[Any, np.dtype[np.float64]]
Model = dict[str, Floats]  # its parameters by name
PIECE = 4096  # rows turned into float64 at once


@dataclass(frozen=True)
class Rows:
    """What all clients hold, put together; values x = raw * scale + shift."""

    raw: Any  # [s, p] dense or CSR, as stored
    y: Any  # [s] int64 classes or float64 targets
    scale: Floats  # [] or [p]
    shift: Floats  # [] or [p]
    outputs: int  # number of classes; 1 for targets

    def pieces(self, size: int = PIECE) -> Iterator[tuple[Any, Any]]:
        """(X [b, p] float64, dense or CSR, y [b]) of all rows in turn, so many at once."""
        for start in range(0, len(self.y), size):
            X, y = self.raw[start : start + size], self.y[start : start + size]
            if isinstance(X, np.ndarray):
                yield X * self.scale + self.shift, y
            else:
                scaled = X.data.astype(np.float64) * (self.scale[X.indices] if self.scale.ndim else self.scale)
                yield csr_matrix((scaled, X.indices, X.indptr), shape=X.shape), y


def read_toml(path: Path) -> dict[str, Any]:
    tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return tables


def read_rows(folder: Path) -> Rows:
    """All training rows of a data folder; every cell has one holder, or is zero."""
    about = json.loads((folder / "federation.json").read_text(encoding="utf-8"))
    with h5py.File(folder / "federation.h5", "r", locking=False) as file:
        holds = file["holds"][()]
        scale, shift = (np.squeeze(file[f"scaling/{name}"][()]) for name in ("scale", "shift"))
        ends = {axis: file[f"{axis}/bounds"][()] for axis in ("rows", "columns")}
        groups = {axis: np.split(file[f"{axis}/members"][()], ends[axis][1:-1]) for axis in ends}
        stored = {name: file[name][()] for name in ("y", "X", "data", "indices", "indptr") if name in file}
    samples, features = about["samples"], about["features"]
    y: Any = np.full(samples, np.nan)
    parts, dense = [], None if about["sparse"] else np.zeros((samples, features), stored["X"].dtype)
    row = value = 0  # where the next client's begin, unless these hold all columns, in the order of the groups of rows
    for of_rows, of_columns in holds.tolist():
        rows, columns, labels = groups["rows"][of_rows], groups["columns"][of_columns], int(ends["rows"][of_rows])
        y[rows] = stored["y"][labels : labels + len(rows)]
        if about["split"] == "rows":
            row, value = labels, labels * len(columns)
        if dense is None:
            starts = stored["indptr"][row : row + len(rows) + 1]
            within = slice(int(starts[0]), int(starts[-1]))
            parts.append((stored["data"][within], np.repeat(rows, np.diff(starts)), columns[stored["indices"][within]]))
        else:
            size = len(rows) * len(columns)
            dense[np.ix_(rows, columns)] = stored["X"].reshape(-1)[value : value + size].reshape(len(rows), -1)
            value += size
        row += len(rows)
    assert np.isfinite(y).all(), f"{folder}: a row has no label"
    raw: Any = dense
    if dense is None:
        data, at, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
        raw = csr_matrix((data, (at, columns)), shape=(samples, features))
    return Rows(raw, y.astype(np.int64) if about["classes"] else y, scale, shift, about["classes"] or 1)
