"""NumPy's .npz: a ZIP archive of arrays, read without np.load, which may execute what it reads."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.lib import format as npy

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.memory import check_memory
from mpifed.data.natural import canonical_order, identifiers, natural_clients
from mpifed.data.sources.columns import LARGEST
from mpifed.data.sources.dataset import (
    CHUNK_VALUES,
    Dataset,
    Source,
    check_file,
    listed,
    shown,
    typed_labels,
)
from mpifed.data.sources.spool import Spool
from mpifed.data.sources.texts import numbered

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
        """The data; DataError for a damaged file or arrays that do not fit, UsageError for one that is not there."""
        names = self._names(self.path)
        samples, label = (
            self._chosen(names, self.samples, SAMPLES, "samples"),
            self._chosen(names, self.label, LABELS, "label"),
        )
        spool, shape = self._rows(self.path, samples)
        labels, owners = self._flat(self.path, label, spool.rows), None
        test: tuple[Spool, Array, Array | None] | None = None
        if self.by is not None:
            owners = self._ids(self.path, self._chosen(names, self.by, (), "by"), spool.rows)
        test_path, renamed = self.test or self.path, (lambda name: name) if self.test else _of_test
        test_names = self._names(test_path)
        if self.test is not None or {renamed(samples), renamed(label)} <= set(test_names) - {samples, label}:
            test_spool, test_shape = self._rows(test_path, self._chosen(test_names, renamed(samples), (), "samples"))
            if test_shape != shape:
                raise DataError(f"{test_path}: test samples of shape {test_shape}; those to train on have {shape}")
            test_labels = self._flat(test_path, self._chosen(test_names, renamed(label), (), "label"), test_spool.rows)
            its = None if self.by is None or renamed(self.by) not in test_names else renamed(self.by)
            test = test_spool, test_labels, None if its is None else self._ids(test_path, its, test_spool.rows)
        return self._dataset(spool, shape, labels, owners, test)

    def _dataset(
        self, spool: Spool, shape: tuple[int, ...], labels: Array, owners: Array | None,
        test: tuple[Spool, Array, Array | None] | None,
    ) -> Dataset:  # fmt: skip
        labels, test_labels, classes = _typed(self, labels, None if test is None else test[1])
        order, natural, test_order = None, None, None
        if owners is not None:
            natural = natural_clients(*numbered(owners, None if test is None else test[2]))
            order = canonical_order(natural.owner, labels, spool.chunks())
            natural, labels = natural._replace(owner=natural.owner[order]), labels[order]
            if test is not None and test_labels is not None:
                of_test = natural.test_owner if natural.test_owner is not None else np.full(test[0].rows, -1)
                test_order = canonical_order(of_test, test_labels, test[0].chunks())
                natural, test_labels = natural._replace(test_owner=of_test[test_order]), test_labels[test_order]
        rows = None
        if test is not None and test_labels is not None:
            rows = np.concatenate(list(test[0].chunks(test_order))), test_labels
        return Dataset(
            spool.features, spool.dtype, labels, lambda: spool.chunks(order), rows,
            top=255.0 if spool.dtype == np.uint8 else None, shape=shape if len(shape) > 1 else None,
            files=(self.path, *([] if self.test is None else [self.test])), natural=natural, classes=classes,
        )  # fmt: skip

    def _chosen(self, names: list[str], name: str | None, usual: tuple[str, ...], option: str) -> str:
        for known in usual if name is None else (name,):
            if known in names:
                return known
        raise UsageError(
            f"--{option} {name or 'is missing'}: {self.path} has the arrays {listed(names)}; give the name of one"
        )

    def _names(self, path: Path) -> list[str]:
        with _opened(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]

    @contextmanager
    def _member(self, path: Path, name: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype[np.generic]]]:
        """(the numbers of an array as bytes, its shape, whether in Fortran's order, its dtype)."""
        with _opened(path) as archive, archive.open(f"{name}.npy") as file:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise DataError(f"{path}: {name}: version {version} of the format; expected 1.0 or 2.0")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            size = archive.getinfo(f"{name}.npy").file_size
            claimed = dtype.itemsize * int(np.prod([1, *shape], dtype=object))
            if dtype.kind not in "biufU" or not shape or min(shape) < 1 or len(shape) > 8:
                raise DataError(f"{path}: {name}: an array of {dtype} {shape}; expected numbers or texts")
            if claimed > size:
                raise DataError(f"{path}: {name}: claims {claimed} bytes, and has {size}; get the file again")
            yield file, tuple(shape), bool(fortran), dtype

    def _rows(self, path: Path, name: str) -> tuple[Spool, tuple[int, ...]]:
        """(the samples, their shape)."""
        with self._member(path, name) as (file, shape, fortran, dtype):
            if dtype.kind == "U" or len(shape) < 2:
                raise DataError(f"{path}: {name}: an array of {dtype} {shape}; expected numbers [samples, ...]")
            features = int(np.prod(shape[1:]))
            spool = Spool(features, np.uint8 if dtype == np.uint8 else np.float32)
            if fortran:
                whole = _array(path, name, file, shape, True, dtype)
                pieces = iter([whole.reshape(len(whole), -1)])
            else:
                pieces = _pieces(path, name, file, shape[0], features, dtype)
            for X in pieces:
                wrong = ~(np.abs(X) <= LARGEST) if dtype.kind == "f" else np.zeros(1, bool)
                if wrong.any():
                    row = spool.rows + int(np.argmax(wrong.any(axis=1)))
                    raise DataError(f"{path}: {name}: row {row} has a value that is not finite; correct or remove it")
                spool.append(X.astype(spool.dtype, copy=False))
        return spool, shape[1:]

    def _flat(self, path: Path, name: str, rows: int) -> Array:
        """Labels [rows] or [rows, t], as they are."""
        with self._member(path, name) as (file, shape, fortran, dtype):
            if shape[0] != rows or len(shape) > 2:
                raise DataError(f"{path}: {name}: shape {shape} for {rows} samples; expected [{rows}]")
            values = _array(path, name, file, shape, fortran, dtype)
        return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values

    def _ids(self, path: Path, name: str, rows: int) -> Array:
        """Identifiers [rows], as texts."""
        ids = self._flat(path, name, rows)
        if ids.ndim > 1:
            raise DataError(f"{path}: {name}: {ids.dtype} {ids.shape}; expected integers or texts [{rows}]")
        return identifiers(ids, f"{path}: {name}")


def _of_test(name: str) -> str:
    return name.replace("train", "test") if "train" in name else f"{name}_test"


def _typed(source: Npz, labels: Array, test: Array | None) -> tuple[Array, Array | None, tuple[str, ...] | None]:
    """(labels, test labels, names of the classes where they are texts)."""
    if test is not None and ((test.dtype.kind == "U") != (labels.dtype.kind == "U") or test.ndim != labels.ndim):
        raise DataError(f"{source.path}: test labels of {test.dtype}, those to train on are {labels.dtype}")
    if labels.dtype.kind == "U":
        if source.task == "regression" or labels.ndim > 1:
            raise UsageError("--label: texts are classes, not real targets; one array [samples]")
        names, codes, test_codes = numbered(labels, test)
        return codes, test_codes, tuple(names)
    if labels.ndim > 1:
        return labels.astype(np.float64), None if test is None else test.astype(np.float64), None
    typed = typed_labels(source.path, labels.astype(np.float64), source.task)
    task = "classification" if typed.dtype == np.int64 else "regression"
    return typed, None if test is None else typed_labels(source.path, test.astype(np.float64), task), None


def _array(
    path: Path, name: str, file: IO[bytes], shape: tuple[int, ...], fortran: bool, dtype: np.dtype[np.generic]
) -> Array:
    """A whole array."""
    size = dtype.itemsize * int(np.prod(shape))
    check_memory(2 * size, f"{path}: {name}", "use fewer rows, in C order", DataError)
    values = np.frombuffer(_exactly(path, name, file, size), dtype)
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _pieces(
    path: Path, name: str, file: IO[bytes], rows: int, features: int, dtype: np.dtype[np.generic]
) -> Iterator[Array]:
    size = max(1, CHUNK_VALUES // features)
    for start in range(0, rows, size):
        count = min(size, rows - start)
        content = _exactly(path, name, file, count * features * dtype.itemsize)
        yield np.frombuffer(content, dtype).reshape(count, features)


def _exactly(path: Path, name: str, file: IO[bytes], size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise DataError(f"{path}: {name}: ends after {len(content)} of {size} bytes; get the file again")
    return content


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; its errors become DataError."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError,
            SyntaxError, OverflowError) as error:  # fmt: skip
        raise DataError(f"{path}: cannot be read ({shown(str(error))[1:-1]}); expected an .npz of np.savez") from error
