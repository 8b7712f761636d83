"""All training rows, read from the files alone: nothing of mpifed is imported here.

`mpifed.shards.store` describes the files. Files of schema 1, which earlier versions wrote, are not read.
"""

from __future__ import annotations

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
    with h5py.File(folder / "federation.h5", "r", locking=False) as file:
        about, holds = dict(file.attrs), file["holds"][()]
        groups = {
            axis: np.split(file[f"{axis}/members"][()], file[f"{axis}/bounds"][1:-1]) for axis in ("rows", "columns")
        }
        scale, shift = file["scaling/scale"][()], file["scaling/shift"][()]
    samples, features, pack = (int(about[name]) for name in ("samples", "features", "pack"))
    held = [(groups["rows"][i], groups["columns"][j]) for i, j in holds.tolist()]
    y: Any = np.full(samples, np.nan)
    parts, dense = [], None
    for first in range(0, len(held), pack):
        with h5py.File(folder / f"shard-{first // pack:05d}.h5", "r", locking=False) as file:
            values = {name: file[name][()] for name in file}
        row = value = 0  # of the file, where the next client's begin
        for rows, columns in held[first : first + pack]:
            y[rows] = values["y"][row : row + len(rows)]
            if about["sparse"]:
                starts = values["indptr"][row : row + len(rows) + 1]
                within = slice(int(starts[0]), int(starts[-1]))
                of_rows = np.repeat(rows, np.diff(starts))
                parts.append((values["data"][within], of_rows, columns[values["indices"][within]]))
            else:
                if dense is None:
                    dense = np.zeros((samples, features), values["X"].dtype)
                size = len(rows) * len(columns)
                dense[np.ix_(rows, columns)] = values["X"].reshape(-1)[value : value + size].reshape(len(rows), -1)
                value += size
            row += len(rows)
    assert np.isfinite(y).all(), f"{folder}: a row has no label"
    if about["sparse"]:
        data, at, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
        dense = csr_matrix((data, (at, columns)), shape=(samples, features))
    classes = int(about["classes"])
    return Rows(dense, y.astype(np.int64) if classes else y, scale, shift, classes or 1)
