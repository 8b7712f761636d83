"""Errors of the operating system, explained: the only place that turns them into messages and exit codes."""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from errno import (
    EACCES,
    EDQUOT,
    EFBIG,
    EINVAL,
    EIO,
    EISDIR,
    EMFILE,
    ENAMETOOLONG,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    EPERM,
    EROFS,
    ESTALE,
)
from pathlib import Path
from typing import BinaryIO, TypeAlias

from mpifed.core.errors import DataError, MpifedError

PathLike: TypeAlias = str | os.PathLike[str]
_REMEDIES = {
    ENOSPC: "make room there, or name another folder",
    EDQUOT: "remove files of yours there, or name a folder with a larger quota",
    EFBIG: "raise the limit on the size of a file (`ulimit -f`), or name another file system",
    EROFS: "name a folder that can be written",
    EACCES: "name a folder and files that you may read and write",
    EPERM: "name a folder and files that you may read and write",
    EIO: "see whether the disk, or the connection to it, works",
    ESTALE: "see whether the folder was removed or its disk taken away",
    ENOENT: "see whether it, or the folder, was removed",
    ENOTDIR: "name a folder where one is expected",
    EISDIR: "name a file where one is expected",
    ENAMETOOLONG: "choose a shorter name",
    EMFILE: "raise the limit on open files (`ulimit -n`)",
}


def open_regular(path: PathLike) -> BinaryIO:
    """A regular file, to be read; OSError for anything else, since a pipe would keep its reader waiting for ever."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(EINVAL, "a pipe, a device or a folder, and no file", str(path))


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Add the file's name to an I/O error raised in here: errors of writing to an open file lack it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # of HDF5 there may be a text alone, which a name would take the place of
            error.filename = error.filename or str(path)
        raise


@contextmanager
def explaining() -> Iterator[None]:
    """Turn errors of the operating system raised in here into the errors of mpifed that explain them."""
    try:
        yield
    except (OSError, MemoryError) as error:
        known = explained(error)
        if known is None:
            raise
        raise known from error


def explained(error: BaseException) -> MpifedError | None:
    """The `MpifedError` for an error of the operating system; None for any other."""
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" in {frame.filename}, line {frame.lineno}" for frame in frames)
        return MpifedError(f"the program was left, by sys.exit({error.code!r}){where}; raise an exception instead")
    if isinstance(error, MemoryError):
        why = str(error) or "none is left"
        return MpifedError(f"not enough memory: {why}; take a smaller model, smaller batches or blocks, or more nodes")
    if not isinstance(error, OSError) or isinstance(error, BrokenPipeError):
        return None  # click ends a command in silence whose output nobody reads
    name, what = error.filename or "a file, or the output", os.strerror(error.errno) if error.errno else str(error)
    remedy = _REMEDIES.get(error.errno or 0, "see whether the file and its disk are as they should be")
    return DataError(f"{name if isinstance(name, str) else os.fsdecode(name)}: {what}; {remedy}")
