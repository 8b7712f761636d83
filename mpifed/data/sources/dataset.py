"""The interface of sources, and functions for sources that read files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import re
import reprlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.core.contract import own_module
from mpifed.core.errors import DataError, UsageError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.data.encoding import RawColumns
from mpifed.data.natural import NaturalClients
from mpifed.data.partition import Partition

CHUNK_VALUES = 1 << 22  # dense values per chunk: 16 MiB of float32

_SHORT = reprlib.Repr()
_SHORT.maxstring = 80
shown = _SHORT.repr  # shortens content of files in messages

# of files in text or bytes
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_LABELS = [("i", 1), ("u", 1), ("f", 1), ("f", 2)]  # kind and axes
_DAMAGES = (OSError, EOFError, lzma.LZMAError, zlib.error)


@dataclass(frozen=True)
class Dataset:
    """Rows and labels of a source.

    Dense rows come in any number of chunks, so that they need not fit into memory; sparse rows come in a single chunk.
    Labels are always in memory.
    """

    features: int  # p
    dtype: DTypeLike | None  # of dense rows as stored; None for sparse rows
    labels: Array  # [s] int64 of classes, float64 of real targets; [s, t] float64 of t targets each
    chunks: Callable[[], Iterator[Piece]]  # called for each pass: rows X [b, p] in order, dense or CSR
    test: tuple[Piece, Array] | None = None  # rows X [s, p] and labels [s]
    top: float | None = None  # the largest possible value, by which `--scale unit` divides
    names: tuple[str, ...] | None = None  # [p] of the features
    shape: tuple[int, ...] | None = None  # of a sample, of p numbers in C order, such as (channels, height, width)
    files: tuple[Path, ...] = ()  # from which the data were read
    classes: tuple[str, ...] | None = None  # names of the labels 0, 1, ..., where they are texts
    partition: Partition | None = None  # of rows and columns among clients, if the source determines it
    natural: NaturalClients | None = None  # whose each row is, if the source knows; rows in the order of owners
    columns: RawColumns | None = None  # how rows are to be encoded, where they hold codes of texts, or gaps
    client_tests: NDArray[np.bool_] | None = None  # [s] True for rows with which the client that holds them tests
    left_out: tuple[str, ...] = ()  # columns that number rows, such as the index of a frame


class Source(ABC):
    """A source of data: a frozen dataclass whose fields are options of `mpifed data`.

    Name your own source as my_module:MyClass. The docstring below a field is the help of its option; the field `path`
    is the argument after the name.
    """

    @abstractmethod
    def read(self, seed: int) -> Dataset:
        """Read or generate the data; `seed` is for random data and subsets."""

    @property
    def names_clients(self) -> bool:
        """Whether `read` will say whose each row is (`Dataset.natural`), so that no number of clients is needed."""
        return getattr(self, "by", None) is not None


def checked(name: str, data: object) -> Dataset:
    """The data, whose shapes and types are as `Dataset` says; DataError where a source gives something else."""
    if not isinstance(data, Dataset):
        raise DataError(f"{name}: read() returned {type(data).__name__}; expected mpifed.data.sources.Dataset")
    if not callable(data.chunks):
        raise DataError(f"{name}: chunks is {type(data.chunks).__name__}; expected a function that yields rows")
    if data.shape is not None and math.prod(data.shape) != data.features:
        raise DataError(f"{name}: shape {data.shape} for {data.features} features; their product must be that number")
    if data.names is not None and len(data.names) != data.features:
        raise DataError(f"{name}: {len(data.names)} names for {data.features} features")
    _check_labels(name, "labels", data.labels)
    tests = data.client_tests
    if tests is not None and (np.shape(tests) != (len(data.labels),) or np.asarray(tests).dtype != np.bool_):
        raise DataError(f"{name}: client_tests is {_kind(tests)}; expected bool ({len(data.labels)},), as the labels")
    if data.test is not None:
        X, labels = data.test
        _check_labels(name, "test labels", labels)
        if np.shape(X) != (len(labels), data.features):
            raise DataError(
                f"{name}: test rows {np.shape(X)}; expected [{len(labels)}, {data.features}], as the labels"
            )
        if data.columns is None and not np.isfinite(X if isinstance(X, np.ndarray) else X.data).all():
            raise DataError(f"{name}: test rows have values that are not finite")
    return replace(data, chunks=lambda: _as_declared(name, data))


def _check_labels(name: str, what: str, labels: object) -> None:
    """DataError unless they are [s] finite numbers, or [s, t] real ones."""
    if not isinstance(labels, np.ndarray) or not labels.size or (labels.dtype.kind, labels.ndim) not in _LABELS:
        raise DataError(
            f"{name}: {what} are {_kind(labels)}; expected [rows], int64 classes or float64 targets, or float64 "
            "[rows, targets]"
        )
    beyond = np.flatnonzero(~(np.abs(labels) <= np.finfo(np.float32).max).reshape(len(labels), -1).all(axis=1))
    if len(beyond):
        raise DataError(f"{name}: {what}: that of row {beyond[0]} is {labels[beyond[0]]}; expected finite numbers")


def _kind(value: object) -> str:
    """What somebody gave in place of an array, or of another one."""
    return f"{getattr(value, 'dtype', type(value).__name__)} {getattr(value, 'shape', '')}"


def _as_declared(name: str, data: Dataset) -> Iterator[Piece]:
    """The chunks, while they have as many columns as `features` and finite values, and in all a row for each label."""
    rows = 0
    for X in data.chunks():
        if getattr(X, "ndim", 0) != 2 or X.shape[1] != data.features:
            came = f"shape {X.shape}" if hasattr(X, "shape") else f"type {type(X).__name__}"
            raise DataError(f"{name}: a chunk of rows has {came}; expected [rows, {data.features}], as features says")
        if own_module(name) is not None and not np.isfinite(X if isinstance(X, np.ndarray) else X.data).all():
            raise DataError(f"{name}: rows {rows} to {rows + X.shape[0] - 1} have values that are not finite")
        rows += X.shape[0]
        yield X
    if rows != len(data.labels):
        raise DataError(f"{name}: {rows} rows and {len(data.labels)} labels; expected a label for each row")


def numbers_rows(name: object) -> bool:
    """Whether a column of this name is the index of a frame of pandas or R, as files have it."""
    return bool(re.fullmatch(r"__index_level_\d+__|Unnamed: \d+(\.\d+)*|rownames|", str(name)))


def whole(X: Piece) -> Callable[[], Iterator[Piece]]:
    """`Dataset.chunks` for rows in memory: a single chunk."""
    return lambda: iter([X])


@contextmanager
def open_packed(path: Path, mode: str = "rb") -> Iterator[IO[Any]]:  # of bytes or text
    """The content of a regular file, unpacked if its name ends in .gz, .bz2 or .xz; text if `mode` is "rt".

    Raises DataError when there is no such file, or it cannot be unpacked.
    """
    check_file(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield io.TextIOWrapper(file, "utf-8-sig") if mode == "rt" else file
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); save it as UTF-8") from error
    except _DAMAGES as error:
        raise DataError(f"{path}: cannot be read to its end ({error}); get the file again") from error


def check_file(path: Path) -> None:
    """Raise DataError unless `path` is a regular file: pipes and devices may have no end."""
    try:
        if not path.is_file():
            raise DataError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def typed_labels(path: Path, labels: Array, task: str) -> Array:
    """Labels [s] as int64 classes, or unchanged if they are real targets.

    Parameters
    ----------
    path : of the file, for messages
    labels : [s] float64
    task : "classification", "regression", or "auto": classification if all labels are integers

    Raises
    ------
    DataError : when the task is classification and a label is not an integer.
    UsageError : when the task is "auto" and there are many different integers, few rows of each.
    """
    real = (labels != np.rint(labels)) | (np.abs(labels) >= 2**53)
    if task == "auto" and not real.any() and (values := len(np.unique(labels))) > max(20, len(labels) / 10):
        raise UsageError(
            f"{path}: the labels are {values} different integers in {len(labels)} rows, classes or real targets; give "
            "--task classification or --task regression"
        )
    if task == "regression" or (task == "auto" and real.any()):
        return labels
    if real.any():
        row = np.flatnonzero(real)[0]
        raise DataError(
            f"{path}: row {row + 1} has the label {labels[row]:g}, not a class; correct it, or use --task regression"
        )
    return labels.astype(np.int64)


def listed(names: Iterable[object], most: int = 20) -> str:
    """Names separated by commas; of more than `most`, the first, and their number."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f", ... ({len(texts)} in all)" if len(texts) > most else "")
