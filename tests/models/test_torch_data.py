"""Data of PyTorch: what goes in comes out, of tensors, images of PIL and subsets."""

from __future__ import annotations

import numpy as np
import pytest
from federations import common, in_order, labelled

import mpifed as mf
from mpifed.core.record import Array
from mpifed.data.store import open_federation

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
from PIL import Image  # noqa: E402  # beside torch, whose test is first
from torch.utils.data import Dataset, Subset, TensorDataset  # noqa: E402

SAMPLES = 60
NUMBERS = torch.Generator().manual_seed(3)
PIXELS = torch.rand((SAMPLES, 2, 5, 4), generator=NUMBERS)
LABELS = torch.arange(SAMPLES) % 3


class Pictures(Dataset):  # type: ignore[misc]  # PyTorch's classes are of no type here
    """As of torchvision: images of PIL, and integers."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.pixels()[number]), int(LABELS[number])

    @staticmethod
    def pixels() -> Array:
        """[s, height, width, 3]."""
        return np.random.default_rng(4).integers(0, 256, (SAMPLES, 5, 4, 3), np.uint8)


def shards(data: mf.FederatedDataset) -> list[list[list[float]]]:
    """The rows of each client, and its labels last, in the order of their values."""
    folder = open_federation(data.path, verify=True)
    return [labelled(folder, client) for client in range(folder.clients)]


def expected(X: Array, y: Array, clients: list[Array]) -> list[list[list[float]]]:
    return [in_order(X[rows], y[rows]) for rows in clients]


def test_tensors_come_out_as_they_went_in() -> None:
    owner = np.arange(SAMPLES) * 7 % 4
    data = mf.FederatedDataset.from_torch(TensorDataset(PIXELS, LABELS), clients=owner)
    assert data.shape == (2, 5, 4) and data.classes == ("0", "1", "2")
    rows_of = [np.flatnonzero(owner == client) for client in range(4)]
    assert shards(data) == expected(PIXELS.numpy(), LABELS.numpy(), rows_of)


def test_subsets_are_for_training_and_for_testing() -> None:
    whole = TensorDataset(PIXELS, LABELS)
    train, test = Subset(whole, range(0, SAMPLES, 2)), Subset(whole, range(1, SAMPLES, 2))
    data = mf.FederatedDataset.from_torch(train, clients=1, test=test)
    assert shards(data) == expected(PIXELS[::2].numpy(), LABELS[::2].numpy(), [np.arange(SAMPLES // 2)])
    rows = common(open_federation(data.path), "float32")
    np.testing.assert_array_equal(rows[0], PIXELS[1::2].reshape(SAMPLES // 2, -1).numpy())
    np.testing.assert_array_equal(rows[1], LABELS[1::2].numpy())


def test_images_have_their_channels_first() -> None:
    data = mf.FederatedDataset.from_torch(Pictures(), clients=1, scale="none")
    assert data.shape == (3, 5, 4)
    assert shards(data) == expected(Pictures.pixels().transpose(0, 3, 1, 2), LABELS.numpy(), [np.arange(SAMPLES)])
