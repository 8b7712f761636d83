"""Noise on features, of another strength for each client."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from federations import common, held

from mpifed.data.store import open_federation
from mpifed.python.arrays import FederatedDataset

S, P, N = 3000, 20, 4


def rows_of(folder: Path) -> list[np.ndarray]:
    """X [s, p] of each client."""
    federation = open_federation(folder)
    return [held(federation, client, dtype="f4") for client in range(federation.clients)]


def test_variance_grows_with_the_client(tmp_path: Path) -> None:
    X, y = np.full((S, P), 6.0, np.float32), np.arange(S) % 3
    data = {"clients": N, "scale": "unit", "test": (X[:5], y[:5])}
    FederatedDataset.from_arrays(X, y, out=tmp_path / "noisy", feature_noise=0.4, **data)
    noise = [X - 1 for X in rows_of(tmp_path / "noisy")]  # of columns that are 1 when scaled
    for client, of_client in enumerate(noise):
        expected = 0.4 * (client + 1) / N
        assert of_client.var() == pytest.approx(expected, rel=4 * np.sqrt(2 / of_client.size))  # four standard errors
        assert abs(of_client.mean()) < 4 * np.sqrt(expected / of_client.size)
    apart = np.corrcoef(noise[0][:500].ravel(), noise[1][:500].ravel())[0, 1]
    assert abs(apart) < 4 / np.sqrt(500 * P)
    assert (common(open_federation(tmp_path / "noisy"))[0] == 1).all()


def test_the_seed_settles_it_however_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = np.random.default_rng(0).random((S, P), np.float32), np.arange(S) % 3
    FederatedDataset.from_arrays(X, y, clients=N, out=tmp_path / "a", feature_noise=1.0, seed=3)
    monkeypatch.setattr("mpifed.data.samples.CHUNK_VALUES", 7 * P)
    FederatedDataset.from_arrays(X, y, clients=N, out=tmp_path / "b", feature_noise=1.0, seed=3)
    FederatedDataset.from_arrays(X, y, clients=N, out=tmp_path / "c", feature_noise=1.0, seed=4)
    a, b, c = (rows_of(tmp_path / name) for name in "abc")
    assert all(np.array_equal(one, other) for one, other in zip(a, b, strict=True))
    assert not np.array_equal(a[0], c[0])
