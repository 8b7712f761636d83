"""Functions for sources that read files."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.data.natural import distinct_names
from mpifed.data.places import Places
from mpifed.data.samples import Samples, Values, as_trained, stack_rows, stored_rows
from mpifed.files.reading import reading
from mpifed.text import listed

# of files in text or bytes
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@contextmanager
def open_packed(path: Path, mode: str = "rb") -> Iterator[IO[Any]]:  # of bytes or text
    """The content of a regular file, unpacked if its name ends in .gz, .bz2 or .xz; text if `mode` is "rt".

    Raises DataError when there is no such file, or it cannot be unpacked to its end.
    """
    damaged = (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError)
    unpacked = _OPENERS.get(path.suffix.lower(), nullcontext)
    with (
        reading(path, "get the file again; save text as UTF-8", *damaged),
        open_regular(path) as packed,
        unpacked(packed) as file,
    ):
        yield io.TextIOWrapper(file, "utf-8-sig") if mode == "rt" else file


Part: TypeAlias = tuple[str, str, Values, Values]  # a client, what messages call its rows, these, and their labels


def of_clients(
    what: object,
    parts: Sequence[Part],
    clients: Iterable[str],
    task: str = "auto",
    shape: tuple[int, ...] | None = None,
) -> Samples:
    """The rows, up to texts as they are stored, of those clients who have any, and whose they are.

    Raises DataError where nobody has rows, or those of a part are wrong, or of another kind than those of the first
    whose labels are integers, if there is one.

    Parameters
    ----------
    clients : what all of them are called
    shape : of a sample, if that of X is another one
    """
    owners = distinct_names(clients, str(what))
    there = [part for part in parts if np.shape(part[3])[:1] != (0,)]
    if not there:
        raise DataError(f"{what}: no rows of any client")
    known = None if task == "auto" else task  # of a few rows it can't be said whether their many integers are classes
    given = [(place, Samples(X, y, shape=shape)) for _, place, X, y in there]
    stored = [stored_rows(place, rows, rows, known) for place, rows in given]
    first = next((rows for rows in stored if rows.y.dtype.kind == "i"), stored[0])
    stored = [as_trained(place, first, rows) for (place, _), rows in zip(given, stored, strict=True)]
    sizes = {f"{place}: y": len(rows.y) for (place, _), rows in zip(given, stored, strict=True)}
    ids = np.repeat([client for client, *_ in there], [*sizes.values()])
    X, y = stack_rows([rows.X for rows in stored]), np.concatenate([rows.y for rows in stored])
    return replace(stored[0], X=X, y=y, ids=ids, owners=tuple(owners), places=Places(sizes))


def train_and_test(path: Path, test: Path | None = None) -> list[Path]:
    """The places of training rows and, if there are some, of test rows: folders `train` and `test`, or the path."""
    if (path / "train").is_dir():
        path, test = path / "train", test or next(path.glob("test"), None)
    return [path] if test is None else [path, test]


def check_choices(options: object) -> None:
    """Raise UsageError for a field of a few values that has another one, as from Python."""
    for name, hint in get_type_hints(type(options)).items():
        known = [choice for part in (hint, *get_args(hint)) if get_origin(part) is Literal for choice in get_args(part)]
        if known and (value := getattr(options, name)) not in (*known, None):
            raise UsageError(f"--{name} {value!r:.40}: expected one of {listed(known)}")


def files_in(path: Path, *endings: str) -> list[Path]:
    """The files of a folder whose names end so, in order; DataError where there are none."""
    files = sorted(file for file in path.glob("*") if file.name.lower().endswith(endings))
    if not files:
        raise DataError(f"{path}: no file *{', *'.join(endings)}; expected a folder with some")
    return files


def with_test(parts: Iterable[Samples], **more: Any) -> Samples:  # fields of Samples
    """Training rows, with the test rows behind them, if there are some, and other fields."""
    rows, *test = parts
    return replace(rows, test=test[0] if test else None, **more)
