"""Images: CIFAR in its publisher's binary files, and folders of image files by class."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import files_in, open_packed, train_and_test, with_test
from mpifed.files.reading import reading

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # which no other program is started for


@dataclass(frozen=True)
class Cifar(Source):
    """CIFAR-10 or CIFAR-100: colour images of 32 x 32 pixels (Krizhevsky, 2009), in the publisher's "binary version".

    Labels of CIFAR-100 are the fine ones.
    """

    published = True

    path: Path
    """The folder in the archive, cifar-10-batches-bin or cifar-100-binary."""

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing or not whole."""
        meta, *_ = files_in(self.path, "batches.meta.txt", "fine_label_names.txt")
        start = 2 if meta.name.startswith("fine") else 1  # of the pixels of an image; its class is before them
        files = files_in(self.path, ".bin")
        train, test = (self._images([path for path in files if path.name.startswith("test") is tests], start)
                       for tests in (False, True))  # fmt: skip
        with open_packed(meta, "rt") as file:
            return replace(train, test=test, classes=tuple(file.read().split()), files=tuple(files))

    def _images(self, paths: list[Path], start: int) -> Samples:
        """The images of some files, each after its label."""
        parts = list[Array]()
        for path in paths:
            with open_packed(path) as file:
                content = np.frombuffer(file.read(), np.uint8)
            if len(content) % (start + 3072) or not len(content):
                raise DataError(f"{path}: {len(content)} bytes; expected {start + 3072} of each image; get it again")
            parts.append(content.reshape(-1, start + 3072))
        if not parts:
            raise DataError(f"{self.path}: no files of training, or none of test images; expected those of the archive")
        images = np.concatenate(parts)
        return Samples(images[:, start:].reshape(-1, 3, 32, 32), images[:, start - 1].astype(np.int64))


@dataclass(frozen=True)
class Images(Source):
    """Image files, all of one size, in folders by class, as FOLDER/cat/1.png.

    A folder may have folders `train` and `test` of such folders.
    """

    path: Path
    """The folder."""

    def read(self, seed: int) -> Samples:
        """The data; DataError for a file that is no image, or has another size."""
        paths = [sorted(place.glob("[!.]*/[!.]*")) for place in train_and_test(self.path)]
        if not paths[0]:
            raise DataError(f"{self.path}: no images; expected a folder for each class, as {self.path}/cat/1.png")
        images = [[_pixels(path) for path in part] for part in paths]
        for path, image in zip(itertools.chain(*paths), itertools.chain(*images), strict=True):
            if image.shape != images[0][0].shape:
                came, known = image.shape[:2], images[0][0].shape[:2]
                raise DataError(f"{path}: {came} pixels, {paths[0][0].name} has {known}; resize")
        colours = [np.stack(part).transpose(0, 3, 1, 2) for part in images]
        channels = 1 if all((part[:, :1] == part).all() for part in colours) else 3  # grey, or coloured
        return with_test(
            Samples(part[:, :channels], [path.parent.name for path in of])
            for part, of in zip(colours, paths, strict=True)
        )


def _pixels(path: Path) -> Array:
    """[height, width, 3] of an image file."""
    from PIL import Image, ImageOps

    if path.is_dir():
        raise DataError(f"{path}: a folder within that of a class; put its images there, or remove it")
    damaged = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    remedy = f"expected {', '.join(_FORMATS)}; remove it"
    with reading(path, remedy, *damaged), Image.open(path, formats=_FORMATS) as image:
        layout: Any = image.tile[0].args if image.tile else ""  # as RGB;16B, or (RGB, largest value)
        deep = ";16" in str(layout) or (image.format == "PPM" and isinstance(layout, tuple) and layout[1] > 255)
        if image.mode[0] in "IF" or deep:  # which become RGB by cutting off what is above 255, or bits
            raise ValueError(f"pixels of more than 8 bits, mode {image.mode}: give them by from_arrays")
        if (frames := getattr(image, "n_frames", 1)) > 1:
            raise ValueError(f"{frames} images in one file: give one of each")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))  # as a camera was held
