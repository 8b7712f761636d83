"""Handwritten digits of 8 x 8 pixels, included in scikit-learn (UCI, Alpaydin and Kaynak)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpifed.data.samples import Samples, Source


@dataclass(frozen=True)
class Digits(Source):
    """1,797 images of handwritten digits, 64 pixels from 0 to 16, from scikit-learn; no test rows."""

    published = True

    def read(self, seed: int) -> Samples:
        from sklearn.datasets import load_digits

        data = load_digits()
        return Samples(
            data.data.astype(np.uint8), data.target, names=tuple(data.feature_names), shape=(1, 8, 8), top=16.0
        )
