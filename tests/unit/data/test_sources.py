"""Sources without files: what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mpifed.data.sources import Dataset, Digits, Synthetic
from mpifed.data.sources import synthetic as synthetic_module


def rows(data: Dataset) -> Any:
    """All rows of a source in one array."""
    chunks = [X.toarray() if sparse.issparse(X) else X for X in data.chunks()]
    return np.concatenate(chunks)


def test_digits() -> None:
    data = Digits().read(0)
    X = rows(data)
    assert (X.shape, X.dtype, X.max()) == ((1797, 64), np.uint8, data.top)
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_synthetic_chunks_are_a_function_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic_module, "CHUNK_VALUES", 100)  # 20 rows a chunk
    data = Synthetic(samples=50, features=5).read(1)
    assert [len(X) for X in data.chunks()] == [20, 20, 10]
    assert np.array_equal(rows(data), rows(data))
    shorter = Synthetic(samples=45, features=5).read(1)
    assert np.array_equal(rows(shorter)[:40], rows(data)[:40])
    assert np.array_equal(shorter.labels[:40], data.labels[:40])
    assert not np.array_equal(rows(Synthetic(samples=50, features=5).read(2)), rows(data))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_classes(dtype: str) -> None:
    data = Synthetic(5000, 50, noise=0.2, task="classification", classes=4, dtype=dtype).read(0)
    X = rows(data)
    assert X.dtype == dtype
    counts = np.bincount(data.labels)
    assert len(counts) == 4
    assert counts.min() > 700  # none favoured: 1250 on average, and classes' scores differ in norm by chance
    # a linear model explains most labels, as they are planted by one
    centred = X.astype(np.float64) - X.mean(axis=0)
    weights = np.linalg.lstsq(centred, np.eye(4)[data.labels], rcond=None)[0]
    assert np.mean(np.argmax(centred @ weights, axis=1) == data.labels) > 0.7
