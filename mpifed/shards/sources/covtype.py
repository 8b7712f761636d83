"""Covertype (Blackard, Dean): 581,012 patches of forest, 54 features, 7 kinds of trees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.shards.partitioners import stream
from mpifed.shards.sources.dataset import Dataset, Source, whole
from mpifed.shards.sources.download import original
from mpifed.shards.sources.table import read_numbers

MIRRORS = (
    "https://ndownloader.figshare.com/files/5976039",
    "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",
)
SHA256 = "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771"
NAMES = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points", *(f"Wilderness_Area_{i}" for i in range(4)),
    *(f"Soil_Type_{i}" for i in range(40)),
)  # fmt: skip


@dataclass(frozen=True)
class Covtype(Source):
    """Covertype: 581,012 patches of forest with 54 columns, labels 1 to 7; no test rows."""

    path: Path | None = None
    """The file covtype.data.gz, or its folder; downloaded and kept where absent."""
    samples: int | None = None
    """Number of rows to draw at random; all where absent."""

    def read(self, seed: int) -> Dataset:
        """The data; DataError if the file is another or cannot be downloaded, UsageError if it has too few rows."""
        path = original("covtype", self.path, MIRRORS, SHA256)
        width = len(NAMES) + 1
        cells = read_numbers(path, None, width, range(width))
        X, labels = cells[:, :-1].astype(np.float32), cells[:, -1].astype(np.int64)  # integers below 2^24
        if self.samples is not None:
            if not 0 < self.samples <= len(X):
                raise UsageError(f"--samples {self.samples}: covtype has {len(X)} rows; give 1 to {len(X)}")
            at = np.sort(stream(seed, "samples").choice(len(X), self.samples, replace=False))
            X, labels = X[at], labels[at]
        return Dataset(X.shape[1], np.float32, labels, whole(X), names=NAMES, files=(path,))
