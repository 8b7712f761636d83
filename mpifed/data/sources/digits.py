"""Handwritten digits of 8 x 8 pixels, included in scikit-learn (UCI, Alpaydin and Kaynak)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifed.data.sources.dataset import Dataset, Source, whole


@dataclass(frozen=True)
class Digits(Source):
    """1,797 images of handwritten digits, 64 pixels from 0 to 16, from scikit-learn; no test rows."""

    def read(self, seed: int) -> Dataset:
        from sklearn.datasets import load_digits

        data = load_digits()
        X = data.data.astype(np.uint8)
        return Dataset(64, np.uint8, data.target, whole(X), top=16.0, names=tuple(data.feature_names), shape=(1, 8, 8))
