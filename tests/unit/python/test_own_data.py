"""Data from Python: identifiers of clients, frames with texts and gaps, datasets of PyTorch, partitioners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from federations import held
from scipy import sparse

import mpifed as mf
from mpifed.data.store import Federation, open_federation

RNG = np.random.default_rng(2)
X, Y = RNG.random((40, 2, 3)).astype("f4"), RNG.integers(0, 3, 40)
WHO = RNG.choice(["b", "a", "c"], 40)


def folder(data: mf.FederatedDataset) -> Federation:
    return open_federation(data.path, verify=True)


def rows(data: Federation, client: int) -> list[list[float]]:
    return sorted(held(data, client, dtype="f4").tolist())


@pytest.mark.parametrize(
    "form", [lambda X: X, lambda X: sparse.csr_matrix(X.reshape(len(X), -1))], ids=["dense", "csr"]
)
@pytest.mark.parametrize("test", [None, 0.25])
def test_whose_each_sample_is(form: Callable[[Any], Any], test: float | None) -> None:
    order = RNG.permutation(40)
    first = folder(mf.FederatedDataset.from_arrays(form(X), Y, clients=WHO, test=test))
    second = folder(mf.FederatedDataset.from_arrays(form(X[order]), Y[order], clients=list(WHO[order]), test=test))
    assert first.client_names() == ("a", "b", "c") and first.sha256 == second.sha256
    assert first.samples + first.test_samples == 40
    if test is None:
        assert rows(first, 1) == sorted(X[WHO == "b"].reshape(-1, 6).tolist())


class Images:
    """As a map-style dataset of PyTorch has it."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return X[number], int(Y[number])


def test_a_dataset_of_pytorch() -> None:
    data = mf.FederatedDataset.from_torch(Images(30), test=Images(8), clients=WHO[:30])
    assert data.shape == (2, 3) and folder(data).test_samples == 8
    assert rows(folder(data), 0) == sorted(X[:30][WHO[:30] == "a"].reshape(-1, 6).tolist())
    with pytest.raises(mf.DataError, match=r"from_torch: list: .*expected __len__, and __getitem__ that gives pairs"):
        mf.FederatedDataset.from_torch([1, 2], clients=2)
    for items, message in (
        ([{"image": X[0], "label": 1}], "an item is a dict with the keys image, label; expected .* from_arrays takes"),
        ([(X[0], 1, 0)], "an item is a tuple; expected"),
    ):
        with pytest.raises(mf.DataError, match=message):
            mf.FederatedDataset.from_torch(items, clients=1)
