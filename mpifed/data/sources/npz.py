"""NumPy's .npz: a ZIP archive of arrays. Objects, whose pickles could execute anything, are refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import with_test
from mpifed.text import listed, shown

SAMPLES, LABELS = ("X", "x", "x_train", "X_train", "data", "images"), ("y", "y_train", "labels", "target", "targets")


@dataclass(frozen=True)
class Npz(Source):
    """Arrays of NumPy in an .npz file: samples [s, ...], labels [s] or [s, t], and whose each sample is [s].

    Arrays whose names have test in place of train, or behind, such as x_test and y_test, are rows to test with.
    """

    path: Path
    """The file, of np.savez or np.savez_compressed."""
    samples: str | None = None
    """Name of the array of samples; by default X, x, x_train, X_train, data or images."""
    label: str | None = None
    """Name of the array of labels; by default y, y_train, labels, target or targets."""
    by: str | None = None
    """Name of the array that says whose each sample is, integers or texts: natural clients."""
    task: Task = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets; of several, 0 or 1 each,
    multilabel."""

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file, UsageError for a name that is not there."""
        try:
            with open_regular(self.path) as path, np.load(path, allow_pickle=False) as archive:
                return self._samples(archive)
        except (MemoryError, UsageError):
            raise
        except Exception as error:  # what a damaged archive may raise is said nowhere
            why = shown(str(error))
            raise DataError(f"{self.path}: cannot be read ({why}); expected numbers and texts, by np.savez") from error

    def _samples(self, archive: NpzFile) -> Samples:
        names = []
        for option, usual in {"samples": SAMPLES, "label": LABELS, "by": ()}.items():
            given = getattr(self, option)
            known = [name for name in (usual if given is None else [given]) if name in archive.files]
            if len(known) != 1 and (given or usual):
                why = given or ("may be " + listed(known) if known else "is missing")
                there = listed(archive.files)
                raise UsageError(f"--{option} {why}: {self.path} has the arrays {there}; give the name of one")
            names += known
        tests = [name.replace("train", "test") if "train" in name else f"{name}_test" for name in names]
        others = [name for name in archive.files if "test" in name.lower()]
        if others and not {*tests[:2]} <= {*others}:
            raise UsageError(
                f"{self.path}: has {listed(others)}; rows to test with are {listed(tests[:2])}, as those to train on "
                f"are {listed(names[:2])}; rename both, or remove them"
            )
        return with_test(
            (Samples(archive[X], archive[y], ids=archive[by[0]] if by and by[0] in archive.files else None)
             for X, y, *by in (names, tests) if {X, y} <= {*archive.files}),
            files=(self.path,), task=self.task,
        )  # fmt: skip
