"""Functions for sources that read files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.natural import distinct_names
from mpifed.data.samples import Samples

# of files in text or bytes
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


def numbers_rows(name: object) -> bool:
    """Whether a column of this name is the index of a frame of pandas or R, as files have it."""
    return bool(re.fullmatch(r"__index_level_\d+__|Unnamed: \d+(\.\d+)*|rownames|", str(name)))


@contextmanager
def open_packed(path: Path, mode: str = "rb") -> Iterator[IO[Any]]:  # of bytes or text
    """The content of a regular file, unpacked if its name ends in .gz, .bz2 or .xz; text if `mode` is "rt".

    Raises DataError when there is no such file, or it cannot be unpacked.
    """
    check_file(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield io.TextIOWrapper(file, "utf-8-sig") if mode == "rt" else file
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); save it as UTF-8") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read to its end ({error}); get the file again") from error


def check_file(path: Path) -> None:
    """Raise DataError unless `path` is a regular file: pipes and devices may have no end."""
    try:
        if not path.is_file():
            raise DataError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


class Part(NamedTuple):
    """Rows of a client."""

    client: str
    place: str  # for messages
    X: Array  # [s, ...]
    y: Array  # [s] numbers or texts, or [s, t] numbers

    @property
    def kind(self) -> str:
        """What the rows of all clients have in common."""
        pixels = "bytes" if self.X.dtype == np.uint8 else "numbers"
        labels = "texts" if self.y.dtype.kind == "U" else "numbers"
        return f"samples of {pixels} of shape {self.X.shape[1:]}, labels that are {labels} of shape {self.y.shape[1:]}"


def of_clients(path: Path | None, parts: Iterable[Part], clients: Sequence[str]) -> Samples:
    """The rows of those clients who have any; DataError where they differ in kind, or nobody has any.

    `clients`: what all of them are called.
    """
    owners, there = tuple(distinct_names(clients, str(path))), list[Part]()
    for part in parts:
        if not part.X.ndim or not part.y.ndim or len(part.X) != len(part.y):
            raise DataError(
                f"{part.place}: samples of shape {part.X.shape}, and labels of shape {part.y.shape}; expected a label "
                "for each sample"
            )
        if len(part.X):
            there.append(part)
    if not there:
        raise DataError(f"{path}: no rows of any client")
    for part in there:
        if part.kind != there[0].kind:
            raise DataError(f"{part.place}: {part.kind}; others have {there[0].kind}; correct them")
    ids = np.repeat([part.client for part in there], [len(part.X) for part in there])
    X, y = np.concatenate([part.X for part in there]), np.concatenate([part.y for part in there])
    return Samples(X, y, ids=ids, owners=owners)


def train_and_test(path: Path, test: Path | None = None) -> tuple[Path, Path | None]:
    """The places of training and of test rows: folders `train` and `test` of a folder, or the path itself."""
    if not (path / "train").is_dir():
        return path, test
    return path / "train", test or (path / "test" if (path / "test").is_dir() else None)


def check_choices(options: object) -> None:
    """Raise UsageError for a field of a few values that has another one, as from Python."""
    for name, hint in get_type_hints(type(options)).items():
        known = [choice for part in (hint, *get_args(hint)) if get_origin(part) is Literal for choice in get_args(part)]
        if known and (value := getattr(options, name)) not in (*known, None):
            raise UsageError(f"--{name} {value!r:.40}: expected one of {listed(known)}")


def files_in(path: Path, *endings: str) -> list[Path]:
    """The files of a folder whose names end so, in order; DataError where there are none."""
    files = sorted(file for file in path.glob("*") if file.name.endswith(endings))
    if not files:
        raise DataError(f"{path}: no file *{', *'.join(endings)}; expected a folder with some")
    return files


def listed(names: Iterable[object], most: int = 20) -> str:
    """Names separated by commas; of more than `most`, the first, and their number."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:most]) + (f", ... ({len(texts)} in all)" if len(texts) > most else "")
