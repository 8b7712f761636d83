"""Covertype (Blackard, Dean): 581,012 patches of forest, 54 features, 7 kinds of trees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.shards.partition import stream
from mpifed.shards.sources.dataset import Dataset, whole
from mpifed.shards.sources.download import fetched

REMEDY = (
    "put covertype/samples_py3 and covertype/targets_py3, as scikit-learn writes them elsewhere, into any folder for "
    "`mpifed data covtype FOLDER`, or give the table itself: `mpifed data csv covtype.data.gz`"
)


@dataclass(frozen=True)
class Covtype:
    """The table by scikit-learn, from its folder `path` or downloaded; labels are 1 to 7, and there is no test set."""

    path: Path | None = None
    samples: int | None = None  # rows, drawn by the seed; None for all

    def read(self, seed: int) -> Dataset:
        """The data.

        Raises
        ------
        DataError
            When they are not there and cannot be downloaded.
        UsageError
            When there are fewer rows than asked for.
        """
        from sklearn import datasets

        table = fetched(datasets.fetch_covtype, "Covertype", self.path, REMEDY)
        X, labels = table.data, table.target
        if self.samples is not None:
            if not 0 < self.samples <= len(X):
                raise UsageError(f"--samples {self.samples}: covtype has {len(X)} rows; give 1 to {len(X)}")
            at = np.sort(stream(seed, "samples").choice(len(X), self.samples, replace=False))
            X, labels = X[at], labels[at]
        X, names = X.astype(np.float32), tuple(table.feature_names)  # integers below 2^24
        return Dataset(X.shape[1], np.float32, labels.astype(np.int64), whole(X), names=names)
