"""IDX, the format of MNIST (LeCun, Cortes, Burges), Fashion-MNIST, KMNIST and EMNIST."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import open_packed, with_test
from mpifed.files.reading import reading
from mpifed.text import listed

MNIST = {  # MD5 of the packed files
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_TESTS = (("t10k-images", "test-images"), ("t10k-labels", "test-labels"))
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


@dataclass(frozen=True)
class Idx(Source):
    """Images in IDX files, as of Fashion-MNIST: train-images and -labels, t10k- or test-images and -labels."""

    path: Path
    """The folder of the four files, .gz or plain; those of test rows may be absent."""

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing or damaged, or images and labels do not fit each other."""
        found = [self._find(*words) for words in (("train-images",), ("train-labels",), *_TESTS)]
        files = [path for path in found if path]
        if len(files) not in (2, 4) or not all(found[:2]):
            there = listed(files) or "none"
            raise DataError(f"{self.path}: has {there}; expected *train-images*, *train-labels*, or t10k- as well")
        images, labels = (list(map(_read, files[at::2], [axes, axes])) for at, axes in enumerate((3, 1)))
        rows = (Samples(X[:, None], y) for X, y in zip(images, labels, strict=True))  # one channel
        return with_test(rows, files=tuple(files))

    def _find(self, *words: str) -> Path | None:
        """The file with one of these words, whatever stands before and after; the packed one, where both are there."""
        there = sorted(path for word in words for path in self.path.glob(f"*{word}*"))
        paths = {path.name.removesuffix(".gz"): path for path in there}
        if len(paths) > 1:
            raise DataError(f"{self.path}: {listed(paths)}: two files *{words[0]}*; give those of one data set")
        return there[-1] if there else None


@dataclass(frozen=True)
class Mnist(Source):
    """MNIST: 60,000 images of handwritten digits, and 10,000 to test with, of 784 pixels."""

    path: Path | None = None
    """The folder of the four files, .gz or plain; where absent $MPIFED_DATA/mnist, if it is there, or downloaded."""

    @property
    def published(self) -> bool:  # type: ignore[override]
        """Whether the files are those that everybody has; of a folder nobody says so."""
        return self.path is None

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing and cannot be downloaded."""
        folder = self.path or Path(os.environ.get("MPIFED_DATA") or os.devnull, "mnist")
        if self.path is None and not folder.is_dir():
            import pooch

            folder = pooch.os_cache("mpifed") / "mnist"  # of the user
            remedy = f"bring {', '.join(MNIST)} by `mpifed data mnist FOLDER`"
            with reading(MIRROR, remedy, OSError, ValueError):
                for name, md5 in MNIST.items():
                    pooch.retrieve(MIRROR + name, f"md5:{md5}", name, folder)
        return Idx(folder).read(seed)


def _read(path: Path, axes: int) -> Array:
    """The array of a file of unsigned bytes."""
    with open_packed(path) as file:
        content: bytes = file.read()
    header = 4 + 4 * axes
    shape = np.frombuffer(content[4:header].ljust(4 * axes, b"\0"), ">u4").tolist()
    if content[:4] != bytes([0, 0, 8, axes]) or len(content) != header + math.prod(shape):
        raise DataError(
            f"{path}: {len(content)} bytes that begin with {content[:4].hex()}, and a header for an array "
            f"{tuple(shape)}; expected IDX of unsigned bytes in {axes} dimensions; get the file again"
        )
    values: Array = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return values
