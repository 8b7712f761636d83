"""Synthetic data of any size, whose rows are a function of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.data.partitioners import stream
from mpifed.data.samples import Samples, Source, pieces

MOST = 2**30  # so many squared are more values than any memory holds


@dataclass(frozen=True)
class Synthetic(Source):
    """Rows for linear regression, or for classification by a linear softmax model.

    Values are standard normal (float32), or integers from 0 to 255 (uint8), of which x is the 255th part. Planted
    weights W [p, h] give scores x W of variance 1. A target is its score plus noise times a standard normal number;
    a class is drawn from the softmax of scores / noise, which without noise is the largest score.
    """

    published = True

    samples: int = 1000
    """Rows."""
    features: int = 20
    """Columns."""
    noise: float = 0.1
    """Standard deviation of the noise; scores have variance 1."""
    task: Literal["classification", "regression"] = "regression"
    """Real targets, or classes."""
    classes: int | None = None
    """Number of classes, 10 by default, of classification."""
    dtype: Literal["float32", "uint8"] = "float32"
    """Type of the values."""

    def __post_init__(self) -> None:
        if self.task == "regression" and self.classes is not None:
            raise UsageError(f"--classes {self.classes}: regression has none; add --task classification")
        for name, low, high in (("samples", 1, MOST), ("features", 1, MOST), ("noise", 0, 1e30), ("classes", 2, MOST)):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UsageError(f"--{name} {value}: expected a number from {low} to {high}")

    def read(self, seed: int) -> Samples:
        """The data; each chunk of rows is a function of (seed, number of the chunk)."""
        X, labels = np.empty((self.samples, self.features), self.dtype), list[Array]()
        outputs = 1 if self.task == "regression" else self.classes or 10
        W = stream(seed, "weights of synthetic data").standard_normal((self.features, outputs))
        if self.dtype == "uint8":
            W -= W.mean(axis=0)  # the positive mean of the values would favour classes
            W *= np.sqrt(12) / 255
        weights = (W / np.sqrt(self.features)).astype(np.float32)
        for number, (_, rows) in enumerate(pieces(X)):
            rng = stream(seed, "rows of synthetic data", number)
            if self.dtype == "uint8":
                rows[:] = rng.integers(0, 256, rows.shape, np.uint8)
            else:
                rows[:] = rng.standard_normal(rows.shape, np.float32)
            scores = rows @ weights
            if self.task == "regression":
                y = scores[:, 0] + self.noise * rng.standard_normal(len(scores))
                labels.append(y.astype(np.float32).astype(np.float64))
            else:
                labels.append(np.argmax(scores + self.noise * rng.gumbel(size=scores.shape), axis=1))
        return Samples(X, np.concatenate(labels), top=255.0 if self.dtype == "uint8" else None)
