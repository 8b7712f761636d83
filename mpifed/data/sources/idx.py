"""IDX, the format of MNIST (LeCun, Cortes, Burges), Fashion-MNIST, KMNIST and EMNIST."""

from __future__ import annotations

import hashlib
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

UNPACKED = {  # MD5 of the files' content
    "train-images": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels": "a25bea736e30d166cdddb491f175f624",
    "t10k-images": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels": "27ae3e4e09519cfbb04c329615203637",
}
KINDS = tuple(UNPACKED)
_FILES = f"{', '.join(KINDS)}, with or without .gz"
MNIST = {  # MD5 of the packed files
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


@dataclass(frozen=True)
class Idx(Source):
    """Images in IDX files, as of Fashion-MNIST: train-images and -labels, t10k- or test-images and -labels."""

    path: Path
    """The folder of the four files, .gz or plain; those of test rows may be absent."""

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing or damaged, or images and labels do not fit each other."""
        paths = [_find(self.path, kind) for kind in KINDS]
        there = [path for path in paths if path is not None]
        wanted = KINDS if paths[2] or paths[3] else KINDS[:2]
        if len(there) < len(wanted):
            kind = KINDS[paths.index(None)]
            raise DataError(f"{self.path}: no folder with a file *{kind}*; expected {_FILES}")
        images, labels = (list(map(_read, there[at::2], [axes, axes])) for at, axes in enumerate((3, 1)))
        parts = (Samples(X[:, None], y) for X, y in zip(images, labels, strict=True))  # one channel
        return with_test(parts, files=tuple(there))


@dataclass(frozen=True)
class Mnist(Source):
    """MNIST: 60,000 images of handwritten digits, and 10,000 to test with, of 784 pixels."""

    path: Path | None = None
    """The folder of the four files, .gz or plain; where absent $MPIFED_DATA/mnist, if it is there, or downloaded."""

    @property
    def published(self) -> bool:  # type: ignore[override]
        """Whether the files of a folder have the content that everybody has."""
        folder = self.path
        return folder is None or all(_md5_of(_find(folder, kind)) == md5 for kind, md5 in UNPACKED.items())

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


def _md5_of(path: Path | None) -> str:
    """The MD5 of what a file holds, unpacked."""
    if path is None:
        return ""
    with open_packed(path) as file:
        return hashlib.md5(file.read()).hexdigest()


def _find(folder: Path, kind: str) -> Path | None:
    """The file of a kind, whatever stands before and after; the packed one, where both are there."""
    paths = [path for word in (kind, kind.replace("t10k", "test")) for path in sorted(folder.glob(f"*{word}*"))]
    found = list({path.name.removesuffix(".gz"): path for path in paths}.values())
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1].name}: two files *{kind}*; put those of one data set into a folder")
    return found[0] if found else None


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
