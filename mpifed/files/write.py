"""The one place where the package writes files: whoever reads one sees the old contents or the new ones.

A file has a random name beside its own, to which no link leads, until it is whole and on the disk. A process that is
killed before leaves it under that name, which nobody reads.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mpifed.core.errors import UsageError
from mpifed.core.io_errors import named_in_errors, open_regular

PART = re.compile(r"\.(.+)\.[0-9a-f]{16}\.new")  # that name; its group is the file's own


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """An empty file, open for writing and reading; without an error it is synced, and takes the place of `path`.

    Raises OSError with the name `path`; UsageError where `path` is a device or a pipe.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UsageError(f"{path}: is no regular file, and what is written would take its place; name another")
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with open(part, "x+b") as file:  # O_CREAT and O_EXCL: through no link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, str(part)):
            error.filename = str(path)
        with suppress(OSError):  # where the folder was removed, say
            part.unlink()
        raise


def replace_text(path: Path, text: str) -> None:
    """Write a text in place of what `path` holds."""
    with replaced(path) as file:
        file.write(text.encode())


def append(path: Path, content: bytes, sync: bool = False) -> None:
    """Add to the end of a file by a single write; `sync`: it is on the disk then. OSError where `path` is a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with named_in_errors(path), open(path, "ab", opener=lambda name, _: os.open(name, flags, 0o666)) as file:
        file.write(content)
        file.flush()
        if sync:
            os.fdatasync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    with named_in_errors(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
