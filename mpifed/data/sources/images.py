"""Images: CIFAR in its publisher's binary files, and folders of image files by class."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import files_in, open_packed, train_and_test, with_test
from mpifed.files.reading import reading

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # which no other program is started for
_VALUES = 3 * 32 * 32


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
        labels = 1 + meta.name.startswith("fine")  # bytes before the pixels of an image, of which the last counts
        files = files_in(self.path, ".bin")
        parts: tuple[list[Array], list[Array]] = [], []
        for path in files:
            with open_packed(path) as file:
                content = np.frombuffer(file.read(), np.uint8)
            if len(content) % (labels + _VALUES) or not len(content):
                raise DataError(
                    f"{path}: {len(content)} bytes; expected {labels + _VALUES} of each image; get it again"
                )
            parts[path.name.startswith("test")].append(content.reshape(-1, labels + _VALUES))
        with reading(self.path, "expected files of training and of test images", ValueError):
            images = [np.concatenate(part) for part in parts]
        with open_packed(meta, "rt") as file:
            classes = tuple(file.read().split())
        rows = (Samples(part[:, labels:].reshape(-1, 3, 32, 32), part[:, labels - 1]) for part in images)
        return with_test(rows, classes=classes, files=tuple(files))


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
        images = {path: _pixels(path) for path in itertools.chain(*paths)}
        first = images[paths[0][0]].shape
        for path, image in images.items():
            if image.shape != first:
                raise DataError(f"{path}: {image.shape[:2]} pixels, {paths[0][0].name} has {first[:2]}; resize")
        colours = [np.stack([images[path] for path in part]).transpose(0, 3, 1, 2) for part in paths]
        channels = 1 if all((part[:, :1] == part).all() for part in colours) else 3  # grey, or coloured
        rows = (
            Samples(part[:, :channels], [path.parent.name for path in of])
            for part, of in zip(colours, paths, strict=True)
        )
        return with_test(rows)


def _pixels(path: Path) -> Array:
    """[height, width, 3] of an image file."""
    from PIL import Image, ImageOps

    damaged = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    remedy = f"expected {', '.join(_FORMATS)}, in a folder for each class; remove it"
    with reading(path, remedy, *damaged), Image.open(path, formats=_FORMATS) as image:
        if image.mode[0] in "IF" or ";16" in str(image.tile):  # which become RGB by cutting off what is above 255
            raise ValueError(f"pixels of more than 8 bits, mode {image.mode}: give them by from_arrays")
        if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] < 255:
            raise ValueError("transparent pixels, which have no colour: paint them on a background")
        if getattr(image, "n_frames", 1) > 1:
            raise ValueError("several images in one file: give one of each")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))  # as a camera was held
