"""Images: CIFAR in its publisher's binary files, and folders of image files by class."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import check_file, original, train_and_test

MIRROR = "https://www.cs.toronto.edu/~kriz/"
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # which no other program is started for
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar10(Source):
    """CIFAR-10: 50,000 colour images of 32 x 32 pixels in 10 classes, and 10,000 to test with (Krizhevsky, 2009)."""

    archive: Path | None = field(default=None, metadata={"option": "from"})
    """The publisher's "binary version", cifar-10-binary.tar.gz; without it it is downloaded."""
    name: ClassVar[str] = "cifar-10-binary.tar.gz"
    md5: ClassVar[str] = "c32a1d4ab5d03f1284b67883e8d87530"
    train: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    test: ClassVar[str] = "test_batch.bin"
    meta: ClassVar[str] = "batches.meta.txt"
    labels: ClassVar[int] = 1  # bytes of an image before its pixels; the last one is its class

    def read(self, seed: int) -> Samples:
        """The data; DataError when the archive cannot be downloaded, or is not the original."""
        remedy = f"`mpifed data ... --from {self.name}`"
        path = self.archive or original("cifar", self.name, self.md5, (MIRROR,), remedy)
        check_file(path)
        digest = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
        if digest != self.md5:
            raise DataError(f"{path}: MD5 is {digest}, expected {self.md5}; get the original {self.name} again")
        with tarfile.open(path) as tar:
            files = {PurePosixPath(member.name).name: tar.extractfile(member) for member in tar if member.isfile()}
            content = {name: file.read() for name, file in files.items() if file is not None}
        classes = tuple(content[self.meta].decode().split())
        rows, test = (self._images(b"".join(content[name] for name in names)) for names in (self.train, [self.test]))
        return Samples(*rows, Samples(*test), classes=classes, files=(path,))

    def _images(self, content: bytes) -> tuple[Array, Array]:
        """(pixels [s, 3, 32, 32], classes [s]) of a file."""
        values = np.frombuffer(content, np.uint8).reshape(-1, self.labels + _PIXELS)
        return values[:, self.labels :].reshape(-1, 3, 32, 32), values[:, self.labels - 1].astype(np.int64)


@dataclass(frozen=True)
class Cifar100(Cifar10):
    """CIFAR-100: as CIFAR-10, in 100 classes, the fine ones."""

    archive: Path | None = field(default=None, metadata={"option": "from"})
    """The publisher's "binary version", cifar-100-binary.tar.gz; without it it is downloaded."""
    name: ClassVar[str] = "cifar-100-binary.tar.gz"
    md5: ClassVar[str] = "03b5dce01913d631647c71ecec9e9cb8"
    train: ClassVar[tuple[str, ...]] = ("train.bin",)
    test: ClassVar[str] = "test.bin"
    meta: ClassVar[str] = "fine_label_names.txt"
    labels: ClassVar[int] = 2


@dataclass(frozen=True)
class Images(Source):
    """Image files, all of one size, in folders by class, as FOLDER/cat/1.png.

    A folder may have folders `train` and `test` of such folders.
    """

    path: Path
    """The folder."""

    def read(self, seed: int) -> Samples:
        """The data; DataError for a file that is no image, or has another size."""
        folders = [folder for folder in train_and_test(self.path) if folder is not None]
        paths = [path for folder in folders for path in sorted(folder.glob("*/*"))]
        if inner := [path for path in paths if path.is_dir()]:
            raise DataError(f"{inner[0]}: a folder within that of a class; put its images there, or remove it")
        count = sum(folders[0] in path.parents for path in paths)
        if not count:
            raise DataError(f"{self.path}: no images; expected a folder for each class, as {self.path}/cat/1.png")
        images = [_pixels(path) for path in paths]
        for path, image in zip(paths, images, strict=True):
            if image.shape != images[0].shape:
                raise DataError(f"{path}: {image.shape[:2]} pixels, {paths[0].name} has {images[0].shape[:2]}; resize")
        X, labels = np.stack(images).transpose(0, 3, 1, 2), [path.parent.name for path in paths]
        X = X[:, :1] if (X[:, :1] == X).all() else X  # grey
        return Samples(X[:count], labels[:count], Samples(X[count:], labels[count:]) if count < len(X) else None)


def _pixels(path: Path) -> Array:
    """[height, width, 3] of an image file."""
    from PIL import Image

    try:
        with Image.open(path, formats=_FORMATS) as image:
            layout: Any = image.tile[0].args if image.tile else ""  # as RGB;16B, or (RGB, largest value)
            deep = ";16" in str(layout) or (image.format == "PPM" and isinstance(layout, tuple) and layout[1] > 255)
            if image.mode[0] in "IF" or deep:  # which become RGB by cutting off what is above 255, or bits
                raise ValueError(f"pixels of more than 8 bits, mode {image.mode}: give them by from_arrays")
            if (frames := getattr(image, "n_frames", 1)) > 1:
                raise ValueError(f"{frames} images in one file: give one of each")
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: no image ({error}); expected {', '.join(_FORMATS)}; remove it") from error
