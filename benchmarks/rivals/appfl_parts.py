"""What APPFL loads from a file by name: the network, a client's data, the metric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from common import shards
from torch.utils.data import TensorDataset
from torch_parts import Network

__all__ = ["Network", "accuracy", "dataset"]


def dataset(folder: str, client: int, held_out: int = 0) -> tuple[TensorDataset, TensorDataset | None]:
    """The training data of a client, and so many rows to validate with."""
    x, y = shards(Path(folder), range(client, client + 1))[0]
    data = torch.from_numpy(x), torch.from_numpy(y)
    return TensorDataset(*data), TensorDataset(*(part[:held_out] for part in data)) if held_out else None


def accuracy(true: np.ndarray, scores: np.ndarray) -> float:
    """The share of rows whose label has the highest score."""
    return float((scores.argmax(axis=1) == true).mean())
