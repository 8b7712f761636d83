"""a9a sorted by class over ten clients, of which one has rows of both classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpifed.data.partition import by_rectangles
from mpifed.data.samples import Samples, Source, stored_samples
from mpifed.data.sources import Svmlight


@dataclass(frozen=True)
class SortedByClass(Source):
    """A file of svmlight's form, its rows sorted by class, as they come, over ten clients."""

    path: Path
    """The file of training rows."""
    test: Path
    """The file of test rows."""

    names_clients = True
    computed = ("number of columns", "who holds which rows, by class")

    def read(self, seed: int) -> Samples:
        data = stored_samples("svmlight", Svmlight(self.path, self.test).read(seed))
        columns = np.arange(data.features)
        parts = np.split(np.argsort(data.y, kind="stable"), np.arange(1, 10) * len(data.y) // 10)
        return replace(data, partition=by_rectangles((np.sort(rows), columns) for rows in parts))
