"""MNIST (LeCun, Cortes, Burges): 60,000 + 10,000 images of 28 x 28 pixels, from IDX files or downloaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.sources.dataset import Dataset, Source, whole
from mpifed.data.sources.download import cache_folder, fetch, own_folder
from mpifed.data.sources.idx import idx_content

# name: (shape, MD5 of the unpacked file)
FILES = {
    "train-images-idx3-ubyte": ((60000, 28, 28), "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ((60000,), "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ((10000, 28, 28), "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ((10000,), "27ae3e4e09519cfbb04c329615203637"),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


@dataclass(frozen=True)
class Mnist(Source):
    """MNIST: 60,000 images of handwritten digits, and 10,000 to test with, of 784 pixels."""

    path: Path | None = None
    """The folder of the four files, .gz or plain; where absent $MPIFED_DATA/mnist, if it is there, or downloaded."""
    mirrors: tuple[str, ...] = MIRRORS  # not an option

    def read(self, seed: int) -> Dataset:
        """The data; DataError when a file is missing and cannot be downloaded, or is not the original."""
        folder = self.path or own_folder("mnist")
        files = tuple(self._find(folder or cache_folder("mnist"), name, folder is not None) for name in FILES)
        X, y, test_X, test_y = (read_idx(file, *FILES[name]) for file, name in zip(files, FILES, strict=True))
        X, test_X = (images.reshape(len(images), -1) for images in (X, test_X))
        test = test_X, test_y.astype(np.int64)
        return Dataset(
            X.shape[1], np.uint8, y.astype(np.int64), whole(X), test, top=255.0, files=files, shape=(1, 28, 28)
        )

    def _find(self, folder: Path, name: str, own: bool) -> Path:
        """The file of that name, packed or not, downloaded if necessary, but not into the user's own folder."""
        packed = folder / f"{name}.gz"
        for path in (packed, folder / name):
            if path.is_file():
                return path
        remedy = f"put {', '.join(FILES)}, each with or without .gz, into "
        if own:
            raise DataError(f"{packed}: no such file; {remedy}{folder}")
        try:
            fetch(packed, [mirror + packed.name for mirror in self.mirrors], lambda part: read_idx(part, *FILES[name]))
        except DataError as error:
            raise DataError(f"{error}; {remedy}{folder}, or into any folder for `mpifed data mnist FOLDER`") from error
        return packed


def read_idx(path: Path, shape: tuple[int, ...], md5: str) -> Array:
    """The array of a file of unsigned bytes in the IDX format.

    Parameters
    ----------
    path : the file, packed or not
    shape : expected
    md5 : of the unpacked file, in hexadecimal digits

    Returns
    -------
    [*shape] uint8

    Raises
    ------
    DataError : when the file has another magic number, shape, length or checksum.
    """
    remedy = "get the original file of MNIST again"
    content, header = idx_content(path, len(shape), remedy, shape)
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != md5:
        raise DataError(f"{path}: MD5 of the unpacked content is {digest}, expected {md5}; {remedy}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
