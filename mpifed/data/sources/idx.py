"""IDX, the format of MNIST, for the data sets that share it: Fashion-MNIST, KMNIST, EMNIST."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.sources.dataset import Dataset, Source, open_packed, whole

KINDS = ("train-images", "train-labels", "t10k-images", "t10k-labels")
_MOST_BYTES = 2**40


@dataclass(frozen=True)
class Idx(Source):
    """Images in IDX files, as of Fashion-MNIST: train-images and -labels, t10k- or test-images and -labels."""

    path: Path
    """The folder of the four files, .gz or plain; those of test rows may be absent."""

    def read(self, seed: int) -> Dataset:
        """The data; DataError when a file is missing or damaged, or images and labels do not fit each other."""
        parts, files = [], []
        for kind in ("train", "t10k"):
            images, labels = _find(self.path, f"{kind}-images"), _find(self.path, f"{kind}-labels")
            if images is None or labels is None:
                if kind == "train" or images or labels:
                    raise DataError(
                        f"{self.path}: no file *{kind}-{'labels' if images else 'images'}*; expected "
                        f"{', '.join(KINDS)}, with or without .gz"
                    )
                continue
            X, y = (_read(path, rank) for path, rank in ((images, 3), (labels, 1)))
            if len(X) != len(y) or not X.size:
                raise DataError(f"{images}: {len(X)} images of {X.shape[1:]} pixels, and {len(y)} labels in {labels}")
            parts.append((X, y.astype(np.int64)))
            files += [images, labels]
        (X, y), *rest = parts
        if rest and rest[0][0].shape[1:] != X.shape[1:]:
            raise DataError(f"{files[2]}: images of {rest[0][0].shape[1:]} pixels, others have {X.shape[1:]}")
        test = [(images.reshape(len(images), -1), labels) for images, labels in rest]
        return Dataset(
            X[0].size, np.uint8, y, whole(X.reshape(len(X), -1)), test[0] if test else None, top=255.0,
            files=tuple(files), shape=(1, *X.shape[1:]),
        )  # fmt: skip


def _find(folder: Path, kind: str) -> Path | None:
    """The file of a kind, whatever stands before and after."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}; expected a folder of IDX files") from error
    words = [kind, kind.replace("t10k", "test")]
    matching = [name for name in names if any(word in name.replace(".", "-") for word in words)]
    if len(matching) > 1:
        raise DataError(f"{folder}: {matching[0]} and {matching[1]}; put the files of one data set into a folder")
    return folder / matching[0] if matching else None


def _read(path: Path, rank: int) -> Array:
    content, header = idx_content(path, rank, "get the file again")
    shape = np.frombuffer(content[4:header], ">u4").tolist()
    values: Array = np.frombuffer(content, np.uint8, offset=header).reshape(shape)
    return values


def idx_content(path: Path, rank: int, remedy: str, shape: tuple[int, ...] | None = None) -> tuple[bytes, int]:
    """The content of a file of unsigned bytes in the IDX format, and the length of its header.

    Parameters
    ----------
    path : the file, packed or not
    rank : dimensions of its array
    remedy : what to do, for messages
    shape : expected; None for any

    Raises
    ------
    DataError : when the file has another magic number, shape or length.
    """
    header = 4 + 4 * rank
    size = None if shape is None else header + int(np.prod(shape))
    with open_packed(path) as file:
        content: bytes = file.read(header)
        came = tuple(np.frombuffer(content[4:header], ">u4").tolist()) if len(content) == header else ()
        claimed = header + int(np.prod([1, *came], dtype=object))
        # at most what was expected, or what is there, whatever the header states
        content += file.read((size if size is not None else min(claimed, _MOST_BYTES)) - header + 1)
    if content[:4] != bytes([0, 0, 8, rank]):
        raise DataError(
            f"{path}: starts with {content[:4].hex()}, an IDX file of unsigned bytes in {rank} dimensions with "
            f"0000080{rank}; {remedy}"
        )
    most = claimed if size is None else size
    if (shape is not None and came != shape) or len(content) != most:
        raise DataError(
            f"{path}: {f'more than {most}' if len(content) > most else len(content)} bytes, and a header for an array "
            f"{came}; expected {most} bytes{'' if shape is None else f' and {shape}'}; {remedy}"
        )
    return content, header
