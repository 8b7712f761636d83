"""What every source gives, and what sources of files have in common."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from scipy import sparse

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.shards.partition import Partition

CHUNK_VALUES = 1 << 22  # of dense rows made at a time: 16 MiB of float32

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@dataclass(frozen=True)
class Dataset:
    """Rows and labels as the source has them.

    Dense rows may come in any number of chunks, so that they need not fit into memory; sparse rows come in one.
    Labels are always in memory.
    """

    features: int
    dtype: Any  # of dense rows as stored; None for sparse rows
    labels: Array  # [s] int64 of classes, float64 of real targets
    chunks: Callable[[], Iterator[Any]]  # called for each pass: rows X [b, p] in order, dense or CSR
    test: tuple[Any, Array] | None = None  # rows X [s, p] and labels [s]
    top: float | None = None  # the largest value there can be, which `--scale unit` divides by
    names: tuple[str, ...] | None = None  # [p] of the features
    files: tuple[Path, ...] = ()  # it was read from
    partition: Partition | None = None  # who holds what, where the source says so


class Source(Protocol):
    """A source with its options: a frozen dataclass."""

    def read(self, seed: int) -> Dataset:
        """The data; the seed matters where they are drawn."""


def whole(X: Any) -> Callable[[], Iterator[Any]]:
    """The chunks of rows that are in memory: one."""
    return lambda: iter([X])


@contextmanager
def open_packed(path: Path, mode: str = "rb") -> Iterator[IO[Any]]:
    """The content of a file, unpacked where its name ends in .gz, .bz2 or .xz; text if `mode` is "rt".

    Raises DataError when there is no such file, or it cannot be unpacked.
    """
    try:
        with _OPENERS.get(path.suffix, open)(path, mode, **({"errors": "replace"} if mode == "rt" else {})) as file:
            yield file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read to its end ({error}); get the file again") from error


def read_packed(path: Path) -> bytes:
    """All of the content (see `open_packed`)."""
    with open_packed(path) as file:
        content: bytes = file.read()
    return content


def typed_labels(path: Path, labels: Array, task: str) -> Array:
    """Labels [s] float64 as class numbers int64, or as they are where they are real targets.

    Parameters
    ----------
    path : of the file they are from
    labels : [s]
    task : "classification", "regression", or "auto": classification if all labels are integers

    Raises
    ------
    DataError
        When classes are asked for and a label is no integer.
    """
    real = (labels != np.rint(labels)) | (np.abs(labels) >= 2**53)
    if task == "regression" or (task == "auto" and real.any()):
        return labels
    if real.any():
        row = np.flatnonzero(real)[0]
        raise DataError(
            f"{path}: row {row + 1} has the label {labels[row]:g}, no class number; mend it, or --task regression"
        )
    return labels.astype(np.int64)


def check_finite(path: Path, X: Any, labels: Array) -> None:
    """Raise DataError for the first row of X [s, p], dense or CSR, or label [s] that is not a finite number."""
    bad = ~np.isfinite(labels)
    if sparse.issparse(X):
        row_of = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
        bad[row_of[~np.isfinite(X.data)]] = True
    else:
        bad |= ~np.isfinite(X).all(axis=1)
    if bad.any():
        raise DataError(
            f"{path}: row {np.flatnonzero(bad)[0] + 1} has a value that is no finite number; mend or remove it"
        )
