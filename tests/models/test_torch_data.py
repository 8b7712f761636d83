"""Data of PyTorch: what goes in comes out, of tensors, images of PIL and subsets."""

from __future__ import annotations

import numpy as np
import pytest
from federations import common, in_order, labelled

import mpifed as mf
from mpifed.data.store import open_federation

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
from PIL import Image  # noqa: E402  # beside torch, whose test is first
from torch.utils.data import Dataset, Subset, TensorDataset  # noqa: E402

SAMPLES = 60
TENSORS = torch.rand((SAMPLES, 2, 5, 4), generator=torch.Generator().manual_seed(3))
PIXELS = np.random.default_rng(4).integers(0, 256, (SAMPLES, 5, 4, 3), np.uint8)
LABELS = np.arange(SAMPLES) % 3


class Pictures(Dataset):  # type: ignore[misc]  # PyTorch's classes are of no type here
    """As of torchvision: images of PIL, and integers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        return Image.fromarray(PIXELS[number]), int(LABELS[number])


@pytest.mark.parametrize("kind", ["tensors", "pictures"])
@pytest.mark.parametrize("clients", [1, np.arange(30) * 7 % 4], ids=["one", "of rows"])
def test_subsets_are_for_training_and_for_testing(kind: str, clients: int | np.ndarray) -> None:
    """Images have their channels first."""
    whole = TensorDataset(TENSORS, torch.as_tensor(LABELS)) if kind == "tensors" else Pictures()
    X = TENSORS.numpy() if kind == "tensors" else PIXELS.transpose(0, 3, 1, 2)
    train, test = Subset(whole, range(0, SAMPLES, 2)), Subset(whole, range(1, SAMPLES, 2))
    data = mf.FederatedDataset.from_torch(train, clients=clients, test=test, scale="none")
    folder = open_federation(data.path, verify=True)
    assert data.shape == X.shape[1:] and data.classes == ("0", "1", "2")
    owner = np.broadcast_to(np.subtract(clients, 1) if isinstance(clients, int) else clients, 30)
    for client in range(folder.clients):
        rows = np.flatnonzero(owner == client)
        assert labelled(folder, client) == in_order(X[::2][rows], LABELS[::2][rows])
    assert in_order(*common(folder, "float32")) == in_order(X[1::2], LABELS[1::2])


@pytest.mark.parametrize("fraction", [0.2, np.float32(0.2), np.float64(0.2)], ids=repr)
def test_a_fraction_may_be_of_numpy(fraction: float) -> None:
    data = mf.FederatedDataset.from_torch(Pictures(), clients=1, test=fraction)
    assert open_federation(data.path).test_samples == 12
