"""IDX, the format of MNIST (LeCun, Cortes, Burges), Fashion-MNIST, KMNIST and EMNIST."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import open_packed, original

KINDS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
# MD5 of MNIST's files, packed and unpacked
MNIST = {
    "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


@dataclass(frozen=True)
class Idx(Source):
    """Images in IDX files, as of Fashion-MNIST: train-images and -labels, t10k- or test-images and -labels."""

    path: Path
    """The folder of the four files, .gz or plain; those of test rows may be absent."""

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing or damaged, or images and labels do not fit each other."""
        found = {kind: path for kind in KINDS if (path := _find(self.path, kind))}
        missing = [kind for kind in KINDS if kind not in found]
        if missing not in ([], [*KINDS[2:]]):
            raise DataError(
                f"{self.path}: no folder with a file *{missing[0]}*; expected {', '.join(KINDS)}, with or without .gz"
            )
        arrays = [_read(path, 1 if "labels" in kind else 3) for kind, path in found.items()]
        rows, *test = (Samples(X[:, None], y) for X, y in zip(arrays[::2], arrays[1::2], strict=True))  # one channel
        return replace(rows, test=test[0] if test else None, files=tuple(found.values()))


@dataclass(frozen=True)
class Mnist(Source):
    """MNIST: 60,000 images of handwritten digits, and 10,000 to test with, of 784 pixels."""

    path: Path | None = None
    """The folder of the four files, .gz or plain; where absent $MPIFED_DATA/mnist, if it is there, or downloaded."""
    mirrors: tuple[str, ...] = MIRRORS  # not an option

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing and cannot be downloaded, or is not the original."""
        folder = self.path or Path(os.environ.get("MPIFED_DATA") or os.devnull, "mnist")
        if self.path is None and not folder.is_dir():
            remedy = f"`mpifed data mnist FOLDER`, with {', '.join(MNIST)}, with or without .gz"
            found = [original("mnist", f"{name}.gz", md5, self.mirrors, remedy) for name, (md5, _) in MNIST.items()]
            folder = found[0].parent
        data = Idx(folder).read(seed)
        if data.test is None:
            raise DataError(f"{folder}: no file *{KINDS[2]}*; expected {', '.join(MNIST)}, with or without .gz")
        for path, (_, md5) in zip(data.files, MNIST.values(), strict=True):
            with open_packed(path) as file:
                digest = hashlib.md5(file.read(), usedforsecurity=False).hexdigest()
            if digest != md5:
                raise DataError(
                    f"{path}: MD5 of the unpacked content is {digest}, expected {md5}; get the original file of MNIST "
                    "again, or read another data set by `mpifed data idx FOLDER`"
                )
        return data


def _find(folder: Path, kind: str) -> Path | None:
    """The file of a kind, whatever stands before and after; the packed one, where both are there."""
    paths = sorted(path for word in (kind, kind.replace("t10k", "test")) for path in folder.glob(f"*{word}*"))
    found = list({path.name.removesuffix(".gz"): path for path in paths}.values())
    if len(found) > 1:
        raise DataError(f"{found[0]} and {found[1].name}: two files *{kind}*; put those of one data set into a folder")
    return found[0] if found else None


def _read(path: Path, axes: int) -> Array:
    """The array of a file of unsigned bytes."""
    with open_packed(path) as file:
        content: bytes = file.read()
    first, header = bytes([0, 0, 8, axes]), 4 + 4 * axes
    if content[:4] != first:
        raise DataError(
            f"{path}: starts with {content[:4].hex()}, an IDX file of unsigned bytes in {axes} dimensions with "
            f"{first.hex()}; get the file again"
        )
    shape = np.frombuffer(content[4:header].ljust(4 * axes, b"\0"), ">u4").tolist()
    size = header + math.prod(shape)
    if len(content) != size:
        raise DataError(
            f"{path}: {len(content)} bytes, and a header for an array {tuple(shape)}; expected {size} bytes; get the "
            "file again"
        )
    values: Array = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return values
