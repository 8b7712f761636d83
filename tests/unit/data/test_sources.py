"""Sources: what they give, and what is wrong with faulty files."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mpifed.core.errors import DataError
from mpifed.data.sources import Dataset, Digits, Mnist, Synthetic
from mpifed.data.sources import synthetic as synthetic_module
from mpifed.data.sources.mnist import read_idx

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip


def rows(data: Dataset) -> Any:
    """All rows of a source in one array."""
    chunks = [X.toarray() if sparse.issparse(X) else X for X in data.chunks()]
    return np.concatenate(chunks)


def test_digits() -> None:
    data = Digits().read(0)
    X = rows(data)
    assert (X.shape, X.dtype, X.max()) == ((1797, 64), np.uint8, data.top)
    assert np.bincount(data.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
HEADER = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4])
IDX = HEADER + IMAGES.tobytes()
MD5 = hashlib.md5(IDX).hexdigest()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"images{suffix}"
    path.write_bytes(PACKERS[suffix](IDX))
    assert np.array_equal(read_idx(path, IMAGES.shape, MD5), IMAGES)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (IDX[:-1], r"39 bytes, and a header for an array \(2, 3, 4\); expected 40 bytes"),
        (IDX[:9], r"9 bytes, and a header for an array \(\); expected 40 bytes"),
        (bytes([0, 0, 9, 3]) + IDX[4:], "starts with 00000903, .* with 00000803"),
        (IDX.replace(b"\0\0\0\2", b"\0\0\0\1"), r"an array \(1, 3, 4\); expected .* \(2, 3, 4\)"),
        (IDX[:-1] + b"\0", f"MD5 .*, expected {MD5}"),
        (b"", "starts with , an IDX file"),
    ],
)
def test_faulty_idx(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(path, IMAGES.shape, MD5)
    assert str(path) in str(caught.value)
    assert "get the original file" in str(caught.value)


def test_mnist(real_data: Path) -> None:
    data = Mnist(real_data / "mnist").read(0)
    assert data.test is not None
    assert rows(data).shape == (60000, 784)
    assert data.test[0].shape == (10000, 784)
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert len(data.files) == 4


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
