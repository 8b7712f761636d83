"""Sources without files: what they give."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.data.sources import Digits, Synthetic
from mpifed.data.sources import synthetic as synthetic_module


def test_digits() -> None:
    data = Digits().read(0)
    X = data.X
    assert (X.shape, X.dtype, X.max()) == ((1797, 64), np.uint8, data.top)
    assert np.bincount(data.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_synthetic_chunks_are_a_function_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_module, "CHUNK_VALUES", 100)  # 20 rows a chunk
    data = Synthetic(samples=50, features=5).read(1)
    assert np.array_equal(data.X, Synthetic(samples=50, features=5).read(1).X)
    shorter = Synthetic(samples=45, features=5).read(1)
    assert np.array_equal(shorter.X[:40], data.X[:40])
    assert np.array_equal(shorter.y[:40], data.y[:40])
    assert not np.array_equal(Synthetic(samples=50, features=5).read(2).X, data.X)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_classes(dtype: str) -> None:
    data = Synthetic(5000, 50, noise=0.2, task="classification", classes=4, dtype=dtype).read(0)
    X = data.X
    assert X.dtype == dtype
    counts = np.bincount(data.y)
    assert len(counts) == 4
    assert counts.min() > 700  # none favoured: 1250 on average, and classes' scores differ in norm by chance
    # a linear model explains most labels, as they are planted by one
    centred = X.astype(np.float64) - X.mean(axis=0)
    weights = np.linalg.lstsq(centred, np.eye(4)[data.y], rcond=None)[0]
    assert np.mean(np.argmax(centred @ weights, axis=1) == data.y) > 0.7
