"""NumPy's .npz: a ZIP archive of arrays. Objects, whose pickles could execute anything, are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.lib.npyio import NpzFile

from mpifed.core.errors import DataError, UsageError
from mpifed.core.text import shown
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import check_file, listed

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
    task: Literal["auto", "classification", "regression", "multilabel"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets; of several, 0 or 1 each,
    multilabel."""

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, UsageError for a name that is not there."""
        with _opened(self.path) as archive:
            known = archive.files
            samples = _chosen(self.path, known, self.samples, SAMPLES, "samples")
            label = _chosen(self.path, known, self.label, LABELS, "label")
            by = None if self.by is None else _chosen(self.path, known, self.by, (), "by")
            data = _samples(archive, samples, label, by)
            test, labels = _of_test(samples), _of_test(label)
            if self.test is None and {test, labels} <= {*known}:
                data = replace(data, test=_samples(archive, test, labels, by and _of_test(by)))
        if self.test is not None:
            with _opened(self.test) as archive:
                for name, option in ((samples, "samples"), (label, "label")):
                    _chosen(self.test, archive.files, name, (), option)
                data = replace(data, test=_samples(archive, samples, label, by))
        files = (self.path,) if self.test is None else (self.path, self.test)
        return replace(data, files=files, task=self.task)


def _chosen(path: Path, known: list[str], name: str | None, usual: tuple[str, ...], option: str) -> str:
    for choice in usual if name is None else (name,):
        if choice in known:
            return choice
    raise UsageError(f"--{option} {name or 'is missing'}: {path} has the arrays {listed(known)}; give the name of one")


def _of_test(name: str) -> str:
    return name.replace("train", "test") if "train" in name else f"{name}_test"


def _samples(archive: NpzFile, samples: str, label: str, by: str | None) -> Samples:
    ids = archive[by] if by in archive.files else None
    return Samples(archive[samples], archive[label], ids=ids)


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    """The archive; whatever ZIP and NumPy find wrong with it becomes DataError."""
    check_file(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except (MemoryError, UsageError):
        raise
    except Exception as error:  # what a damaged archive may raise is said nowhere
        why = shown(str(error))
        raise DataError(f"{path}: cannot be read ({why}); expected numbers and texts, by np.savez") from error
