"""Colour images as their makers publish them: CIFAR-10 and CIFAR-100 (binary version)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.sources.dataset import Dataset, Source, check_file, whole

PIXELS = 3 * 32 * 32  # red, green, blue, each row by row
CIFAR10 = ([f"data_batch_{number}.bin" for number in range(1, 6)], "test_batch.bin")
CIFAR100 = (["train.bin"], "test.bin")
PICKLED = {"data_batch_1": "cifar-10-binary.tar.gz", "train": "cifar-100-binary.tar.gz"}
_ROWS = 2**20  # most of a file; the original ones have 10,000 to 50,000


@dataclass(frozen=True)
class Cifar(Source):
    """CIFAR-10 or CIFAR-100, the binary version: images of 3 x 32 x 32 pixels. The folder says which."""

    path: Path
    """The unpacked folder, cifar-10-batches-bin or cifar-100-binary."""
    labels_of: Literal["fine", "coarse"] = "fine"
    """CIFAR-100: the 100 classes, or their 20 groups."""

    def read(self, seed: int) -> Dataset:
        """The data; DataError when a file is missing or damaged, or of the version that would be executed."""
        is_100 = (self.path / CIFAR100[0][0]).is_file()
        names, test = CIFAR100 if is_100 else CIFAR10
        names = [name for name in names if (self.path / name).is_file()]
        if not names:
            raise DataError(self._other_files())
        paths = [self.path / name for name in [*names, test]]
        parts = [self._read(path, 2 if is_100 else 1) for path in paths]
        X, y = (np.concatenate(values) for values in zip(*parts[:-1], strict=True))
        return Dataset(
            PIXELS, np.uint8, y, whole(X), parts[-1], top=255.0, files=tuple(paths), shape=(3, 32, 32)
        )  # fmt: skip

    def _other_files(self) -> str:
        for name, archive in PICKLED.items():
            if (self.path / name).is_file():
                return (
                    f"{self.path / name}: the Python version of CIFAR, a pickle, which could execute anything; get "
                    f"{archive}, the binary version, from the same page, and unpack it"
                )
        return (
            f"{self.path}: no file {CIFAR10[0][0]} or {CIFAR100[0][0]}; expected the unpacked folder of "
            "cifar-10-binary.tar.gz or cifar-100-binary.tar.gz"
        )

    def _read(self, path: Path, labels: int) -> tuple[Array, Array]:
        check_file(path)
        size = path.stat().st_size
        if not size or size % (labels + PIXELS) or size // (labels + PIXELS) > _ROWS:
            raise DataError(f"{path}: {size} bytes; expected {labels + PIXELS} for each image; get the file again")
        rows = np.fromfile(path, np.uint8).reshape(-1, labels + PIXELS)
        at = 1 if labels == 2 and self.labels_of == "fine" else 0
        return rows[:, labels:], rows[:, at].astype(np.int64)
