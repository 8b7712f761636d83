"""NumPy's .npz: a ZIP archive of arrays. Objects, whose pickles could execute anything, are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.npyio import NpzFile

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.natural import identifiers
from mpifed.data.sources.arrays import Samples, of_arrays
from mpifed.data.sources.dataset import Dataset, Source, check_file, listed, shown

SAMPLES, LABELS = ("X", "x", "x_train", "X_train", "data", "images"), ("y", "y_train", "labels", "target", "targets")


@dataclass(frozen=True)
class Npz(Source):
    """Arrays of NumPy in an .npz file: samples [s, ...], labels [s] or [s, t], and whose each sample is [s]."""

    path: Path
    """The file, of np.savez or np.savez_compressed."""
    samples: str | None = None
    """Name of the array of samples; by default X, x, x_train, X_train, data or images."""
    label: str | None = None
    """Name of the array of labels; by default y, y_train, labels, target or targets."""
    by: str | None = None
    """Name of the array that says whose each sample is, integers or texts: natural clients."""
    test: Path | None = None
    """File of test rows; by default arrays whose names have test in place of train, such as x_test and y_test."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""

    def read(self, seed: int) -> Dataset:
        """The data; DataError for a damaged file or arrays that do not fit, UsageError for a name that is not there."""
        path, known = self.path, _names(self.path)
        samples = _chosen(path, known, self.samples, SAMPLES, "samples")
        label = _chosen(path, known, self.label, LABELS, "label")
        by = None if self.by is None else _chosen(path, known, self.by, (), "by")
        rows, test = _rows(path, samples, label, by), None
        if self.test is not None:
            path, known = self.test, _names(self.test)
        else:
            samples, label, by = _of_test(samples), _of_test(label), by and _of_test(by)
        if self.test is not None or {samples, label} <= {*known}:
            samples = _chosen(path, known, samples, (), "samples")
            label = _chosen(path, known, label, (), "label")
            test = _rows(path, samples, label, by if by in known else None)
        return of_arrays([self.path, *([] if self.test is None else [self.test])], self.task, rows, test)


def _chosen(path: Path, known: list[str], name: str | None, usual: tuple[str, ...], option: str) -> str:
    for choice in usual if name is None else (name,):
        if choice in known:
            return choice
    raise UsageError(f"--{option} {name or 'is missing'}: {path} has the arrays {listed(known)}; give the name of one")


def _of_test(name: str) -> str:
    return name.replace("train", "test") if "train" in name else f"{name}_test"


def _rows(path: Path, samples: str, label: str, by: str | None) -> Samples:
    """The samples, their labels, and whose they are."""
    values = _array(path, samples)
    if values.dtype.kind == "U" or values.ndim < 2:
        raise DataError(
            f"{path}: {samples}: an array of {values.dtype} {values.shape}; expected numbers [samples, ...]"
        )
    with np.errstate(over="ignore"):
        X = np.ascontiguousarray(values, np.uint8 if values.dtype == np.uint8 else np.float32)
    finite = np.isfinite(X.reshape(len(X), -1)).all(axis=1)
    if not finite.all():
        row = np.argmin(finite)
        raise DataError(f"{path}: {samples}: row {row} has a value that is not finite; correct or remove it")
    ids = None if by is None else identifiers(_column(path, by, len(X), 1), f"{path}: {by}")
    return Samples(X, _column(path, label, len(X), 2), ids)


def _column(path: Path, name: str, rows: int, axes: int) -> Array:
    """An array [rows], or where it may have two axes [rows, t], as it is."""
    values = _array(path, name)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim > axes or len(values) != rows:
        raise DataError(f"{path}: {name}: an array of shape {values.shape} for {rows} samples; expected [{rows}]")
    return values


def _names(path: Path) -> list[str]:
    with _opened(path) as archive:
        return archive.files


def _array(path: Path, name: str) -> Array:
    """An array of numbers or texts."""
    with _opened(path) as archive:
        values: Array = np.asarray(archive[name])
    if values.dtype.kind not in "biufU" or not values.ndim or not values.size:
        raise DataError(f"{path}: {name}: an array of {values.dtype} {values.shape}; expected numbers or texts")
    return values


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    """The archive; whatever ZIP and NumPy find wrong with it becomes DataError."""
    check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except MemoryError:
        raise
    except Exception as error:  # what a damaged archive may raise is said nowhere
        why = shown(str(error))[1:-1]
        raise DataError(f"{path}: cannot be read ({why}); expected numbers and texts, by np.savez") from error
